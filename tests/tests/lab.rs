//! The lab and the link guest themselves: a test bed that records wrongly would make every other
//! suite pass for nothing.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "clippy exempts tests from these lints, but not what tests share"
)]

use std::io::{Read as _, Write as _};
use std::process::Command;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use outgate_tests::guest::{Finished, Guest, GuestNetwork, link, own_network};
use outgate_tests::harness::{eventually, lab};
use outgate_tests::lab::{BadTls, GIT_README, Lab, ResponseState, pattern_sha256};
use serde_json::json;

fn curl(lab: &Lab, arguments: &[&str]) -> Finished {
    let origin = lab.origin_address();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--cacert"])
        .arg(lab.root_certificate())
        .args(["--resolve", &format!("*:443:{origin}")])
        .args(arguments)
        .output()
        .expect("curl runs");
    output.into()
}

#[test]
fn the_origin_records_requests_as_they_were_spelled() {
    let lab = lab();
    let url = "https://a.test/some/path?q=1&q=%41";
    let sent = [
        "--http1.1",
        "-H",
        "X-MiXeD: One",
        "-H",
        "x-mixed: two",
        "-d",
        "hello",
        url,
    ];
    curl(&lab, &sent).succeeded();

    let received = &lab.journal.all()[0];
    assert_eq!(received.method, "POST");
    assert_eq!(received.target, "/some/path?q=1&q=%41");
    assert_eq!(received.version, "HTTP/1.1");
    assert_eq!(received.sni.as_deref(), Some("a.test"));
    let mixed: Vec<_> = received
        .headers
        .iter()
        .filter(|(n, _)| n.eq_ignore_ascii_case("x-mixed"))
        .collect();
    assert_eq!(
        mixed,
        [
            &("X-MiXeD".into(), "One".into()),
            &("x-mixed".into(), "two".into())
        ]
    );
    assert_eq!(received.body_text.as_deref(), Some("hello"));
    assert!(received.complete);
}

#[test]
fn the_origin_speaks_http_2_to_whoever_asks() {
    let lab = lab();
    let reply = curl(&lab, &["--http2", "https://x.c.test/"]).succeeded();
    assert_eq!(lab.journal.all()[0].version, "HTTP/2.0");
    assert!(
        reply.text().contains("\"authority\": \"x.c.test"),
        "{}",
        reply.text()
    );
}

#[test]
fn downloads_and_uploads_carry_the_digest_they_claim() {
    let lab = lab();
    let body = curl(&lab, &["https://a.test/bytes/1000003"])
        .succeeded()
        .stdout;
    assert_eq!(body.len(), 1_000_003);
    let file = lab.folder().join("upload");
    std::fs::write(&file, &body).expect("writable");
    let upload = format!("@{}", file.display());
    let answer = curl(&lab, &["--data-binary", &upload, "https://a.test/upload"]).succeeded();
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    assert_eq!(
        answer,
        json!({ "length": 1_000_003, "sha256": pattern_sha256(1_000_003) })
    );
    assert_eq!(lab.journal.all()[0].response, ResponseState::Sent);
}

#[test]
fn events_wait_for_their_gate() {
    let lab = lab();
    lab.gates.release("test", 1);
    let url = "https://a.test/sse?n=2&gate=test";
    let origin = format!("*:443:{}", lab.origin_address());
    let mut client = Command::new("curl")
        .args([
            "-sSN",
            "--max-time",
            "20",
            "--resolve",
            &origin,
            url,
            "--cacert",
        ])
        .arg(lab.root_certificate())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("curl runs");
    let mut events = client.stdout.take().expect("piped");
    let mut first = [0; 25];
    events.read_exact(&mut first).expect("the first event");
    assert_eq!(&first, b"id: 1\ndata: {\"event\":1}\n\n");
    lab.gates.release("test", 1);
    let mut rest = String::new();
    events.read_to_string(&mut rest).expect("the second event");
    assert_eq!(rest, "id: 2\ndata: {\"event\":2}\n\n");
    assert!(client.wait().expect("curl ends").success());
}

#[test]
fn git_clones_from_the_origin() {
    let lab = lab();
    let copy = lab.folder().join("copy");
    let cloned: Finished = Command::new("git")
        .env("GIT_SSL_CAINFO", lab.root_certificate())
        .args([
            "-c",
            &format!("http.curloptResolve=a.test:443:{}", lab.origin_address()),
        ])
        .args(["clone", "--quiet", "https://a.test/git/demo.git"])
        .arg(&copy)
        .output()
        .expect("git runs")
        .into();
    cloned.succeeded();
    assert_eq!(
        std::fs::read_to_string(copy.join("README")).expect("cloned"),
        GIT_README
    );
}

#[test]
fn bad_upstreams_are_bad() {
    let lab = lab();
    for fault in BadTls::ALL {
        let address = ask(&lab, fault.name());
        let at = format!("{}:443:{address}", fault.name());
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "20", "--resolve", &at, "--cacert"])
            .arg(lab.root_certificate())
            .arg(format!("https://{}/", fault.name()))
            .output()
            .expect("curl runs");
        assert!(
            matches!(output.status.code(), Some(35 | 60)),
            "{fault:?}: {output:?}"
        );
    }
    assert_eq!(lab.journal.all(), []);
}

/// Asks the lab's name server with python's own resolver-free UDP: one question, one address.
fn ask(lab: &Lab, name: &str) -> String {
    use hickory_proto::op::{Message, MessageType, OpCode, Query};
    use hickory_proto::rr::{Name, RData};
    let mut question = Message::new(7, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(
        Name::from_ascii(name).expect("a name"),
        RecordType::A,
    ));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .send_to(&question.to_vec().expect("encodes"), lab.dns_address())
        .expect("sent");
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).expect("answered");
    let answer = Message::from_vec(&buffer[..length]).expect("decodes");
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    match &answer.answers[0].data {
        RData::A(address) => address.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn labs_stand_side_by_side_on_loopback() {
    own_network().expect("a network namespace");
    let labs = [
        Lab::start().expect("the first lab"),
        Lab::start().expect("the second lab"),
    ];
    assert_ne!(labs[0].origin_address(), labs[1].origin_address());
    for lab in &labs {
        assert!(lab.origin_address().is_loopback());
        curl(lab, &["https://a.test/"]).succeeded();
        assert_eq!(lab.journal.all().len(), 1);
    }
}

#[test]
fn the_sink_notes_every_byte() {
    let lab = lab();
    assert_eq!(lab.sink.all(), []);
    let mut stream = std::net::TcpStream::connect((lab.sink_address(), 80)).expect("connects");
    stream.write_all(b"leak").expect("written");
    drop(stream);
    eventually("the sink notes the bytes", || {
        lab.sink
            .all()
            .iter()
            .any(|touch| touch.bytes == "leak")
            .then_some(())
    });
}

#[test]
fn two_guests_on_one_link_reach_each_other() {
    let (left, right) = link().expect("a link");
    let network = |address: &str, mac: &str| GuestNetwork {
        address: address.parse().expect("an address"),
        prefix: 24,
        gateway: "10.0.2.2".parse().expect("an address"),
        dns: "10.0.2.2".parse().expect("an address"),
        mtu: 65_520,
        mac: mac.to_owned(),
    };
    let none = std::collections::BTreeMap::new();
    let guest =
        Guest::start(left, network("10.0.2.15", "02:00:00:00:00:0f"), "", &none).expect("starts");
    let peer =
        Guest::start(right, network("10.0.2.99", "02:00:00:00:00:99"), "", &none).expect("starts");
    let echo = "import socket\ns = socket.create_server(('0.0.0.0', 7000))\nprint('ready', flush=True)\n\
                c, _ = s.accept()\nwhile b := c.recv(65536): c.sendall(b)";
    let mut server = peer.program("python3").args(["-c", echo]).spawn();
    let mut ready = [0; 6];
    server
        .stdout
        .as_mut()
        .expect("piped")
        .read_exact(&mut ready)
        .expect("the server is ready");

    let mut stream = guest.connect(([10, 0, 2, 99], 7000)).expect("connects");
    let sent = vec![0x5a; 3_000_000];
    let copy = sent.clone();
    let mut writer = stream.try_clone().expect("clones");
    let feed = std::thread::spawn(move || writer.write_all(&copy).expect("written"));
    let mut back = vec![0; sent.len()];
    stream.read_exact(&mut back).expect("echoed");
    feed.join().expect("fed");
    assert!(back == sent);
    drop(stream);
    assert!(server.wait().expect("ends").success());
    let resolver = guest
        .program("cat")
        .args(["/etc/resolv.conf"])
        .run()
        .succeeded();
    assert_eq!(resolver.text(), "nameserver 10.0.2.2\n");
}
