//! `outgate policy show`: what is enforced, defaults filled in, every rule with its place.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::read::{Reader, load, read_with};
use crate::output;

/// Print the effective policy, every rule with its place.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The policy file; `-` is standard input
    file: PathBuf,
    /// Another layer, which has to allow a request too
    #[arg(long, value_name = "FILE")]
    layer: Vec<PathBuf>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

impl ShowArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let layers = std::iter::once(&self.file).chain(&self.layer);
        let policy = load(&read_with(&mut Reader::default(), layers)?)?;
        let effective = policy.effective();
        if self.json {
            output::line(serde_json::to_string(&effective)?)?;
        } else {
            // What is not printable is escaped in it, as YAML has it.
            output::line(effective.to_string().trim_end())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
