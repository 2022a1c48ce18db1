//! The chunked transfer coding (RFC 9112 section 7.1), checked and written anew.
//!
//! What goes on is not what came in: every chunk gets a plain size line, extensions are dropped,
//! trailers are released as a whole after all of them were judged. It refuses every size that is
//! not plain hexadecimal and every trailer that could change how the message is read.

use bytes::{Buf, BufMut, BytesMut};
use outgate_policy::Reject;

use super::head::{MAX_HEADERS, bad, header_line};

/// Longest size line with its extensions, in bytes. Real ones are a few bytes long.
const MAX_SIZE_LINE_BYTES: usize = 256;
/// Hexadecimal digits in a size: a `u64`, with room for padding zeros but not for overflow.
const MAX_SIZE_DIGITS: usize = 16;
/// Longest trailer section in bytes, below what the server behind the front takes.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// Where in a chunked body the reader is.
#[derive(Debug)]
pub(super) enum Chunked {
    SizeLine,
    /// Bytes of this chunk still to come.
    Data(u64),
    DataEnd,
    /// Judged trailer lines, each with its CRLF, and their number.
    Trailers(BytesMut, usize),
    Done,
}

impl Chunked {
    /// Moves what can be judged from `input` to `output`; stops at [`Chunked::Done`] or when more
    /// input is needed.
    ///
    /// # Errors
    /// Anything but the strict grammar. What was moved before stays a body without an end.
    pub(super) fn advance(
        &mut self,
        input: &mut BytesMut,
        output: &mut BytesMut,
    ) -> Result<(), Reject> {
        loop {
            match self {
                Self::Done => return Ok(()),
                Self::SizeLine => {
                    let Some(line) = take_line(input, MAX_SIZE_LINE_BYTES)? else {
                        return Ok(());
                    };
                    let size = size_line(&line)?;
                    if size == 0 {
                        *self = Self::Trailers(BytesMut::new(), 0);
                    } else {
                        output.extend_from_slice(format!("{size:x}\r\n").as_bytes());
                        *self = Self::Data(size);
                    }
                }
                Self::Data(left) => {
                    let now = input
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    if now == 0 {
                        return Ok(());
                    }
                    output.extend_from_slice(&input[..now]);
                    input.advance(now);
                    *left -= now as u64;
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                }
                Self::DataEnd => {
                    if !b"\r\n".starts_with(&input[..input.len().min(2)]) {
                        return Err(bad("a chunk is longer than its size"));
                    }
                    if input.len() < 2 {
                        return Ok(());
                    }
                    input.advance(2);
                    output.extend_from_slice(b"\r\n");
                    *self = Self::SizeLine;
                }
                Self::Trailers(judged, count) => {
                    let room = MAX_TRAILER_BYTES.saturating_sub(judged.len());
                    let Some(line) = take_line(input, room)? else {
                        return Ok(());
                    };
                    if line.is_empty() {
                        output.extend_from_slice(b"0\r\n");
                        output.unsplit(judged.split());
                        output.extend_from_slice(b"\r\n");
                        *self = Self::Done;
                        continue;
                    }
                    *count += 1;
                    if *count > MAX_HEADERS {
                        return Err(bad(format!("more than {MAX_HEADERS} trailer lines")));
                    }
                    let (name, value) = header_line(&line)?;
                    if is_forbidden_trailer(name) {
                        return Err(bad(format!("`{name}` is not allowed as a trailer")));
                    }
                    judged.put_slice(name.as_bytes());
                    judged.put_slice(b": ");
                    judged.put_slice(value);
                    judged.put_slice(b"\r\n");
                }
            }
        }
    }
}

/// Fields that frame, route or authenticate a message, or say what its content is: they mean
/// nothing behind the content, unless a reader merges them into the head (RFC 9110 section 6.5.1).
pub(in crate::http) fn is_forbidden_trailer(name: &str) -> bool {
    const FORBIDDEN: [&str; 24] = [
        "authorization",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "max-forwards",
        "pragma",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "range",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "www-authenticate",
    ];
    FORBIDDEN
        .iter()
        .any(|forbidden| name.eq_ignore_ascii_case(forbidden))
}

/// The next line without its CRLF, or `None` when it has not arrived whole.
fn take_line(input: &mut BytesMut, max: usize) -> Result<Option<BytesMut>, Reject> {
    let Some(end) = input.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return if input.len() > max {
            Err(too_long(max))
        } else {
            Ok(None)
        };
    };
    if end > max {
        return Err(too_long(max));
    }
    if input[end] == b'\n' || input.get(end + 1).is_some_and(|byte| *byte != b'\n') {
        return Err(bad("a line of a chunked body does not end in CRLF"));
    }
    if end + 1 == input.len() {
        return Ok(None);
    }
    let line = input.split_to(end);
    input.advance(2);
    Ok(Some(line))
}

fn too_long(max: usize) -> Reject {
    bad(format!(
        "a line of a chunked body is longer than {max} bytes"
    ))
}

fn size_line(line: &[u8]) -> Result<u64, Reject> {
    let digits = line
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let (size, extensions) = line.split_at(digits);
    if digits == 0 || digits > MAX_SIZE_DIGITS || !are_extensions(extensions) {
        return Err(bad(format!("`{}` is no chunk size", line.escape_ascii())));
    }
    std::str::from_utf8(size)
        .ok()
        .and_then(|text| u64::from_str_radix(text, 16).ok())
        .ok_or_else(|| bad("a chunk size that is no number"))
}

/// `*( ";" name [ "=" value ] )` in visible ASCII: no white space, so that no reader can end the
/// line somewhere else.
fn are_extensions(text: &[u8]) -> bool {
    text.is_empty() || (text.len() > 1 && text[0] == b';' && text.iter().all(u8::is_ascii_graphic))
}
