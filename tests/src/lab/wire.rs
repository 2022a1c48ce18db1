//! A stream that keeps a copy of what it read, so that a test can see the bytes that arrived and
//! not only what an HTTP library made of them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of one connection is kept: far above every head and every body a test inspects, far
/// below a bulk transfer.
const KEPT_BYTES: usize = 512 * 1024;

/// The first [`KEPT_BYTES`] that were read from one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct WireLog {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl WireLog {
    /// The header fields of the request with this request line, as they were spelled, and the
    /// offset behind its head. `None` where the head lies beyond what is kept.
    pub(super) fn headers_after(
        &self,
        from: usize,
        request_line: &str,
    ) -> Option<(Vec<(String, String)>, usize)> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = from + find(bytes.get(from..)?, request_line.as_bytes())?;
        let mut slots = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut slots);
        let httparse::Status::Complete(length) = request.parse(bytes.get(start..)?).ok()? else {
            return None;
        };
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers = request
            .headers
            .iter()
            .map(|h| (h.name.to_owned(), text(h.value)));
        Some((headers.collect(), start + length))
    }

    fn record(&self, read: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT_BYTES - bytes.len().min(KEPT_BYTES);
        bytes.extend_from_slice(&read[..read.len().min(room)]);
    }
}

/// The position of `needle` in `haystack`.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// A stream and the log of its reads.
#[derive(Debug)]
pub(super) struct Recorded<S> {
    stream: S,
    log: WireLog,
}

impl<S> Recorded<S> {
    pub(super) fn new(stream: S, log: WireLog) -> Self {
        Self { stream, log }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Recorded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.log.record(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Recorded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
