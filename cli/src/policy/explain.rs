//! `outgate policy explain`: what happens to a request, which rule decides, and what every near miss
//! failed on.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outgate_policy::{Reject, Verdict};
use serde_json::json;

use super::read::{Reader, load, read_with};
use super::request::RequestArgs;
use crate::exit::Code;
use crate::output::{self, printable, printable_lines};

/// Say what happens to a request, and why.
///
/// Ends with 0 when it is allowed and 1 when it is not, so that a script can ask.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The policy file; `-` is standard input
    file: PathBuf,
    #[command(flatten)]
    request: RequestArgs,
    /// Another layer, which has to allow the request too
    #[arg(long, value_name = "FILE")]
    layer: Vec<PathBuf>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

impl ExplainArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut reader = Reader::default();
        let layers = std::iter::once(&self.file).chain(&self.layer);
        let policy = load(&read_with(&mut reader, layers)?)?;
        let request = match self.request.canonical(&mut reader)? {
            Ok(request) => request,
            Err(reject) => return self.rejected(&reject),
        };
        let explanation = policy.explain(&request);
        if self.json {
            output::line(serde_json::to_string(&explanation)?)?;
        } else {
            output::line(printable_lines(explanation.to_string().trim_end()))?;
        }
        Ok(if explanation.verdict == Verdict::Allow {
            ExitCode::SUCCESS
        } else {
            Code::CheckFailed.into()
        })
    }

    fn rejected(&self, reject: &Reject) -> anyhow::Result<ExitCode> {
        let request = &self.request.line;
        if self.json {
            output::line(json!({
                "request": request, "verdict": "reject",
                "reason": reject.reason, "detail": reject.detail,
            }))?;
        } else {
            output::line(format_args!("reject: {}", printable(request)))?;
            let detail = printable(&reject.detail);
            output::line(format_args!("  reason: {} ({detail})", reject.reason))?;
            output::line("  no rule was asked: this is no canonical request")?;
        }
        Ok(Code::CheckFailed.into())
    }
}
