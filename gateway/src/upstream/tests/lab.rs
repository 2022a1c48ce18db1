//! Origins, certificates, permits and requests for the tests of this module.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outgate_policy::{
    Authority, CanonicalRequest, Host, Permit, Policy, Protocol, RequestParts, Source,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::upstream::{
    BodyError, RequestBody, ResolverConfig, SandboxUpstream, SendOptions, Sent, Upstream,
    UpstreamConfig, UpstreamError,
};

/// A root that the gateway under test trusts.
pub(super) struct LabRoot(CertifiedIssuer<'static, KeyPair>);

impl LabRoot {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // A verifier finds the issuer by its name: two roots need two.
        let key = KeyPair::generate().unwrap();
        let name = format!("Lab root {:?}", params.key_identifier(&key));
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A server with a certificate of this root for `name`, changed by `change`.
    pub(super) fn server(
        &self,
        name: &str,
        alpn: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = leaf_params(name);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        server_config(certificate.der().clone(), &key, alpn)
    }
}

pub(super) fn leaf_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let day = Duration::from_hours(24);
    crate::tls::set_validity(
        &mut params,
        SystemTime::now() - day,
        SystemTime::now() + day,
    );
    params
}

pub(super) fn server_config(
    certificate: CertificateDer<'static>,
    key: &KeyPair,
    alpn: &[&str],
) -> ServerConfig {
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    config.alpn_protocols = alpn
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec())
        .collect();
    config
}

/// A local server that counts its connections.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Origin {
    /// An origin that does `serve` with each TCP connection.
    pub(super) async fn raw<F>(serve: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::new(AtomicUsize::new(0)),
        };
        let connections = origin.connections.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream));
            }
        });
        origin
    }

    /// An HTTPS origin that answers each request with [`echo`].
    pub(super) async fn https(config: ServerConfig) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::raw(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                // A client that refuses the certificate is part of the tests.
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                serve(stream, h2).await;
            }
        })
        .await
    }

    /// An HTTP origin that answers each request with [`echo`].
    pub(super) async fn http() -> Self {
        Self::raw(|stream| serve(stream, false)).await
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, h2: bool) {
    let stream = TokioIo::new(stream);
    let service = service_fn(echo);
    // How a connection ends is the client's business here.
    let _ended = if h2 {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(stream, service).await
    } else {
        let server = hyper::server::conn::http1::Builder::new();
        server.serve_connection(stream, service).await
    };
}

/// Reads the head of one request; `None` if the connection ends first.
pub(super) async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// Says what came in: version, method, authority, target, and the body after an empty line.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let host = request
        .headers()
        .get("host")
        .map(|host| host.to_str().unwrap().to_owned());
    let authority = request.uri().authority().map(ToString::to_string);
    let head = format!(
        "{:?} {} {} {}",
        request.version(),
        request.method(),
        host.or(authority).unwrap_or_default(),
        request.uri().path_and_query().unwrap(),
    );
    let body = request.into_body().collect().await?.to_bytes();
    let echo = [head.as_bytes(), b"\n\n", &body].concat();
    Ok(Response::new(Full::new(echo.into())))
}

/// An upstream that finds `a.test` and `b.test` on this machine and asks no DNS server.
pub(super) fn config(root: Option<&LabRoot>) -> UpstreamConfig {
    let here = vec![std::net::IpAddr::from([127, 0, 0, 1])];
    UpstreamConfig {
        resolver: ResolverConfig {
            servers: vec![SocketAddr::from(([127, 0, 0, 1], 1)).into()],
        },
        hosts: ["a.test", "b.test"]
            .map(|name| (Host::parse(name).unwrap(), here.clone()))
            .into(),
        extra_roots: root.map(LabRoot::certificate).into_iter().collect(),
        ..UpstreamConfig::default()
    }
}

pub(super) fn sandbox(root: &LabRoot) -> SandboxUpstream {
    Upstream::new(config(Some(root))).unwrap().for_sandbox()
}

/// What a policy with one rule for `authority` allows.
pub(super) fn permit(protocol: Protocol, authority: &str, private: bool) -> Permit {
    let authority = Authority::parse(authority, None).unwrap();
    let (key, name) = match &authority.destination {
        outgate_policy::Destination::Name(host) => ("hosts", host.to_string()),
        outgate_policy::Destination::Ip(ip) => ("ips", ip.to_string()),
    };
    let text = format!(
        "version: 1\nrules:\n  - id: lab\n    action: allow\n    protocol: {protocol}\n    \
         to: {{ {key}: [\"{name}\"], ports: [{}], private: {private} }}\n",
        authority.port
    );
    let policy = Policy::load(&[Source::new("lab.yaml", text)]).unwrap();
    let request = if protocol.is_http() {
        CanonicalRequest::new(RequestParts {
            protocol,
            authority: &authority,
            method: "GET",
            target: "/",
            body_len: None,
        })
        .unwrap()
    } else {
        CanonicalRequest::tunnel(protocol, authority)
    };
    policy.decide(&request).permit().unwrap().clone()
}

/// A permit for HTTPS with `origin` under the name `a.test`.
pub(super) fn https(origin: &Origin) -> Permit {
    permit(
        Protocol::Https,
        &format!("a.test:{}", origin.address.port()),
        true,
    )
}

/// A permit for HTTP with `origin` under the name `a.test`.
pub(super) fn http(origin: &Origin) -> Permit {
    permit(
        Protocol::Http,
        &format!("a.test:{}", origin.address.port()),
        true,
    )
}

pub(super) fn get(target: &str) -> Request<RequestBody> {
    let body = Empty::new().map_err(|never| match never {});
    Request::builder().uri(target).body(body.boxed()).unwrap()
}

pub(super) fn post(target: &str, body: Frames) -> Request<RequestBody> {
    Request::builder()
        .method("POST")
        .uri(target)
        .body(body.boxed())
        .unwrap()
}

type FrameOrError = Result<Frame<Bytes>, BodyError>;

/// A body made of what a channel says.
pub(super) struct Frames(mpsc::Receiver<FrameOrError>);

impl Frames {
    pub(super) fn channel() -> (mpsc::Sender<FrameOrError>, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (sender, Self(receiver))
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<FrameOrError>> {
        self.0.poll_recv(context)
    }
}

pub(super) async fn send(
    sandbox: &SandboxUpstream,
    permit: &Permit,
    request: Request<RequestBody>,
) -> Result<Sent, UpstreamError> {
    sandbox
        .send(permit, permit.protocol(), request, SendOptions::default())
        .await
}

/// The whole body of an answer. A body read to its end frees the connection.
pub(super) async fn text(sent: Sent) -> String {
    let body = sent
        .response
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}
