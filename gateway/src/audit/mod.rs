//! The audit log: one JSON line for every decision, refusal, answer, close and lifecycle event.
//!
//! [`AuditLog::append`] resolves once the record is in the file, so a caller that must not act
//! unrecorded awaits it and refuses when it fails. Records are numbered without gaps and chained by
//! SHA-256; [`verify()`] names the first record that was changed, moved, removed or slipped in,
//! [`tail()`] reads the log while it is written, and [`read()`] from its beginning. `docs/audit.md`
//! is the format, for people who check it without this code.
//!
//! What this module refuses: to drop an event in silence, to write a second log into the same
//! folder, to go on after a file that it can't account for, and to hold a query value.

mod ascii;
mod chain;
mod desk;
mod error;
mod event;
mod log;
mod read;
mod record;
mod recover;
mod segment;
mod tail;
mod verify;
mod writer;

#[cfg(test)]
mod test_log;
#[cfg(test)]
mod tests;

pub use chain::{Digest, Head, ParseHeadError};
pub use error::AuditError;
pub use event::{
    CredentialUse, Event, EventKind, Ingress, QueryNames, SandboxRef, Timings, UnknownKind,
};
pub use log::{AuditConfig, AuditLog, DEFAULT_SEGMENT_BYTES, Durability};
pub use read::{Records, read};
pub use record::{MAX_RECORD_BYTES, RecordId, StoredRecord};
pub use tail::{Filter, Tail, TailOptions, tail};
pub use verify::{Fault, FaultKind, Report, verify};
