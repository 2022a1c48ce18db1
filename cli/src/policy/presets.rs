//! `outgate policy presets`: what `include: [preset:NAME]` can name.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::exit::{Code, Failure};
use crate::output;
use crate::preset::{self, ThisMachine};

/// List the presets, or print one as it is on this machine.
#[derive(Debug, Args)]
pub(crate) struct PresetsArgs {
    /// Print this preset instead
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Write one JSON object a line
    #[arg(long)]
    json: bool,
}

impl PresetsArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let Some(name) = &self.name else {
            let listed = preset::list();
            let width = listed
                .iter()
                .map(|preset| preset.name.len())
                .max()
                .unwrap_or(0);
            for preset in listed {
                if self.json {
                    output::line(json!({ "name": preset.name, "summary": preset.summary }))?;
                } else {
                    output::line(format_args!("{:width$}  {}", preset.name, preset.summary))?;
                }
            }
            return Ok(ExitCode::SUCCESS);
        };
        let preset = preset::load(name, &ThisMachine::new());
        let preset = preset.map_err(|error| Failure::new(Code::Usage, error))?;
        if self.json {
            let notes = &preset.notes;
            output::line(json!({ "name": preset.name, "text": preset.text, "notes": notes }))?;
        } else {
            output::line(preset.text.trim_end())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
