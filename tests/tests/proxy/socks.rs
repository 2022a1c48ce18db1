//! SOCKS5: a name is judged as a name, an address as an address, and nothing but CONNECT is served.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use outgate_tests::guest::read_response;
use outgate_tests::harness::{PROXY, ProxyWorld, SANDBOX, TOKEN};

const RULES: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/public/**"] }
  - id: c
    action: allow
    to: { hosts: ["*.c.test"], private: true }
"#;

/// A connection that proved its sandbox.
fn proven(world: &ProxyWorld) -> TcpStream {
    let mut stream = world.connect().expect("a connection");
    stream.write_all(&[5, 1, 2]).expect("written");
    assert_eq!(read(&mut stream, 2), [5, 2]);
    stream
        .write_all(&password(SANDBOX, TOKEN))
        .expect("written");
    assert_eq!(read(&mut stream, 2), [1, 0]);
    stream
}

fn password(user: &str, password: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).expect("short");
    [
        &[1, length(user)],
        user.as_bytes(),
        &[length(password)],
        password.as_bytes(),
    ]
    .concat()
}

fn request(command: u8, name: &[u8], port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("short");
    [&[5, command, 0, 3, length], name, &port.to_be_bytes()].concat()
}

#[track_caller]
fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).expect("an answer");
    bytes
}

/// The reply code to a request on a connection of its own.
#[track_caller]
fn reply(world: &ProxyWorld, request: &[u8]) -> u8 {
    let mut stream = proven(world);
    stream.write_all(request).expect("written");
    let reply = read(&mut stream, 10);
    assert_eq!((reply[0], &reply[2..]), (5, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
    reply[1]
}

#[track_caller]
fn nothing_left(world: &ProxyWorld) {
    assert_eq!(world.lab.journal.all(), []);
    assert_eq!(world.lab.dns.queries(), [], "a name was resolved");
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn curl_is_served_by_name() {
    let world = ProxyWorld::new(RULES);
    let user = format!("{SANDBOX}:{TOKEN}");
    let proxy = PROXY.to_string();
    let way = ["--socks5-hostname", &proxy, "--proxy-user", &user];
    for version in ["--http1.1", "--http2"] {
        world
            .curl_by(&way, "https://a.test/public/x", [version])
            .expect_status(200);
        let denied = world.curl_by(&way, "https://a.test/secret", [version]);
        let record = world
            .audit()
            .decision(&denied.expect_denied(403, "default_deny"));
        assert_eq!(
            (record.text("ingress"), record.text("host")),
            ("socks5", "a.test")
        );
    }
    let refused = world.curl_by(&way, "https://evil.test/", [""; 0]);
    assert_eq!(refused.curl, 97, "{refused:?}");
    assert_eq!(
        world
            .audit()
            .denial("default_deny", "evil.test")
            .text("ingress"),
        "socks5"
    );
    assert_eq!(world.lab.journal.all().len(), 2);
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn c03_b005_odd_domains_are_refused_before_policy_and_dns() {
    let world = ProxyWorld::new(RULES);
    for name in [
        &b"evil.test\0.c.test"[..],
        b"evil.test%00.c.test",
        b"evil.test\t.c.test",
        b"evil.test\r\n.c.test",
        b"evil.test\x7f.c.test",
        b"evil.test .c.test",
        b"a\xff.c.test",
        "ａ.c.test".as_bytes(),
        "a。c.test".as_bytes(),
        b".c.test",
        b"a..c.test",
        b"x.c.test..",
        b"0x7f.1",
        b"2130706433",
        b"",
    ] {
        assert_eq!(
            reply(&world, &request(1, name, 443)),
            2,
            "{}",
            name.escape_ascii()
        );
    }
    let record = world
        .audit()
        .denial("bad_host", r"evil.test\x00.c.test:443");
    assert_eq!(
        (record.text("sandbox.id"), record.text("ingress")),
        (SANDBOX, "socks5")
    );
    nothing_left(&world);
}

#[test]
fn b034_an_address_is_not_the_name_that_leads_there() {
    let world = ProxyWorld::new(RULES);
    let address = world.lab.origin_address().octets();
    let by_address = [&[5, 1, 0, 1][..], &address, &443_u16.to_be_bytes()].concat();
    assert_eq!(reply(&world, &by_address), 2);
    // As text, and in IPv6 clothes.
    let text = world.lab.origin_address().to_string();
    assert_eq!(reply(&world, &request(1, text.as_bytes(), 443)), 2);
    let mapped = world.lab.origin_address().to_ipv6_mapped().octets();
    let mapped = [&[5, 1, 0, 4][..], &mapped, &443_u16.to_be_bytes()].concat();
    assert_eq!(reply(&world, &mapped), 2);
    world.audit().denial("default_deny", &text);
    nothing_left(&world);
}

#[test]
fn only_connect_is_served() {
    let world = ProxyWorld::new(RULES);
    for command in [2, 3, 0, 255] {
        assert_eq!(
            reply(&world, &request(command, b"a.test", 443)),
            7,
            "{command}"
        );
    }
    let record = world
        .audit()
        .wait_for("BIND", |record| record.text("detail").contains("command 2"));
    assert_eq!(record.text("host"), "a.test:443");
    let mut stream = proven(&world);
    stream.write_all(&[5, 1, 0, 9]).expect("written");
    assert_eq!(read(&mut stream, 2), [5, 8]);
    nothing_left(&world);
}

#[test]
fn a_wrong_credential_ends_the_connection_and_is_counted() {
    let world = ProxyWorld::new(RULES);
    for (user, token) in [
        (SANDBOX, "wrong"),
        ("nobody", TOKEN),
        ("", ""),
        (SANDBOX, ""),
    ] {
        let mut stream = world.connect().expect("a connection");
        stream.write_all(&[5, 2, 0, 2]).expect("written");
        assert_eq!(read(&mut stream, 2), [5, 2], "no credential is not enough");
        stream.write_all(&password(user, token)).expect("written");
        assert_eq!(read(&mut stream, 2), [1, 1]);
        assert_eq!(stream.read(&mut [0]).expect("closed"), 0);
    }
    let mut stream = world.connect().expect("a connection");
    stream.write_all(&[5, 1, 0]).expect("written");
    assert_eq!(read(&mut stream, 2), [5, 255]);
    let wrong = |record: &outgate_tests::harness::Record| {
        record.text("kind") == "client_refused"
            && record.text("detail").contains("proves no sandbox")
    };
    world.audit().wait_for("wrong credentials", wrong);
    let (_, home, lab) = world.terminate();
    let told: u64 = home
        .audit()
        .records()
        .iter()
        .filter(|record| wrong(record))
        .map(|record| record.number("count"))
        .sum();
    assert_eq!(told, 4);
    assert_eq!(lab.dns.queries(), []);
}

#[test]
fn c01_what_comes_through_is_judged_like_a_flow() {
    let world = ProxyWorld::new(RULES);
    let mut stream = proven(&world);
    stream
        .write_all(&request(1, b"A.TEST.", 443))
        .expect("written");
    assert_eq!(read(&mut stream, 2), [5, 0]);
    read(&mut stream, 8);
    world
        .handshake(stream, Some("evil.test"), "evil.test", &["http/1.1"])
        .expect_err("no handshake");
    world.audit().denial("sni_mismatch", "a.test");
    // All of it at once, with the ClientHello behind it.
    let mut stream = world.connect().expect("a connection");
    let all = [
        &[5, 1, 2][..],
        &password(SANDBOX, TOKEN),
        &request(1, b"a.test", 443),
    ]
    .concat();
    stream.write_all(&all).expect("written");
    assert_eq!(
        read(&mut stream, 14),
        [5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    );
    let mut tls = world
        .handshake(stream, None, "a.test", &["http/1.1"])
        .expect("TLS");
    write!(tls, "GET /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut tls).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(
        world.lab.journal.all()[0].authority.as_deref(),
        Some("a.test")
    );
}

#[test]
fn a_socket_of_its_own_needs_no_credential() {
    let listeners = format!(
        "proxies:\n  - name: own\n    listen: {PROXY}\n    sandbox: {SANDBOX}\n    protocols: [socks5]\n"
    );
    let world = ProxyWorld::with(RULES, &listeners);
    let proxy = format!("socks5h://{PROXY}");
    world
        .curl_by(&["--proxy", &proxy], "https://a.test/public/x", [""; 0])
        .expect_status(200);
    // What the listener does not take is on its sandbox's record.
    let http = format!("http://{PROXY}");
    let refused = world.curl_by(&["--proxy", &http], "http://a.test/", [""; 0]);
    assert_eq!(refused.status, None);
    let record = world
        .audit()
        .wait_for("a reject", |record| record.text("kind") == "reject");
    assert_eq!(record.text("sandbox.id"), SANDBOX);
}
