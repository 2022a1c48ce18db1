//! `cargo xtask demo`: the main job on real input. A guest tries fifteen things with curl, python3
//! and git; what it saw, what the upstream saw and what the audit log says are laid side by side,
//! and the secret is looked for in the guest's memory and disk.

mod attempts;
mod lab;
mod proof;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::place::{Place, Profile};
use crate::setup;
use crate::step::{output, step};
use crate::table::Table;
use attempts::{ATTEMPTS, Attempt, Expected, Seen, header, why};
use lab::Lab;

/// The secret of the demo, made up for each run so that no old file can hold it.
fn secret() -> Result<String> {
    let mut random = [0_u8; 24];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Sets up and shows it.
pub(crate) fn run(place: &Place) -> Result<()> {
    setup::run(place)?;
    step("the lab's program", || {
        setup::build(place, Profile::Dev, &["outgate-tests"])
    })?;
    let lab = step("start the lab", || Lab::start(place))?;
    let stage = Stage::new(secret()?)?;
    let story = step("boot a guest and let it try", || stage.play(place, &lab))?;

    let requests = lab.ask("/requests")?;
    let audit = read_audit(&stage.audit())?;
    println!("\nWhat the guest tried\n");
    let held = show_attempts(&stage, &story, &audit, &requests);
    println!("\nServer-sent events: the upstream sends one each 400 ms\n");
    show_events(&story.events);
    println!("\nThe audit trail\n");
    show_audit(&audit);
    println!("\nWhat must not have happened\n");
    show_absences(&lab)?;
    println!();
    let mut verify = place.outgate(Profile::Dev, ["audit", "verify"]);
    print!("{}", output(verify.arg(stage.audit()))?);
    println!("\nThe secret in what is left of the guest\n");
    let placeholder = story
        .placeholder
        .as_deref()
        .context("the guest had no placeholder")?;
    proof::prove(
        &[("memory", &stage.memory()), ("disk", &stage.disk())],
        &stage.secret,
        placeholder,
    )?;
    ensure!(
        held,
        "not everything went as it must: see the rows marked `NO`"
    );
    println!("\nEverything went as the policy says.");
    Ok(())
}

/// The files of one run.
#[derive(Debug)]
struct Stage {
    folder: TempDir,
    secret: String,
}

/// What came out of the guest.
#[derive(Debug, Default)]
struct Story {
    seen: Vec<Seen>,
    /// Event number and when it reached the host, counted from the first.
    events: Vec<(u64, Duration)>,
    placeholder: Option<String>,
}

impl Stage {
    fn new(secret: String) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(
            folder.path().join("policy.yaml"),
            include_str!("policy.yaml"),
        )?;
        Ok(Self { folder, secret })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn audit(&self) -> PathBuf {
        self.path("audit")
    }

    fn memory(&self) -> PathBuf {
        self.path("memory")
    }

    fn disk(&self) -> PathBuf {
        self.path("disk")
    }

    fn play(&self, place: &Place, lab: &Lab) -> Result<Story> {
        // The placeholder first, so that the host knows what to look for in the guest's memory.
        let script = format!(
            "import json, os\nprint(json.dumps({{'placeholder': os.environ['API_TOKEN']}}), flush=True)\n{}",
            include_str!("guest.py"),
        );
        let mut outgate = place.outgate(Profile::Dev, ["run", "--memory", "512M", "--disk", "1G"]);
        outgate
            .args(["--policy".as_ref(), self.path("policy.yaml").as_os_str()])
            .args(["--audit-dir".as_ref(), self.audit().as_os_str()])
            .args([
                "--upstream-ca".as_ref(),
                lab.description.root_certificate.as_os_str(),
            ])
            .args(["--dns", &lab.description.dns])
            .args(["--dump-memory".as_ref(), self.memory().as_os_str()])
            .args(["--keep-disk".as_ref(), self.disk().as_os_str()])
            .args(["--", "python3", "-c", &script])
            .env("DEMO_SECRET", &self.secret)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = outgate.spawn().context("cannot start `outgate run`")?;
        let stdout = process.stdout.take().context("its output is piped")?;
        let mut story = Story::default();
        let mut first_event = None;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let value: Value = serde_json::from_str(&line)
                .with_context(|| format!("the guest said something else: {line}"))?;
            if let Some(event) = value["event"].as_u64() {
                let since = first_event.get_or_insert_with(Instant::now).elapsed();
                story.events.push((event, since));
            } else if let Some(placeholder) = value["placeholder"].as_str() {
                story.placeholder = Some(placeholder.to_owned());
            } else {
                story.seen.push(serde_json::from_value(value)?);
            }
        }
        let status = process.wait()?;
        if !status.success() {
            bail!("`outgate run` ended with {status}");
        }
        Ok(story)
    }
}

fn show_attempts(stage: &Stage, story: &Story, audit: &[Value], requests: &[Value]) -> bool {
    let mut table = Table::new([
        "",
        "attempt",
        "expected",
        "what happened",
        "reason",
        "upstream saw",
    ]);
    let mut all_held = true;
    for attempt in &ATTEMPTS {
        let seen = story.seen.iter().find(|seen| seen.attempt == attempt.id);
        let held = attempt.held(seen, audit, requests);
        all_held &= held;
        let expected = match attempt.expected {
            Expected::Allowed => "allowed",
            Expected::Denied(_) | Expected::Refused { .. } => "denied",
        };
        table.row([
            if held { "ok" } else { "NO" }.to_owned(),
            attempt.title.to_owned(),
            expected.to_owned(),
            Attempt::happened(seen),
            attempt.reason(seen, audit),
            upstream_saw(&attempt.received(requests), &stage.secret),
        ]);
    }
    print!("{table}");
    // The point of the first rows: the guest sent a placeholder, the upstream got the secret.
    let authorised = |id: &str| {
        let wanted = format!("Bearer {}", stage.secret);
        requests.iter().any(|request| {
            header(request, "x-attempt") == Some(id)
                && header(request, "authorization") == Some(&wanted)
        })
    };
    all_held && authorised("get") && authorised("get-python")
}

fn upstream_saw(received: &[&Value], secret: &str) -> String {
    let Some(first) = received.first() else {
        return "nothing".to_owned();
    };
    let line = format!(
        "{} {}",
        first["method"].as_str().unwrap_or_default(),
        first["target"].as_str().unwrap_or_default()
    );
    let credential = match header(first, "authorization") {
        Some(value) if value.contains(secret) => " with the real credential",
        Some(_) => " with another credential",
        None => "",
    };
    match received.len() {
        1 => format!("{line}{credential}"),
        more => format!("{line}{credential} (and {} more)", more - 1),
    }
}

fn show_events(events: &[(u64, Duration)]) {
    let mut table = Table::new(["event", "reached the host after"]);
    for (event, after) in events {
        table.row([event.to_string(), format!("{:>5} ms", after.as_millis())]);
    }
    print!("{table}");
}

fn show_audit(audit: &[Value]) {
    let mut table = Table::new(["kind", "verdict", "reason", "rule", "what", "status"]);
    for record in audit {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let port = record["port"]
            .as_u64()
            .map(|port| format!(":{port}"))
            .unwrap_or_default();
        let to = text(&record["host"]) + &port + &text(&record["path"]);
        let what = [
            text(&record["method"]),
            text(&record["credential"]["name"]),
            to,
        ];
        let what: Vec<_> = what.into_iter().filter(|word| !word.is_empty()).collect();
        table.row([
            text(&record["kind"]),
            text(&record["verdict"]),
            why(record).to_owned(),
            text(&record["rule"]["id"]),
            what.join(" "),
            record["status"]
                .as_u64()
                .map(|status| status.to_string())
                .unwrap_or_default(),
        ]);
    }
    print!("{table}");
}

fn show_absences(lab: &Lab) -> Result<()> {
    let touches = lab.ask("/sink")?;
    let queries = lab.ask("/dns")?;
    let leaks = queries.iter().filter(|query| {
        query["name"]
            .as_str()
            .is_some_and(|name| name.ends_with("evil.test"))
    });
    let leaks = leaks.count();
    println!(
        "  connections and bytes that reached evil.test: {}",
        touches.len()
    );
    println!("  DNS queries for evil.test that left:          {leaks}");
    ensure!(
        touches.is_empty() && leaks == 0,
        "something reached evil.test"
    );
    Ok(())
}

fn read_audit(folder: &Path) -> Result<Vec<Value>> {
    let mut segments: Vec<_> = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    segments.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    });
    segments.sort();
    let mut records = Vec::new();
    for segment in segments {
        for line in std::fs::read_to_string(segment)?.lines() {
            records.push(serde_json::from_str(line)?);
        }
    }
    Ok(records)
}
