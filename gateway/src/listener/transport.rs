//! The stream of a connection, whatever carries it. One type, so that what is served on it is
//! compiled once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::ahead::Ahead;

/// Bytes as the system gives them.
#[derive(Debug)]
pub(crate) enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Bytes as the client means them.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Plain),
    Tls(Box<TlsStream<Ahead<Plain>>>),
}

/// Passes every call on to the stream that there is.
macro_rules! passes_on {
    ($name:ident { $($variant:ident),+ }) => {
        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_read(cx, buf),)+
                }
            }
        }

        impl AsyncWrite for $name {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_write(cx, buf),)+
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_flush(cx),)+
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_shutdown(cx),)+
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),)+
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $(Self::$variant(stream) => stream.is_write_vectored(),)+
                }
            }
        }
    };
}

passes_on!(Plain { Tcp, Unix });
passes_on!(Transport { Plain, Tls });
