//! Turns an event into JSON that is safe to look at: printable ASCII on one line, whatever a guest
//! or an upstream put into it.
//!
//! JSON lets everything beyond ASCII stand as it is, which includes the terminal's C1 controls,
//! Unicode line separators and text-direction marks. Here they become `\u` escapes, so `cat` and
//! `grep` on a log show what is in it and nothing else.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::chain::FRAME_BYTES;
use super::error::AuditError;
use super::event::Event;
use super::record::MAX_RECORD_BYTES;

/// The event as a JSON object in printable ASCII.
///
/// # Errors
/// [`AuditError::TooLarge`] when the record would not fit [`MAX_RECORD_BYTES`].
pub(super) fn event_line(event: &Event) -> Result<Vec<u8>, AuditError> {
    let mut line = Vec::with_capacity(1024);
    event
        .serialize(&mut Serializer::with_formatter(&mut line, Ascii))
        .map_err(|error| AuditError::Write(io::Error::from(error).into()))?;
    let bytes = line.len() + FRAME_BYTES;
    if bytes > MAX_RECORD_BYTES {
        return Err(AuditError::TooLarge { bytes });
    }
    Ok(line)
}

struct Ascii;

impl Formatter for Ascii {
    /// serde_json has split off quotes, backslashes and C0 controls; the rest comes here.
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        // Nearly always, and then the compiler compares many bytes at a time.
        if fragment.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut plain_from = 0;
        for (at, c) in fragment
            .char_indices()
            .filter(|(_, c)| !matches!(c, ' '..='~'))
        {
            writer.write_all(slice(fragment, plain_from, at))?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain_from = at + c.len_utf8();
        }
        writer.write_all(slice(fragment, plain_from, fragment.len()))
    }
}

fn slice(text: &str, from: usize, to: usize) -> &[u8] {
    text.as_bytes().get(from..to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::audit::{EventKind, StoredRecord};

    fn line_with(detail: &str) -> String {
        let event = Event {
            detail: Some(detail.to_owned()),
            ..Event::new(EventKind::Reject)
        };
        String::from_utf8(event_line(&event).unwrap()).unwrap()
    }

    #[test]
    fn b173_text_from_a_certificate_cannot_forge_a_line() {
        let line =
            line_with("CN=<script>\r\n{\"seq\":9} \u{1b}[2J \u{9b}2J \u{2028} \u{202e} \u{7f}");
        assert!(line.ends_with(
            r#""detail":"CN=<script>\r\n{\"seq\":9} \u001b[2J \u009b2J \u2028 \u202e \u007f"}"#
        ));
    }

    #[test]
    fn text_beyond_the_basic_plane_is_a_surrogate_pair() {
        assert!(line_with("a😀b").ends_with(r#""detail":"a\ud83d\ude00b"}"#));
    }

    #[test]
    fn a_record_beyond_the_limit_is_refused() {
        let path = Some("a".repeat(MAX_RECORD_BYTES));
        let event = Event {
            path,
            ..Event::new(EventKind::Request)
        };
        assert!(
            matches!(event_line(&event), Err(AuditError::TooLarge { bytes }) if bytes > MAX_RECORD_BYTES)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_printable_ascii_and_reads_back(text in "\\PC{0,80}|(?s).{0,80}") {
            let line = line_with(&text);
            prop_assert!(line.bytes().all(|b| matches!(b, b' '..=b'~')));
            let stored = StoredRecord::parse(line.as_bytes()).unwrap();
            prop_assert_eq!(stored.text("detail"), Some(&*text));
        }
    }
}
