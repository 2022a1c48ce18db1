//! `outgate policy within`: a proof that a policy allows nothing beyond a baseline, or a request that
//! it does allow.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::read::{Reader, load};
use crate::exit::{Code, Failure};
use crate::output::{self, printable_lines};

/// Prove that a policy allows nothing that a baseline doesn't.
///
/// Ends with 0 when it is proven, 1 with a counterexample or when it can't be decided, and 2 when a
/// file doesn't load.
#[derive(Debug, Args)]
pub(crate) struct WithinArgs {
    /// The policy; `-` is standard input
    file: PathBuf,
    /// What it must stay within
    baseline: PathBuf,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

impl WithinArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut reader = Reader::default();
        let mut policy = |path| match reader.read(path) {
            Ok(source) => load(&[source]),
            Err(error) => Err(Failure::new(Code::Usage, error)),
        };
        let (file, baseline) = (policy(&self.file)?, policy(&self.baseline)?);
        let answer = file.within(&baseline);
        if self.json {
            output::line(serde_json::to_string(&answer)?)?;
        } else {
            output::line(printable_lines(answer.to_string().trim_end()))?;
        }
        Ok(if answer.is_proven() {
            ExitCode::SUCCESS
        } else {
            Code::CheckFailed.into()
        })
    }
}
