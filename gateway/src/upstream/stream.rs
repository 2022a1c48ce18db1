//! A connection to an origin, whatever lies between: a socket, or a tunnel through a next hop.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Bytes to and from an origin.
#[derive(Debug)]
pub struct UpstreamStream {
    /// What a next hop sent together with its answer: the origin spoke first.
    early: Bytes,
    wire: Wire,
}

#[derive(Debug)]
enum Wire {
    Tcp(TcpStream),
    /// A tunnel in TLS with the next hop; what is in it may be TLS with the origin.
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamStream {
    /// Puts bytes in front that were read already.
    pub(super) fn with_early(mut self, early: Bytes) -> Self {
        self.early = early;
        self
    }

    /// The socket underneath.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match &self.wire {
            Wire::Tcp(socket) => socket,
            Wire::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl From<TcpStream> for UpstreamStream {
    fn from(socket: TcpStream) -> Self {
        Self {
            early: Bytes::new(),
            wire: Wire::Tcp(socket),
        }
    }
}

impl From<TlsStream<TcpStream>> for UpstreamStream {
    fn from(stream: TlsStream<TcpStream>) -> Self {
        Self {
            early: Bytes::new(),
            wire: Wire::Tls(Box::new(stream)),
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.has_remaining() {
            let len = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(len));
            return Poll::Ready(Ok(()));
        }
        match &mut self.wire {
            Wire::Tcp(socket) => Pin::new(socket).poll_read(cx, buffer),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Tcp(socket) => Pin::new(socket).poll_write(cx, data),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Tcp(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Wire::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Tcp(socket) => socket.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
