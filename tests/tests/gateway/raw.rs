//! Bytes on a TLS connection to `a.test`, exactly as a test wrote them, and what became of them.

use std::io::Write as _;

use outgate_tests::guest::{Ending, exchange, read_response};
use outgate_tests::harness::World;

/// Sends `bytes` on a fresh TLS connection to `a.test` and gives back the status of the first
/// answer and how the connection ended.
pub(crate) fn send(world: &World, bytes: &[u8]) -> (Option<u16>, Ending) {
    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a TLS session");
    let (answer, ending) = exchange(&mut tls, bytes);
    (status(&answer), ending)
}

pub(crate) fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// Requests whose end is in doubt: each must be answered with 400 and a closed connection, and
/// nothing may be forwarded.
#[track_caller]
pub(crate) fn rejected_and_closed(world: &World, requests: &[&str]) {
    for bytes in requests {
        let (status, ending) = send(world, bytes.as_bytes());
        assert_eq!(status, Some(400), "{bytes:?} ({ending:?})");
        assert_eq!(ending, Ending::Closed, "{bytes:?}");
    }
    nothing_was_forwarded(world);
}

/// Requests that are whole but mean nothing: each must be answered with 400, and nothing may be
/// forwarded. The connection may go on.
#[track_caller]
pub(crate) fn rejected(world: &World, requests: &[&str]) {
    for bytes in requests {
        let mut tls = world
            .guest()
            .tls("a.test", 443, "http/1.1")
            .expect("a TLS session");
        tls.write_all(bytes.as_bytes()).expect("written");
        let (head, _) = read_response(&mut tls).expect("answered");
        assert!(head.starts_with("HTTP/1.1 400 "), "{bytes:?}: {head}");
    }
    nothing_was_forwarded(world);
}

#[track_caller]
fn nothing_was_forwarded(world: &World) {
    assert_eq!(world.lab.journal.all(), [], "something was forwarded");
    for record in world.audit().requests() {
        assert_ne!(record.text("verdict"), "allow", "{record:?}");
    }
    world
        .audit()
        .wait_for("a rejection", |record| record.text("kind") == "reject");
}
