//! HTTP/2 between guest and gateway, with frames written by hand where a library would not.

use std::io::{Read as _, Write as _};

use outgate_tests::guest::TlsStream;
use outgate_tests::harness::World;
use outgate_tests::lab::pattern_sha256;

const RULES: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/public/**", "/bytes/**", "/trailers"] }
  - id: b
    action: allow
    to: { hosts: [b.test], private: true }
"#;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const GOAWAY: u8 = 0x7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// A connection that has said hello.
struct Http2 {
    tls: TlsStream,
}

/// What became of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// A response head came.
    Answered,
    /// RST_STREAM, or GOAWAY for the whole connection, or a closed connection.
    Refused,
}

impl Http2 {
    fn open(world: &World) -> Self {
        let mut tls = world
            .guest()
            .tls("a.test", 443, "h2")
            .expect("a TLS session");
        assert_eq!(tls.conn.alpn_protocol(), Some(&b"h2"[..]));
        tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .expect("written");
        let mut connection = Self { tls };
        connection.frame(SETTINGS, 0, 0, &[]);
        connection
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        // The gateway may have hung up on an earlier frame; what it said is read afterwards.
        let _ = self.tls.write_all(&frame).and_then(|()| self.tls.flush());
    }

    fn headers(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) {
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.frame(HEADERS, flags, stream, &literal_fields(fields));
    }

    /// Reads until the stream is answered or refused.
    fn fate(&mut self, stream: u32) -> Fate {
        loop {
            let mut head = [0; 9];
            if self.tls.read_exact(&mut head).is_err() {
                return Fate::Refused;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length];
            if self.tls.read_exact(&mut payload).is_err() {
                return Fate::Refused;
            }
            match head[3] {
                HEADERS if of == stream => return Fate::Answered,
                RST_STREAM if of == stream => return Fate::Refused,
                GOAWAY => return Fate::Refused,
                _ => {}
            }
        }
    }
}

/// HPACK without compression: literal fields, never indexed (RFC 7541, section 6.2.3).
fn literal_fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0x10);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("shorter than 127"));
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The answer comes before the body was read; a stream reset in between would hide it.
#[test]
fn a_denied_upload_over_h2_is_answered_and_the_answer_can_be_read() {
    let world = World::new(RULES);
    for data in ["small".to_owned(), "x".repeat(3_000_000)] {
        let options = ["--http2", "--data-binary", "@-"];
        world
            .guest()
            .curl_with_input("https://a.test/private", options, data.as_bytes())
            .expect_status(403);
    }
    assert!(world.lab.journal.all().is_empty());
}

#[test]
fn b062_b063_h2_is_offered_and_every_stream_is_judged() {
    let world = World::new(RULES);
    let mut connection = Http2::open(&world);
    let request = |path| {
        [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "a.test"),
            (":path", path),
        ]
    };
    for (stream, path) in [(1, "/public/one"), (3, "/private"), (5, "/public/two")] {
        connection.headers(stream, &request(path), true);
        assert_eq!(connection.fate(stream), Fate::Answered);
    }
    let mut targets: Vec<_> = world
        .lab
        .journal
        .all()
        .into_iter()
        .map(|r| r.target)
        .collect();
    targets.sort();
    assert_eq!(targets, ["/public/one", "/public/two"]);
    let denied = world.audit().denial("default_deny", "a.test");
    assert_eq!(denied.text("path"), "/private");
    assert_eq!(denied.text("http_version"), "HTTP/2.0");
    // And on the other leg, since the origin speaks it too.
    assert!(
        world
            .lab
            .journal
            .all()
            .iter()
            .all(|r| r.version == "HTTP/2.0")
    );
}

#[test]
fn b067_malformed_streams_are_never_forwarded() {
    let world = World::new(RULES);
    let get = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/public/x"),
    ];
    let with = |extra: &[(&'static str, &'static str)]| [&get[..], extra].concat();
    for fields in [
        with(&[("host", "evil.test")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("connection", "keep-alive")]),
        with(&[("te", "gzip")]),
        with(&[("X-Upper", "1")]),
        with(&[("x-split", "a\r\nhost: evil.test")]),
        with(&[("x-nul", "a\0b")]),
        with(&[("x name", "1")]),
        with(&[(":path", "/public/twice")]),
        with(&[(":unknown", "1")]),
        get[..3].to_vec(),
        get[1..].to_vec(),
        [&[("x-first", "1")], &get[..]].concat(),
        vec![get[0], get[1], (":authority", "evil.test"), get[3]],
        vec![get[0], get[1], (":authority", ""), get[3]],
        vec![get[0], get[1], (":authority", "user@a.test"), get[3]],
        vec![get[0], get[1], get[2], (":path", "public/x")],
        vec![get[0], get[1], get[2], (":path", "")],
        vec![get[0], get[1], get[2], (":path", "/public/x y")],
        vec![get[0], (":scheme", "ftp"), get[2], get[3]],
        vec![(":method", "CONNECT"), (":authority", "evil.test:443")],
        vec![
            (":method", "CONNECT"),
            (":protocol", "connect-udp"),
            get[1],
            get[2],
            get[3],
        ],
    ] {
        let mut connection = Http2::open(&world);
        connection.headers(1, &fields, true);
        // A refusal may be a stream error or an HTTP answer; the origin's journal is the judge.
        connection.fate(1);
        assert_eq!(world.lab.journal.all(), [], "{fields:?}");
    }
}

#[test]
fn c07_content_length_must_equal_the_data() {
    let world = World::new(RULES);
    for (claimed, sent) in [("10", &b"hello"[..]), ("3", b"hello"), ("0", b"hello")] {
        let mut connection = Http2::open(&world);
        let fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "a.test"),
            (":path", "/public/x"),
            ("content-length", claimed),
        ];
        connection.headers(1, &fields, false);
        connection.frame(DATA, END_STREAM, 1, sent);
        connection.fate(1);
    }
    for received in world.lab.journal.all() {
        assert!(
            !received.complete,
            "a lying length arrived as a whole request: {received:?}"
        );
    }
}

#[test]
fn c08_a_stream_for_another_host_is_misdirected() {
    let world = World::new(RULES);
    let mut connection = Http2::open(&world);
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "b.test"),
        (":path", "/x"),
    ];
    connection.headers(1, &fields, true);
    assert_eq!(connection.fate(1), Fate::Answered);
    world
        .audit()
        .wait_for("the mismatch", |r| r.text("reason") == "authority_mismatch");
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn b069_extended_connect_is_not_advertised() {
    let world = World::new(RULES);
    let mut connection = Http2::open(&world);
    let mut head = [0; 9];
    connection
        .tls
        .read_exact(&mut head)
        .expect("the gateway's settings");
    assert_eq!(head[3], SETTINGS);
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    connection
        .tls
        .read_exact(&mut payload)
        .expect("all of them");
    // SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441).
    assert!(
        payload.chunks(6).all(|setting| setting[..2] != [0, 8]),
        "{payload:?}"
    );
}

#[test]
fn b065_bodies_larger_than_any_window_arrive_whole() {
    let world = World::new(RULES);
    let url = "https://a.test/bytes/20000003";
    let script = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())";
    for version in ["--http2", "--http1.1"] {
        let body = world.guest().curl(url, [version]).expect_status(200).body;
        let digest = world
            .guest()
            .program("python3")
            .args(["-c", script])
            .input(body)
            .run();
        assert_eq!(
            digest.text().trim(),
            pattern_sha256(20_000_003),
            "{version}"
        );
    }
}

#[test]
fn b083_trailers_cross_the_gateway_in_both_versions() {
    let world = World::new(RULES);
    let url = "https://a.test/trailers";
    let h2 = world
        .guest()
        .curl(url, ["--http2", "-H", "TE: trailers"])
        .expect_status(200);
    assert!(h2.version.starts_with("HTTP/2"), "{h2:?}");
    // curl prints trailers behind the head, on `--dump-header` too.
    assert!(
        h2.trailers.iter().any(|(name, _)| name == "x-lab-trailer"),
        "{h2:?}"
    );
    assert_eq!(world.lab.journal.all()[0].header("te"), ["trailers"]);
}
