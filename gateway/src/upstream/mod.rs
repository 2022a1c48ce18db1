//! The way from a permit to an origin and back.
//!
//! [`SandboxUpstream::send`] resolves the permitted authority, checks every address of the answer,
//! dials one of the checked ones, verifies its certificate for that very authority and speaks
//! HTTP/2 or HTTP/1.1 with it, whichever the origin prefers. It follows no redirect, reads no proxy
//! variable, and has no destination that did not come out of a [`Permit`]. Bodies stream both ways.
//! Connections are reused within a sandbox and never between two.

mod config;
mod connection;
mod dial;
mod error;
mod next_hop;
mod pool;
mod resolve;
mod stream;
mod wire;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version, header};
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use outgate_policy::{Permit, Protocol};

use tokio::net::UdpSocket;

use crate::audit::Timings;
use crate::tls::client::OriginTls;
use connection::{Connection, Connector};
use dial::Dialer;
use next_hop::NextHop;
use pool::{Key, Pool};
use resolve::Resolver;

pub use config::{DnsServer, DnsServerError, ResolverConfig, UpstreamConfig};
pub use error::{RootError, TlsFailure, UpstreamError};
pub use next_hop::{
    NextHopConfig, NextHopError, NextHopFailure, NoProxy, ProxyAddress, ProxyCredentials,
};
pub use stream::UpstreamStream;

/// What ends a request body early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A streaming request body.
pub type RequestBody = BoxBody<Bytes, BodyError>;

/// The gateway's way out. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    dialer: Dialer,
    tls: OriginTls,
}

impl Upstream {
    /// Reads the trusted roots and sets the resolver up; nothing is sent.
    ///
    /// # Errors
    /// [`UpstreamError::Roots`], [`UpstreamError::Resolver`] and
    /// [`UpstreamError::NextHopCredentials`].
    pub fn new(config: UpstreamConfig) -> Result<Self, UpstreamError> {
        let tls = OriginTls::new(&config.extra_roots)?;
        let resolver = Resolver::new(&config, tls.client_config())?;
        let patience = config.connect_timeout;
        let next_hop = match config.next_hop {
            Some(hop) => Some(NextHop::new(hop, tls.for_sandbox(), patience)?),
            None => None,
        };
        let dialer = Dialer::new(resolver, next_hop, patience);
        Ok(Self { dialer, tls })
    }

    /// The way out of one sandbox: connections and TLS sessions of its own.
    pub fn for_sandbox(&self) -> SandboxUpstream {
        let dialer = self.dialer.for_sandbox();
        let connector = Connector::new(dialer.clone(), self.tls.for_sandbox());
        SandboxUpstream {
            dialer,
            pool: Arc::new(Pool::new(connector)),
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").finish_non_exhaustive()
    }
}

/// The way out of one sandbox. Cheap to clone; when the last clone goes, every connection it made
/// for [`send`](Self::send) is closed.
#[derive(Clone)]
pub struct SandboxUpstream {
    dialer: Dialer,
    pool: Arc<Pool>,
}

/// How to send a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// [`crate::credential::Credential::version`] of what was attached, so that a connection that
    /// an origin may have tied to an old secret is not used with a new one.
    pub credential_version: Option<u64>,
    /// The guest speaks HTTP/1.1, so the origin should hear it too, as it would without a gateway.
    /// HTTP/2 then only with an origin that speaks nothing else.
    pub prefer_http1: bool,
    /// The request wants to leave HTTP: HTTP/1.1 on a connection of its own. Call
    /// [`hyper::upgrade::on`] with the response if its status is 101.
    pub upgrade: bool,
}

/// An answer whose head has arrived.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sent {
    /// The answer; its body streams. Dropping the body ends the exchange with the origin.
    pub response: Response<Incoming>,
    /// The address that answered.
    pub peer: SocketAddr,
    /// The HTTP version spoken with the origin.
    pub version: Version,
    /// SHA-256 of the origin's certificate in hex; none without TLS.
    pub certificate_sha256: Option<String>,
    /// What the steps took; `dns`, `connect` and `tls` are none on a reused connection.
    pub timings: Timings,
    /// The origin sent both `Transfer-Encoding` and `Content-Length`. The length was removed and
    /// the connection is not used again (RFC 9112 section 6.3); worth a note in the audit record.
    pub conflicting_length: bool,
}

/// A raw connection.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The connection.
    pub stream: UpstreamStream,
    /// Where it leads.
    pub peer: SocketAddr,
    /// What resolving and connecting took.
    pub timings: Timings,
}

/// A datagram socket.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectedUdp {
    /// The socket; the kernel drops what does not come from `peer`.
    pub socket: UdpSocket,
    /// Where it leads.
    pub peer: SocketAddr,
    /// What resolving took.
    pub timings: Timings,
}

impl SandboxUpstream {
    /// Sends `request` to the permitted authority and waits for the head of the answer, for as
    /// long as the origin takes.
    ///
    /// `request` has the method, the end-to-end headers and a URI in origin form (or `*`). Host,
    /// scheme and authority on the wire are made from `permit`, whatever the request says. Interim
    /// answers go to a [`hyper::ext::on_informational`] callback on the request, if it has one.
    ///
    /// A request that found its pooled connection closed before a byte of it was written is sent
    /// once more on a fresh connection. Nothing else is ever repeated.
    ///
    /// # Errors
    /// See [`UpstreamError`]. On an error after the connection was made the origin may have seen
    /// the request.
    pub async fn send(
        &self,
        permit: &Permit,
        protocol: Protocol,
        mut request: Request<RequestBody>,
        options: SendOptions,
    ) -> Result<Sent, UpstreamError> {
        if protocol != permit.protocol() {
            let text = format!("the permit is for {}, not {protocol}", permit.protocol());
            return Err(UpstreamError::Request(text));
        }
        let key = Key::new(permit, options);
        if !options.upgrade
            && let Some(pooled) = self.pool.checkout(&key)
        {
            match self.exchange(&key, pooled, request, options).await {
                Ok(sent) => return Ok(sent),
                Err(Failed {
                    unsent: Some(untouched),
                    ..
                }) => request = *untouched,
                Err(Failed { error, .. }) => return Err(error),
            }
        }
        let fresh = if options.upgrade {
            self.pool.connect_apart(permit).await?
        } else {
            self.pool.connect(&key, permit).await?
        };
        self.exchange(&key, fresh, request, options)
            .await
            .map_err(|failed| failed.error)
    }

    /// Opens a raw connection to the permitted authority.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn connect_tcp(&self, permit: &Permit) -> Result<Connected, UpstreamError> {
        let dialed = self.dialer.dial(permit).await?;
        let timings = Timings {
            dns: dialed.dns,
            connect: Some(dialed.connect),
            ..Timings::default()
        };
        Ok(Connected {
            stream: dialed.stream,
            peer: dialed.peer,
            timings,
        })
    }

    /// Opens a datagram socket to the permitted authority. Nothing is sent.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn connect_udp(&self, permit: &Permit) -> Result<ConnectedUdp, UpstreamError> {
        let dialed = self.dialer.dial_udp(permit).await?;
        Ok(ConnectedUdp {
            socket: dialed.socket,
            peer: dialed.peer,
            timings: Timings {
                dns: dialed.dns,
                ..Timings::default()
            },
        })
    }

    /// One request on one connection, which goes back to the pool when it can serve another.
    async fn exchange(
        &self,
        key: &Key,
        mut connection: Connection,
        mut request: Request<RequestBody>,
        options: SendOptions,
    ) -> Result<Sent, Failed> {
        wire::address(
            &mut request,
            &key.authority,
            key.protocol,
            connection.version(),
        )?;
        let started = Instant::now();
        let facts = connection.facts().clone();
        let mut response = connection
            .send(request)
            .await
            .map_err(|(error, unsent)| Failed {
                error: UpstreamError::of_http(&key.authority, facts.peer, &error),
                unsent: unsent.map(Box::new),
            })?;
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if switched && !options.upgrade {
            return Err(UpstreamError::Protocol {
                authority: key.authority.clone(),
                peer: facts.peer,
                detail: "it switched protocols unasked".into(),
            }
            .into());
        }
        let conflicting_length = response.headers().contains_key(header::TRANSFER_ENCODING)
            && response
                .headers_mut()
                .remove(header::CONTENT_LENGTH)
                .is_some();
        if !options.upgrade && !conflicting_length {
            self.pool.give_back(key.clone(), connection);
        }
        let timings = Timings {
            first_byte: Some(started.elapsed()),
            ..facts.timings()
        };
        Ok(Sent {
            peer: facts.peer,
            version: response.version(),
            certificate_sha256: facts.certificate_sha256,
            timings,
            conflicting_length,
            response,
        })
    }
}

impl fmt::Debug for SandboxUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxUpstream").finish_non_exhaustive()
    }
}

/// A failed exchange, with the request if not a byte of it was written and its body is untouched.
struct Failed {
    error: UpstreamError,
    unsent: Option<Box<Request<RequestBody>>>,
}

impl From<UpstreamError> for Failed {
    fn from(error: UpstreamError) -> Self {
        Self {
            error,
            unsent: None,
        }
    }
}
