//! The handle that the rest of the gateway holds: open, append, close.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::ascii;
use super::chain::Head;
use super::desk::Desk;
use super::error::AuditError;
use super::event::Event;
use super::record::RecordId;
use super::recover;
use super::writer::Writer;

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
    desk: Arc<Desk>,
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
        Self::written_by(writer)
    }

    pub(super) fn written_by(writer: Writer) -> Result<Self, AuditError> {
        let head = writer.heads();
        let desk = Arc::new(Desk::open(writer)?);
        Ok(Self { desk, head })
    }

    /// Records `event`. Resolves once the record is written as [`Durability`] says; waits while the
    /// queue is full. Once polled, the record may be written even if the future is dropped.
    ///
    /// # Errors
    /// The event is not in the log, and what it stands for must not happen. The next append tries
    /// the disk again.
    pub async fn append(&self, event: &Event) -> Result<RecordId, AuditError> {
        self.append_all([event]).await?;
        Ok(event.id)
    }

    /// Records `events` next to each other, at the price of one.
    ///
    /// # Errors
    /// As [`append`](Self::append), if any of them is not in the log.
    pub async fn append_all(
        &self,
        events: impl IntoIterator<Item = &Event>,
    ) -> Result<(), AuditError> {
        let lines = events.into_iter().map(ascii::event_line);
        self.desk.append(lines.collect::<Result<_, _>>()?).await
    }

    /// Records `event` within a few milliseconds, for an end that nobody waits for. If the disk
    /// refuses it, the log says so itself as soon as it can ([`EventKind::WriteFailure`]).
    ///
    /// # Errors
    /// The log is closed, or the event is too large for it.
    ///
    /// [`EventKind::WriteFailure`]: super::EventKind::WriteFailure
    pub fn append_later(&self, event: &Event) -> Result<(), AuditError> {
        self.desk.append_later(ascii::event_line(event)?)
    }

    /// The last record that was written. An auditor who keeps it elsewhere can tell later that the
    /// log up to it is whole.
    #[must_use]
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// The [head](Self::head) as it moves.
    #[cfg(test)]
    pub(super) fn heads(&self) -> watch::Receiver<Head> {
        self.head.clone()
    }

    /// Writes what is queued, flushes to the disk and gives the lock back. Appends of other clones
    /// fail from here on.
    ///
    /// # Errors
    /// The flush failed: the last records may not survive a crash of the machine.
    pub async fn close(self) -> Result<Head, AuditError> {
        self.desk.close().await
    }
}
