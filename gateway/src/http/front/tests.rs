//! Bytes from RFC 9112 and from smuggling reports; then random bytes, compared with `httparse`.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Feeds `bytes` in pieces of `step` and answers what came through and the verdicts, in order.
async fn feed(bytes: &[u8], step: usize) -> (Vec<u8>, Vec<Verdict>, Option<String>) {
    let (mut guest, stream) = tokio::io::duplex(step.max(1));
    let mut front = Front::new(stream);
    let verdicts = front.verdicts();
    let writing = async {
        // The front stops reading at a violation; the rest is not its business.
        let _ = guest.write_all(bytes).await;
        let _ = guest.shutdown().await;
    };
    let reading = async {
        let (mut through, mut found, mut chunk) = (Vec::new(), Vec::new(), vec![0; 64 * 1024]);
        let failure = loop {
            match front.read(&mut chunk).await {
                Ok(0) => break None,
                Ok(n) => through.extend_from_slice(&chunk[..n]),
                Err(error) => break Some(error.to_string()),
            }
            found.extend(verdicts.take());
        };
        drop(front);
        (through, found, failure)
    };
    tokio::join!(writing, reading).1
}

fn feed_blocking(bytes: &[u8], step: usize) -> (Vec<u8>, Vec<Verdict>, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(feed(bytes, step))
}

/// A head with one line more than a good one has.
fn with_line(line: &str) -> String {
    format!("POST /x HTTP/1.1\r\nHost: a.test\r\n{line}\r\n\r\n")
}

fn rejection(bytes: &[u8]) -> Option<Reject> {
    // Whole and in single bytes: where the reads fall may not matter.
    let mut rejections = [bytes.len(), 1].map(|step| {
        let (through, verdicts, _) = feed_blocking(bytes, step);
        verdicts.into_iter().find_map(|verdict| match verdict {
            Verdict::Rejected(reject) => {
                assert_eq!(through, STAND_IN, "only the stand-in may come through");
                Some(reject)
            }
            Verdict::Accepted(_) => None,
        })
    });
    assert_eq!(
        rejections[0].is_some(),
        rejections[1].is_some(),
        "{}",
        bytes.escape_ascii()
    );
    rejections[0].take()
}

#[test]
fn heads_that_two_readers_could_read_differently_are_rejected() {
    let lines = [
        // B053, B055: two lengths for one body.
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        // B054 and its kind: codings that only some readers recognise.
        "Transfer-Encoding: chunked\t",
        "Transfer-Encoding: chunked ",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding:",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer_Encoding: chunked",
        "Content_Length: 3",
        "Transfer-Encoding:\r\n chunked",
        "\x00Transfer-Encoding: chunked",
        // Lengths that are not plain numbers.
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 5, 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length:",
        "Content-Length: 0x5",
        "Content-Length: 05",
        "Content-Length: 5 ",
        "Content-Length: 5\t",
        "Content-Length: 5 5",
        "Content-Length: 5a",
        "Content-Length: 1_0",
        "Content-Length: 5;",
        "Content-Length: 99999999999999999999",
        "Content-Length: 18446744073709551615",
        "Content-Length: 18446744073709551616",
        "Content-Length : 5",
        // Lines.
        "X: a\r\n folded",
        "X: a\r\n\tfolded",
        " X: a",
        "X : a",
        "X\t: a",
        ": a",
        "X",
        "X: a\x00b",
        "X: a\x01b",
        "X: a\x7fb",
        "X: a\rb",
        "X: a\nY: b",
        "X: a\r\rY: b",
        "X(y): a",
        "X\u{e9}: a",
        // Hosts.
        "Host: a.test",
        "Host: evil.test",
        "hOsT: evil.test",
    ];
    for line in lines {
        let bytes = with_line(line);
        assert!(
            rejection(bytes.as_bytes()).is_some(),
            "accepted: {}",
            bytes.escape_debug()
        );
    }
}

#[test]
fn request_lines_and_hosts_outside_the_grammar_are_rejected() {
    let too_many = "X: y\r\n".repeat(head::MAX_HEADERS);
    let too_long = "y".repeat(MAX_HEAD_BYTES);
    let heads = [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost:\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a.test b.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a.test \r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: user@a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: evil.test\x00.a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: evil.test%00.a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a.test/x\r\n\r\n".to_owned(),
        // B057.
        "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "GET /\r\n\r\n".to_owned(),
        "GET / HTTP/2.0\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.2\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.10\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET / http/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET /  HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET\t/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        " GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "\u{feff}GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GE(T / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\nHost: a.test\n\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a.test\n\r\n".to_owned(),
        "GET / HTTP/1.1\rHost: a.test\r\r".to_owned(),
        "GET public/x HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET /x#y HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET /<x> HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET /\u{e9} HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET * HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n".to_owned(),
        "GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET gopher://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        // B051.
        "GET https://user:pw@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET https:///x HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "GET https:/a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: a.test\r\n{too_many}\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {too_long}\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: a.test\r\n".to_owned(),
    ];
    for head in heads {
        assert!(
            rejection(head.as_bytes()).is_some(),
            "accepted: {}",
            head.escape_debug()
        );
    }
}

#[test]
fn a_rejection_says_what_was_wrong_in_text_that_is_safe_to_log() {
    let found = rejection(with_line("X\x1b[31m: a").as_bytes()).unwrap();
    assert_eq!(found.reason.as_str(), "bad_request");
    assert_eq!(found.detail, r"`X\x1b[31m` is no header name");
    let found = rejection(b"GET / HTTP/1.1\r\nHost: a.test,b.test\r\n\r\n").unwrap();
    assert_eq!(found.reason.as_str(), "bad_host");
    let found = rejection(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n").unwrap();
    assert_eq!(found.reason.as_str(), "connect_denied");
}

#[test]
fn good_requests_pass_unchanged_one_after_the_other() {
    let first = "POST /a?b=http://c/%2f HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nGET /";
    let second = "GET http://a.test?q HTTP/1.1\r\nHost:a.test\r\nX:  \u{e9} \r\n\r\n";
    let third = "OPTIONS * HTTP/1.0\r\nHost: \ta.test\r\n\r\n";
    let all = [first, second, third].concat();
    for step in [1, 7, 4096] {
        let (through, verdicts, failure) = feed_blocking(all.as_bytes(), step);
        assert_eq!(failure, None);
        assert_eq!(through, all.as_bytes());
        let heads: Vec<_> = verdicts
            .into_iter()
            .map(|verdict| match verdict {
                Verdict::Accepted(head) => (head.method, head.target, head.framing),
                Verdict::Rejected(reject) => panic!("{reject:?}"),
            })
            .collect();
        let head = |method: &str, target: &str, length| {
            (
                method.to_owned(),
                target.to_owned(),
                Framing::Length(length),
            )
        };
        assert_eq!(
            heads,
            [
                head("POST", "/a?b=http://c/%2f", 5),
                head("GET", "http://a.test?q", 0),
                head("OPTIONS", "*", 0)
            ]
        );
    }
}

#[test]
fn a_rejection_follows_the_requests_before_it() {
    let bytes = "GET /a HTTP/1.1\r\nHost: a.test\r\n\r\nGET /b HTTP/1.1\r\n\r\nGET /c HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let (through, verdicts, _) = feed_blocking(bytes.as_bytes(), 4096);
    assert!(matches!(
        verdicts.as_slice(),
        [Verdict::Accepted(head), Verdict::Rejected(_)] if head.target == "/a"
    ));
    assert!(through.ends_with(STAND_IN));
}

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn chunked_bodies_are_written_anew() {
    let cases = [
        ("5\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        (
            "0005;ext=1;b=\"c\"\r\nhello\r\n000\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "A\r\n0123456789\r\n0\r\nX-Sum:1\r\n\r\n",
            "a\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
        ),
    ];
    for (sent, expected) in cases {
        let next = "GET /next HTTP/1.1\r\nHost: a.test\r\n\r\n";
        for step in [1, 3, 4096] {
            let (through, verdicts, failure) =
                feed_blocking(format!("{CHUNKED}{sent}{next}").as_bytes(), step);
            assert_eq!(failure, None, "{sent:?}");
            assert_eq!(
                String::from_utf8(through).unwrap(),
                format!("{CHUNKED}{expected}{next}")
            );
            assert_eq!(verdicts.len(), 2);
        }
    }
}

#[test]
fn a_broken_body_is_an_error_and_nothing_after_it_is_read() {
    let long_extension = format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(300));
    let long_trailers = format!("0\r\nX: {}\r\n\r\n", "t".repeat(9000));
    let many_trailers = format!("0\r\n{}\r\n", "X: y\r\n".repeat(200));
    let bodies = [
        "5\nhello\r\n0\r\n\r\n",
        "5;ext=\nhello\r\n0\r\n\r\n",
        "5;ext\rhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "5_0\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5 ;a\r\nhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "0\r\nHost: evil.test\r\n\r\n",
        "0\r\ncontent-length: 5\r\n\r\n",
        "0\r\nAuthorization: x\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nX: y\n\r\n",
        "0\r\n folded\r\n\r\n",
        "5\r\nhel",
        "0\r\n",
        &long_extension,
        &long_trailers,
        &many_trailers,
    ];
    for body in bodies {
        let next = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let truncated = matches!(body, "5\r\nhel" | "0\r\n");
        let next = if truncated { "" } else { next };
        for step in [1, 4096] {
            let (through, verdicts, failure) =
                feed_blocking(format!("{CHUNKED}{body}{next}").as_bytes(), step);
            assert!(failure.is_some(), "accepted: {body:?}");
            assert_eq!(verdicts.len(), 1, "{body:?}");
            assert!(!through.ends_with(b"0\r\n\r\n"), "ended: {body:?}");
        }
    }
}

#[test]
fn a_body_that_ends_early_is_an_error() {
    let (_, _, failure) = feed_blocking(
        b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nabc",
        64,
    );
    assert_eq!(failure.as_deref(), Some("the stream ends inside a body"));
}

#[tokio::test]
async fn the_next_head_waits_until_the_verdict_before_it_was_taken() {
    let (mut guest, stream) = tokio::io::duplex(4096);
    let mut front = Front::new(stream);
    let verdicts = front.verdicts();
    guest
        .write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    let mut buffer = [0; 512];
    assert!(front.read(&mut buffer).await.unwrap() > 0);
    let mut second = Box::pin(front.read(&mut buffer));
    assert!(std::future::poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
    assert!(matches!(verdicts.take(), Some(Verdict::Accepted(head)) if head.target == "/a"));
    assert!(second.await.unwrap() > 0);
    assert!(matches!(verdicts.take(), Some(Verdict::Accepted(head)) if head.target == "/b"));
}

/// Reads what came through the front with the parser that the server uses, and compares.
fn compare(through: &[u8], verdicts: &[Verdict]) {
    let mut rest = through;
    for verdict in verdicts {
        let mut headers = [httparse::EMPTY_HEADER; head::MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(length)) = request.parse(rest) else {
            panic!(
                "the server can't read what came through: {}",
                rest.escape_ascii()
            );
        };
        let Verdict::Accepted(head) = verdict else {
            assert_eq!(rest, STAND_IN);
            return;
        };
        let values = |name: &str| -> Vec<&[u8]> {
            let named = |h: &&httparse::Header<'_>| h.name.eq_ignore_ascii_case(name);
            request
                .headers
                .iter()
                .filter(named)
                .map(|h| h.value)
                .collect()
        };
        assert_eq!(request.method, Some(head.method.as_str()));
        assert_eq!(request.path, Some(head.target.as_str()));
        assert_eq!(values("host"), [head.host.as_bytes()]);
        rest = &rest[length..];
        match head.framing {
            Framing::Length(length) => {
                let said = values("content-length");
                assert!(values("transfer-encoding").is_empty());
                assert!(said.is_empty() && length == 0 || said == [length.to_string().as_bytes()]);
                rest = &rest[usize::try_from(length).unwrap().min(rest.len())..];
            }
            Framing::Chunked => {
                assert_eq!(values("transfer-encoding"), [b"chunked"]);
                assert!(values("content-length").is_empty());
                while let Ok(httparse::Status::Complete((line, size))) =
                    httparse::parse_chunk_size(rest)
                {
                    rest = &rest[line..];
                    if size == 0 {
                        let end = rest
                            .windows(4)
                            .position(|w| w == b"\r\n\r\n")
                            .map_or(2, |at| at + 4);
                        rest = if rest.starts_with(b"\r\n") {
                            &rest[2..]
                        } else {
                            &rest[end.min(rest.len())..]
                        };
                        break;
                    }
                    let data = usize::try_from(size).unwrap() + 2;
                    rest = &rest[data.min(rest.len())..];
                }
            }
        }
    }
}

/// Pieces of requests: random choices among them hit the grammar far more often than random bytes.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        10 => prop::sample::select(vec![
            &b"GET / HTTP/1.1\r\n"[..], b"POST /x?y HTTP/1.1\r\n", b"HEAD http://a.test/ HTTP/1.1\r\n",
            b"Host: a.test\r\n", b"Host: b\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n",
            b"Transfer-Encoding: chunked\r\n", b"X: y\r\n", b"Connection: close\r\n", b"\r\n",
            b"3\r\nabc\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"abc", b"Expect: 100-continue\r\n",
            b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc",
        ]).prop_map(<[u8]>::to_vec),
        2 => prop::collection::vec(any::<u8>(), 0..4),
        1 => prop::sample::select(b"\r\n\t :;,\0\x7f/?#*".to_vec()).prop_map(|byte| vec![byte]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_comes_through_is_read_alike_by_the_server(
        fragments in prop::collection::vec(fragment(), 0..12),
        step in 1_usize..200,
    ) {
        let bytes = fragments.concat();
        let (through, verdicts, failure) = feed_blocking(&bytes, step);
        if failure.is_none() {
            compare(&through, &verdicts);
        }
        // Where the reads fall does not change what is read.
        let (whole, whole_verdicts, whole_failure) = feed_blocking(&bytes, bytes.len());
        prop_assert!(through.starts_with(&whole));
        prop_assert_eq!(failure.is_some(), whole_failure.is_some());
        prop_assert!(failure.is_some() || through.len() == whole.len());
        prop_assert_eq!(verdicts.len(), whole_verdicts.len());
    }

    #[test]
    fn one_changed_byte_is_rejected_or_read_alike(at in 0_usize..200, byte in any::<u8>()) {
        let mut bytes = b"POST /a/b?c=d HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\nContent-Length: 11\r\n\
            \r\nhello worldGET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let (through, verdicts, failure) = feed_blocking(&bytes, 4096);
        if failure.is_none() {
            compare(&through, &verdicts);
        }
    }
}
