//! The origin that every subject forwards to: as little work as HTTP/1.1 and HTTP/2 over TLS allow,
//! so that what is measured is the proxy.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Interval, interval};
use tokio_rustls::TlsAcceptor;

/// Time between two events of one stream.
pub(crate) const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a transfer's piece.
const PIECE: usize = 64 * 1024;
/// Large enough never to be what limits a transfer.
const WINDOW: u32 = 4 * 1024 * 1024;

type AnyBody = BoxBody<Bytes, Infallible>;

/// Serves on a port of its own until the runtime ends.
///
/// `/1k` answers 1,024 bytes, `/bytes/N` so many, `/events` an endless stream of events that each
/// hold the nanoseconds since `epoch`; a request body is read to its end first.
pub(crate) async fn spawn(tls: ServerConfig, epoch: Instant) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let tls = TlsAcceptor::from(Arc::new(tls));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, tls.clone(), epoch));
        }
    });
    Ok(address)
}

async fn serve(stream: TcpStream, tls: TlsAcceptor, epoch: Instant) {
    let _ = stream.set_nodelay(true);
    // A peer that breaks off is the client's finding, not the origin's.
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| answer(request, epoch));
    let stream = TokioIo::new(stream);
    let _ended = if is_h2 {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .serve_connection(stream, service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(stream, service)
            .await
    };
}

async fn answer(
    request: Request<Incoming>,
    epoch: Instant,
) -> Result<Response<AnyBody>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let body = match path.strip_prefix("/bytes/") {
        Some(count) => Pieces(count.parse().unwrap_or(0)).boxed(),
        None if path == "/events" => Events {
            epoch,
            ticks: interval(EVENT_INTERVAL),
        }
        .boxed(),
        None => Full::new(Bytes::from_static(&[b'x'; 1024])).boxed(),
    };
    Ok(Response::new(body))
}

/// So many bytes more.
struct Pieces(u64);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static PIECE_BYTES: [u8; PIECE] = [b'x'; PIECE];
        let now = self.0.min(PIECE as u64);
        self.0 -= now;
        let piece = PIECE_BYTES
            .get(..now as usize)
            .filter(|piece| !piece.is_empty());
        Poll::Ready(piece.map(|piece| Ok(Frame::data(Bytes::from_static(piece)))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0)
    }
}

/// Server-sent events, one a tick.
struct Events {
    epoch: Instant,
    ticks: Interval,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.ticks.poll_tick(cx).map(|_| {
            let event = format!("data: {}\n\n", self.epoch.elapsed().as_nanos());
            Some(Ok(Frame::data(event.into())))
        })
    }
}
