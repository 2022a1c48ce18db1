//! `outgate policy test`: the tests of policy files, and of files of cases, with a diff for each
//! that doesn't hold.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use outgate_policy::{Policy, Severity, Source, TestDifference, TestOutcome};
use serde::Serialize;

use super::findings::{Checked, Finding, Format, FormatArgs, Place, Region};
use super::read::{Reader, name_of};
use super::{junit, sarif};
use crate::exit::Code;
use crate::output::{self, printable};

/// Run the tests that the files hold.
///
/// Ends with 0 when all hold, 1 on a difference, 2 when a file doesn't load.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Policy files, each on its own; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A file of nothing but `tests:`, which every policy is put to
    #[arg(long, value_name = "FILE")]
    cases: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

/// What came of one policy, or of a file of cases that doesn't load.
#[derive(Debug)]
pub(super) struct Tested {
    pub(super) policy: String,
    /// Why nothing was run.
    pub(super) broken: Vec<Finding>,
    pub(super) outcomes: Vec<TestOutcome>,
}

impl TestArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut reader = Reader::default();
        let mut tested = Vec::new();
        let mut cases = Vec::new();
        for path in &self.cases {
            match read_cases(&mut reader, path) {
                Ok(source) => cases.push(source),
                Err(broken) => tested.push(Tested::broken(name_of(path), broken)),
            }
        }
        for path in &self.files {
            tested.push(Tested::of(Checked::of(&mut reader, path), &cases));
        }
        match self.format.get() {
            Format::Text => text(&tested)?,
            Format::Json => json(&tested)?,
            Format::Sarif => output::line(self.sarif(&tested)?)?,
            Format::Junit => output::line(junit::of_tests(&tested)?)?,
        }
        let mut outcomes = tested.iter().flat_map(|one| &one.outcomes);
        Ok(if tested.iter().any(|one| !one.broken.is_empty()) {
            Code::Usage.into()
        } else if outcomes.all(TestOutcome::passed) {
            ExitCode::SUCCESS
        } else {
            Code::CheckFailed.into()
        })
    }

    fn sarif(&self, tested: &[Tested]) -> serde_json::Result<String> {
        let named = |path: &PathBuf| (name_of(path), path.clone());
        let named: Vec<(String, PathBuf)> =
            self.files.iter().chain(&self.cases).map(named).collect();
        let files = named
            .iter()
            .map(|(name, path)| (name.as_str(), path.as_path()));
        let failed: Vec<Finding> = tested.iter().flat_map(Tested::failures).collect();
        let broken = tested.iter().flat_map(|one| &one.broken);
        let findings: Vec<&Finding> = broken.chain(&failed).collect();
        sarif::document(&sarif::Files::new(files), &findings)
    }
}

/// Reads a file of cases and makes sure that it loads, once for all policies.
fn read_cases(reader: &mut Reader, path: &Path) -> Result<Source, Vec<Finding>> {
    let source = reader.read(path);
    let source = source.map_err(|error| vec![Finding::unreadable(&error)])?;
    match Policy::none().run_cases(&source) {
        Ok(_) => Ok(source),
        Err(errors) => Err(errors.iter().map(Finding::of).collect()),
    }
}

impl Tested {
    fn broken(file: String, broken: Vec<Finding>) -> Self {
        Self {
            policy: file,
            broken,
            outcomes: Vec::new(),
        }
    }

    fn of(checked: Checked, cases: &[Source]) -> Self {
        let Some(policy) = checked.policy else {
            return Self::broken(checked.name, checked.findings);
        };
        let mut outcomes = policy.run_tests();
        let mut broken = Vec::new();
        for cases in cases {
            match policy.run_cases(cases) {
                Ok(more) => outcomes.extend(more),
                Err(errors) => broken.extend(errors.iter().map(Finding::of)),
            }
        }
        Self {
            policy: checked.name,
            broken,
            outcomes,
        }
    }

    /// Each failed test as a finding at the place of the test.
    fn failures(&self) -> impl Iterator<Item = Finding> {
        let failed = self.outcomes.iter().filter(|outcome| !outcome.passed());
        failed.map(|outcome| {
            let differences = outcome.differences.iter().map(TestDifference::to_string);
            let differences: Vec<String> = differences.collect();
            Finding {
                severity: Severity::Error,
                code: "test_failed",
                place: Place {
                    file: outcome.file.to_string(),
                    region: Some(Region::at(outcome.line, 1)),
                },
                message: format!("the test `{}`: {}", outcome.name, differences.join("; ")),
                help: None,
                labels: Vec::new(),
                text: failure(outcome),
            }
        })
    }
}

fn text(tested: &[Tested]) -> anyhow::Result<()> {
    for one in tested {
        for finding in &one.broken {
            output::line(format_args!("{}\n", finding.text))?;
        }
        for outcome in &one.outcomes {
            let mark = if outcome.passed() { "ok  " } else { "FAIL" };
            let (name, file) = (printable(&outcome.name), printable(&outcome.file));
            output::line(format_args!("{mark} {name} ({file}:{})", outcome.line))?;
            for line in failure(outcome).lines() {
                output::line(format_args!("     {line}"))?;
            }
        }
        let policy = printable(&one.policy);
        if !one.broken.is_empty() {
            output::line(format_args!("{policy}: does not load"))?;
        } else if one.outcomes.is_empty() {
            output::line(format_args!("{policy}: no tests"))?;
        }
    }
    let outcomes = || tested.iter().flat_map(|one| &one.outcomes);
    let passed = outcomes().filter(|outcome| outcome.passed()).count();
    let failed = outcomes().count() - passed;
    let broken = tested.iter().filter(|one| !one.broken.is_empty()).count();
    let end = if broken == 0 {
        String::new()
    } else {
        format!(", not loaded: {}", super::check::counted(broken, "file"))
    };
    Ok(output::line(format_args!(
        "{passed} passed, {failed} failed{end}"
    ))?)
}

/// What a failed test expected and got, and what led to that; nothing for one that holds. Safe for a
/// terminal.
pub(super) fn failure(outcome: &TestOutcome) -> String {
    let mut out = String::new();
    if outcome.passed() {
        return out;
    }
    let mut line = |text: &str| {
        out.push_str(&printable(text));
        out.push('\n');
    };
    line(&outcome.request);
    for TestDifference {
        field,
        expected,
        actual,
        ..
    } in &outcome.differences
    {
        line(&format!("- {field}: {expected}"));
        line(&format!(
            "+ {field}: {}",
            actual.as_deref().unwrap_or("none")
        ));
    }
    line(&match &outcome.detail {
        Some(detail) => format!("reason: {} ({detail})", outcome.reason),
        None => format!(
            "reason: {}: {}",
            outcome.reason,
            outcome.reason.explanation()
        ),
    });
    let considered = outcome
        .explanation
        .iter()
        .flat_map(|found| &found.considered);
    let mut near = String::new();
    for rule in considered {
        // Writing to a string can't fail.
        let _ = write!(near, "{rule}");
    }
    near.lines().for_each(|near| line(near.trim_start()));
    out
}

/// An outcome with the policy that it is about: a file of cases is about several.
#[derive(Serialize)]
struct PolicyOutcome<'a> {
    policy: &'a str,
    #[serde(flatten)]
    outcome: &'a TestOutcome,
}

fn json(tested: &[Tested]) -> anyhow::Result<()> {
    for one in tested {
        for finding in &one.broken {
            output::line(serde_json::to_string(finding)?)?;
        }
        for outcome in &one.outcomes {
            let policy = one.policy.as_str();
            output::line(serde_json::to_string(&PolicyOutcome { policy, outcome })?)?;
        }
    }
    Ok(())
}
