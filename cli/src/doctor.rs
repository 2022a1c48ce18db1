//! `outgate doctor`: what this machine can run, and what to do about what it can't.

use std::process::ExitCode;

use clap::Args;
use outgate_runtime::Paths;
use outgate_runtime::doctor;

use crate::exit::Code;
use crate::output;
use crate::run::failure;

/// Say what this machine can run and what is missing.
///
/// Exits 0 when a sandbox can run here, 121 otherwise.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Write one JSON object a line
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let paths = Paths::from_env().map_err(|error| failure(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let checks = runtime.block_on(doctor::examine(&paths));
        for check in &checks {
            if self.json {
                output::line(serde_json::to_string(check)?)?;
                continue;
            }
            output::line(format_args!(
                "{:<8} {:<16} {}",
                check.state, check.name, check.found
            ))?;
            if let Some(fix) = &check.fix {
                output::line(format_args!("{:<25} {fix}", ""))?;
            }
        }
        let ready = doctor::is_ready(&checks);
        Ok(if ready {
            ExitCode::SUCCESS
        } else {
            Code::Environment.into()
        })
    }
}
