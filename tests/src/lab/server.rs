//! The lab's HTTP servers: TLS with HTTP/1.1 and HTTP/2 by ALPN, and plain HTTP/1.1. Each request
//! is written to the journal before it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::body::LabBody;
use super::journal::Received;
use super::routes::Routes;
use super::wire::{Recorded, WireLog};

/// HTTP/2 windows of the lab: large, so that a transfer is limited by what is under test.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// TLS settings that offer both HTTP versions.
pub(super) fn tls_config(certificates: Arc<dyn ResolvesServerCert>) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Serves `routes` on `listener` for as long as the runtime lives.
pub(super) fn spawn(listener: TcpListener, tls: Option<Arc<ServerConfig>>, routes: Routes) {
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, routes) = (tls.clone(), routes.clone());
            tokio::spawn(async move { serve(stream, tls, routes).await });
        }
    });
}

async fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>, routes: Routes) {
    // Small writes must leave at once: tests measure when an event arrives.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection::new();
    let Some(tls) = tls else {
        return connection.http1(stream, routes).await;
    };
    // A client that refuses our certificate ends here; nothing was received, so nothing is noted.
    let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else {
        return;
    };
    let session = stream.get_ref().1;
    connection.sni = session.server_name().map(str::to_owned);
    if session.alpn_protocol() == Some(b"h2") {
        connection.http2(stream, routes).await;
    } else {
        connection.http1(stream, routes).await;
    }
}

/// What every request on one connection has in common.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    number: u64,
    sni: Option<String>,
    wire: WireLog,
    /// Bytes of `wire` that belong to requests already noted.
    noted: Arc<AtomicU64>,
}

impl Connection {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            sni: None,
            wire: WireLog::default(),
            noted: Arc::default(),
        }
    }

    async fn http1<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S, routes: Routes) {
        let io = TokioIo::new(Recorded::new(stream, self.wire.clone()));
        // How a connection ends is what tests look at from the other side; here it is no news.
        let _ = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(io, service_fn(|request| self.answer(&routes, request)))
            .await;
    }

    async fn http2<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S, routes: Routes) {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .serve_connection(
                TokioIo::new(stream),
                service_fn(|request| self.answer(&routes, request)),
            )
            .await;
    }

    fn answer(
        &self,
        routes: &Routes,
        request: Request<Incoming>,
    ) -> impl Future<Output = std::io::Result<Response<LabBody>>> + use<> {
        let received = self.describe(&request);
        let routes = routes.clone();
        async move { routes.answer(received, request).await }
    }

    fn describe(&self, request: &Request<Incoming>) -> Received {
        let target = request
            .uri()
            .path_and_query()
            .map_or("*", |t| t.as_str())
            .to_owned();
        let mut headers = listed(request.headers());
        if request.version() != Version::HTTP_2 {
            let line = format!("{} {} HTTP/1.", request.method(), request.uri());
            let noted = usize::try_from(self.noted.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
            if let Some((spelled, end)) = self.wire.headers_after(noted, &line) {
                headers = spelled;
                self.noted.store(end as u64, Ordering::Relaxed);
            }
        }
        let host = request.headers().get(http::header::HOST);
        let host = host.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
        Received {
            connection: self.number,
            version: format!("{:?}", request.version()),
            sni: self.sni.clone(),
            authority: request.uri().authority().map(ToString::to_string).or(host),
            method: request.method().to_string(),
            target,
            headers,
            ..Received::default()
        }
    }
}

pub(super) fn listed(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}
