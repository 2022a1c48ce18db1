//! Bodies in motion: each part arrives when it was sent, nothing is held back, and nothing piles up
//! when one side stops.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use outgate_tests::harness::{World, eventually};
use outgate_tests::lab::{ResponseState, pattern, pattern_sha256};

const A: &str = "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n";

#[test]
fn b076_events_arrive_one_by_one_in_both_versions() {
    let world = World::new(A);
    for version in ["--http1.1", "--http2"] {
        let url = &format!("https://a.test/sse?n=4&gate={version}");
        let mut client = world
            .guest()
            .program("curl")
            .args(["-sSN", version, url])
            .spawn();
        let mut lines = BufReader::new(client.stdout.take().expect("piped")).lines();
        for event in 1..=4 {
            // Only now may the origin send it: whatever arrived before was not held back.
            world.lab.gates.release(version, 1);
            let next: Vec<_> = lines
                .by_ref()
                .take(3)
                .map(|line| line.expect("a line"))
                .collect();
            assert_eq!(
                next,
                [
                    format!("id: {event}"),
                    format!("data: {{\"event\":{event}}}"),
                    String::new()
                ]
            );
        }
        assert!(client.wait().expect("ends").success());
    }
}

#[test]
fn b078_small_pieces_are_not_collected() {
    let world = World::new(A);
    let url = "https://a.test/reset?after=100&gate=never-mind";
    let mut client = world
        .guest()
        .program("curl")
        .args(["-sSN", "--http1.1", url])
        .spawn();
    // 100 bytes of a promised megabyte are there while the origin waits.
    let mut piece = [0; 100];
    client
        .stdout
        .as_mut()
        .expect("piped")
        .read_exact(&mut piece)
        .expect("the first piece");
    world.lab.gates.release("never-mind", 1);
    assert!(!client.wait().expect("ends").success());
}

#[test]
fn an_upstream_that_breaks_off_is_not_made_whole() {
    let world = World::new(A);
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://a.test/reset?after=5000&gate={version}");
        let mut client = world
            .guest()
            .program("curl")
            .args(["-sSN", version, &url])
            .spawn();
        let mut start = [0; 5000];
        client
            .stdout
            .as_mut()
            .expect("piped")
            .read_exact(&mut start)
            .expect("what was sent");
        world.lab.gates.release(version, 1);
        let status = client.wait().expect("ends");
        assert!(!status.success(), "a short body must not look complete");
    }
    world.audit().wait_for("the break", |r| {
        r.text("kind") == "response" && r.text("reason") == "upstream_closed"
    });
}

#[test]
fn b086_uploads_of_unknown_length_are_streamed() {
    let world = World::new(A);
    let url = "https://a.test/upload";
    for version in ["--http1.1", "--http2"] {
        world.lab.journal.clear();
        let mut client = world
            .guest()
            .program("curl")
            .args([
                "-sSN",
                version,
                "--request",
                "POST",
                "--header",
                "Expect:",
                "--upload-file",
                "-",
                url,
            ])
            .spawn();
        let mut body = client.stdin.take().expect("piped");
        let mut sent = 0;
        let mut chunks = pattern(3_000_000);
        while sent < 1_000_000 {
            let chunk = chunks.next().expect("more");
            body.write_all(&chunk).expect("written");
            sent += chunk.len() as u64;
        }
        // The first part is at the origin although the rest does not exist yet. What the client
        // keeps in its own buffer is less than this.
        eventually("half of what was written arrived", || {
            let received = world.lab.journal.all();
            received
                .first()
                .is_some_and(|r| r.body_length > sent / 2)
                .then_some(())
        });
        for chunk in chunks {
            body.write_all(&chunk).expect("written");
        }
        drop(body);
        let output = client.wait_with_output().expect("ends");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            answer["sha256"],
            pattern_sha256(3_000_000),
            "{version}: {answer}"
        );
        assert_eq!(world.lab.journal.all()[0].header("content-length"), [""; 0]);
    }
}

#[test]
fn b085_a_client_that_leaves_takes_the_upstream_with_it() {
    let world = World::new(A);
    for version in ["--http1.1", "--http2"] {
        world.lab.journal.clear();
        let url = "https://a.test/bytes/4000000000";
        let mut client = world
            .guest()
            .program("curl")
            .args(["-sSN", version, url])
            .spawn();
        let mut start = vec![0; 1_000_000];
        client
            .stdout
            .as_mut()
            .expect("piped")
            .read_exact(&mut start)
            .expect("a megabyte");
        client.kill().expect("killed");
        client.wait().expect("gone");
        // `timeout` was the child; curl itself ends with its pipe.
        drop(client.stdout.take());
        eventually("the origin notices", || {
            let received = world.lab.journal.all();
            received
                .first()
                .is_some_and(|r| r.response == ResponseState::Aborted)
                .then_some(())
        });
    }
}

#[test]
fn b077_a_client_that_does_not_read_stops_the_upstream() {
    let world = World::new(A);
    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a session");
    let before = resident_bytes(world.gateway().pid());
    write!(
        tls,
        "GET /bytes/1000000000 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    )
    .expect("written");
    let mut head = [0; 64];
    tls.read_exact(&mut head).expect("the answer begins");
    // Nobody reads on. Another flow of the same sandbox is not held up by that, and by the time it
    // has moved 50 MB, an upstream that is not stopped would have filled the gateway.
    let other = "https://a.test/bytes/50000000";
    let reply = world.guest().curl(other, ["--http1.1"]).expect_status(200);
    assert_eq!(reply.body.len(), 50_000_000);
    let grown = resident_bytes(world.gateway().pid()).saturating_sub(before);
    assert!(grown < 64 << 20, "the gateway grew by {} MiB", grown >> 20);
    assert_eq!(world.lab.journal.all()[0].response, ResponseState::Pending);
}

/// Resident memory of a process.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a size");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .expect("a number")
        .parse()
        .expect("a number");
    kib * 1024
}

#[test]
fn b163_expect_100_continue_is_answered_after_the_verdict() {
    let world = World::new(
        r#"
rules:
  - id: some
    action: allow
    to: { hosts: [a.test], private: true }
    http: { paths: ["/upload", "/refuse-body"] }
"#,
    );
    let body: Vec<u8> = pattern(2_000_000).flatten().collect();
    let send = |path: &str| {
        let options = [
            "--http1.1",
            "-H",
            "Expect: 100-continue",
            "--expect100-timeout",
            "60",
            "--data-binary",
            "@-",
        ];
        world
            .guest()
            .curl_with_input(&format!("https://a.test{path}"), options, body.clone())
    };
    let allowed = send("/upload").expect_status(200);
    assert_eq!(allowed.json()["sha256"], pattern_sha256(2_000_000));
    assert_eq!(
        send("/refuse-body").status,
        Some(417),
        "the upstream's own refusal is relayed"
    );
    // Denied before a byte of the body: curl would wait a minute for a 100 that must not come.
    send("/other").expect_denied(403, "default_deny");
    assert!(world.lab.journal.all().iter().all(|r| r.target != "/other"));
}

#[test]
fn b077_large_downloads_are_whole_and_leave_no_trace_in_memory() {
    let world = World::new(A);
    let url = "https://a.test/bytes/200000000";
    let digest = |version: &str| {
        let script = format!("curl -sSN {version} {url} | sha256sum");
        world
            .guest()
            .program("sh")
            .args(["-c", &script])
            .run()
            .succeeded()
            .text()
    };
    digest("--http2");
    let before = resident_bytes(world.gateway().pid());
    for version in ["--http1.1", "--http2"] {
        let expected = pattern_sha256(200_000_000);
        assert!(digest(version).starts_with(&expected), "{version}");
    }
    let grown = resident_bytes(world.gateway().pid()).saturating_sub(before);
    assert!(grown < 32 << 20, "the gateway grew by {} MiB", grown >> 20);
}

#[test]
fn b183_small_exchanges_are_not_delayed() {
    let world = World::new(A);
    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a session");
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = std::time::Instant::now();
        write!(tls, "GET /status/200 HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
        outgate_tests::guest::read_response(&mut tls).expect("answered");
        times.push(start.elapsed());
    }
    times.sort();
    // A missing TCP_NODELAY anywhere costs 40 ms each; the bound leaves room for a busy machine.
    assert!(
        times[times.len() / 2].as_millis() < 30,
        "median {:?}",
        times[times.len() / 2]
    );
    // One connection on each leg carried all fifty.
    let connections: std::collections::BTreeSet<_> = world
        .lab
        .journal
        .all()
        .iter()
        .map(|r| r.connection)
        .collect();
    assert_eq!(connections.len(), 1);
}
