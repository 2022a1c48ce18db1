//! The organisation's own proxy between us and the world: a CONNECT tunnel for every connection
//! (RFC 9110 section 9.3.6).
//!
//! Policy comes first: nothing is asked of the proxy before a permit exists. Unless the operator
//! says otherwise, names are resolved and addresses checked here, and the proxy is asked for the
//! checked address; it never learns a name, and can't be talked into an internal one. With
//! `danger_proxy_resolves` it is asked for the name, and where that leads is up to the proxy alone.
//! Nothing is read from the proxy variables of the gateway's environment (field case B118).

mod config;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use outgate_policy::{Authority, Destination};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::dial::connect_to;
use super::error::UpstreamError;
use super::resolve::Resolver;
use super::stream::UpstreamStream;
use crate::tls::client::{Offer, OriginTls, TlsFailure};

pub use config::{NextHopConfig, NextHopError, NoProxy, ProxyAddress, ProxyCredentials};

/// Bytes of the proxy's answer to a CONNECT.
const MAX_HEAD: usize = 16 * 1024;
/// Header fields of it.
const MAX_FIELDS: usize = 64;
/// Addresses of the proxy that are tried.
const MAX_ADDRESSES: usize = 4;

/// Why the proxy did not let a connection through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NextHopFailure {
    /// Its name has no address.
    #[error("its name can't be resolved: {0}")]
    Unresolvable(String),
    /// It is the gateway.
    #[error("{0} is the gateway itself: every request would come back for ever")]
    Ourselves(SocketAddr),
    /// It does not take connections.
    #[error("it can't be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// It takes too long.
    #[error("it gave no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// It is not who it should be.
    #[error("no verified TLS with it: {0}")]
    Tls(TlsFailure),
    /// It went away before it had answered.
    #[error("it closed the connection without an answer")]
    Closed,
    /// What it answers is not HTTP.
    #[error("its answer is no HTTP: {0}")]
    Garbage(String),
    /// It does not know us: 407.
    #[error("it wants other credentials than the configured ones (407)")]
    Unauthorised,
    /// It refuses this destination.
    #[error("it refused with status {0}")]
    Refused(u16),
}

impl NextHopFailure {
    /// Whether another address of the same destination may fare better.
    pub(super) fn is_of_the_address(&self) -> bool {
        matches!(self, Self::Refused(502..=504))
    }
}

/// The proxy. Cheap to clone.
#[derive(Clone)]
pub(super) struct NextHop(Arc<Inner>);

struct Inner {
    proxy: ProxyAddress,
    /// The whole header field, line end included.
    authorization: Option<SecretString>,
    no_proxy: Vec<NoProxy>,
    resolves: bool,
    tls: OriginTls,
    patience: Duration,
}

impl fmt::Debug for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NextHop").field(&self.0.proxy).finish()
    }
}

impl NextHop {
    /// Reads the credentials, which are kept from here on.
    pub(super) fn new(
        config: NextHopConfig,
        tls: OriginTls,
        patience: Duration,
    ) -> Result<Self, UpstreamError> {
        let authorization = config.credentials.as_ref().map(authorization).transpose()?;
        Ok(Self(Arc::new(Inner {
            proxy: config.proxy,
            authorization,
            no_proxy: config.no_proxy,
            resolves: config.danger_proxy_resolves,
            tls,
            patience,
        })))
    }

    /// Whether the proxy is to be asked for names.
    pub(super) fn resolves(&self) -> bool {
        self.0.resolves
    }

    /// Whether a destination is reached without the proxy because of how it is called.
    pub(super) fn spares(&self, destination: &Destination) -> bool {
        match destination {
            Destination::Name(name) => self.0.no_proxy.iter().any(|rule| rule.has_name(name)),
            Destination::Ip(ip) => self.spares_address(*ip),
        }
    }

    /// Whether an address is reached without the proxy.
    pub(super) fn spares_address(&self, ip: IpAddr) -> bool {
        self.0.no_proxy.iter().any(|rule| rule.has_address(ip))
    }

    /// A tunnel to `target`, an authority as the proxy is to read it. Also gives the proxy's address.
    pub(super) async fn tunnel(
        &self,
        resolver: &Resolver,
        authority: &Authority,
        target: &str,
    ) -> Result<(UpstreamStream, SocketAddr), UpstreamError> {
        let made = timeout(self.0.patience, self.try_tunnel(resolver, target));
        let made = made
            .await
            .unwrap_or(Err(NextHopFailure::Timeout(self.0.patience)));
        made.map_err(|failure| UpstreamError::NextHop {
            authority: authority.clone(),
            proxy: self.0.proxy.to_string(),
            failure,
        })
    }

    async fn try_tunnel(
        &self,
        resolver: &Resolver,
        target: &str,
    ) -> Result<(UpstreamStream, SocketAddr), NextHopFailure> {
        let (socket, proxy) = self.reach(resolver).await?;
        let stream = if self.0.proxy.tls {
            let destination = &self.0.proxy.authority.destination;
            let connected = self.0.tls.connect(destination, Offer::Http1, socket);
            UpstreamStream::from(connected.await.map_err(NextHopFailure::Tls)?)
        } else {
            UpstreamStream::from(socket)
        };
        let stream = self.ask(stream, target).await?;
        Ok((stream, proxy))
    }

    /// A connection to the proxy. Its address may be private: that guard is for destinations
    /// (field case B115).
    async fn reach(&self, resolver: &Resolver) -> Result<(TcpStream, SocketAddr), NextHopFailure> {
        let Authority { destination, port } = &self.0.proxy.authority;
        let addresses = match destination {
            Destination::Ip(ip) => vec![*ip],
            Destination::Name(host) => resolver
                .operators(host)
                .await
                .map_err(NextHopFailure::Unresolvable)?,
        };
        let nobody = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut failure = NextHopFailure::Unreachable(nobody);
        for ip in addresses.into_iter().take(MAX_ADDRESSES) {
            let address = SocketAddr::new(ip.to_canonical(), *port);
            if resolver.is_own(address) {
                return Err(NextHopFailure::Ourselves(address));
            }
            match connect_to(address).await {
                Ok(socket) => {
                    let local = socket.local_addr();
                    if local.is_ok_and(|local| resolver.is_own_socket(local, address)) {
                        return Err(NextHopFailure::Ourselves(address));
                    }
                    return Ok((socket, address));
                }
                Err(error) => failure = NextHopFailure::Unreachable(error),
            }
        }
        Err(failure)
    }

    /// Asks for the tunnel and reads the answer to its end.
    async fn ask(
        &self,
        mut stream: UpstreamStream,
        target: &str,
    ) -> Result<UpstreamStream, NextHopFailure> {
        let mut request =
            Zeroizing::new(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"));
        if let Some(authorization) = &self.0.authorization {
            request.push_str(authorization.expose_secret());
        }
        request.push_str("\r\n");
        let sent = async {
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await
        };
        sent.await.map_err(NextHopFailure::Unreachable)?;
        let early = read_answer(&mut stream).await?;
        Ok(stream.with_early(early))
    }
}

/// Reads a 2xx answer; gives back what came after it. Such an answer has no body, whatever its
/// header fields say.
async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Result<Bytes, NextHopFailure> {
    let mut head = BytesMut::with_capacity(1024);
    loop {
        let read = stream.read_buf(&mut head).await;
        if read.map_err(NextHopFailure::Unreachable)? == 0 {
            return Err(NextHopFailure::Closed);
        }
        while let Some((status, len)) = parse(&head)? {
            let rest = head.split_off(len);
            match status {
                100..=199 if status != 101 => head = rest,
                200..=299 => return Ok(rest.freeze()),
                407 => return Err(NextHopFailure::Unauthorised),
                _ => return Err(NextHopFailure::Refused(status)),
            }
        }
        if head.len() > MAX_HEAD {
            let text = format!("more than {MAX_HEAD} bytes of header");
            return Err(NextHopFailure::Garbage(text));
        }
    }
}

/// Status and length of a complete head.
fn parse(head: &[u8]) -> Result<Option<(u16, usize)>, NextHopFailure> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut answer = httparse::Response::new(&mut fields);
    match answer.parse(head) {
        Ok(httparse::Status::Complete(len)) => Ok(answer.code.map(|status| (status, len))),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(NextHopFailure::Garbage(error.to_string())),
    }
}

/// The header field that shows who we are (RFC 7617).
fn authorization(credentials: &ProxyCredentials) -> Result<SecretString, UpstreamError> {
    let refused = |detail: String| UpstreamError::NextHopCredentials {
        place: credentials.to_string(),
        detail,
    };
    let text = match credentials {
        ProxyCredentials::Env(name) => {
            std::env::var(name).map_err(|error| refused(error.to_string()))
        }
        ProxyCredentials::File(path) => {
            std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))
        }
    };
    let text = Zeroizing::new(text?);
    let pair = text.trim_end_matches(['\r', '\n']);
    if !pair.contains(':') || pair.contains(char::is_control) {
        return Err(refused(
            "it holds no `user:password` in one line".to_owned(),
        ));
    }
    let encoded = Zeroizing::new(STANDARD.encode(pair));
    Ok(format!("Proxy-Authorization: Basic {}\r\n", *encoded).into())
}
