//! The hash chain: the exact bytes of a record, and how one vouches for the one before it.
//!
//! ```text
//! line = {"seq":N,"time":"T","prev":"P",…event fields…,"hash":"H"}\n
//! body = the line without `,"hash":"H"` and the newline: …event fields…}
//! H    = SHA-256( P as 32 bytes, then the bytes of body ), in lower-case hex
//! ```
//!
//! `P` is the `H` of the record before, 64 zeros for the first. `hash` is always last and always 64
//! digits, so body is the line with its last 75 bytes replaced by `}`: nobody has to serialise JSON
//! to check a record, only to cut text. Nothing here reads or writes files.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// What surrounds the hash at the end of a record.
const HASH_KEY: &[u8] = br#","hash":""#;
const HASH_END: &[u8] = br#""}"#;
/// Digits of a SHA-256.
const HEX_BYTES: usize = 64;
/// Room for what a record has beside its event: sequence, time, two hashes, punctuation, newline.
pub(super) const FRAME_BYTES: usize = 256;

/// A SHA-256. All zeros stands before the first record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.to_hex();
        f.write_str(str::from_utf8(&hex).unwrap_or_default())
    }
}

/// A text that is no head of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no log head; write it as `SEQ:HASH`, the hash as 64 lower-case hex digits")]
pub struct ParseHeadError {
    text: String,
}

impl Digest {
    fn to_hex(self) -> [u8; HEX_BYTES] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0; HEX_BYTES];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            for (digit, value) in pair.iter_mut().zip([byte >> 4, byte & 0xf]) {
                *digit = DIGITS[usize::from(value)];
            }
        }
        hex
    }

    /// Lower-case hex only, so that a digest has one spelling.
    fn from_hex(hex: &[u8]) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut digest = [0; 32];
        if hex.len() != HEX_BYTES {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(hex.chunks_exact(2)) {
            let &[high, low] = pair else { return None };
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Some(Self(digest))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A moment as records have it: RFC 3339 in UTC, to the microsecond.
#[derive(Debug)]
pub(super) struct Time(String);

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self(format!("{time:.6}"))
    }
}

/// Where a log stands: its last record. Written `SEQ:HASH`.
///
/// The default is the head of a log without records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Number of the record, from 1; 0 before the first.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl FromStr for Head {
    type Err = ParseHeadError;

    fn from_str(text: &str) -> Result<Self, ParseHeadError> {
        text.split_once(':')
            .and_then(|(seq, hash)| {
                let hash = Digest::from_hex(hash.as_bytes())?;
                Some(Self {
                    seq: seq.parse().ok()?,
                    hash,
                })
            })
            .ok_or_else(|| ParseHeadError {
                text: text.to_owned(),
            })
    }
}

impl Head {
    /// The number that the next record has.
    pub(super) fn next_seq(self) -> u64 {
        self.seq.saturating_add(1)
    }

    /// Appends the record of `event` (a JSON object) that follows this head to `out`, and returns
    /// the head after it.
    pub(super) fn seal(self, out: &mut Vec<u8>, time: &Time, event: &[u8]) -> Self {
        let seq = self.next_seq();
        let start = out.len();
        out.extend_from_slice(b"{\"seq\":");
        out.extend_from_slice(seq.to_string().as_bytes());
        out.extend_from_slice(b",\"time\":\"");
        out.extend_from_slice(time.0.as_bytes());
        out.extend_from_slice(b"\",\"prev\":\"");
        out.extend_from_slice(&self.hash.to_hex());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(event.get(1..).unwrap_or_default());
        let hash = digest(self.hash, &[out.get(start..).unwrap_or_default()]);
        out.pop();
        out.extend_from_slice(HASH_KEY);
        out.extend_from_slice(&hash.to_hex());
        out.extend_from_slice(HASH_END);
        out.push(b'\n');
        Self { seq, hash }
    }

    /// Reads the line that should follow this head.
    pub(super) fn follow(self, line: &[u8]) -> Result<Link, Misfit> {
        let link = Link::read(line).ok_or(Misfit::Unsound)?;
        match link.head.seq.cmp(&self.next_seq()) {
            Ordering::Less => Err(Misfit::Behind(link.head)),
            Ordering::Greater => Err(Misfit::Ahead(link.head)),
            Ordering::Equal if link.prev != self.hash => Err(Misfit::Foreign(link.head)),
            Ordering::Equal => Ok(link),
        }
    }
}

/// Why a line doesn't follow a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// No record, or not what its own hash says.
    Unsound,
    /// A sound record with too high a number.
    Ahead(Head),
    /// A sound record with too low a number.
    Behind(Head),
    /// A sound record with the right number that names another predecessor.
    Foreign(Head),
}

impl Misfit {
    /// The number of the record that was found, where there was one.
    pub(super) fn seq(self) -> Option<u64> {
        match self {
            Self::Unsound => None,
            Self::Ahead(found) | Self::Behind(found) | Self::Foreign(found) => Some(found.seq),
        }
    }
}

/// A record that matches its own hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) head: Head,
    pub(super) prev: Digest,
    pub(super) is_recovery: bool,
}

impl Link {
    /// Reads one line, without its newline. None when it isn't a record or doesn't match its hash.
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            seq: u64,
            #[serde(borrow)]
            prev: Cow<'a, str>,
            #[serde(borrow)]
            kind: Cow<'a, str>,
        }
        let (open_body, hex) = line
            .strip_suffix(HASH_END)?
            .split_last_chunk::<HEX_BYTES>()?;
        let open_body = open_body.strip_suffix(HASH_KEY)?;
        let fields: Fields<'_> = serde_json::from_slice(line).ok()?;
        let prev = Digest::from_hex(fields.prev.as_bytes())?;
        let hash = digest(prev, &[open_body, b"}"]);
        (Digest::from_hex(hex)? == hash).then_some(Self {
            head: Head {
                seq: fields.seq,
                hash,
            },
            prev,
            is_recovery: fields.kind == "recovery",
        })
    }

    /// The head that the record was written behind.
    pub(super) fn predecessor(&self) -> Head {
        Head {
            seq: self.head.seq.saturating_sub(1),
            hash: self.prev,
        }
    }
}

fn digest(prev: Digest, parts: &[&[u8]]) -> Digest {
    let mut hash = Sha256::new_with_prefix(prev.0);
    parts.iter().for_each(|part| hash.update(part));
    Digest(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &[u8] = br#"{"id":"01K3AAAAAAAAAAAAAAAAAAAAAA","kind":"dns"}"#;

    fn sealed(head: Head) -> (Vec<u8>, Head) {
        let mut line = Vec::new();
        let after = head.seal(&mut line, &Timestamp::UNIX_EPOCH.into(), EVENT);
        assert_eq!(line.pop(), Some(b'\n'));
        (line, after)
    }

    #[test]
    fn the_bytes_of_the_first_record_never_change() {
        let (line, head) = sealed(Head::default());
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r#"{"seq":1,"time":"1970-01-01T00:00:00.000000Z","prev":"0000000000000000000000000000000000000000000000000000000000000000","id":"01K3AAAAAAAAAAAAAAAAAAAAAA","kind":"dns","hash":"0a0855ef756c578dd1c760f2f34198c1989537da39963654bca301349f412acf"}"#
        );
        assert_eq!(head.seq, 1);
    }

    #[test]
    fn a_record_follows_its_head_and_no_other() {
        let (first, one) = sealed(Head::default());
        let (second, two) = sealed(one);
        assert_eq!(
            Head::default().follow(&first).map(|link| link.head),
            Ok(one)
        );
        assert_eq!(one.follow(&second).map(|link| link.head), Ok(two));
        assert_eq!(Head::default().follow(&second), Err(Misfit::Ahead(two)));
        assert_eq!(one.follow(&first), Err(Misfit::Behind(one)));
        let other = Head {
            seq: 1,
            hash: Digest([7; 32]),
        };
        assert_eq!(other.follow(&second), Err(Misfit::Foreign(two)));
    }

    #[test]
    fn a_digest_has_one_spelling() {
        let (line, _) = sealed(Head::default());
        let line = String::from_utf8(line).unwrap();
        let (body, hash) = line.split_at(line.len() - 66);
        let shouted = format!("{body}{}", hash.to_uppercase());
        assert_ne!(line, shouted);
        assert_eq!(Link::read(shouted.as_bytes()), None);
        for near in [
            format!("{line} "),
            format!("{line}\r"),
            format!(" {line}"),
            format!("{line}{line}"),
        ] {
            assert_eq!(Link::read(near.as_bytes()), None, "{near}");
        }
    }

    #[test]
    fn a_head_reads_back_and_nothing_like_it_does() {
        let head = Head {
            seq: 7,
            hash: Digest([0xab; 32]),
        };
        let text = head.to_string();
        assert_eq!(text.parse(), Ok(head));
        for bad in [
            "",
            "7",
            "7:",
            ":ab",
            "x:ab",
            &text.to_uppercase(),
            &format!("{text}0"),
        ] {
            assert_eq!(
                bad.parse::<Head>(),
                Err(ParseHeadError {
                    text: bad.to_owned()
                })
            );
        }
    }
}
