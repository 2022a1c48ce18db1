//! Response bodies of the lab: a channel that a route feeds, and a pattern of any length whose
//! digest a client can check.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::journal::{Entry, ResponseState};

pub(super) type LabBody = BoxBody<Bytes, io::Error>;

pub(super) fn full(data: impl Into<Bytes>) -> LabBody {
    Full::new(data.into())
        .map_err(|never: Infallible| match never {})
        .boxed()
}

/// Lower-case hex of a digest or of any other bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One repeat of the pattern: neither compressible nor periodic at power-of-two offsets, so that
/// a lost, repeated or swapped chunk changes the digest.
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).take(8191).flatten().collect()
});

/// The SHA-256 of what `/bytes/{length}` serves, in hex.
pub fn pattern_sha256(length: u64) -> String {
    let mut digest = Sha256::new();
    for chunk in pattern(length) {
        digest.update(&chunk);
    }
    hex(&digest.finalize())
}

/// `length` bytes of the pattern, chunk by chunk.
pub fn pattern(length: u64) -> impl Iterator<Item = Bytes> {
    let mut left = length;
    std::iter::from_fn(move || take_chunk(&mut left))
}

fn take_chunk(left: &mut u64) -> Option<Bytes> {
    let size = usize::try_from(*left)
        .unwrap_or(usize::MAX)
        .min(PATTERN.len());
    *left -= size as u64;
    (size > 0).then(|| PATTERN.slice(..size))
}

/// The pattern as a body with a Content-Length; notes in the journal whether it was taken whole.
#[derive(Debug)]
pub(super) struct PatternBody {
    left: u64,
    entry: Entry,
}

impl PatternBody {
    pub(super) fn new(length: u64, entry: Entry) -> Self {
        Self {
            left: length,
            entry,
        }
    }
}

impl Body for PatternBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(take_chunk(&mut self.left).map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl Drop for PatternBody {
    fn drop(&mut self) {
        let state = if self.left == 0 {
            ResponseState::Sent
        } else {
            ResponseState::Aborted
        };
        self.entry.update(|received| received.response = state);
    }
}

/// A body whose frames a task sends one by one. An `Err` frame cuts the response short.
#[derive(Debug)]
pub(super) struct ChannelBody {
    frames: mpsc::Receiver<io::Result<Frame<Bytes>>>,
}

impl ChannelBody {
    /// The body and its feeding end; one frame waits at most, so the feeder knows what was taken.
    pub(super) fn fed() -> (mpsc::Sender<io::Result<Frame<Bytes>>>, LabBody) {
        let (feed, frames) = mpsc::channel(1);
        (feed, Self { frames }.boxed())
    }
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.frames.poll_recv(cx)
    }
}
