//! `outgate policy check`: does every file load, and does it mean what its author thinks.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outgate_policy::Severity;

use super::findings::{Checked, Format, FormatArgs};
use super::read::Reader;
use super::{junit, sarif};
use crate::exit::Code;
use crate::output::{self, printable};

/// Load files, and warn of what is probably not meant.
///
/// Ends with 0 when every file loads, 1 with --deny-warnings when there is a warning, 2 when a file
/// doesn't load.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Policy files, each on its own; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// End with 1 when there is a warning
    #[arg(long)]
    deny_warnings: bool,
    #[command(flatten)]
    format: FormatArgs,
}

impl CheckArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut reader = Reader::default();
        let files = self.files.iter();
        let checked: Vec<Checked> = files.map(|path| Checked::of(&mut reader, path)).collect();
        match self.format.get() {
            Format::Text => text(&checked)?,
            Format::Json => {
                for finding in checked.iter().flat_map(|file| &file.findings) {
                    output::line(serde_json::to_string(finding)?)?;
                }
            }
            Format::Sarif => output::line(sarif::of_findings(&checked)?)?,
            Format::Junit => output::line(junit::of_findings(&checked, self.deny_warnings)?)?,
        }
        let has = |severity| checked.iter().any(|file| file.count(severity) > 0);
        Ok(if has(Severity::Error) {
            Code::Usage.into()
        } else if self.deny_warnings && has(Severity::Warning) {
            Code::CheckFailed.into()
        } else {
            ExitCode::SUCCESS
        })
    }
}

fn text(checked: &[Checked]) -> anyhow::Result<()> {
    for file in checked {
        for finding in &file.findings {
            output::line(format_args!("{}\n", finding.text))?;
        }
        let name = printable(&file.name);
        let warnings = counted(file.count(Severity::Warning), "warning");
        output::line(match &file.policy {
            Some(policy) => {
                let rules = counted(policy.rules().count(), "rule");
                format!("{name}: ok, {rules}, {warnings}")
            }
            None => {
                let errors = counted(file.count(Severity::Error), "error");
                format!("{name}: does not load, {errors}, {warnings}")
            }
        })?;
    }
    Ok(())
}

/// `1 rule`, `2 rules`.
pub(super) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
