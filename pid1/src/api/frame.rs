//! Frames of a command's output: `[type: u8][length: u32, big endian][payload]`.
//!
//! The decoder takes bytes in pieces of any size and never trusts a length: a frame over
//! [`MAX_PAYLOAD`] or of an unknown type is an error, after which nothing more is decoded.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::Exit;

/// Longest payload, in bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// Bytes before a payload.
const HEADER: usize = 5;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const EXIT: u8 = 3;
const GAP: u8 = 4;
const KEEPALIVE: u8 = 5;

/// One event in the life of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of standard output, or of the terminal.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// Bytes that are gone, since nobody read them in time.
    Gap(Gap),
    /// Nothing happened for a while.
    Keepalive,
    /// The end. Nothing follows.
    Exit(Exit),
}

/// Output that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// 1 for standard output, 2 for standard error.
    pub fd: u8,
    /// Offset of the first byte that is gone.
    pub from: u64,
    /// Offset after the last byte that is gone.
    pub to: u64,
}

/// Why bytes are no frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The payload is longer than [`MAX_PAYLOAD`].
    #[error("a frame of {length} bytes is longer than {MAX_PAYLOAD}")]
    TooLong {
        /// The length it claimed.
        length: usize,
    },
    /// The type is none of ours.
    #[error("frame type {0} is unknown")]
    UnknownType(u8),
    /// The JSON of the payload is not what the type holds.
    #[error("the payload of frame type {kind} can't be read: {message}")]
    BadPayload {
        /// The type.
        kind: u8,
        /// What the parser said.
        message: String,
    },
}

impl Frame {
    /// Appends the frame's bytes to `out`.
    ///
    /// # Errors
    /// When the payload is longer than [`MAX_PAYLOAD`]: split output before.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        let bad = |kind| {
            move |error: serde_json::Error| FrameError::BadPayload {
                kind,
                message: error.to_string(),
            }
        };
        match self {
            Self::Stdout(bytes) => put(out, STDOUT, bytes),
            Self::Stderr(bytes) => put(out, STDERR, bytes),
            Self::Keepalive => put(out, KEEPALIVE, &[]),
            Self::Gap(gap) => put(out, GAP, &serde_json::to_vec(gap).map_err(bad(GAP))?),
            Self::Exit(exit) => put(out, EXIT, &serde_json::to_vec(exit).map_err(bad(EXIT))?),
        }
    }

    /// Takes the next frame off the front of `bytes`; none while it isn't whole.
    ///
    /// # Errors
    /// See [`FrameError`]; the stream is of no use after one.
    pub fn decode(bytes: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some((&[kind, a, b, c, d], _)) = bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if !(STDOUT..=KEEPALIVE).contains(&kind) {
            return Err(FrameError::UnknownType(kind));
        }
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLong { length });
        }
        if bytes.len() < HEADER + length {
            return Ok(None);
        }
        bytes.advance(HEADER);
        let payload = bytes.split_to(length).freeze();
        let bad = |error: serde_json::Error| FrameError::BadPayload {
            kind,
            message: error.to_string(),
        };
        Ok(Some(match kind {
            STDOUT => Self::Stdout(payload),
            STDERR => Self::Stderr(payload),
            EXIT => Self::Exit(serde_json::from_slice(&payload).map_err(bad)?),
            GAP => Self::Gap(serde_json::from_slice(&payload).map_err(bad)?),
            _ => Self::Keepalive,
        }))
    }
}

fn put(out: &mut BytesMut, kind: u8, payload: &[u8]) -> Result<(), FrameError> {
    if payload.len() > MAX_PAYLOAD {
        return Err(FrameError::TooLong {
            length: payload.len(),
        });
    }
    out.reserve(HEADER + payload.len());
    out.put_u8(kind);
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(payload);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let bytes = prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        prop_oneof![
            bytes.clone().prop_map(Frame::Stdout),
            bytes.prop_map(Frame::Stderr),
            Just(Frame::Keepalive),
            any::<i32>().prop_map(|code| Frame::Exit(Exit::Code { code })),
            any::<i32>().prop_map(|signal| Frame::Exit(Exit::Signal { signal })),
            Just(Frame::Exit(Exit::Timeout)),
            (1..=2_u8, any::<u64>(), any::<u64>()).prop_map(|(fd, from, to)| Frame::Gap(Gap {
                fd,
                from,
                to
            })),
        ]
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded_in_pieces_of_any_size(
            frames in prop::collection::vec(any_frame(), 0..8), piece in 1..50_usize,
        ) {
            let mut wire = BytesMut::new();
            for frame in &frames {
                frame.encode(&mut wire).unwrap();
            }
            let mut buffer = BytesMut::new();
            let mut decoded = Vec::new();
            for bytes in wire.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some(frame) = Frame::decode(&mut buffer).unwrap() {
                    decoded.push(frame);
                }
            }
            prop_assert_eq!(decoded, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut buffer = BytesMut::from(bytes.as_slice());
            while let Ok(Some(_)) = Frame::decode(&mut buffer) {}
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_its_bytes_arrive() {
        let mut wire = BytesMut::from(&[STDOUT, 0xff, 0xff, 0xff, 0xff][..]);
        assert_eq!(
            Frame::decode(&mut wire),
            Err(FrameError::TooLong {
                length: 0xffff_ffff
            })
        );
        let mut unknown = BytesMut::from(&[9, 0, 0, 0, 0][..]);
        assert_eq!(Frame::decode(&mut unknown), Err(FrameError::UnknownType(9)));
    }
}
