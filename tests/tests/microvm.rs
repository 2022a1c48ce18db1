//! Real guests by `outgate run`: what a person types, judged by exit code, output, what the
//! upstream received, the audit log, and what is left behind. Boots are few, because each takes
//! seconds where there is no hardware virtualisation.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "clippy exempts tests from these lints, but not what tests share"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use outgate_tests::guest::Finished;
use outgate_tests::harness::{
    AuditTrail, GatewayHome, SECRET, SECRET_VARIABLE, eventually, lab, outgate, policy,
};
use outgate_tests::lab::{GIT_README, Lab};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const RULES: &str = r#"
rules:
  - id: api
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET], paths: ["/v1/**"] }
    credential: api
  - id: uploads
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [POST], paths: ["/upload"] }
  - id: clone
    action: allow
    to: { hosts: [b.test], private: true }
    http: { methods: [GET, POST], paths: ["/git/demo.git/**"] }
credentials:
  - name: api
    source: { env: LAB_SECRET }
    expose: { env: API_TOKEN, shape: "tok_{32}" }
    attach: [{ header: Authorization, format: "Bearer {}" }]
"#;

/// A lab and the files of one run.
struct Stage {
    lab: Lab,
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("policy.yaml"), policy(RULES)).expect("writable");
        Self { lab: lab(), folder }
    }

    /// `outgate run` with `options`, then `--` and `command`.
    fn run(&self, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(outgate().expect("the program under test"));
        run.arg("run")
            .args([
                "--policy".as_ref(),
                self.folder.path().join("policy.yaml").as_os_str(),
            ])
            .args([
                "--audit-dir".as_ref(),
                self.folder.path().join("audit").as_os_str(),
            ])
            .args([
                "--upstream-ca".as_ref(),
                self.lab.root_certificate().as_os_str(),
            ])
            .args(["--dns", &self.lab.dns_address().to_string()])
            .args(options)
            .arg("--")
            .args(command)
            .env(SECRET_VARIABLE, SECRET)
            .env("HOST_ONLY", "of no concern to a guest")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        run
    }

    fn finish(&self, options: &[&str], command: &[&str]) -> Finished {
        self.run(options, command).output().expect("it runs").into()
    }

    fn audit(&self) -> AuditTrail {
        AuditTrail::at(self.folder.path().join("audit"))
    }
}

/// Waits for the guest's first line of output.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("piped");
    BufReader::with_capacity(1, stdout)
        .read_line(&mut line)
        .expect("readable");
    line
}

#[test]
fn a_guest_does_what_its_policy_says_and_nothing_else() {
    let stage = Stage::new();
    let memory = stage.folder.path().join("memory");
    let disk = stage.folder.path().join("disk");
    let options = [
        "--dump-memory",
        memory.to_str().expect("UTF-8"),
        "--keep-disk",
        disk.to_str().expect("UTF-8"),
        "--memory",
        "512M",
        "--disk",
        "1G",
        "--env",
        "GIVEN=by hand",
    ];
    let script = include_str!("microvm_guest.py");
    let finished = stage
        .finish(&options, &["python3", "-c", script])
        .succeeded();
    let seen: BTreeMap<String, Value> =
        serde_json::from_slice(&finished.stdout).expect("the script prints one JSON object");
    let denied = |what: &str, reason: &str| assert_eq!(seen[what]["reason"], reason, "{seen:#?}");

    // Allowed, with curl, python3 and git.
    assert_eq!(seen["get"]["status"], 200, "{seen:#?}");
    assert_eq!(seen["python"], 200);
    assert_eq!(seen["clone"], GIT_README.trim());
    assert_eq!(seen["upload"], 5_000_000);
    let received = stage.lab.journal.all();
    let of = |path: &str| {
        received
            .iter()
            .filter(|r| r.target == path)
            .collect::<Vec<_>>()
    };
    for request in [of("/v1/get"), of("/v1/python")].concat() {
        assert_eq!(
            request.header("authorization"),
            [format!("Bearer {SECRET}")]
        );
    }
    assert_eq!(of("/upload")[0].body_length, 5_000_000);

    // Denied, each with its reason.
    denied("post", "default_deny");
    denied("path", "default_deny");
    denied("dot-segments", "default_deny");
    denied("fronting", "authority_mismatch");
    // b102: the name is not resolved; b093, b113: UDP goes nowhere; b222: nor do other ports.
    assert_eq!(seen["other-host"]["curl"], 6);
    for silent in ["dns", "udp-53", "udp-443", "tcp-5432", "raw-ip", "metadata"] {
        assert_eq!(seen[silent], "closed", "{silent}: {seen:#?}");
    }
    assert_eq!(stage.lab.sink.all(), []);
    let names: BTreeSet<_> = stage
        .lab
        .dns
        .queries()
        .into_iter()
        .map(|query| query.name)
        .collect();
    assert_eq!(names, ["a.test", "b.test"].map(str::to_owned).into());

    // b143: the environment is what was given, with a placeholder.
    let environment = seen["environment"].as_object().expect("an object");
    assert_eq!(environment["GIVEN"], "by hand");
    assert!(
        environment["API_TOKEN"]
            .as_str()
            .is_some_and(|token| token.starts_with("tok_"))
    );
    assert!(!environment.contains_key("HOST_ONLY") && !environment.contains_key(SECRET_VARIABLE));
    // b038: the clock is set before the first command runs.
    let clock = seen["clock"].as_f64().expect("a time");
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    assert!(
        (now.as_secs_f64() - clock).abs() < 60.0,
        "{clock} at {now:?}"
    );
    // b041: the authority is in the system's own store, not only in variables.
    assert_eq!(seen["without-variables"], 200);

    // The secret was never in the guest; the placeholder shows that the search can find things.
    let placeholder = environment["API_TOKEN"].as_str().expect("text");
    assert!(
        holds(&memory, placeholder),
        "the memory image is of this guest"
    );
    for file in [memory, disk] {
        assert!(
            !holds(&file, SECRET),
            "the secret is in the guest: {}",
            file.display()
        );
    }
    assert_eq!(stage.audit().verify().code, Some(0));
    assert_eq!(stage.audit().records()[0].text("kind"), "gateway_start");
    let tiers = stage.audit().requests();
    assert!(
        tiers
            .iter()
            .all(|record| record.text("sandbox.tier") == "microvm")
    );
}

/// Whether `text` is anywhere in a file, however large.
fn holds(file: &Path, text: &str) -> bool {
    let grep = Command::new("grep")
        .args(["--text", "--fixed-strings", "--quiet", "-e", text])
        .arg(file)
        .status();
    match grep.expect("grep runs").code() {
        Some(0) => true,
        Some(1) => false,
        other => panic!("grep ended with {other:?}"),
    }
}

#[test]
fn input_output_and_exit_code_pass_through() {
    let stage = Stage::new();
    let script = "read line; echo \"out: $line\"; echo err >&2; sleep 600 & exit 3";
    let mut child = stage
        .run(&["-i", "--quiet"], &["bash", "-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"hello\n")
        .expect("written");
    let output: Finished = child.wait_with_output().expect("ends").into();
    // b210: the child in the background does not hold the call.
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    assert_eq!(output.text(), "out: hello\n");
    assert_eq!(
        output.stderr, "err\n",
        "nothing but the command's own words with --quiet"
    );
}

#[test]
fn b209_signals_missing_programs_and_time_limits_have_codes() {
    let stage = Stage::new();
    let killed = stage.finish(&["--json"], &["bash", "-c", "kill -TERM $$"]);
    assert_eq!(killed.code, Some(143), "{}", killed.stderr);
    let events: Vec<Value> = killed
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let last = events.last().expect("an exit event");
    assert_eq!(
        (&last["source"], &last["code"]),
        (&"guest".into(), &143.into()),
        "{last}"
    );

    // b214: a missing program is the caller's mistake, with a code of its own.
    assert_eq!(stage.finish(&[], &["no-such-program"]).code, Some(127));
    let slow = stage.finish(
        &["--timeout", "1s"],
        &["bash", "-c", "echo partial; sleep 600"],
    );
    assert_eq!(
        (slow.code, slow.text()),
        (Some(124), "partial\n".to_owned()),
        "{}",
        slow.stderr
    );
}

#[test]
fn bad_input_is_refused_before_anything_boots() {
    let stage = Stage::new();
    let write = |name: &str, text: &str| {
        let path = stage.folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.to_string_lossy().into_owned()
    };
    let unknown_key = write("unknown.yaml", "version: 1\nrulez: []\n");
    let broken_image = write("image", "this is no file system");
    let missing = stage
        .folder
        .path()
        .join("missing")
        .to_string_lossy()
        .into_owned();
    for (options, code, words) in [
        (["--policy", &unknown_key], 2, "rulez"),
        (["--policy", &missing], 2, "missing"),
        (["--image", &broken_image], 122, "image"),
        (["--image", &missing], 122, "missing"),
        (["--upstream-ca", &missing], 2, "missing"),
        (["--memory", "lots"], 2, "lots"),
    ] {
        let refused = stage.finish(&options, &["true"]);
        assert_eq!(refused.code, Some(code), "{options:?}: {}", refused.stderr);
        assert!(
            refused.stderr.contains(words),
            "{options:?}: {}",
            refused.stderr
        );
    }
}

/// All processes that descend from `root`, itself included.
fn family(root: u32) -> BTreeSet<u32> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let parent = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        parents.insert(pid, parent.unwrap_or(0));
    }
    let mut family = BTreeSet::from([root]);
    loop {
        let more = parents.iter().filter(|(_, parent)| family.contains(parent));
        let grown: BTreeSet<_> = more
            .map(|(pid, _)| *pid)
            .chain(family.iter().copied())
            .collect();
        if grown.len() == family.len() {
            return family;
        }
        family = grown;
    }
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn b239_nothing_outlives_its_parent() {
    let stage = Stage::new();
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let command = ["bash", "-c", "trap 'exit 9' INT; echo up; sleep 600 & wait"];
        let mut child = stage.run(&["--quiet"], &command).spawn().expect("it runs");
        assert_eq!(first_line(&mut child), "up\n");
        let family = family(child.id());
        assert!(family.len() > 1, "there is a virtual machine");
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let status = child.wait().expect("ends");
        match signal {
            Signal::INT => assert_eq!(status.code(), Some(9), "the command handled it"),
            _ => assert!(!status.success()),
        }
        for pid in family {
            eventually("all of it is gone", || (!is_alive(pid)).then_some(()));
        }
    }
}

#[test]
fn a_guest_outlives_its_gateway() {
    let stage = Stage::new();
    let mut home = GatewayHome::new(&stage.lab).expect("a folder");
    home.env(SECRET_VARIABLE, SECRET);
    let gateway = home.start().expect("the gateway starts");
    let policy = stage.folder.path().join("policy.yaml");
    let script = "curl -sS -o /dev/null -w '%{http_code}\\n' https://a.test/v1/one; read go; \
                  curl -sS --retry 20 --retry-all-errors --retry-delay 1 -o /dev/null \
                  -w '%{http_code}\\n' https://a.test/v1/two";
    let mut child = Command::new(outgate().expect("the program under test"))
        .args(["run", "-i", "--quiet", "--memory", "512M", "--policy"])
        .arg(policy)
        .args(["--gateway".as_ref(), home.admin().as_os_str()])
        .args(["--", "bash", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    assert_eq!(first_line(&mut child), "200\n");
    gateway.kill();
    let _gateway = home.start().expect("another gateway starts");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"go\n")
        .expect("written");
    let mut rest = String::new();
    child
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut rest)
        .expect("readable");
    assert_eq!(rest, "200\n");
    assert!(child.wait().expect("ends").success());
    let targets: Vec<_> = stage
        .lab
        .journal
        .all()
        .into_iter()
        .map(|r| r.target)
        .collect();
    assert_eq!(targets, ["/v1/one", "/v1/two"]);
    assert_eq!(home.audit().verify().code, Some(0));
}

#[test]
fn two_runs_at_once_do_not_meet() {
    let stage = Stage::new();
    let other = Stage {
        lab: Lab::start().expect("a second lab"),
        folder: tempfile::tempdir().expect("a folder"),
    };
    std::fs::write(
        other.folder.path().join("policy.yaml"),
        policy("rules: []\n"),
    )
    .expect("writable");
    let command = [
        "bash",
        "-c",
        "curl -sS --max-time 20 -o /dev/null -w '%{http_code}' https://a.test/v1/x",
    ];
    let first = stage.run(&["--quiet"], &command).spawn().expect("it runs");
    let second = other.run(&["--quiet"], &command).spawn().expect("it runs");
    let first: Finished = first.wait_with_output().expect("ends").into();
    let second: Finished = second.wait_with_output().expect("ends").into();
    assert_eq!(
        (first.code, first.text().as_str()),
        (Some(0), "200"),
        "{}",
        first.stderr
    );
    assert_eq!(
        (second.code, second.text().as_str()),
        (Some(6), "000"),
        "{}",
        second.stderr
    );
    assert_eq!(other.lab.journal.all(), []);
}

/// Kept from drifting: an idle guest's clock runs with the host's.
#[test]
fn a_guests_clock_runs_with_the_hosts() {
    let stage = Stage::new();
    let script =
        "import time; print(time.time(), flush=True); input(); print(time.time(), flush=True)";
    let mut child = stage
        .run(&["-i", "--quiet"], &["python3", "-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    let parse = |line: String| line.trim().parse::<f64>().expect("a time");
    let now = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs_f64()
    };
    let guest = parse(first_line(&mut child));
    let host = now();
    let later = std::time::Instant::now() + Duration::from_secs(5);
    // Time itself is what is measured here, so it has to pass.
    while let Some(left) = later.checked_duration_since(std::time::Instant::now()) {
        std::thread::park_timeout(left);
    }
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"\n")
        .expect("written");
    let drift = (parse(first_line(&mut child)) - guest) - (now() - host);
    assert!(drift.abs() < 0.5, "drifted {drift} s in 5 s");
    assert!(child.wait().expect("ends").success());
}
