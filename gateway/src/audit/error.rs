//! Why the log could not be opened, written or read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::MAX_RECORD_BYTES;
use super::verify::Fault;

/// Why the log could not be opened, written or read. An append that fails was not recorded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// What is in the folder is no chain that could be continued.
    #[error(
        "the audit log in `{}` can't be continued: {fault}; `outgate audit verify` says more; \
         to start a new log, move the folder away and keep it", dir.display()
    )]
    Broken {
        /// The log's folder.
        dir: PathBuf,
        /// The first bad record.
        fault: Box<Fault>,
    },
    /// The log was closed, here or by a clone.
    #[error("the audit log is closed")]
    Closed,
    /// The folder or a file in it can't be used.
    #[error("`{}` can't be used for the audit log: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Another process writes this log.
    #[error(
        "the audit log in `{}` is being written by {holder}; stop it or choose another folder",
        dir.display()
    )]
    Locked {
        /// The log's folder.
        dir: PathBuf,
        /// Who holds the lock, as in `process 4711`.
        holder: String,
    },
    /// No segment in the folder.
    #[error("`{}` holds no audit log; expected files like `audit-000001.jsonl`", dir.display())]
    NoLog {
        /// The folder.
        dir: PathBuf,
    },
    /// A line that is no record.
    #[error(
        "line at byte {offset} of `{}` is no audit record; run `outgate audit verify`",
        file.display()
    )]
    NotARecord {
        /// The segment.
        file: PathBuf,
        /// Where the line begins.
        offset: u64,
    },
    /// The event would not fit a line.
    #[error("an audit record of {bytes} bytes is beyond the limit of {MAX_RECORD_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The disk did not take the record: full, read-only or broken.
    #[error("the audit record could not be written: {0}")]
    Write(#[source] Arc<io::Error>),
}

impl AuditError {
    /// For `map_err` beside a path.
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}
