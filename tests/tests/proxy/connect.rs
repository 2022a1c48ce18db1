//! CONNECT: nothing is connected before the destination was judged, and what comes through a tunnel
//! is judged like a flow of a link.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use outgate_tests::guest::{Ending, exchange, read_response, read_to_end};
use outgate_tests::harness::{PROXY, ProxyWorld, authorization};

const RULES: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/public/**"] }
  - id: c-all
    action: allow
    to: { hosts: ["*.c.test"], private: true }
"#;

/// Sends `head`, with the sandbox's credential, and gives back the stream and the answer's head.
fn connect(world: &ProxyWorld, request_line: &str, fields: &str) -> (TcpStream, String) {
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    write!(stream, "{request_line}\r\n{fields}{credential}\r\n").expect("written");
    let (head, _) = read_response(&mut stream).expect("an answer");
    (stream, head)
}

/// An open tunnel to `target`.
fn tunnel(world: &ProxyWorld, target: &str) -> TcpStream {
    let (stream, head) = connect(
        world,
        &format!("CONNECT {target} HTTP/1.1"),
        &format!("Host: {target}\r\n"),
    );
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        !head.to_ascii_lowercase().contains("content-length"),
        "{head}"
    );
    stream
}

#[track_caller]
fn nothing_left(world: &ProxyWorld) {
    assert_eq!(world.lab.journal.all(), [], "something was forwarded");
    assert_eq!(world.lab.dns.queries(), [], "a name was resolved");
    assert_eq!(world.lab.sink.all(), [], "the sink was touched");
}

#[test]
fn b010_a_precise_host_is_enough_and_each_request_inside_is_judged() {
    let world = ProxyWorld::new(RULES);
    for version in ["--http1.1", "--http2"] {
        world
            .curl("https://a.test/public/x", [version])
            .expect_status(200);
        let denied = world.curl("https://a.test/secret", [version]);
        let id = denied.expect_denied(403, "default_deny");
        let record = world.audit().decision(&id);
        assert_eq!(record.text("ingress"), "explicit_proxy");
        assert_eq!(
            (record.text("host"), record.text("path")),
            ("a.test", "/secret")
        );
        assert_eq!(record.text("sandbox.id"), "s1");
    }
    let received = world.lab.journal.all();
    assert_eq!(received.len(), 2);
    for received in received {
        assert_eq!(received.authority.as_deref(), Some("a.test"));
        assert!(
            received
                .headers
                .iter()
                .all(|(name, _)| !name.starts_with("proxy-")),
            "{received:?}"
        );
    }
}

#[test]
fn b007_unlisted_and_unknown_names_get_403_before_200() {
    let world = ProxyWorld::new(RULES);
    for target in [
        "evil.test:443",
        "nx.test:443",
        "a.test:8443",
        "10.9.8.7:443",
        "[::1]:443",
        "a.test:22",
    ] {
        let (mut stream, head) = connect(
            &world,
            &format!("CONNECT {target} HTTP/1.1"),
            &format!("Host: {target}\r\n"),
        );
        assert!(head.starts_with("HTTP/1.1 403 "), "{target}: {head}");
        assert_eq!(
            read_to_end(&mut stream),
            (Vec::new(), Ending::Closed),
            "{target}"
        );
    }
    let record = world.audit().denial("default_deny", "evil.test");
    assert_eq!(
        (record.text("kind"), record.text("ingress")),
        ("flow", "explicit_proxy")
    );
    nothing_left(&world);
}

#[test]
fn a_denied_tunnel_says_why_in_the_form_that_is_asked_for() {
    let world = ProxyWorld::new(RULES);
    let json = "Host: evil.test\r\nAccept: application/json\r\n";
    let (_, head) = connect(&world, "CONNECT evil.test:443 HTTP/1.1", json);
    let header = |name: &str| {
        let found = head.lines().find_map(|line| line.strip_prefix(name));
        found
            .unwrap_or_else(|| panic!("{name} in {head}"))
            .trim()
            .to_owned()
    };
    assert_eq!(header("content-type:"), "application/json");
    let record = world.audit().decision(&header("x-outgate-decision:"));
    assert_eq!(record.text("reason"), "default_deny");
    let mut stream = world.connect().expect("a connection");
    let head = format!(
        "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n{}\r\n",
        authorization()
    );
    let (answer, _) = exchange(&mut stream, head.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.contains("request: CONNECT evil.test:443\n"),
        "{answer}"
    );
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
}

#[test]
fn c03_b005_odd_targets_are_400_before_policy_and_dns() {
    let world = ProxyWorld::new(RULES);
    let targets = [
        "evil.test\0.c.test:443",
        "evil.test%00.c.test:443",
        "evil.test\t.c.test:443",
        "evil.test\x7f.c.test:443",
        "evil.test\x0b.c.test:443",
        "ａ.test:443",
        "a。test:443",
        ".a.test:443",
        "a..test:443",
        "a.test..:443",
        "user@a.test:443",
        "a.test",
        "a.test:",
        "a.test:0443x",
        "0x7f.1:443",
        "2130706433:443",
        "https://a.test:443",
    ];
    for target in targets {
        let (_, head) = connect(&world, &format!("CONNECT {target} HTTP/1.0"), "");
        assert!(head.starts_with("HTTP/1.1 400 "), "{target:?}: {head}");
    }
    let escaped = world
        .audit()
        .denial("bad_host", r"evil.test\x00.c.test:443");
    assert_eq!(escaped.text("sandbox.id"), "s1");
    // A bare CR ends the head's reading itself.
    let mut stream = world.connect().expect("a connection");
    let (answer, ending) = exchange(
        &mut stream,
        b"CONNECT evil.test\r.c.test:443 HTTP/1.1\r\n\r\n",
    );
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    assert_eq!(ending, Ending::Closed);
    nothing_left(&world);
}

#[test]
fn c03_spellings_of_one_name_are_one_name() {
    let world = ProxyWorld::new(RULES);
    for target in ["A.TEST:443", "a.test.:443"] {
        let tunnel = tunnel(&world, target);
        let mut tls = world
            .handshake(tunnel, Some("a.test"), "a.test", &["http/1.1"])
            .expect("TLS");
        write!(tls, "GET /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
        let (head, _) = read_response(&mut tls).expect("answered");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    for received in world.lab.journal.all() {
        assert_eq!(received.sni.as_deref(), Some("a.test"));
    }
}

#[test]
fn b045_c01_three_names_that_differ() {
    let world = ProxyWorld::new(RULES);
    // Another name in TLS than in CONNECT.
    let stream = tunnel(&world, "a.test:443");
    let error = world.handshake(stream, Some("evil.test"), "evil.test", &["http/1.1"]);
    error.expect_err("no handshake");
    world.audit().denial("sni_mismatch", "a.test");
    // Another name in Host than in both.
    let stream = tunnel(&world, "a.test:443");
    let mut tls = world
        .handshake(stream, Some("a.test"), "a.test", &["http/1.1"])
        .expect("TLS");
    let (answer, _) = exchange(
        &mut tls,
        b"GET /public/x HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n",
    );
    assert!(
        answer.starts_with(b"HTTP/1.1 421 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    // An address that a name would hide.
    let sink = format!("{}:443", world.lab.sink_address());
    let (_, head) = connect(
        &world,
        &format!("CONNECT {sink} HTTP/1.1"),
        &format!("Host: {sink}\r\n"),
    );
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    nothing_left(&world);
    // No name in TLS: the one of CONNECT is as good.
    let stream = tunnel(&world, "a.test:443");
    let mut tls = world
        .handshake(stream, None, "a.test", &["http/1.1"])
        .expect("TLS");
    write!(tls, "GET /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut tls).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[test]
fn c01_clear_text_in_a_tunnel_to_an_https_port_is_cut() {
    let world = ProxyWorld::new(RULES);
    let mut stream = tunnel(&world, "a.test:443");
    let (answer, _) = exchange(
        &mut stream,
        b"GET /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    );
    assert_eq!(answer, b"");
    world.audit().denial("not_tls", "a.test");
    let mut stream = tunnel(&world, "a.test:443");
    let (answer, _) = exchange(&mut stream, b"SSH-2.0-OpenSSH_9\r\n");
    assert_eq!(answer, b"");
    nothing_left(&world);
}

#[test]
fn c10_b026_a_tunnel_is_no_way_out_of_the_rules() {
    let world = ProxyWorld::new(RULES);
    let stream = tunnel(&world, "a.test:443");
    let mut tls = world
        .handshake(stream, Some("a.test"), "a.test", &["http/1.1"])
        .expect("TLS");
    let inner = b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n";
    let (answer, ending) = exchange(&mut tls, inner);
    assert!(
        answer.starts_with(b"HTTP/1.1 403 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(ending, Ending::Closed);
    world
        .curl("https://a.test/admin", ["--data", "x=1"])
        .expect_denied(403, "default_deny");
    nothing_left(&world);
}

#[test]
fn c16_b021_the_gateway_is_never_a_destination() {
    let rules = r#"
rules:
  - id: everything-local
    action: allow
    to: { ips: ["127.0.0.0/8"], ports: [443, 3128], private: true }
    protocol: tcp
  - id: by-name
    action: allow
    to: { hosts: [self.c.test], ports: [443, 3128], private: true }
    protocol: tcp
"#;
    let world = ProxyWorld::new(rules);
    world.lab.dns.set("self.c.test", &[PROXY.ip()]);
    for target in [PROXY.to_string(), format!("self.c.test:{}", PROXY.port())] {
        let (_, head) = connect(
            &world,
            &format!("CONNECT {target} HTTP/1.1"),
            &format!("Host: {target}\r\n"),
        );
        assert!(head.starts_with("HTTP/1.1 403 "), "{target}: {head}");
    }
    let refused = world.audit().wait_for("a refused dial", |record| {
        record.text("kind") == "flow_close" && record.text("reason") == "gateway_address"
    });
    assert_eq!(refused.text("ingress"), "explicit_proxy");
}

#[test]
fn a_byte_stream_goes_through_and_a_failed_dial_is_no_200() {
    let rules = r#"
rules:
  - id: raw
    action: allow
    to: { hosts: [raw.test, closed.c.test], ports: [443, 444], private: true }
    protocol: tcp
"#;
    let world = ProxyWorld::new(rules);
    let mut stream = tunnel(&world, "raw.test:443");
    // Sent in one piece with the head, or behind the answer: nothing is lost.
    stream.write_all(b"hello").expect("written");
    drop(stream);
    world
        .lab
        .dns
        .set("closed.c.test", &["127.0.0.2".parse().expect("an address")]);
    let (_, head) = connect(
        &world,
        "CONNECT closed.c.test:444 HTTP/1.1",
        "Host: closed.c.test:444\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

#[test]
fn what_is_sent_ahead_of_the_answer_is_part_of_the_tunnel() {
    let rules = "
rules:
  - id: clear
    action: allow
    to: { hosts: [a.test], private: true }
    protocol: http
";
    let world = ProxyWorld::new(rules);
    let mut stream = world.connect().expect("a connection");
    let all = format!(
        "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n{}\r\nGET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n",
        authorization()
    );
    stream.write_all(all.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 2, "{answer}");
    assert_eq!(world.lab.journal.all().len(), 1);
}
