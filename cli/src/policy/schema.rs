//! `outgate policy schema`: the JSON Schema of a policy file, for editors.

use std::process::ExitCode;

use crate::output;

pub(super) fn run() -> anyhow::Result<ExitCode> {
    output::line(format_args!("{:#}", outgate_policy::schema()))?;
    Ok(ExitCode::SUCCESS)
}
