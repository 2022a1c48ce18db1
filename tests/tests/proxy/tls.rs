//! TLS to the proxy itself: a certificate of the gateway's own, and no clear text beside it.

use std::io::{Read as _, Write as _};

use outgate_tests::guest::{Ending, exchange, read_response};
use outgate_tests::harness::{PROXY, ProxyWorld, SANDBOX, TOKEN, authorization};

const RULES: &str = "
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
  - id: clear
    action: allow
    to: { hosts: [a.test], private: true }
    protocol: http
";

fn world() -> ProxyWorld {
    let listeners = format!(
        "proxies:\n  - name: outside\n    listen: {PROXY}\n    tls: {{ minted: proxy.corp.test }}\n"
    );
    ProxyWorld::with(RULES, &listeners)
}

#[test]
fn curl_is_served_over_tls() {
    let world = world();
    let ca = world.ca_file();
    let port = PROXY.port();
    let resolve = format!("proxy.corp.test:{port}:{}", PROXY.ip());
    for scheme in ["https", "socks5h"] {
        let proxy = format!("{scheme}://{SANDBOX}:{TOKEN}@proxy.corp.test:{port}");
        let way = [
            "--proxy",
            &proxy,
            "--proxy-cacert",
            &ca,
            "--resolve",
            &resolve,
        ];
        let reply = world.curl_by(&way, "https://a.test/x", [""; 0]);
        if scheme == "https" {
            reply.expect_status(200);
            world
                .curl_by(&way, "http://a.test/y", [""; 0])
                .expect_status(200);
            world.curl_by(&way, "https://b.test/", [""; 0]);
        } else {
            assert_eq!(reply.status, None, "curl speaks SOCKS in clear text");
        }
    }
    world.audit().denial("default_deny", "b.test");
    assert_eq!(world.lab.journal.all().len(), 2);
}

#[test]
fn the_certificate_is_the_listeners_own_and_nothing_but_http1_is_spoken_inside() {
    let world = world();
    let stream = world.connect().expect("a connection");
    let mut tls = world
        .handshake(
            stream,
            Some("proxy.corp.test"),
            "proxy.corp.test",
            &["h2", "http/1.1"],
        )
        .expect("TLS");
    assert_eq!(tls.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let credential = authorization();
    write!(
        tls,
        "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n{credential}\r\n"
    )
    .expect("written");
    let (head, _) = read_response(&mut tls).expect("connected");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    write!(
        tls,
        "GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
    )
    .expect("written");
    let mut answer = String::new();
    tls.read_to_string(&mut answer).expect("read");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Another name in TLS is not that of a destination here, and gets the same certificate.
    let stream = world.connect().expect("a connection");
    world
        .handshake(stream, Some("a.test"), "a.test", &["http/1.1"])
        .expect_err("another name");
}

#[test]
fn clear_text_is_refused_and_counted() {
    let world = world();
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    let head = format!("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{credential}\r\n");
    let (answer, ending) = exchange(&mut stream, head.as_bytes());
    assert_eq!(answer, b"");
    assert_ne!(ending, Ending::Silent);
    world.audit().wait_for("a refusal", |record| {
        record.text("kind") == "client_refused" && record.text("detail").contains("clear text")
    });
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn tls_inside_a_clear_listener_is_no_proxy_protocol() {
    let listeners = format!("proxies:\n  - name: clear\n    listen: {PROXY}\n");
    let world = ProxyWorld::with(RULES, &listeners);
    let stream = world.connect().expect("a connection");
    world
        .handshake(stream, Some("a.test"), "a.test", &["http/1.1"])
        .expect_err("no TLS here");
    world.audit().wait_for("a refusal", |record| {
        record.text("kind") == "client_refused" && record.text("detail").contains("TLS")
    });
}
