//! One accepted flow: what is spoken on it, and who reads it.
//!
//! TLS is accepted only for the name that the flow goes to, before anything is dialled; clear text
//! only where a rule speaks of `http`. Nothing is ever passed on unread.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outgate_policy::{Admission, Authority, Destination, Host, Protocol, Reason, Reject};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use crate::audit::Ingress;
use crate::sandbox::SandboxContext;
use crate::tls::{TlsError, read_client_hello};

use super::body::causes;
use super::exchange::Channel;
use super::front::Front;
use super::front::head::{MAX_HEAD_BYTES, MAX_HEADERS};
use super::replay::Replay;

/// First byte of a TLS handshake record (RFC 8446 section 5.1). No HTTP method begins with it.
const TLS_HANDSHAKE: u8 = 22;
/// Requests that one HTTP/2 connection may have open: more than clients use, and what RFC 9113
/// section 6.5.2 recommends not to go below.
const MAX_STREAMS: u32 = 128;
/// Bytes of one stream's upload that may be under way: a slow guest's link has long round trips.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
/// Bytes of all uploads of one connection that may be under way, and so may wait here.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of a response that may wait for one stream's window.
const STREAM_BUFFER: usize = 256 * 1024;
/// Silence after which an HTTP/2 guest is asked whether it is there, and time for its answer: a
/// paused guest must find its connections again.
const KEEP_ALIVE: Duration = Duration::from_secs(300);
/// What is read and thrown away after the last response, so that a guest that still sends can read
/// it: closing on unread bytes would reset the connection and the response with it.
pub(super) const LINGER_BYTES: usize = 64 * 1024 * 1024;
/// How long that may take.
pub(super) const LINGER_TIME: Duration = Duration::from_secs(30);

/// An accepted flow on which HTTP is expected.
#[derive(Debug)]
pub(crate) struct Flow {
    sandbox: Arc<SandboxContext>,
    ingress: Ingress,
    authority: Authority,
    https: bool,
    http: bool,
}

impl Flow {
    /// A flow to `authority`, for the protocols that the policy could allow there.
    pub(crate) fn new(
        sandbox: Arc<SandboxContext>,
        ingress: Ingress,
        authority: Authority,
        may: &Admission,
    ) -> Self {
        Self {
            sandbox,
            ingress,
            authority,
            https: may.https,
            http: may.http,
        }
    }

    /// A flow on which only clear text is taken, whatever the policy could allow there.
    pub(crate) fn of_clear_text(
        sandbox: Arc<SandboxContext>,
        ingress: Ingress,
        authority: Authority,
    ) -> Self {
        Self {
            sandbox,
            ingress,
            authority,
            https: false,
            http: true,
        }
    }

    fn channel(&self, protocol: Protocol) -> Arc<Channel> {
        let (sandbox, authority) = (Arc::clone(&self.sandbox), self.authority.clone());
        Arc::new(Channel {
            sandbox,
            ingress: self.ingress,
            authority,
            protocol,
        })
    }
}

/// Serves `flow` on `stream` until either side is done with it.
pub(crate) async fn serve<S>(stream: S, flow: Flow)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (first, stream) = match Replay::peek(stream).await {
        Ok(Some(peeked)) => peeked,
        // A connection that was opened ahead of need and never used.
        Ok(None) | Err(_) => return,
    };
    match (first == TLS_HANDSHAKE, flow.https, flow.http) {
        (true, true, _) => tls(stream, &flow).await,
        (false, _, true) => http1(stream, flow.channel(Protocol::Http)).await,
        (true, false, _) => {
            let reject = Reject::new(Reason::ProtocolNotAllowed, "TLS, where rules allow `http`");
            flow.channel(Protocol::Https).record_reject(&reject).await;
        }
        (false, _, false) => {
            let reject = Reject::new(Reason::NotTls, "clear text, where rules allow `https`");
            flow.channel(Protocol::Http).record_reject(&reject).await;
        }
    }
}

async fn tls<S>(stream: S, flow: &Flow)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let channel = flow.channel(Protocol::Https);
    let stream = match accept_tls(stream, flow).await {
        Ok(stream) => stream,
        Err(reject) => {
            channel.record_reject(&reject).await;
            return;
        }
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        http2(stream, channel).await;
    } else {
        http1(stream, channel).await;
    }
}

async fn accept_tls<S>(stream: S, flow: &Flow) -> Result<tokio_rustls::server::TlsStream<S>, Reject>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let refused = |error: TlsError| Reject::new(error.reason(), error.to_string());
    let hello = read_client_hello(stream).await.map_err(refused)?;
    check_sni(flow, hello.facts().sni.as_ref())?;
    let leaves = &flow.sandbox.services().leaves;
    let config = leaves
        .server_config(&flow.authority.destination)
        .await
        .map_err(refused)?;
    hello.accept(config).await.map_err(refused)
}

/// The server that TLS is for must be the one that the flow goes to. TLS has no name for an address
/// (RFC 6066 section 3), so there must be none. Who asked a proxy for a name has named the server
/// already, and may leave it out of TLS.
fn check_sni(flow: &Flow, sni: Option<&Host>) -> Result<(), Reject> {
    let destination = &flow.authority.destination;
    match (destination, sni) {
        (Destination::Name(name), Some(sni)) if name == sni => Ok(()),
        (Destination::Ip(_), None) => Ok(()),
        (Destination::Name(_), None) if flow.ingress.names_destination() => Ok(()),
        (Destination::Name(_), None) => Err(Reject::new(
            Reason::SniMissing,
            format!("no SNI for `{destination}`"),
        )),
        (_, Some(sni)) => Err(Reject::new(
            Reason::SniMismatch,
            format!("SNI `{sni}` for `{destination}`"),
        )),
    }
}

async fn http1<S>(stream: S, channel: Arc<Channel>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut front = Front::new(stream);
    let verdicts = front.verdicts();
    let draining = channel.sandbox.draining();
    let service = service_fn(move |request| {
        let (channel, verdict) = (Arc::clone(&channel), verdicts.take());
        async move { Ok::<_, Infallible>(channel.respond_after_front(verdict, request).await) }
    });
    let connection = http1_server().serve_connection(TokioIo::new(&mut front), service);
    let mut connection = pin!(connection);
    // No new request once the sandbox is drained; those under way are answered.
    let served = tokio::select! {
        biased;
        served = connection.as_mut() => served,
        () = draining.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match served {
        Ok(()) => linger(front.into_inner()).await,
        Err(error) => tracing::debug!(%error, "an HTTP/1 connection broke off"),
    }
}

/// The server behind a front.
pub(super) fn http1_server() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS);
    builder
}

async fn http2<S>(stream: S, channel: Arc<Channel>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let to = Arc::clone(&channel);
    let service = service_fn(move |request| {
        let channel = Arc::clone(&to);
        async move { Ok::<_, Infallible>(channel.respond(request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_BUFFER)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let draining = channel.sandbox.draining();
    let mut connection = pin!(connection);
    // No new request once the sandbox is drained; those under way are answered.
    let served = tokio::select! {
        biased;
        served = connection.as_mut() => served,
        () = draining.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        if causes(&error).any(|cause| cause.is::<io::Error>()) {
            tracing::debug!(%error, "an HTTP/2 connection broke off");
        } else {
            let detail: Vec<_> = causes(&error).map(ToString::to_string).collect();
            channel
                .record_reject(&Reject::new(Reason::BadRequest, detail.join(": ")))
                .await;
        }
    }
}

/// Reads what the guest still sends until it has closed too, within bounds.
pub(super) async fn linger<S: AsyncRead + Unpin>(mut stream: S) {
    let mut thrown_away = vec![0; 16 * 1024];
    let drained = async {
        let mut left = LINGER_BYTES;
        while let Ok(read @ 1..) = stream.read(&mut thrown_away).await {
            left = left.saturating_sub(read);
            if left == 0 {
                break;
            }
        }
    };
    // Whatever ended it: the response is as delivered as it can be.
    let _ = timeout(LINGER_TIME, drained).await;
}
