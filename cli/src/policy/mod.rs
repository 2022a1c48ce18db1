//! `outgate policy`: the tools of whoever writes, reviews and tests policy files.
//!
//! This file is the list of commands; each is a module. What they answer is worked out in
//! `outgate-policy`; here are files, options, formats and exit codes. Text from policies and audit
//! logs is escaped before it reaches a terminal.

mod check;
mod diff;
mod explain;
mod findings;
mod fmt;
mod junit;
mod logs;
mod presets;
mod read;
mod replay;
mod request;
mod sarif;
mod schema;
mod show;
mod suggest;
mod test;
mod within;

use std::process::ExitCode;

use clap::Subcommand;

pub(crate) use self::read::{load, select};

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Load files, and warn of what is probably not meant
    Check(check::CheckArgs),
    /// Run the tests that the files hold
    Test(test::TestArgs),
    /// Say what happens to a request, and why
    Explain(Box<explain::ExplainArgs>),
    /// Print the effective policy, every rule with its place
    Show(show::ShowArgs),
    /// Say exactly what becomes allowed and what becomes denied
    Diff(diff::DiffArgs),
    /// Prove that a policy allows nothing that a baseline doesn't
    Within(within::WithinArgs),
    /// Write policy files in the one layout
    Fmt(fmt::FmtArgs),
    /// Say which recorded requests a policy would decide otherwise
    Replay(replay::ReplayArgs),
    /// Write the rules that would have allowed what was denied
    Suggest(suggest::SuggestArgs),
    /// List what a policy can include, or print one of them
    Presets(presets::PresetsArgs),
    /// Print the JSON Schema of a policy file
    Schema,
}

impl PolicyCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check(args) => args.run(),
            Self::Test(args) => args.run(),
            Self::Explain(args) => args.run(),
            Self::Show(args) => args.run(),
            Self::Diff(args) => args.run(),
            Self::Within(args) => args.run(),
            Self::Fmt(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Suggest(args) => args.run(),
            Self::Presets(args) => args.run(),
            Self::Schema => schema::run(),
        }
    }
}
