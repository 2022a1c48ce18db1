//! A stream of which some bytes were read already and are read again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// `stream` with the bytes in front that were read ahead of its reader.
#[derive(Debug)]
pub(crate) struct Ahead<S> {
    bytes: BytesMut,
    stream: S,
}

impl<S> Ahead<S> {
    pub(crate) fn new(bytes: BytesMut, stream: S) -> Self {
        Self { bytes, stream }
    }

    /// The first byte that was read ahead, if there is one.
    pub(crate) fn first(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// What was read ahead and not read again, and the stream.
    pub(crate) fn into_parts(self) -> (BytesMut, S) {
        (self.bytes, self.stream)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let now = self.bytes.len().min(buf.remaining());
        buf.put_slice(self.bytes.get(..now).unwrap_or_default());
        self.bytes.advance(now);
        if self.bytes.is_empty() {
            // Nothing is kept for the rest of a connection that may last for hours.
            self.bytes = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
