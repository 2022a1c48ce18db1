//! `outgate policy diff`: what one policy allows that another doesn't, each with a sample request.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::read::{Reader, load};
use crate::exit::{Code, Failure};
use crate::output::{self, printable_lines};

/// Say exactly what becomes allowed and what becomes denied.
///
/// Ends with 0 when nothing differs, 3 when NEW allows anything that OLD doesn't, 1 when it only
/// denies more or answers otherwise, and 2 when a file doesn't load.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The policy in force; `-` is standard input
    old: PathBuf,
    /// The policy to come
    new: PathBuf,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

impl DiffArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut reader = Reader::default();
        let mut policy = |path| match reader.read(path) {
            Ok(source) => load(&[source]),
            Err(error) => Err(Failure::new(Code::Usage, error)),
        };
        let (old, new) = (policy(&self.old)?, policy(&self.new)?);
        let difference = old.diff(&new);
        if self.json {
            output::line(serde_json::to_string(&difference)?)?;
        } else {
            output::line(printable_lines(difference.to_string().trim_end()))?;
        }
        Ok(if difference.allows_more() {
            Code::AllowsMore.into()
        } else if difference.is_empty() {
            ExitCode::SUCCESS
        } else {
            Code::CheckFailed.into()
        })
    }
}
