//! A lab of one sandbox, its guest's connections and local origins, for the tests beside this file.
//!
//! Nothing is mocked but the link: a guest's connection is an in-memory pipe into [`serve`], behind
//! it are the real TLS, policy, credentials, upstream and audit log.

mod bridge;
mod content;
mod denials;
mod drain;
mod hostile_http2;
mod reload;
mod smuggling;
mod streaming;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outgate_policy::{Authority, Destination, Host, Policy, Source};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::body::{ResponseBody, full};
use super::{Flow, serve};
use crate::audit::{AuditConfig, AuditLog, Ingress};
use crate::credential::{Broker, Placeholders};
use crate::sandbox::{SandboxContext, SandboxIdentity, SandboxServices};
use crate::tls::{CertificateAuthority, Leaves};
use crate::upstream::{Upstream, UpstreamConfig};

/// Longer than anything here takes; a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(30);

/// One sandbox and what it can reach.
pub(crate) struct Lab {
    pub(crate) sandbox: Arc<SandboxContext>,
    ca_pem: String,
    dir: tempfile::TempDir,
}

/// The authority behind all origins, and their certificates.
pub(crate) struct OriginTls {
    root: CertificateDer<'static>,
    leaves: Leaves,
}

impl OriginTls {
    pub(crate) fn new() -> Self {
        let ca = CertificateAuthority::generate().unwrap();
        let root = CertificateDer::from_pem_slice(ca.certificate_pem().as_bytes()).unwrap();
        Self {
            root,
            leaves: leaves(ca),
        }
    }

    pub(crate) async fn acceptor(&self, name: &str, alpn: &[&str]) -> TlsAcceptor {
        let name = Destination::Name(Host::parse(name).unwrap());
        let mut config = (*self.leaves.server_config(&name).await.unwrap()).clone();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

fn leaves(ca: CertificateAuthority) -> Leaves {
    Leaves::new(ca, std::num::NonZeroUsize::new(64).unwrap()).unwrap()
}

impl Lab {
    /// A sandbox under `policy`, where every `*.test` name leads to this machine.
    pub(crate) fn new(policy: &str, tls: Option<&OriginTls>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::generate().unwrap();
        let hosts = ["a.test", "b.test", "evil.test"].map(|name| {
            (
                Host::parse(name).unwrap(),
                vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            )
        });
        let upstream = Upstream::new(UpstreamConfig {
            hosts: HashMap::from(hosts),
            extra_roots: tls.iter().map(|tls| tls.root.clone()).collect(),
            ..UpstreamConfig::default()
        })
        .unwrap();
        let policy = load(policy);
        let ca_pem = ca.certificate_pem().to_owned();
        let services = SandboxServices {
            audit: AuditLog::open(AuditConfig::new(dir.path().join("audit"))).unwrap(),
            upstream: upstream.for_sandbox(),
            broker: Broker::new(),
            placeholders: arc_swap::ArcSwap::from_pointee(
                Placeholders::mint(policy.credentials()).unwrap(),
            ),
            leaves: leaves(ca),
            ca_pem: ca_pem.clone(),
        };
        let identity = SandboxIdentity {
            id: "s1".into(),
            tier: "microvm".into(),
            labels: BTreeMap::new(),
        };
        Self {
            sandbox: Arc::new(SandboxContext::new(identity, policy, services)),
            ca_pem,
            dir,
        }
    }

    /// A guest's connection to `to`, as the link hands it over.
    pub(crate) fn connect(&self, to: &str) -> DuplexStream {
        let authority = Authority::parse(to, None).unwrap();
        let (guest, stream) = tokio::io::duplex(64 * 1024);
        let flow = if to.starts_with("outgate.internal") {
            Flow::of_clear_text(Arc::clone(&self.sandbox), Ingress::Link, authority)
        } else {
            let may = self
                .sandbox
                .policy()
                .admits(&authority.destination, authority.port);
            Flow::new(Arc::clone(&self.sandbox), Ingress::Link, authority, &may)
        };
        tokio::spawn(serve(stream, flow));
        guest
    }

    pub(crate) async fn connect_tls(
        &self,
        to: &str,
        sni: &str,
        alpn: &str,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<DuplexStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let name = ServerName::try_from(sni.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, self.connect(to))
            .await
    }

    /// An HTTP/1.1 client over clear text.
    pub(crate) async fn http1(
        &self,
        to: &str,
    ) -> hyper::client::conn::http1::SendRequest<ResponseBody> {
        let io = TokioIo::new(self.connect(to));
        let (client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// An HTTP/2 client over TLS.
    pub(crate) async fn http2(
        &self,
        to: &str,
    ) -> hyper::client::conn::http2::SendRequest<ResponseBody> {
        let name = to.split(':').next().unwrap();
        let io = TokioIo::new(self.connect_tls(to, name, "h2").await.unwrap());
        let (client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    }

    /// All records so far.
    pub(crate) fn records(&self) -> Vec<Value> {
        let mut files: Vec<_> = std::fs::read_dir(self.dir.path().join("audit"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "jsonl")
            })
            .collect();
        files.sort();
        let text: String = files
            .iter()
            .map(|file| std::fs::read_to_string(file).unwrap())
            .collect();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The first record of `kind`, once it is written.
    pub(crate) async fn record(&self, kind: &str) -> Value {
        let found = async {
            loop {
                if let Some(found) = self.records().into_iter().find(|it| it["kind"] == kind) {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        patient(found).await
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.records()
            .iter()
            .filter(|record| record["kind"] == kind)
            .count()
    }
}

pub(crate) fn load(policy: &str) -> Policy {
    Policy::load(&[Source::new("lab.yaml", policy)])
        .map_err(|error| panic!("{error}"))
        .unwrap()
}

/// A policy that allows everything at `a.test:{port}`, with `more` rules.
pub(crate) fn allow(protocol: &str, port: u16, more: &str) -> String {
    format!(
        "version: 1\nrules:\n  - id: lab\n    action: allow\n    protocol: {protocol}\n    \
         to: {{ hosts: [a.test], ports: [{port}], private: true }}\n{more}"
    )
}

pub(crate) async fn patient<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("took too long")
}

/// Sends `bytes` and reads until the gateway closes.
pub(crate) async fn exchange(
    mut guest: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &[u8],
) -> String {
    patient(async {
        guest.write_all(bytes).await.unwrap();
        guest.shutdown().await.unwrap();
        let mut answer = Vec::new();
        guest.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    })
    .await
}

/// An origin that answers each connection with `answer` once it has read a head, and tells what it
/// read.
pub(crate) async fn raw_origin(
    answer: &'static str,
) -> (SocketAddr, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, received) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while !read.windows(4).any(|end| end == b"\r\n\r\n") {
                    if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                seen.send(String::from_utf8(read).unwrap()).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    (address, received)
}

/// An HTTP origin over clear text (HTTP/1) or TLS (what `acceptor` negotiates).
pub(crate) async fn origin<F, R>(acceptor: Option<TlsAcceptor>, answer: F) -> u16
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<ResponseBody>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_origin(stream, acceptor.clone(), answer.clone()));
        }
    });
    port
}

async fn serve_origin<F, R>(stream: TcpStream, acceptor: Option<TlsAcceptor>, answer: F)
where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<ResponseBody>> + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let Some(acceptor) = acceptor else {
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
        return;
    };
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }
}

pub(crate) fn no_body() -> ResponseBody {
    full("")
}

/// A body whose frames come out of a channel.
pub(crate) fn channel_body() -> (
    tokio::sync::mpsc::Sender<http_body::Frame<Bytes>>,
    ResponseBody,
) {
    let (frames, mut receiver) = tokio::sync::mpsc::channel(1);
    let body = Frames(Box::new(move |cx| receiver.poll_recv(cx)));
    (frames, body.boxed())
}

type PollFrame = dyn FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<http_body::Frame<Bytes>>>
    + Send
    + Sync;

struct Frames(Box<PollFrame>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = crate::upstream::BodyError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        (self.0)(cx).map(|frame| frame.map(Ok))
    }
}

pub(crate) async fn text(
    body: impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
) -> String {
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}
