//! A proxy of the shape that the manual of the library `hudsucker` shows: it intercepts, adds one
//! header to each request and forwards over verified TLS.
//!
//! ```text
//! outgate-bench-hudsucker PORT CA_AND_KEY_PEM ROOT_PEM ORIGIN SECRET
//! ```
//!
//! Every name leads to ORIGIN, since the name server of the bench is not the system's.

use std::error::Error;
use std::fs;
use std::future::{Ready, ready};
use std::iter;
use std::net::{Ipv4Addr, SocketAddr};

use hudsucker::certificate_authority::RcgenAuthority;
use hudsucker::hyper::Request;
use hudsucker::hyper::header::{AUTHORIZATION, HeaderValue};
use hudsucker::hyper_util::client::legacy::connect::HttpConnector;
use hudsucker::rcgen::{Issuer, KeyPair};
use hudsucker::rustls::crypto::aws_lc_rs;
use hudsucker::rustls::{ClientConfig, RootCertStore};
use hudsucker::{Body, HttpContext, HttpHandler, Proxy, RequestOrResponse};
use hyper_rustls::HttpsConnectorBuilder;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

#[derive(Clone)]
struct Attach(HeaderValue);

impl HttpHandler for Attach {
    async fn handle_request(
        &mut self,
        _ctx: &HttpContext,
        mut request: Request<Body>,
    ) -> RequestOrResponse {
        request.headers_mut().insert(AUTHORIZATION, self.0.clone());
        request.into()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().ok_or("PORT CA_AND_KEY_PEM ROOT_PEM ORIGIN SECRET");
    let port: u16 = argument()?.parse()?;
    let ca = fs::read_to_string(argument()?)?;
    let root = argument()?;
    let origin: SocketAddr = argument()?.parse()?;
    let secret = HeaderValue::try_from(format!("Bearer {}", argument()?))?;

    let key = ca.find("-----BEGIN PRIVATE KEY").ok_or("no private key")?;
    let key = KeyPair::from_pem(ca.get(key..).unwrap_or_default())?;
    let issuer = Issuer::from_ca_cert_pem(&ca, key)?;
    let ca = RcgenAuthority::new(issuer, 1_000, aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root)?)?;
    let tls = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let resolver = tower::service_fn(move |_name| -> Ready<Result<_, std::io::Error>> {
        ready(Ok(iter::once(origin)))
    });
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .wrap_connector(tcp);
    Proxy::builder()
        .with_addr(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .with_ca(ca)
        .with_http_connector(connector)
        .with_http_handler(Attach(secret))
        .build()?
        .start()
        .await?;
    Ok(())
}
