//! Requests with an absolute URL: each goes where its own target says, and nowhere else.

use std::io::Write as _;

use outgate_tests::guest::{Ending, exchange, read_response};
use outgate_tests::harness::{PROXY, ProxyWorld, SANDBOX, TOKEN, authorization, basic};

const RULES: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/public/**"], methods: [GET, POST, OPTIONS] }
  - id: a-clear
    action: allow
    to: { hosts: [a.test, b.test], private: true }
    protocol: http
    http: { paths: ["/clear/**"] }
"#;

/// One request with the sandbox's credential; gives back the status.
fn status(world: &ProxyWorld, request_line: &str, host: &str) -> u16 {
    let (answer, _) = send(world, request_line, &format!("Host: {host}\r\n"));
    status_of(&answer)
}

fn send(world: &ProxyWorld, request_line: &str, fields: &str) -> (String, Ending) {
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    let request = format!("{request_line}\r\n{fields}{credential}Connection: close\r\n\r\n");
    let (answer, ending) = exchange(&mut stream, request.as_bytes());
    (String::from_utf8_lossy(&answer).into_owned(), ending)
}

#[track_caller]
fn status_of(answer: &str) -> u16 {
    let code = answer.get(9..12).and_then(|code| code.parse().ok());
    code.expect("an answer with a status")
}

#[test]
fn b050_an_https_url_is_a_request_over_tls_to_that_host() {
    let world = ProxyWorld::new(RULES);
    assert_eq!(
        status(
            &world,
            "GET https://a.test/public/x?q=%41 HTTP/1.1",
            "a.test"
        ),
        200
    );
    assert_eq!(
        status(
            &world,
            "GET https://a.test:443/public/y HTTP/1.1",
            "a.test:443"
        ),
        200
    );
    let received = world.lab.journal.all();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].sni.as_deref(), Some("a.test"));
    assert_eq!(received[0].authority.as_deref(), Some("a.test"));
    assert_eq!(received[0].target, "/public/x?q=%41");
    for received in &received {
        let leaked = received
            .headers
            .iter()
            .any(|(name, _)| name.to_ascii_lowercase().starts_with("proxy-"));
        assert!(!leaked, "{received:?}");
    }
    let record = &world.audit().requests()[0];
    assert_eq!(
        (record.text("host"), record.number("port")),
        ("a.test", 443)
    );
    assert_eq!(
        (record.text("protocol"), record.text("ingress")),
        ("https", "explicit_proxy")
    );
    // The port is the URL's, not the listener's.
    assert_eq!(
        status(
            &world,
            "GET https://a.test:8443/public/x HTTP/1.1",
            "a.test:8443"
        ),
        403
    );
    assert_eq!(
        world
            .audit()
            .denial("default_deny", "a.test")
            .number("port"),
        8443
    );
}

#[test]
fn b006_clear_text_is_judged_like_everything_else() {
    let world = ProxyWorld::new(RULES);
    world
        .curl("http://a.test/clear/x?q=1", [""; 0])
        .expect_status(200);
    let denied = world.curl("http://evil.test/?q=token", [""; 0]);
    let id = denied.expect_denied(403, "default_deny");
    let record = world.audit().decision(&id);
    assert_eq!(
        (record.text("host"), record.text("protocol")),
        ("evil.test", "http")
    );
    assert_eq!(world.lab.journal.all().len(), 1);
    assert_eq!(world.lab.sink.all(), []);
    assert!(
        world
            .lab
            .dns
            .queries()
            .iter()
            .all(|query| query.name == "a.test")
    );
}

#[test]
fn c06_the_target_is_what_is_judged() {
    let world = ProxyWorld::new(RULES);
    for (line, host, expected) in [
        // Another Host would be another request to somebody else.
        ("GET http://evil.test/ HTTP/1.1", "a.test", &[421, 403][..]),
        ("GET http://a.test/clear/x HTTP/1.1", "evil.test", &[421]),
        ("GET http://a.test/clear/x HTTP/1.1", "a.test:81", &[421]),
        ("GET https://a.test/public/x HTTP/1.1", "a.test:80", &[421]),
        // Clear text to a port that is for TLS.
        (
            "GET http://a.test:443/public/x HTTP/1.1",
            "a.test:443",
            &[403],
        ),
        (
            "GET https://a.test:80/clear/x HTTP/1.1",
            "a.test:80",
            &[403],
        ),
        ("GET /clear/x HTTP/1.1", "a.test", &[400]),
        ("GET a.test/clear/x HTTP/1.1", "a.test", &[400]),
        ("GET ftp://a.test/clear/x HTTP/1.1", "a.test", &[400]),
        ("GET gopher:x HTTP/1.1", "a.test", &[400]),
        ("GET http:///clear/x HTTP/1.1", "a.test", &[400]),
        ("GET http://a.test:0/clear/x HTTP/1.1", "a.test:0", &[400]),
        ("GET http://0x7f.1/ HTTP/1.1", "0x7f.1", &[400]),
        ("GET http://a.test/clear/x#y HTTP/1.1", "a.test", &[400]),
        ("GET http://a.test\\@evil.test/ HTTP/1.1", "a.test", &[400]),
        ("OPTIONS * HTTP/1.1", "a.test", &[400]),
        ("TRACE http://a.test/clear/x HTTP/1.1", "a.test", &[403]),
    ] {
        let found = status(&world, line, host);
        assert!(expected.contains(&found), "{line} {host}: {found}");
    }
    assert_eq!(world.lab.journal.all(), []);
    assert_eq!(world.lab.sink.all(), []);
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn b051_userinfo_is_refused_and_nothing_of_it_is_kept() {
    let world = ProxyWorld::new(RULES);
    let line = "GET http://user:hunter2@a.test/clear/x HTTP/1.1";
    assert_eq!(status(&world, line, "a.test"), 400);
    // Nobody had proven anything when the head turned out to be none.
    let record = world.audit().wait_for("a refusal", |record| {
        record.text("kind") == "client_refused"
    });
    assert!(record.text("detail").contains("names a user"), "{record:?}");
    assert!(!format!("{:?}", world.audit().records()).contains("hunter2"));
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn c05_paths_are_canonical_here_too() {
    let world = ProxyWorld::new(RULES);
    for path in [
        "/clear/../secret",
        "/clear/%2e%2e/secret",
        "/clear/..;x/secret",
        "/clear\\..\\secret",
    ] {
        let found = status(
            &world,
            &format!("GET http://a.test{path} HTTP/1.1"),
            "a.test",
        );
        assert!(matches!(found, 400 | 403), "{path}: {found}");
    }
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn c08_each_request_on_one_connection_is_judged_alone() {
    let world = ProxyWorld::new(RULES);
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    let mut ask = |url: &str, host: &str| {
        write!(
            stream,
            "GET {url} HTTP/1.1\r\nHost: {host}\r\n{credential}\r\n"
        )
        .expect("written");
        let (head, _) = read_response(&mut stream).expect("answered");
        status_of(&head)
    };
    assert_eq!(ask("http://a.test/clear/1", "a.test"), 200);
    assert_eq!(ask("http://b.test/clear/2", "b.test"), 200);
    assert_eq!(ask("http://evil.test/clear/3", "evil.test"), 403);
    assert_eq!(ask("https://a.test/public/4", "a.test"), 200);
    assert_eq!(ask("http://a.test/secret/5", "a.test"), 403);
    assert_eq!(ask("http://a.test/clear/6", "b.test"), 421);
    let received: Vec<_> = world.lab.journal.all();
    let received: Vec<_> = received
        .iter()
        .map(|received| {
            (
                received.authority.as_deref().unwrap_or_default(),
                received.target.as_str(),
            )
        })
        .collect();
    assert_eq!(
        received,
        [
            ("a.test", "/clear/1"),
            ("b.test", "/clear/2"),
            ("a.test", "/public/4")
        ]
    );
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn a_connection_belongs_to_the_sandbox_that_it_proved_first() {
    let world = ProxyWorld::new(RULES);
    let mut stream = world.connect().expect("a connection");
    let mut ask = |credential: &str| {
        write!(
            stream,
            "GET http://a.test/clear/x HTTP/1.1\r\nHost: a.test\r\n{credential}\r\n"
        )
        .expect("written");
        let (head, _) = read_response(&mut stream).expect("answered");
        head
    };
    let first = ask("");
    assert!(first.starts_with("HTTP/1.1 407 "), "{first}");
    assert_eq!(status_of(&ask(&authorization())), 200);
    assert_eq!(status_of(&ask(&authorization())), 200);
    // Every request proves it; two credentials are none.
    let twice = authorization().repeat(2);
    let missing = ask(&twice);
    assert!(missing.starts_with("HTTP/1.1 407 "), "{missing}");
    assert!(missing.contains("connection: close"), "{missing}");
    assert_eq!(world.lab.journal.all().len(), 2);
}

#[test]
fn c07_framing_is_strict_in_front_of_a_proxy_too() {
    let world = ProxyWorld::new(RULES);
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\t\r\n",
        "Content-Length: +5\r\n",
        "Host: a.test\r\n",
        "Transfer-Encoding : chunked\r\n",
    ] {
        let fields = format!("Host: a.test\r\n{fields}");
        let (answer, ending) = send(&world, "POST http://a.test/clear/x HTTP/1.1", &fields);
        assert_eq!(status_of(&answer), 400, "{fields:?}");
        assert_eq!(ending, Ending::Closed, "{fields:?}");
    }
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn a_body_and_a_second_request_behind_it_are_two_requests() {
    let world = ProxyWorld::new(RULES);
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    let both = format!(
        "POST http://a.test/clear/1 HTTP/1.1\r\nHost: a.test\r\n{credential}Content-Length: 5\r\n\r\nhello\
         GET http://evil.test/2 HTTP/1.1\r\nHost: evil.test\r\n{credential}Connection: close\r\n\r\n"
    );
    let (answers, _) = exchange(&mut stream, both.as_bytes());
    let answers = String::from_utf8_lossy(&answers).into_owned();
    assert_eq!(status_of(&answers), 200);
    assert!(answers.contains("HTTP/1.1 403 "), "{answers}");
    let received = world.lab.journal.all();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body_text.as_deref(), Some("hello"));
}

#[test]
fn a_tunnel_may_follow_a_request_on_the_same_connection() {
    let world = ProxyWorld::new(RULES);
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    write!(
        stream,
        "GET http://a.test/clear/1 HTTP/1.1\r\nHost: a.test\r\n{credential}\r\n"
    )
    .expect("written");
    let (head, _) = read_response(&mut stream).expect("answered");
    assert_eq!(status_of(&head), 200);
    write!(
        stream,
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{credential}\r\n"
    )
    .expect("written");
    let (head, _) = read_response(&mut stream).expect("answered");
    assert_eq!(status_of(&head), 200);
    let mut tls = world
        .handshake(stream, Some("a.test"), "a.test", &["http/1.1"])
        .expect("TLS");
    write!(tls, "GET /public/2 HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut tls).expect("answered");
    assert_eq!(status_of(&head), 200);
    assert_eq!(world.lab.journal.all().len(), 2);
}

#[test]
fn the_gateway_tells_a_sandbox_about_itself() {
    let world = ProxyWorld::new(RULES);
    let reply = world
        .curl("http://outgate.internal/v1/whoami", [""; 0])
        .expect_status(200);
    assert_eq!(reply.json()["id"], SANDBOX);
    world
        .curl("http://outgate.internal:81/v1/whoami", [""; 0])
        .expect_denied(403, "default_deny");
}

#[test]
fn b118_the_gateway_takes_no_proxy_from_its_environment() {
    // The gateway would send what it should send to a.test to itself.
    let world = ProxyWorld::with_environment(
        RULES,
        &[
            "http_proxy",
            "https_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "all_proxy",
        ]
        .map(|name| (name, format!("http://{SANDBOX}:{TOKEN}@{PROXY}"))),
    );
    world
        .curl("http://a.test/clear/x", [""; 0])
        .expect_status(200);
    world
        .curl("https://a.test/public/x", [""; 0])
        .expect_status(200);
    assert_eq!(world.audit().requests().len(), 2);
}

#[test]
fn fields_for_the_proxy_stay_with_it() {
    let world = ProxyWorld::new(RULES);
    let fields = format!(
        "Host: a.test\r\nProxy-Connection: keep-alive\r\nProxy-X: 1\r\nX-Kept: 2\r\nAuthorization: {}\r\n",
        basic("a", "b")
    );
    let (answer, _) = send(&world, "GET http://a.test/clear/x HTTP/1.1", &fields);
    assert_eq!(status_of(&answer), 200);
    let received = &world.lab.journal.all()[0];
    assert_eq!(received.header("x-kept"), ["2"]);
    assert_eq!(received.header("authorization"), [basic("a", "b")]);
    assert!(
        received
            .headers
            .iter()
            .all(|(name, _)| !name.to_ascii_lowercase().starts_with("proxy"))
    );
}
