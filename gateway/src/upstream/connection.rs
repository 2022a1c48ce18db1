//! One HTTP connection to an origin.
//!
//! `hyper` is driven directly, with no client library in between that could re-read a URL, follow
//! a redirect or pick another address. A task drives each connection; it ends with the connection,
//! or when the sandbox's pool goes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outgate_policy::{Authority, Permit, Protocol};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::RequestBody;
use super::dial::Dialer;
use super::error::UpstreamError;
use super::stream::UpstreamStream;
use crate::audit::Timings;
use crate::tls::client::{Offer, OriginTls};

/// Receive windows on HTTP/2, in bytes. A download over a path of 40 ms still runs at 100 MB/s
/// (field case B182), and a guest that does not read pins no more than this.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Request bytes buffered per HTTP/2 stream before the guest is slowed down.
const SEND_BUFFER: usize = 256 << 10;
/// Header fields of an HTTP/1.1 answer, and bytes of an HTTP/2 header list: what large origins
/// send, with room.
const MAX_HEADERS: usize = 256;
const MAX_HEADER_LIST: u32 = 256 << 10;

/// What is known of a connection.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) peer: SocketAddr,
    pub(super) certificate_sha256: Option<String>,
    dns: Option<Duration>,
    connect: Duration,
    tls: Option<Duration>,
    /// It has carried a request before: making it cost this request nothing.
    reused: bool,
}

impl Facts {
    /// What making the connection cost the present request.
    pub(super) fn timings(&self) -> Timings {
        if self.reused {
            return Timings::default();
        }
        let Self {
            dns, connect, tls, ..
        } = *self;
        Timings {
            dns,
            connect: Some(connect),
            tls,
            ..Timings::default()
        }
    }
}

/// A connection that can take a request.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Sender,
    facts: Facts,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

impl Connection {
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn version(&self) -> Version {
        match self.sender {
            Sender::Http1(_) => Version::HTTP_11,
            Sender::Http2(_) => Version::HTTP_2,
        }
    }

    /// Whether a request has a chance. The origin may close at any moment all the same.
    pub(super) fn is_usable(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    /// A second handle, where requests may share a connection.
    pub(super) fn share(&self) -> Option<Self> {
        let Sender::Http2(sender) = &self.sender else {
            return None;
        };
        Some(Self {
            sender: Sender::Http2(sender.clone()),
            facts: self.facts.clone(),
        })
    }

    /// The same connection for its next request.
    pub(super) fn into_reused(mut self) -> Self {
        self.facts.reused = true;
        self
    }

    /// Waits until the connection can take its next request: until the body of the last answer
    /// has been read to its end. False if it never will.
    pub(super) async fn becomes_ready(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(sender) => sender.ready().await.is_ok(),
            Sender::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    /// Sends `request` and waits for the head of the answer. The request comes back with the error
    /// if nothing of it was written and its body was not asked for a byte.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<RequestBody>>)> {
        let sent = match &mut self.sender {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }
}

/// What a connection's driver holds until it ends.
pub(super) struct Tether {
    /// Fires when the pool goes.
    pub(super) closed: CancellationToken,
    /// The sandbox's right to one more connection.
    pub(super) place: OwnedSemaphorePermit,
}

/// Makes connections for one sandbox. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector(Arc<Inner>);

struct Inner {
    dialer: Dialer,
    tls: OriginTls,
}

impl Connector {
    pub(super) fn new(dialer: Dialer, tls: OriginTls) -> Self {
        Self(Arc::new(Inner { dialer, tls }))
    }

    /// Resolves, dials, verifies and starts HTTP.
    pub(super) async fn connect(
        &self,
        permit: &Permit,
        offer: Offer,
        tether: Tether,
    ) -> Result<Connection, UpstreamError> {
        let authority = permit.authority();
        let dialed = self.0.dialer.dial(permit).await?;
        let mut facts = Facts {
            peer: dialed.peer,
            certificate_sha256: None,
            dns: dialed.dns,
            connect: dialed.connect,
            tls: None,
            reused: false,
        };
        let sender = match permit.protocol() {
            Protocol::Http => http1(dialed.stream, authority, facts.peer, tether).await?,
            _ => {
                let started = Instant::now();
                let stream = self
                    .0
                    .tls
                    .connect(&authority.destination, offer, dialed.stream)
                    .await
                    .map_err(|failure| UpstreamError::Tls {
                        authority: authority.clone(),
                        peer: facts.peer,
                        failure,
                    })?;
                facts.tls = Some(started.elapsed());
                facts.certificate_sha256 = fingerprint(&stream);
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    http2(stream, authority, facts.peer, tether).await?
                } else {
                    http1(stream, authority, facts.peer, tether).await?
                }
            }
        };
        Ok(Connection { sender, facts })
    }
}

async fn http1<S>(
    stream: S,
    authority: &Authority,
    peer: SocketAddr,
    tether: Tether,
) -> Result<Sender, UpstreamError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .preserve_header_case(true)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| UpstreamError::of_http(authority, peer, &error))?;
    drive(connection.with_upgrades(), tether);
    Ok(Sender::Http1(sender))
}

async fn http2<S>(
    stream: S,
    authority: &Authority,
    peer: SocketAddr,
    tether: Tether,
) -> Result<Sender, UpstreamError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| UpstreamError::of_http(authority, peer, &error))?;
    drive(connection, tether);
    Ok(Sender::Http2(sender))
}

/// Runs a connection until it ends or the sandbox does.
fn drive(connection: impl Future<Output = hyper::Result<()>> + Send + 'static, tether: Tether) {
    tokio::spawn(async move {
        let Tether { closed, place } = tether;
        tokio::select! {
            // Whoever waits for an answer is told; nobody waits for an idle connection's end.
            ended = connection => if let Err(error) = ended {
                tracing::debug!(%error, "a connection to an origin ended");
            },
            () = closed.cancelled() => {}
        }
        drop(place);
    });
}

/// SHA-256 of the origin's own certificate, in hex.
fn fingerprint(stream: &TlsStream<UpstreamStream>) -> Option<String> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    Some(
        Sha256::digest(certificate)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
    )
}
