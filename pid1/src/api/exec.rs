//! Running a command.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A command to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Chosen by the client: 1 to 64 of `a-z A-Z 0-9 . _ -`.
    pub exec_id: String,
    /// Program and arguments. A bare name is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Added to the environment of the guest.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the user's home when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Name, `UID` or `UID:GID`; root when absent.
    #[serde(default)]
    pub user: Option<String>,
    /// Run on a terminal of this size.
    #[serde(default)]
    pub pty: Option<Pty>,
    /// Whether standard input will be sent; end of file at once when not.
    #[serde(default)]
    pub stdin: bool,
    /// Ends the command and everything it started after this long, by the guest's clock.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// A new size for the terminal of a command.
pub type ResizeRequest = Pty;

/// A signal for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalRequest {
    /// Number of the signal.
    pub signal: i32,
    /// Whom it is sent to.
    #[serde(default)]
    pub scope: SignalScope,
}

/// Who gets a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// The main process.
    Process,
    /// Its process group.
    #[default]
    Group,
    /// Everything that it started.
    Tree,
}

/// Reply to a request to run a command: it has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarted {
    /// The id of the request.
    pub exec_id: String,
    /// Number of the main process.
    pub pid: i32,
}

/// Every command that the guest remembers, in the order of their starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecList {
    /// The commands.
    pub execs: Vec<ExecStatus>,
}

/// One command of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStatus {
    /// Its id.
    pub exec_id: String,
    /// Number of its main process; of no use once it has ended.
    pub pid: i32,
    /// How it ended; none while it runs.
    pub exit: Option<Exit>,
}

/// Reply to bytes of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinAccepted {
    /// Everything before this offset was accepted.
    pub accepted_to: u64,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Exit {
    /// It ended by itself.
    Code {
        /// Its exit code.
        code: i32,
    },
    /// A signal ended it.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// It ran out of time and was killed.
    Timeout,
}
