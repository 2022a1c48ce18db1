//! Connections that the network led to the gateway: the name comes out of the connection, the policy
//! decides on it, and the address that was dialled is never dialled again.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};

use outgate_tests::guest::{Ending, exchange, read_response, read_to_end};
use outgate_tests::harness::{PUBLIC, ProxyWorld, SANDBOX, lab};

/// Where the rules of the network lead everything that goes to [`ANYWHERE`].
const REDIRECT: &str = "127.0.0.1:3129";
const TPROXY: &str = "127.0.0.1:3130";
/// An address of nobody's: what a wildcard name server of the operator answers for every name.
const ANYWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
const ANYWHERE_V6: &str = "2001:db8::1";

const RULES: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/public/**"] }
  - id: a-clear
    action: allow
    to: { hosts: [a.test], private: true }
    protocol: http
    http: { paths: ["/clear/**"] }
  - id: raw
    action: allow
    to: { hosts: [raw.test], ports: [443], private: true }
    protocol: tcp
"#;

/// The rules of the network. Every address is this host's own already, so nothing has to be routed.
const NFT: &str = "
table ip led {
  chain out {
    type nat hook output priority -100;
    ip daddr 198.51.100.0/24 meta l4proto tcp redirect to :3129
    # Only what a test sends from there: the gateway itself goes to this address too.
    ip saddr 127.0.0.9 ip daddr 192.0.1.80 meta l4proto tcp redirect to :3129
  }
  chain arrived {
    type filter hook prerouting priority mangle;
    ip daddr 203.0.113.0/24 meta l4proto tcp tproxy to 127.0.0.1:3130 accept
  }
}
table ip6 led {
  chain out {
    type nat hook output priority -100;
    ip6 daddr 2001:db8::/32 meta l4proto tcp redirect to :3131
  }
}
";

/// A gateway with both transparent listeners, and a network that leads to them. `None`, and said so,
/// where this machine has no `nft`.
fn world(rules: &str) -> Option<ProxyWorld> {
    if std::process::Command::new("nft")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("SKIPPED: there is no `nft` here; `apt-get install nftables`");
        return None;
    }
    let lab = lab();
    let rules_file = lab.folder().join("led.nft");
    std::fs::write(&rules_file, NFT).expect("written");
    let output = std::process::Command::new("nft")
        .arg("-f")
        .arg(&rules_file)
        .output();
    let output = output.expect("it runs");
    assert!(
        output.status.success(),
        "nft: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let configuration = format!(
        "version: 1\ntransparent:\n  - name: redirected\n    listen: {REDIRECT}\n    mode: redirect\n    sandbox: {SANDBOX}\n\
         \x20 - name: proxied\n    listen: {TPROXY}\n    mode: tproxy\n    sources: {{ 0.0.0.0/0: {SANDBOX} }}\n\
         \x20 - name: v6\n    listen: \"[::1]:3131\"\n    mode: redirect\n    sources: {{ \"::/0\": {SANDBOX} }}\n\
         sandboxes:\n  - id: {SANDBOX}\n    policies: [policy.yaml]\n"
    );
    Some(ProxyWorld::in_lab(lab, rules, &configuration))
}

fn curl(
    world: &ProxyWorld,
    address: &str,
    url: &str,
    options: &[&str],
) -> outgate_tests::guest::Reply {
    let to = format!("::{address}:");
    world.curl_by(&["--connect-to", &to, "--noproxy", "*"], url, options)
}

/// The address in each of the networks.
const EVERYWHERE: [&str; 3] = ["198.51.100.1", "203.0.113.7", "[2001:db8::1]"];

#[test]
fn c01_the_name_decides_and_the_dialled_address_is_never_dialled() {
    let Some(world) = world(RULES) else { return };
    for address in EVERYWHERE {
        for version in ["--http1.1", "--http2"] {
            curl(&world, address, "https://a.test/public/x", &[version]).expect_status(200);
            let denied = curl(&world, address, "https://a.test/secret", &[version]);
            let record = world
                .audit()
                .decision(&denied.expect_denied(403, "default_deny"));
            assert_eq!(
                (record.text("ingress"), record.text("host")),
                ("transparent", "a.test")
            );
            assert_eq!(record.number("port"), 443);
        }
        curl(&world, address, "http://a.test/clear/x", &[]).expect_status(200);
    }
    assert_eq!(world.lab.journal.all().len(), 9);
    for record in world.audit().records() {
        assert!(!record.text("peer").starts_with("198.51"), "{record:?}");
    }
}

#[test]
fn b006_clear_text_to_unlisted_names_is_told_why() {
    let Some(world) = world(RULES) else { return };
    for address in EVERYWHERE {
        let denied = curl(&world, address, "http://evil.test/?q=token", &[]);
        denied.expect_denied(403, "default_deny");
    }
    let record = world.audit().denial("default_deny", "evil.test");
    assert_eq!(record.text("ingress"), "transparent");
    // What is no request is told too, and each request names the same host.
    let mut stream = world.connect_to((ANYWHERE, 80).into()).expect("led");
    let (answer, _) = exchange(
        &mut stream,
        b"GET /x HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
    );
    assert!(
        answer.starts_with(b"HTTP/1.1 400 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let mut stream = world.connect_to((ANYWHERE, 80).into()).expect("led");
    let (answer, _) = exchange(
        &mut stream,
        b"GET /clear/x HTTP/1.1\r\nHost: a.test:81\r\n\r\n",
    );
    assert!(
        answer.starts_with(b"HTTP/1.1 421 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(world.lab.journal.all(), []);
    assert_eq!(world.lab.dns.queries(), []);
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn b001_b034_without_a_name_only_rules_for_addresses_count() {
    let Some(world) = world(RULES) else { return };
    for address in [
        SocketAddr::new(ANYWHERE, 443),
        SocketAddr::new(ANYWHERE_V6.parse().expect("v6"), 443),
    ] {
        let stream = world.connect_to(address).expect("led");
        world
            .handshake(stream, None, "a.test", &["http/1.1"])
            .expect_err("no name");
        let record = world.audit().wait_for("no SNI", |record| {
            record.text("reason") == "sni_missing" && record.text("host") == address.to_string()
        });
        assert_eq!(
            (record.text("verdict"), record.text("sandbox.id")),
            ("deny", SANDBOX)
        );
    }
    let stream = world.connect_to((ANYWHERE, 443).into()).expect("led");
    world
        .handshake(stream, Some("evil.test"), "evil.test", &["h2"])
        .expect_err("not allowed");
    world.audit().denial("default_deny", "evil.test");
    // Bytes that name nobody, by an address that no rule names.
    for bytes in [&b"\x00\x01\x02"[..], b"\x05\x01\x00"] {
        let mut stream = world.connect_to((ANYWHERE, 5432).into()).expect("led");
        let (answer, ending) = exchange(&mut stream, bytes);
        assert_eq!((answer, ending), (Vec::new(), Ending::Broken));
    }
    world.audit().denial("default_deny", &ANYWHERE.to_string());
    assert_eq!(world.lab.dns.queries(), []);
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn rules_for_addresses_open_addresses() {
    let rules = "
rules:
  - id: by-address
    action: allow
    to: { ips: [192.0.1.80], ports: [443] }
  - id: stream-by-address
    action: allow
    to: { ips: [192.0.1.80], ports: [80] }
    protocol: tcp
";
    let Some(world) = world(rules) else { return };
    let from = "127.0.0.9:0".parse().expect("an address");
    let led = |port| {
        world
            .connect_from(from, SocketAddr::from((PUBLIC, port)))
            .expect("led")
    };
    let mut tls = world
        .handshake(led(443), None, &PUBLIC.to_string(), &["http/1.1"])
        .expect("TLS");
    write!(tls, "GET /x HTTP/1.1\r\nHost: {PUBLIC}\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut tls).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    // A byte stream is passed on as it is.
    let mut stream = led(80);
    write!(
        stream,
        "GET /y HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n"
    )
    .expect("written");
    let (answer, _) = read_to_end(&mut stream);
    assert!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    drop(stream);
    assert_eq!(world.lab.journal.all().len(), 2);
    let flow = world.audit().wait_for("the stream's end", |record| {
        record.text("kind") == "flow_close"
    });
    assert_eq!(flow.text("ingress"), "transparent");
    // A name in TLS is for rules about names, and there is none.
    world
        .handshake(led(443), Some("a.test"), "a.test", &["http/1.1"])
        .expect_err("no rule");
    world.audit().denial("default_deny", "a.test");
}

#[test]
fn c16_the_listener_itself_is_nowhere_to_go() {
    let Some(world) = world(RULES) else { return };
    for listener in [REDIRECT, TPROXY] {
        let mut stream = world
            .connect_to(listener.parse().expect("an address"))
            .expect("a connection");
        let (answer, _) = exchange(
            &mut stream,
            b"GET /clear/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
        );
        assert_eq!(answer, b"", "{listener}");
        world.audit().denial("gateway_address", listener);
    }
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn c11_a_hello_in_pieces_is_one_hello() {
    let Some(world) = world(RULES) else { return };
    let mut stream = world.connect_to((ANYWHERE, 443).into()).expect("led");
    // A request head, byte by byte, is the same as one in one piece.
    for byte in b"GET /clear/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" {
        stream.write_all(&[*byte]).expect("written");
    }
    let (answer, _) = read_to_end(&mut stream);
    // Clear text on the port of an https rule.
    assert_eq!(answer, b"");
    world.audit().denial("not_tls", "a.test");
    let mut stream = world.connect_to((ANYWHERE, 80).into()).expect("led");
    for byte in b"GET /clear/x HTTP/1.1\r\nHost: a.test\r\n\r\n" {
        stream.write_all(&[*byte]).expect("written");
    }
    let (head, _) = read_response(&mut stream).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop(stream);
    let mut silent = world.connect_to((ANYWHERE, 443).into()).expect("led");
    silent
        .set_read_timeout(Some(std::time::Duration::from_secs(20)))
        .expect("set");
    // Nothing is waited for longer than ten seconds.
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
    world.audit().wait_for("an idle connection", |record| {
        record.text("reason") == "connection_idle"
    });
}
