//! Where a request says it goes: one host in one spelling, one form of target, and the same
//! authority as the connection it came on.

use std::io::Write as _;

use outgate_tests::guest::{Ending, exchange, read_response};
use outgate_tests::harness::World;

use crate::raw::{rejected, send, status};

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

#[test]
fn c06_hosts_are_exactly_one() {
    let world = World::new(RULES);
    rejected(
        &world,
        &[
            "GET /public/x HTTP/1.1\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost:\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nHost: evil.test\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test, evil.test\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test:443:443\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test:0443x\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: user@a.test\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test/\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: .a.test\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a..test\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test..\r\n\r\n",
        ],
    );
}

#[test]
fn b005_hosts_with_odd_bytes_are_no_hosts() {
    let world = World::new(RULES);
    let hosts = [
        "evil.test\0.c.test",
        "evil.test%00.c.test",
        "evil.test\t.c.test",
        "evil.test\x7f.c.test",
        "evil.test\x0b.c.test",
        "evil.test .c.test",
        "evil.test\\.c.test",
        "ａ.c.test",
        "a。c.test",
        "xn--\u{fffd}.c.test",
    ];
    let mut requests: Vec<_> = hosts
        .iter()
        .map(|h| format!("GET /public/x HTTP/1.1\r\nHost: {h}\r\n\r\n"))
        .collect();
    requests.push(format!(
        "GET / HTTP/1.1\r\nHost: {}.c.test\r\n\r\n",
        "l".repeat(64)
    ));
    requests.push(format!(
        "GET / HTTP/1.1\r\nHost: {}c.test\r\n\r\n",
        "l.".repeat(130)
    ));
    rejected(
        &world,
        &requests.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(world.lab.dns.queries(), [], "no name was resolved");
}

#[test]
fn b018_b030_addresses_have_one_spelling() {
    let world = World::new(RULES);
    let hosts = [
        "0177.1",
        "0x7f000001",
        "2130706433",
        "127.1",
        "0",
        "0x7f.1",
        "00000177.0.0.1",
        "2852039166",
        "0xA9FEA9FE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "1.2.3.4.5",
        "1.2.3.256",
    ];
    let requests: Vec<_> = hosts
        .iter()
        .map(|h| format!("GET / HTTP/1.1\r\nHost: {h}\r\n\r\n"))
        .collect();
    rejected(
        &world,
        &requests.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn b051_targets_have_few_forms() {
    let world = World::new(RULES);
    rejected(
        &world,
        &[
            "GET public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET ftp://a.test/public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET https://user@a.test/public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET /public/x#/../secret HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET /public/\x7f HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET /public/ü HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET * HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ],
    );
}

#[test]
fn c06_another_authority_inside_the_connection_is_misdirected() {
    let world = World::new(RULES);
    for request in [
        "GET https://evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET https://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET /public/x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET /public/x HTTP/1.1\r\nHost: x.c.test\r\n\r\n",
        "GET /public/x HTTP/1.1\r\nHost: a.test:8444\r\n\r\n",
    ] {
        let (status, _) = send(&world, request.as_bytes());
        assert!(matches!(status, Some(400 | 421)), "{request:?}: {status:?}");
    }
    assert_eq!(world.lab.journal.all(), []);
    // The same authority in absolute form is the same request, forwarded in origin form.
    let same =
        b"GET https://a.test/public/x?q=%41 HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    assert_eq!(send(&world, same), (Some(200), Ending::Closed));
    assert_eq!(world.lab.journal.all()[0].target, "/public/x?q=%41");
}

#[test]
fn c03_spellings_of_one_name_are_one_name() {
    let world = World::new(RULES);
    for host in ["A.TEST", "a.test.", "a.tesT:443"] {
        let request =
            format!("GET /public/x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(send(&world, request.as_bytes()).0, Some(200), "{host}");
    }
    for received in world.lab.journal.all() {
        let authority = received.authority.expect("an authority");
        assert_eq!(authority, "a.test");
        assert_eq!(received.sni.as_deref(), Some("a.test"));
    }
}

#[test]
fn c08_each_request_on_a_connection_names_the_same_host() {
    let world = World::new(RULES);
    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a TLS session");
    write!(tls, "GET /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut tls).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let (answer, _) = exchange(
        &mut tls,
        b"GET /public/x HTTP/1.1\r\nHost: x.c.test\r\n\r\n",
    );
    assert_eq!(status(&answer), Some(421));
    assert_eq!(world.lab.journal.all().len(), 1);
}
