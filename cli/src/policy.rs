//! `outgate policy`: the tools of whoever writes, reviews and tests policy files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use outgate_policy::{CanonicalRequest, Policy, Source, TestOutcome, Verdict, schema};
use serde_json::json;

use crate::exit::{Code, Failure};
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Load files, and warn of what is probably not meant
    Check(Files),
    /// Run the tests that the files hold
    Test(Files),
    /// Say what happens to a request, and why
    Explain(Explain),
    /// Print the JSON Schema of a policy file
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct Files {
    /// Policy files, each on its own
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The policy file
    file: PathBuf,
    /// The request, as in `"GET https://api.github.com/user"`; the method may be left out
    request: String,
    /// Another layer, which has to allow the request too
    #[arg(long, value_name = "FILE")]
    layer: Vec<PathBuf>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

impl PolicyCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check(files) => check(&files),
            Self::Test(files) => test(&files),
            Self::Explain(question) => explain(&question),
            Self::Schema => {
                output::line(format_args!("{:#}", schema()))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Reads policy files as layers, the first one the most general.
///
/// # Errors
/// A [`Failure`] with [`Code::Usage`] for a file that can't be read.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    paths.iter().map(|path| read_one(path)).collect()
}

/// Loads `sources`, or fails with every diagnostic in its words.
///
/// # Errors
/// A [`Failure`] with [`Code::Usage`].
pub(crate) fn load(sources: &[Source]) -> Result<Policy, Failure> {
    Policy::load(sources).map_err(|diagnostics| {
        let message = format!(
            "the policy does not load\n\n{}",
            diagnostics.render().trim_end()
        );
        Failure::new(Code::Usage, message)
    })
}

fn read_one(path: &Path) -> Result<Source, Failure> {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Source::new(name, text)),
        Err(error) => Err(Failure::new(
            Code::Usage,
            format!("policy `{name}` can't be read: {error}"),
        )),
    }
}

fn check(files: &Files) -> anyhow::Result<ExitCode> {
    let mut failed = false;
    for path in &files.files {
        let loaded = read_one(path).map(|source| {
            let policy = Policy::load(std::slice::from_ref(&source));
            (source.name, policy)
        });
        let (name, found, rules) = match loaded {
            Ok((name, Ok(policy))) => (name, policy.lints(), policy.rules().count()),
            Ok((name, Err(diagnostics))) => {
                failed = true;
                (name, diagnostics.iter().cloned().collect(), 0)
            }
            Err(failure) => {
                failed = true;
                eprintln!("outgate: {failure}");
                continue;
            }
        };
        if files.json {
            for one in &found {
                output::line(json!({
                    "file": name, "severity": one.severity, "code": one.code,
                    "line": one.line, "column": one.column,
                    "message": one.message, "help": one.help,
                }))?;
            }
            continue;
        }
        for one in &found {
            output::line(one.render())?;
        }
        if rules > 0 {
            output::line(format_args!(
                "{name}: ok, {rules} rules, {} warnings",
                found.len()
            ))?;
        } else if !failed {
            output::line(format_args!("{name}: ok, no rules: everything is denied"))?;
        }
    }
    Ok(if failed {
        Code::Usage.into()
    } else {
        ExitCode::SUCCESS
    })
}

fn test(files: &Files) -> anyhow::Result<ExitCode> {
    let (mut passed, mut failed) = (0_usize, 0_usize);
    for path in &files.files {
        let policy = load(&[read_one(path)?])?;
        for outcome in policy.run_tests() {
            if outcome.passed() {
                passed += 1;
            } else {
                failed += 1;
            }
            show(&outcome, files.json)?;
        }
    }
    if !files.json {
        output::line(format_args!("{passed} passed, {failed} failed"))?;
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        Code::CheckFailed.into()
    })
}

fn show(outcome: &TestOutcome, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return Ok(output::line(serde_json::to_string(outcome)?)?);
    }
    let mark = if outcome.passed() { "ok  " } else { "FAIL" };
    output::line(format_args!(
        "{mark} {} ({}:{})",
        outcome.name, outcome.file, outcome.line
    ))?;
    if !outcome.passed() {
        output::line(format_args!("     {}", outcome.request))?;
    }
    for difference in &outcome.differences {
        output::line(format_args!("     {difference}"))?;
    }
    Ok(())
}

/// Exits 0 for an allow and 1 for anything else, so that a script can ask.
fn explain(question: &Explain) -> anyhow::Result<ExitCode> {
    let mut paths = vec![question.file.clone()];
    paths.extend(question.layer.iter().cloned());
    let policy = load(&read(&paths)?)?;
    let request = match CanonicalRequest::from_line(&question.request) {
        Ok(request) => request,
        Err(reject) if question.json => {
            output::line(json!({
                "request": question.request, "verdict": "reject",
                "reason": reject.reason, "detail": reject.detail,
            }))?;
            return Ok(Code::CheckFailed.into());
        }
        Err(reject) => {
            output::line(format_args!("reject: {}", question.request))?;
            output::line(format_args!(
                "reason: {} ({})",
                reject.reason, reject.detail
            ))?;
            output::line("no rule was asked: this is no canonical request")?;
            return Ok(Code::CheckFailed.into());
        }
    };
    let explanation = policy.explain(&request);
    if question.json {
        output::line(serde_json::to_string(&explanation)?)?;
    } else {
        output::line(explanation.to_string().trim_end())?;
    }
    let allowed = explanation.verdict == Verdict::Allow;
    Ok(if allowed {
        ExitCode::SUCCESS
    } else {
        Code::CheckFailed.into()
    })
}
