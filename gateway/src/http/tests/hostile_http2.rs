//! HTTP/2 that no library would send, frame by frame.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// HPACK literals that are never indexed (RFC 7541 section 6.2.3), in plain text.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let literal = |(name, value): &(&str, &str)| [vec![0x10], text(name), text(value)].concat();
    fields.iter().flat_map(literal).collect()
}

/// What the gateway did with one request.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The response's header block began with this byte; 0x88 is `:status: 200`.
    Answered(u8),
    Reset,
    ConnectionClosed,
}

async fn send(lab: &Lab, to: &str, frames: Vec<u8>) -> Outcome {
    let mut guest = lab.connect_tls(to, "a.test", "h2").await.unwrap();
    let settings = frame(SETTINGS, 0, 0, &[]);
    let ack = frame(SETTINGS, ACK, 0, &[]);
    // The gateway may close before it has read everything.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let _ = guest
        .write_all(&[&preface[..], &settings, &ack, &frames].concat())
        .await;
    let _ = guest.flush().await;
    patient(async {
        loop {
            let mut head = [0; 9];
            if guest.read_exact(&mut head).await.is_err() {
                return Outcome::ConnectionClosed;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            guest.read_exact(&mut payload).await.unwrap();
            match head[3] {
                HEADERS => return Outcome::Answered(payload[0]),
                RST_STREAM => return Outcome::Reset,
                GOAWAY => return Outcome::ConnectionClosed,
                _ => {}
            }
        }
    })
    .await
}

#[tokio::test]
async fn c07_malformed_http2_requests_never_reach_the_upstream() {
    let whole = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&whole);
    let tls = OriginTls::new();
    let port = origin(
        Some(tls.acceptor("a.test", &["http/1.1"]).await),
        move |request| {
            let seen = Arc::clone(&seen);
            async move {
                if request.into_body().collect().await.is_ok() {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                Response::new(full("ok"))
            }
        },
    )
    .await;
    let to = format!("a.test:{port}");
    let lab = Lab::new(&allow("https", port, ""), Some(&tls));
    let base = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", to.as_str()),
        (":path", "/"),
    ];
    let with = |more: &[(&'static str, &'static str)]| -> Vec<u8> {
        let fields: Vec<(&str, &str)> = base.iter().chain(more).copied().collect();
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields))
    };
    let but = |name: &str, value: &str| -> Vec<u8> {
        let changed = base.map(|field| {
            if field.0 == name {
                (name, value)
            } else {
                field
            }
        });
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&changed))
    };
    let post = |length: &str, data: &[u8]| -> Vec<u8> {
        let fields = [
            &base[1..],
            &[(":method", "POST"), ("content-length", length)],
        ]
        .concat();
        let fields = [&fields[3..4], &fields[..3], &fields[4..]].concat();
        [
            frame(HEADERS, END_HEADERS, 1, &block(&fields)),
            frame(DATA, END_STREAM, 1, data),
        ]
        .concat()
    };
    assert_eq!(
        send(&lab, &to, with(&[("x", "y")])).await,
        Outcome::Answered(0x88)
    );
    assert_eq!(
        send(&lab, &to, post("3", b"abc")).await,
        Outcome::Answered(0x88)
    );
    assert_eq!(whole.swap(0, Ordering::SeqCst), 2);
    let malformed = [
        with(&[("X-Upper", "1")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("connection", "x")]),
        with(&[("te", "gzip")]),
        with(&[(":path", "/other")]),
        with(&[("x", "a\r\nHost: evil.test")]),
        with(&[("x", "a\0b")]),
        with(&[("a b", "c")]),
        with(&[("host", "evil.test")]),
        with(&[("content-length", "5")]),
        but(":path", ""),
        but(":path", "x"),
        but(":path", "/a b"),
        but(":path", "/a\r\nX: y"),
        but(":scheme", "http"),
        but(":authority", "user@a.test"),
        but(":authority", "evil.test"),
        but(":authority", ""),
        but(":method", "TRACE"),
        but(":method", "CONNECT"),
        but(":method", "GE T"),
        post("5", b"abc"),
        post("2", b"abc"),
        post("+3", b"abc"),
        post("3, 3", b"abc"),
    ];
    for frames in malformed {
        let outcome = send(&lab, &to, frames.clone()).await;
        assert_ne!(
            outcome,
            Outcome::Answered(0x88),
            "{}",
            frames.escape_ascii()
        );
        assert_eq!(whole.load(Ordering::SeqCst), 0, "{}", frames.escape_ascii());
    }
}
