//! Bytes that two parsers could read in two ways. Each goes through a real TLS session to the
//! gateway exactly as written; what counts is how many requests the upstream saw, and which.

use std::io::{Read as _, Write as _};

use outgate_tests::guest::{Ending, exchange};
use outgate_tests::harness::World;

use crate::raw::{rejected_and_closed, send, status};

const RULES: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/public/**"] }
"#;

#[test]
fn b053_content_length_beside_transfer_encoding() {
    let world = World::new(RULES);
    rejected_and_closed(
        &world,
        &[
            "POST /public/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST /public/x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        ],
    );
}

#[test]
fn b054_only_the_exact_coding_is_chunked() {
    let world = World::new(RULES);
    let head = "POST /public/x HTTP/1.1\r\nHost: a.test\r\n";
    let codings = [
        "Transfer-Encoding: chunked\t\r\nContent-Length: 60\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
    ];
    let requests: Vec<_> = codings
        .iter()
        .map(|c| format!("{head}{c}\r\n0\r\n\r\n"))
        .collect();
    rejected_and_closed(
        &world,
        &requests.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn b055_a_hidden_second_request_never_arrives() {
    let world = World::new(RULES);
    rejected_and_closed(
        &world,
        &[
            "POST /public/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "POST /public/x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n\
         5c\r\nGET /admin HTTP/1.1\r\nHost: a.test\r\nContent-Length: 15\r\n\r\nx=1\r\n0\r\n\r\n",
        ],
    );
}

#[test]
fn b057_http_1_0_has_no_transfer_encoding() {
    let world = World::new(RULES);
    rejected_and_closed(
        &world,
        &[
            "POST /public/x HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ],
    );
}

#[test]
fn c07_lengths_have_one_spelling() {
    let world = World::new(RULES);
    let lengths = [
        "+5",
        "-5",
        "5, 5",
        "5, 6",
        "",
        " ",
        "0x5",
        "5 5",
        "5;",
        "5.0",
        "99999999999999999999",
        "５",
    ];
    let requests: Vec<_> = lengths
        .iter()
        .map(|n| format!("POST /public/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: {n}\r\n\r\nhello"))
        .chain(["5", "6"].map(|n| {
            format!("POST /public/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nContent-Length: {n}\r\n\r\nhello")
        }))
        .collect();
    rejected_and_closed(
        &world,
        &requests.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn c07_heads_have_one_shape() {
    let world = World::new(RULES);
    rejected_and_closed(
        &world,
        &[
            // Line ends.
            "GET /public/x HTTP/1.1\nHost: a.test\n\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nX: a\nY: b\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nX: a\rY: b\r\n\r\n",
            // Folding, control bytes and white space where none may be.
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nX: a\r\n b\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nX: a\0b\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nX\0: a\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nX : a\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\n X: a\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\n: a\r\n\r\n",
            "GET /public/x HTTP/1.1\r\nHost: a.test\r\nno colon\r\n\r\n",
            "GET  /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET /public/x  HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET\t/public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET /public/x HTTP/1.1 \r\nHost: a.test\r\n\r\n",
            " GET /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            // Versions.
            "GET /public/x\r\n\r\n",
            "GET /public/x HTTP/0.9\r\nHost: a.test\r\n\r\n",
            "GET /public/x HTTP/1.2\r\nHost: a.test\r\n\r\n",
            "GET /public/x HTTP/2.0\r\nHost: a.test\r\n\r\n",
            "GET /public/x http/1.1\r\nHost: a.test\r\n\r\n",
            "GET /public/x HTTP/1.10\r\nHost: a.test\r\n\r\n",
            // Methods.
            "G\0T /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "G@T/ /public/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ],
    );
}

#[test]
fn c07_chunks_have_one_spelling() {
    let world = World::new(RULES);
    for chunks in [
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5;ext=\n\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "11111111111111111\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nHost: evil.test\nX: y\r\n\r\n",
    ] {
        let mut tls = world
            .guest()
            .tls("a.test", 443, "http/1.1")
            .expect("a TLS session");
        let request = format!(
            "POST /public/x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}\
             GET /public/smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n",
        );
        let (answer, ending) = exchange(&mut tls, request.as_bytes());
        assert_ne!(
            ending,
            Ending::Silent,
            "{chunks:?}: {}",
            String::from_utf8_lossy(&answer)
        );
        assert_ne!(status(&answer), Some(200), "{chunks:?}");
    }
    // A body that breaks off may have begun to arrive, but never completes and never splits.
    for received in world.lab.journal.all() {
        assert!(!received.complete, "{received:?}");
        assert_ne!(received.target, "/public/smuggled");
    }
}

#[test]
fn c07_a_body_that_looks_like_a_request_is_a_body() {
    let world = World::new(RULES);
    let inner = "GET /public/inner HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let request = format!(
        "POST /public/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{inner}",
        inner.len(),
    );
    assert_eq!(
        send(&world, request.as_bytes()),
        (Some(200), Ending::Closed)
    );
    let received = world.lab.journal.all();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body_text.as_deref(), Some(inner));
}

#[test]
fn b059_a_pipelined_second_request_is_judged_by_itself() {
    let world = World::new(RULES);
    let requests = b"POST /public/one HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello\
                     GET /private/two HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    // In one write, and then byte by byte.
    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a TLS session");
    let (answers, _) = exchange(&mut tls, requests);
    let answers = String::from_utf8_lossy(&answers).into_owned();
    assert!(
        answers.starts_with("HTTP/1.1 200 ") && answers.contains("HTTP/1.1 403 "),
        "{answers}"
    );

    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a TLS session");
    for byte in requests {
        tls.write_all(&[*byte]).expect("written");
    }
    let mut answers = String::new();
    tls.read_to_string(&mut answers)
        .expect("answered and closed");
    assert!(
        answers.starts_with("HTTP/1.1 200 ") && answers.contains("HTTP/1.1 403 "),
        "{answers}"
    );

    let received = world.lab.journal.all();
    assert!(
        received.iter().all(|r| r.target == "/public/one"),
        "{received:?}"
    );
    assert_eq!(received.len(), 2);
}

#[test]
fn c07_trailers_cannot_carry_what_heads_may_not() {
    let world = World::new(RULES);
    let request =
        b"POST /public/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello\r\n0\r\nHost: evil.test\r\nContent-Length: 99\r\nAuthorization: Bearer x\r\nX-Fine: 1\r\n\r\n";
    let (status, _) = send(&world, request);
    assert!(matches!(status, Some(200 | 400)), "{status:?}");
    for received in world.lab.journal.all() {
        for (name, _) in &received.trailers {
            assert!(
                !["host", "content-length", "authorization"]
                    .contains(&name.to_lowercase().as_str()),
                "{received:?}"
            );
        }
    }
}

#[test]
fn b058_a_sloppy_answer_cannot_desynchronise_the_upstream_connection() {
    let world = World::new(
        r#"
rules:
  - id: raw
    action: allow
    to: { hosts: [raw.test], private: true }
"#,
    );
    world.lab.raw.answer_with(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 10\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    let url = "https://raw.test/x";
    for _ in 0..2 {
        let reply = world.guest().curl(url, ["--http1.1"]);
        let forwarded = reply.status == Some(200)
            && reply.text() == "hello"
            && reply
                .header("content-length")
                .is_none_or(|length| length == "5");
        assert!(forwarded || reply.status == Some(502), "{reply:?}");
    }
    // Whatever was made of the answer, the connection that carried it carried nothing after it.
    for bytes in world.lab.raw.connections() {
        let heads = bytes
            .windows(4)
            .filter(|window| window == b"\r\n\r\n")
            .count();
        assert_eq!(heads, 1, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn what_is_forwarded_is_written_anew_from_the_judged_request() {
    let world = World::new(
        r#"
rules:
  - id: raw
    action: allow
    to: { hosts: [raw.test], private: true }
"#,
    );
    world
        .lab
        .raw
        .answer_with("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut tls = world
        .guest()
        .tls("raw.test", 443, "http/1.1")
        .expect("a TLS session");
    let request = b"POST /a/./b/%7e?x=%41 HTTP/1.1\r\nhost: RAW.test:443\r\nX-One:1\r\n\
                    Connection: close, x-two\r\nX-Two: 2\r\nContent-Length: 5\r\n\r\nhello";
    let (answer, _) = exchange(&mut tls, request);
    assert_eq!(status(&answer), Some(200));
    let sent = String::from_utf8(world.lab.raw.connections().remove(0)).expect("text");
    let (head, body) = sent.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.split("\r\n");
    assert_eq!(lines.next(), Some("POST /a/b/~?x=%41 HTTP/1.1"));
    let mut fields: Vec<_> = lines.map(str::to_ascii_lowercase).collect();
    fields.sort();
    assert_eq!(fields, ["content-length: 5", "host: raw.test", "x-one: 1"]);
    assert_eq!(body, "hello");
}
