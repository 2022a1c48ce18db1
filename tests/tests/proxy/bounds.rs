//! What a client may take: connections, time, bytes. Beyond it is closed, counted, and nobody else's
//! business.

use std::io::{Read as _, Write as _};

use outgate_tests::guest::{Ending, exchange, read_response, read_to_end};
use outgate_tests::harness::{PROXY, ProxyWorld, SANDBOX, authorization, eventually};

const RULES: &str = "
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
    protocol: http
";

fn tunnel(world: &ProxyWorld) -> Option<std::net::TcpStream> {
    let mut stream = world.connect().expect("a connection");
    let credential = authorization();
    let written = write!(
        stream,
        "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n{credential}\r\n"
    );
    let (head, _) = written.and_then(|()| read_response(&mut stream)).ok()?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Some(stream)
}

#[test]
fn c18_a_listener_has_so_many_connections() {
    let listeners =
        format!("proxies:\n  - name: small\n    listen: {PROXY}\n    max_connections: 2\n");
    let world = ProxyWorld::with(RULES, &listeners);
    let first = tunnel(&world).expect("a place");
    let _second = tunnel(&world).expect("a place");
    assert!(tunnel(&world).is_none(), "a third");
    world.audit().wait_for("too many", |record| {
        record.text("kind") == "client_refused" && record.text("reason") == "limit_exceeded"
    });
    drop(first);
    eventually("a place is free again", || tunnel(&world));
}

#[test]
fn c18_slow_clients_are_closed_and_keep_nobody_waiting() {
    let world = ProxyWorld::new(RULES);
    let mut silent = world.connect().expect("a connection");
    let mut slow = world.connect().expect("a connection");
    let mut socks = world.connect().expect("a connection");
    slow.write_all(b"CONNECT a.test:80 HTTP/1.1\r\nHost: ")
        .expect("written");
    socks.write_all(&[5, 1]).expect("written");
    for stream in [&silent, &slow, &socks] {
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(30)))
            .expect("set");
    }
    assert!(tunnel(&world).is_some(), "others are served");
    for stream in [&mut silent, &mut slow, &mut socks] {
        assert!(
            matches!(stream.read(&mut [0]), Ok(0)),
            "closed, and not silent"
        );
    }
    let told = || {
        let records = world.audit().records();
        let slow = records
            .iter()
            .filter(|record| record.text("reason") == "connection_idle");
        let count: u64 = slow.map(|record| record.number("count")).sum();
        (count == 3).then_some(())
    };
    eventually("all three are counted", told);
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn c18_a_head_has_so_many_bytes_and_fields() {
    let world = ProxyWorld::new(RULES);
    for fields in [
        format!("X: {}\r\n", "x".repeat(70_000)),
        "X: y\r\n".repeat(200),
    ] {
        let head = format!(
            "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n{fields}{}\r\n",
            authorization()
        );
        let mut stream = world.connect().expect("a connection");
        let (answer, ending) = exchange(&mut stream, head.as_bytes());
        assert!(
            answer.starts_with(b"HTTP/1.1 400 "),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        assert_ne!(ending, Ending::Silent);
    }
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn sigterm_ends_in_order_with_connections_open() {
    let world = ProxyWorld::new(RULES);
    let mut open = tunnel(&world).expect("a tunnel");
    let mut idle = world.connect().expect("a connection");
    let (code, home, _lab) = world.terminate();
    assert_eq!(code, Some(0));
    assert_ne!(read_to_end(&mut open).1, Ending::Silent);
    assert_ne!(read_to_end(&mut idle).1, Ending::Silent);
    let records = home.audit().records();
    let kinds: Vec<_> = records.iter().map(|record| record.text("kind")).collect();
    assert_eq!(kinds.last(), Some(&"gateway_stop"), "{kinds:?}");
    let released = records
        .iter()
        .find(|record| record.text("kind") == "sandbox_release");
    assert_eq!(released.expect("released").text("sandbox.id"), SANDBOX);
    home.audit().verify().succeeded();
}
