//! The handle that the rest of the gateway holds: open, append, close.

use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot, watch};

use super::ascii;
use super::chain::Head;
use super::error::AuditError;
use super::event::Event;
use super::record::RecordId;
use super::recover;
use super::writer::{Command, Writer};

/// Default size of a segment, in bytes: opens in an editor, and a start scans two of them.
pub const DEFAULT_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// Where the log is and how sure it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The folder, made if missing. One log, one writer.
    pub dir: PathBuf,
    /// What an append waits for.
    pub durability: Durability,
    /// A segment is left for the next one before it would grow beyond this many bytes.
    pub segment_bytes: u64,
}

impl AuditConfig {
    /// A buffered log in `dir`, in segments of [`DEFAULT_SEGMENT_BYTES`].
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            durability: Durability::Buffered,
            segment_bytes: DEFAULT_SEGMENT_BYTES,
        }
    }
}

/// What an append waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The kernel has the record: it survives a crash of the gateway, not of the machine.
    #[default]
    Buffered,
    /// The disk has the record. Concurrent appends share one flush.
    Fsync,
}

/// The audit log, open for writing. Clones write the same log.
///
/// The last clone that goes ends the writer once its queue is written; [`close`](Self::close) waits
/// for that.
#[derive(Clone, Debug)]
pub struct AuditLog {
    queue: mpsc::Sender<Command>,
    head: watch::Receiver<Head>,
}

impl AuditLog {
    /// Opens or makes the log, takes its lock, and recovers a torn tail.
    ///
    /// Blocks for one scan of the last two segments.
    ///
    /// # Errors
    /// [`AuditError::Locked`] when another writer is alive, [`AuditError::Broken`] when the last
    /// two segments are no chain, [`AuditError::File`] or [`AuditError::Write`] when the disk refuses.
    pub fn open(config: AuditConfig) -> Result<Self, AuditError> {
        let mut opened = recover::open(&config.dir)?;
        let recovery = opened.recovery.take();
        let mut writer = Writer::new(opened, config);
        if let Some(event) = recovery {
            writer.record(&event)?;
        }
        writer.spawn()
    }

    pub(super) fn new(queue: mpsc::Sender<Command>, head: watch::Receiver<Head>) -> Self {
        Self { queue, head }
    }

    /// Records `event`. Resolves once the record is written as [`Durability`] says; waits while the
    /// queue is full. Once polled, the record may be written even if the future is dropped.
    ///
    /// # Errors
    /// The event is not in the log, and what it stands for must not happen. The next append tries
    /// the disk again.
    pub async fn append(&self, event: &Event) -> Result<RecordId, AuditError> {
        let line = ascii::event_line(event)?;
        let (reply, written) = oneshot::channel();
        let command = Command::Append { line, reply };
        self.queue
            .send(command)
            .await
            .map_err(|_closed| AuditError::Closed)?;
        written
            .await
            .map_err(|_gone| AuditError::Closed)?
            .map_err(AuditError::Write)?;
        Ok(event.id)
    }

    /// The last record that was written. An auditor who keeps it elsewhere can tell later that the
    /// log up to it is whole.
    #[must_use]
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Writes what is queued, flushes to the disk and gives the lock back. Appends of other clones
    /// fail from here on.
    ///
    /// # Errors
    /// The flush failed: the last records may not survive a crash of the machine.
    pub async fn close(self) -> Result<Head, AuditError> {
        let (reply, closed) = oneshot::channel();
        self.queue
            .send(Command::Close { reply })
            .await
            .map_err(|_closed| AuditError::Closed)?;
        closed
            .await
            .map_err(|_gone| AuditError::Closed)?
            .map_err(AuditError::Write)
    }
}
