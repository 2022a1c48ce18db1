//! Who a client is: by id and token, told in one way only when it is neither.

use std::io::Write as _;

use outgate_tests::guest::{Ending, exchange, read_response, read_to_end};
use outgate_tests::harness::{PROXY, ProxyWorld, SANDBOX, TOKEN, basic};

const RULES: &str = "
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
";

fn ask(world: &ProxyWorld, credential: Option<&str>) -> String {
    let mut stream = world.connect().expect("a connection");
    let credential = credential.map(|value| format!("Proxy-Authorization: {value}\r\n"));
    let credential = credential.unwrap_or_default();
    write!(
        stream,
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{credential}\r\n"
    )
    .expect("written");
    let (head, body) = read_response(&mut stream).expect("answered");
    let dateless = head.lines().filter(|line| !line.starts_with("date:"));
    format!(
        "{}\n{}",
        dateless.collect::<Vec<_>>().join("\n"),
        String::from_utf8_lossy(&body)
    )
}

#[test]
fn a_missing_and_a_wrong_credential_get_the_same_answer() {
    let world = ProxyWorld::new(RULES);
    let missing = ask(&world, None);
    assert!(missing.starts_with("HTTP/1.1 407 "), "{missing}");
    assert!(
        missing.contains("proxy-authenticate: Basic realm=\"outgate\""),
        "{missing}"
    );
    for wrong in [
        basic(SANDBOX, "wrong"),
        basic(SANDBOX, &TOKEN.to_ascii_uppercase()),
        basic(SANDBOX, ""),
        basic("s2", TOKEN),
        basic("", TOKEN),
        format!("Bearer {TOKEN}"),
        "Basic !".to_owned(),
        "Basic".to_owned(),
    ] {
        assert_eq!(ask(&world, Some(&wrong)), missing, "{wrong}");
    }
    assert!(ask(&world, Some(&basic(SANDBOX, TOKEN))).starts_with("HTTP/1.1 200 "));
    // All of them are on record, none of what was presented is.
    let record = world.audit().wait_for("wrong credentials", |record| {
        record.text("kind") == "client_refused"
            && record.text("detail").contains("proves no sandbox")
    });
    assert_eq!(
        (record.text("verdict"), record.text("reason")),
        ("deny", "proxy_auth_required")
    );
    assert!(record.number("count") > 0);
    let log = format!("{:?}{}", world.audit().records(), world.home.output());
    assert!(!log.contains(TOKEN) && !log.contains(&basic(SANDBOX, TOKEN)[6..]));
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn failures_are_counted_to_the_last_one() {
    let world = ProxyWorld::new(RULES);
    for _ in 0..40 {
        ask(&world, Some(&basic(SANDBOX, "guess")));
    }
    let (code, home, _lab) = world.terminate();
    assert_eq!(code, Some(0));
    let told = home.audit().records();
    let told: Vec<_> = told
        .iter()
        .filter(|record| record.text("kind") == "client_refused")
        .collect();
    assert_eq!(
        told.iter()
            .map(|record| record.number("count"))
            .sum::<u64>(),
        40
    );
    assert!(
        told.len() < 40,
        "a flood is told in few records: {}",
        told.len()
    );
    home.audit().verify().succeeded();
}

#[test]
fn a_client_may_answer_the_challenge_on_the_same_connection() {
    let world = ProxyWorld::new(RULES);
    let mut stream = world.connect().expect("a connection");
    write!(
        stream,
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
    )
    .expect("written");
    let (head, _) = read_response(&mut stream).expect("challenged");
    assert!(head.starts_with("HTTP/1.1 407 "), "{head}");
    let credential = basic(SANDBOX, TOKEN);
    write!(stream, "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nProxy-Authorization: {credential}\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut stream).expect("connected");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    // As curl does it when it is told to find out.
    let proxy = format!("http://{PROXY}");
    let user = format!("{SANDBOX}:{TOKEN}");
    let way = ["--proxy", &proxy, "--proxy-anyauth", "--proxy-user", &user];
    world
        .curl_by(&way, "https://a.test/x", [""; 0])
        .expect_status(200);
}

#[test]
fn one_connection_has_few_attempts() {
    let world = ProxyWorld::new(RULES);
    let mut stream = world.connect().expect("a connection");
    let attempt = format!(
        "CONNECT a.test:443 HTTP/1.0\r\nProxy-Authorization: {}\r\n\r\n",
        basic(SANDBOX, "x")
    );
    let (answers, ending) = exchange(&mut stream, attempt.repeat(10).as_bytes());
    let answers = String::from_utf8_lossy(&answers).into_owned();
    assert_eq!(answers.matches("HTTP/1.1 407 ").count(), 3, "{answers}");
    assert_ne!(ending, Ending::Silent);
}

#[test]
fn a_unix_socket_may_be_the_identity() {
    let listeners = format!(
        "proxies:\n  - name: own\n    listen: unix:own.sock\n    sandbox: {SANDBOX}\n  - name: shared\n    listen: {PROXY}\n"
    );
    let world = ProxyWorld::with(RULES, &listeners);
    let path = world.home.folder().join("own.sock");
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("a connection");
    stream
        .write_all(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n")
        .expect("written");
    let (head, _) = read_response(&mut stream).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("a connection");
    stream
        .write_all(b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n")
        .expect("written");
    let (head, _) = read_response(&mut stream).expect("answered");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(read_to_end(&mut stream).1, Ending::Closed);
    assert_eq!(
        world
            .audit()
            .denial("default_deny", "b.test")
            .text("sandbox.id"),
        SANDBOX
    );
    let (code, _, _) = world.terminate();
    assert_eq!(code, Some(0));
    assert!(!path.exists(), "the socket is gone with the gateway");
}
