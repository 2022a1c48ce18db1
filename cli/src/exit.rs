//! The exit codes of `outgate`, one list for every command.
//!
//! `outgate run` passes the guest command's own code through (a signal becomes 128 + its number).
//! Outgate's own failures use the codes below; `--json` tells them apart from a guest that chose
//! the same number, since only then the `exit` event has `"source": "outgate"`.

use std::process::ExitCode;

/// Outgate's own outcomes. The numbers are documented in `docs/cli.md` and never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// A check failed: a policy test differs, a recorded request changes its verdict, the audit chain
    /// is broken.
    CheckFailed = 1,
    /// The command line is wrong, a policy file doesn't load, or an audit log can't be read.
    Usage = 2,
    /// `policy diff`: the new policy allows something that the old one doesn't.
    AllowsMore = 3,
    /// Something that this machine needs is missing: `outgate doctor` says what.
    Environment = 121,
    /// The image can't be built or read.
    Image = 122,
    /// The guest did not boot, panicked or never answered.
    Boot = 123,
    /// The command ran longer than `--timeout`.
    Timeout = 124,
    /// Anything else that went wrong on Outgate's side: gateway, audit log, control channel.
    Outgate = 125,
    /// The guest command was found and can't be executed.
    NotExecutable = 126,
    /// The guest command was not found.
    NotFound = 127,
    /// Interrupted by Ctrl-C or SIGTERM before the command ended.
    Interrupted = 130,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// A failure that knows the code it ends the process with.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl std::fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }
}
