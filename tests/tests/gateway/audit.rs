//! The audit log: one record for everything, in order, chained, and never silently incomplete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use outgate_tests::harness::World;

const A: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET], paths: ["/public/**"] }
"#;

#[test]
fn b175_every_request_has_exactly_one_decision_and_one_end() {
    let world = World::new(A);
    let script: String = (0..50)
        .map(|n| {
            let path = if n % 2 == 0 { "/public" } else { "/private" };
            format!(
                "url = {}\noutput = /dev/null\n",
                &format!("https://a.test{path}/{n}")
            )
        })
        .collect();
    world
        .guest()
        .program("curl")
        .args(["-sS", "--parallel", "--config", "-"])
        .input(script)
        .run()
        .succeeded();

    // All ends are recorded by the time the gateway has stopped in order.
    let mut world = world;
    world.terminate_gateway();
    let records = world.audit().records();
    let of_kind = |kind: &str| {
        records
            .iter()
            .filter(|r| r.text("kind") == kind)
            .collect::<Vec<_>>()
    };
    let mut decisions = BTreeMap::new();
    for record in of_kind("request") {
        let path = record.text("path").to_owned();
        assert!(
            decisions.insert(path, record.text("verdict")).is_none(),
            "judged twice: {record:?}"
        );
    }
    assert_eq!(decisions.len(), 50);
    assert_eq!(
        decisions
            .values()
            .filter(|verdict| **verdict == "allow")
            .count(),
        25
    );
    for (path, verdict) in decisions {
        assert_eq!(verdict == "allow", path.starts_with("/public/"), "{path}");
    }
    let allowed = of_kind("request")
        .into_iter()
        .filter(|r| r.text("verdict") == "allow");
    for request in allowed {
        let ends = of_kind("response")
            .into_iter()
            .filter(|r| r.text("request") == request.text("id"));
        assert_eq!(ends.count(), 1, "{request:?}");
    }
    let sequences: Vec<_> = records.iter().map(|r| r.number("seq")).collect();
    assert!(
        sequences.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{sequences:?}"
    );
    assert_eq!(world.audit().verify().code, Some(0));
}

/// The only segment of a log.
fn segment(world: &World) -> PathBuf {
    let entries = fs::read_dir(world.home.audit_folder())
        .expect("a folder")
        .flatten();
    let mut segments: Vec<_> = entries.map(|entry| entry.path()).collect();
    segments.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    });
    assert_eq!(segments.len(), 1);
    segments.remove(0)
}

#[test]
fn a_changed_removed_or_reordered_record_is_found() {
    let mut world = World::new(A);
    for path in ["/public/1", "/private/2", "/public/3"] {
        world
            .guest()
            .curl(&format!("https://a.test{path}"), [""; 0]);
    }
    world.terminate_gateway();
    assert_eq!(world.audit().verify().code, Some(0));
    let segment = segment(&world);
    let original = fs::read_to_string(&segment).expect("readable");
    let lines: Vec<_> = original.lines().map(str::to_owned).collect();
    let private = lines
        .iter()
        .position(|line| line.contains("/private/2"))
        .expect("recorded");

    let mut changed = lines.clone();
    changed[private] = changed[private].replacen("/private/2", "/private/9", 1);
    let mut removed = lines.clone();
    removed.remove(private);
    let mut reordered = lines.clone();
    reordered.swap(private, private - 1);
    let mut repeated = lines.clone();
    repeated.insert(private, lines[private].clone());
    for (what, lines) in [
        ("changed", changed),
        ("removed", removed),
        ("reordered", reordered),
        ("repeated", repeated),
    ] {
        fs::write(&segment, lines.join("\n") + "\n").expect("writable");
        let verdict = world.audit().verify();
        assert_eq!(
            verdict.code,
            Some(1),
            "{what}: {} {}",
            verdict.text(),
            verdict.stderr
        );
        let told = verdict.text() + &verdict.stderr;
        assert!(
            told.contains("audit-000001.jsonl"),
            "the bad record is named: {told}"
        );
    }
    fs::write(&segment, original).expect("writable");
    assert_eq!(world.audit().verify().code, Some(0));
}

#[test]
fn a_torn_tail_is_cut_and_the_cut_is_a_record() {
    let mut world = World::new(A);
    world
        .guest()
        .curl("https://a.test/public/1", [""; 0])
        .expect_status(200);
    world.kill_gateway();
    let segment = segment(&world);
    let mut bytes = fs::read(&segment).expect("readable");
    bytes.extend(br#"{"seq":99,"half a rec"#);
    fs::write(&segment, bytes).expect("writable");
    world.start_gateway();
    world
        .audit()
        .wait_for("the recovery", |r| r.text("kind") == "recovery");
    world
        .guest()
        .curl("https://a.test/public/2", [""; 0])
        .expect_status(200);
    let verdict = world.audit().verify();
    assert_eq!(
        verdict.code,
        Some(0),
        "{} {}",
        verdict.text(),
        verdict.stderr
    );
}

#[test]
fn the_life_of_a_sandbox_is_recorded() {
    let mut world = World::new(A);
    world.refused("rules:\n  - nonsense\n");
    world
        .guest()
        .curl("https://a.test/public/1", [""; 0])
        .expect_status(200);
    world.replace_policy("rules: []\n");
    world.terminate_gateway();
    let records = world.audit().records();
    let position = |kind: &str| records.iter().position(|r| r.text("kind") == kind);
    let order = [
        "gateway_start",
        "sandbox_register",
        "request",
        "sandbox_release",
        "gateway_stop",
    ];
    let positions: Vec<_> = order.iter().map(|kind| position(kind)).collect();
    assert!(positions.iter().all(Option::is_some), "{positions:?}");
    assert!(positions.is_sorted(), "{positions:?}");
    let revisions: BTreeSet<_> = records
        .iter()
        .filter(|r| r.text("kind") == "sandbox_register")
        .map(|r| r.text("policy_revision"))
        .collect();
    assert_eq!(revisions.len(), 2, "each registration names its policy");
    // A policy that was turned down put nothing in force, and is on record all the same.
    let refused = records
        .iter()
        .find(|r| r.text("kind") == "policy_load")
        .expect("a record");
    assert_eq!(refused.text("verdict"), "deny");
    for record in &records {
        if record.value("sandbox").is_object() {
            assert_eq!(
                record.text("sandbox.labels.suite"),
                "end-to-end",
                "{record:?}"
            );
        }
    }
}

#[test]
fn c14_text_from_outside_cannot_forge_a_record() {
    let world = World::new(A);
    let forged = "/public/%22%7D%7B%22kind%22%3A%22request%22%7D";
    world
        .guest()
        .curl(&format!("https://a.test{forged}"), [""; 0])
        .expect_status(200);
    world
        .guest()
        .curl("https://a.test/public/x?%0a%0dforged=1&%1b[31m=2", [""; 0]);
    world
        .audit()
        .wait_for("the request", |r| r.text("path").contains("kind"));
    let text = fs::read(segment(&world)).expect("readable");
    assert!(
        text.iter()
            .all(|byte| *byte == b'\n' || !byte.is_ascii_control()),
        "control bytes in the log"
    );
    for line in String::from_utf8(text).expect("UTF-8").lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("one JSON object a line");
    }
}

/// A log that cannot be written: the folder is on a file system with no room left.
#[test]
fn c15_a_full_disk_stops_requests() {
    let small = SmallDisk::mount();
    let Some(small) = small else {
        eprintln!("skipped: mounting a tmpfs needs privileges");
        return;
    };
    let world = World::with_audit_folder(A, &small.path.join("audit"));
    let url = "https://a.test/public/x";
    world.guest().curl(url, [""; 0]).expect_status(200);
    small.fill();
    let arrived = world.lab.journal.all().len();
    // What was under way may still finish; then nothing passes.
    outgate_tests::harness::eventually("requests stop", || {
        let reply = world.guest().curl(url, ["--max-time", "10"]);
        (reply.status == Some(503)).then_some(())
    });
    let stopped = world.lab.journal.all().len();
    let reply = world.guest().curl(url, ["--max-time", "10"]);
    assert_eq!(reply.status, Some(503), "{}", reply.text());
    assert_eq!(reply.json()["reason"], "audit_unavailable");
    assert_eq!(
        world.lab.journal.all().len(),
        stopped,
        "nothing arrives unrecorded"
    );
    assert!(stopped >= arrived);
    small.free();
    outgate_tests::harness::eventually("requests pass again", || {
        (world.guest().curl(url, [""; 0]).status == Some(200)).then_some(())
    });
    world
        .audit()
        .wait_for("the gap", |r| r.text("kind") == "write_failure");
    assert_eq!(world.audit().verify().code, Some(0));
}

/// A file system of a few pages.
struct SmallDisk {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "lab"])
            .arg(&path)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self {
            path,
            _folder: folder,
        })
    }

    fn fill(&self) {
        // Ends with "no space left", which is the point.
        let _ = fs::write(self.path.join("ballast"), vec![0; 1 << 20]);
    }

    fn free(&self) {
        fs::remove_file(self.path.join("ballast")).expect("removable");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("--lazy")
            .arg(&self.path)
            .status();
    }
}
