//! One record: its id, and the line that it is in the file.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use ulid::Ulid;

/// Longest record in bytes, newline included. The longest path that the strict front lets through
/// fits several times; a queue of such records stays within memory.
pub const MAX_RECORD_BYTES: usize = 128 * 1024;

/// Names one record: a ULID, minted before the record is written, so that the answer to the guest
/// and the record can name each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(Ulid);

impl RecordId {
    /// A fresh id: 48 bits of time, 80 bits of randomness.
    #[expect(
        clippy::new_without_default,
        reason = "each one differs; there is no default id"
    )]
    #[must_use]
    pub fn new() -> Self {
        Self(Ulid::generate())
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RecordId {
    type Err = ulid::DecodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for RecordId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

/// A record as it was read: the exact line, and its fields by name.
///
/// The fields are plain JSON, not an [`Event`](super::Event): a log may be older or newer than the
/// program that reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    line: String,
    fields: Map<String, Value>,
}

impl StoredRecord {
    /// Reads one line, without its newline. Says nothing about the chain, but that the line is
    /// printable ASCII, as every record is.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = str::from_utf8(line).ok()?.to_owned();
        if !line.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return None;
        }
        let fields = serde_json::from_str(&line).ok()?;
        Some(Self { line, fields })
    }

    /// The line as it is in the file, without its newline.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.line
    }

    /// A text field; a dot reaches into an object, as in `sandbox.id`.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.value(field)?.as_str()
    }

    /// A number field; a dot reaches into an object, as in `timings_us.total`.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<u64> {
        self.value(field)?.as_u64()
    }

    /// Any field; a dot reaches into an object.
    #[must_use]
    pub fn value(&self, field: &str) -> Option<&Value> {
        let mut names = field.split('.');
        let first = self.fields.get(names.next()?)?;
        names.try_fold(first, |object, name| object.get(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_name() {
        let line = r#"{"seq":7,"sandbox":{"id":"sb1"},"timings_us":{"total":9},"new":[1]}"#;
        let record = StoredRecord::parse(line.as_bytes()).unwrap();
        assert_eq!(record.line(), line);
        assert_eq!(
            (record.number("seq"), record.number("timings_us.total")),
            (Some(7), Some(9))
        );
        assert_eq!(
            (record.text("sandbox.id"), record.text("sandbox")),
            (Some("sb1"), None)
        );
        assert_eq!((record.value("new.x"), record.value("none")), (None, None));
    }

    #[test]
    fn what_could_drive_a_terminal_is_no_record() {
        for line in [
            "[1]",
            "{}x",
            "{\"a\":\"\u{9b}2J\"}",
            "{\"a\":\"\u{202e}\"}",
            "{}\r",
            "\t{}",
        ] {
            assert_eq!(StoredRecord::parse(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn an_id_reads_back() {
        let id = RecordId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(id, RecordId::new());
    }
}
