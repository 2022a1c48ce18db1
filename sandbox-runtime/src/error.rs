//! What can go wrong in the runtime, and what the person can do about it.
//!
//! Every message ends in advice. The class decides the exit code of a command; the variants exist
//! for programs that react, the messages for people.

use std::io;
use std::path::{Path, PathBuf};

/// Why a sandbox, an image or a kernel is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// This machine lacks something: a program, a right, space.
    #[error("{problem}; {advice}")]
    Environment {
        /// What is missing.
        problem: String,
        /// What to do.
        advice: String,
    },
    /// A file of ours can't be read or written.
    #[error("cannot {action} `{}`: {source}{}", path.display(), advice_for(source))]
    File {
        /// What was tried, such as `open`.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The image can't be built, or is no image.
    #[error("image: {problem}; {advice}")]
    Image {
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: String,
    },
    /// The guest did not come up.
    #[error("the guest did not boot: {problem}; {advice}{}", tail_of(console))]
    Boot {
        /// What happened instead.
        problem: String,
        /// What to do.
        advice: String,
        /// The last lines of its console and of QEMU's own messages; may be empty.
        console: String,
    },
    /// The guest is up and refused or broke a request.
    #[error("guest: {problem}")]
    Guest {
        /// A stable code, such as `not_found`.
        code: String,
        /// What happened.
        problem: String,
    },
}

/// Whose fault an error is, coarse enough for an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The machine: `outgate doctor` says more.
    Environment,
    /// The guest image.
    Image,
    /// The guest's start.
    Boot,
    /// The running guest.
    Guest,
}

impl RuntimeError {
    /// Whose fault this is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Environment { .. } | Self::File { .. } => ErrorClass::Environment,
            Self::Image { .. } => ErrorClass::Image,
            Self::Boot { .. } => ErrorClass::Boot,
            Self::Guest { .. } => ErrorClass::Guest,
        }
    }

    pub(crate) fn environment(problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Environment {
            problem: problem.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn image(problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Image {
            problem: problem.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn guest(code: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Guest {
            code: code.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

fn advice_for(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, or point OUTGATE_CACHE at a larger disk"
        }
        io::ErrorKind::PermissionDenied => "; check who owns it, or point OUTGATE_CACHE elsewhere",
        _ => "",
    }
}

fn tail_of(console: &str) -> String {
    if console.is_empty() {
        return String::new();
    }
    format!("\n--- end of the guest console ---\n{}", console.trim_end())
}
