//! Why a request did not reach its origin, or no answer came back.
//!
//! The text of an error is for the log and may hold addresses. The guest is told
//! [`UpstreamError::reason`] and nothing else.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use outgate_policy::{AddressClass, Authority, Host, Reason};
use rustls::AlertDescription;

use super::next_hop::NextHopFailure;

pub use crate::tls::client::{RootError, TlsFailure};

/// What can go wrong between a permit and an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The set of trusted roots can't be built.
    #[error(transparent)]
    Roots(#[from] RootError),
    /// The resolver can't be set up.
    #[error("can't set up the resolver: {0} (name DNS servers in the configuration)")]
    Resolver(String),
    /// The name has no usable answer.
    #[error("can't resolve `{host}`: {detail}")]
    Dns { host: Host, detail: String },
    /// A DNS server says that there is no such name.
    #[error("there is no name `{host}`")]
    NoSuchName { host: Host },
    /// No address of the answer is one that this permit opens; the first is told.
    #[error("`{authority}` leads to {address}, a {class} address that the rule does not open")]
    Forbidden {
        authority: Authority,
        address: SocketAddr,
        class: AddressClass,
    },
    /// All that is left of the answer is an address of the gateway itself.
    #[error("`{authority}` leads to {address}, an address of the gateway itself")]
    OwnAddress {
        authority: Authority,
        address: SocketAddr,
    },
    /// No address accepted the connection; the last failure is told.
    #[error("can't connect to `{authority}` at {peer}: {source}")]
    Connect {
        authority: Authority,
        peer: SocketAddr,
        source: io::Error,
    },
    /// No address answered in time.
    #[error("can't connect to `{authority}` within {} s", within.as_secs())]
    ConnectTimeout {
        authority: Authority,
        within: Duration,
    },
    /// The sandbox has as many connections open as it may.
    #[error("more than {limit} connections of one sandbox")]
    TooManyConnections { limit: usize },
    /// The sandbox dials faster than it may.
    #[error("more than {per_second} connections per second of one sandbox")]
    TooManyDials { per_second: u32 },
    /// The organisation's own proxy did not let the connection through.
    #[error("no way to `{authority}` through the next hop {proxy}: {failure}")]
    NextHop {
        authority: Authority,
        proxy: String,
        failure: NextHopFailure,
    },
    /// Datagrams would have to go through the next hop, which carries none.
    #[error(
        "datagrams to `{authority}` would go past the next hop, which carries only connections: name it in `no_proxy`"
    )]
    NoDatagrams { authority: Authority },
    /// What the next hop is to be shown can't be read.
    #[error("the next hop's credentials in {place} can't be used: {detail}")]
    NextHopCredentials { place: String, detail: String },
    /// There is no verified TLS connection.
    #[error("no verified TLS with `{authority}` at {peer}: {failure}")]
    Tls {
        authority: Authority,
        peer: SocketAddr,
        failure: TlsFailure,
    },
    /// The origin broke HTTP.
    #[error("`{authority}` at {peer} broke the protocol: {detail}")]
    Protocol {
        authority: Authority,
        peer: SocketAddr,
        detail: String,
    },
    /// The origin closed the connection before the head of its answer was complete.
    #[error("`{authority}` at {peer} closed the connection without an answer: {detail}")]
    Closed {
        authority: Authority,
        peer: SocketAddr,
        detail: String,
    },
    /// The body of the request ended with an error: the guest went away.
    #[error("the request's body broke off: {detail}")]
    RequestBody { peer: SocketAddr, detail: String },
    /// The request is not in the form that [`super::SandboxUpstream::send`] asks for.
    #[error("request can't be sent: {0}")]
    Request(String),
}

impl UpstreamError {
    /// The stable reason code, which is all the guest may know.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Roots(_)
            | Self::Resolver(_)
            | Self::NextHopCredentials { .. }
            | Self::Request(_) => Reason::Internal,
            Self::NextHop { .. } | Self::NoDatagrams { .. } => Reason::NextHopFailed,
            Self::Dns { .. } => Reason::DnsFailure,
            Self::NoSuchName { .. } => Reason::NameNotFound,
            Self::Forbidden {
                class: AddressClass::Metadata,
                ..
            } => Reason::MetadataAddress,
            Self::Forbidden { .. } => Reason::PrivateAddress,
            Self::OwnAddress { .. } => Reason::GatewayAddress,
            Self::Connect { .. } => Reason::UpstreamUnreachable,
            Self::ConnectTimeout { .. } => Reason::UpstreamTimeout,
            Self::TooManyConnections { .. } | Self::TooManyDials { .. } => Reason::LimitExceeded,
            Self::Tls { .. } => Reason::UpstreamTls,
            Self::Protocol { .. } => Reason::UpstreamProtocol,
            Self::Closed { .. } => Reason::UpstreamClosed,
            Self::RequestBody { .. } => Reason::BadRequest,
        }
    }

    /// Whether the origin turned HTTP/1.1 down, and may take HTTP/2.
    pub(super) fn speaks_no_http1(&self) -> bool {
        matches!(
            self,
            Self::Tls {
                failure: TlsFailure::Alert(AlertDescription::NoApplicationProtocol),
                ..
            }
        )
    }

    /// The address that was connected to, or would have been; for the audit record only.
    pub fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Forbidden { address, .. } | Self::OwnAddress { address, .. } => Some(*address),
            Self::Connect { peer, .. }
            | Self::Tls { peer, .. }
            | Self::Protocol { peer, .. }
            | Self::Closed { peer, .. }
            | Self::RequestBody { peer, .. } => Some(*peer),
            Self::Roots(_)
            | Self::Resolver(_)
            | Self::Dns { .. }
            | Self::NoSuchName { .. }
            | Self::NextHop { .. }
            | Self::NextHopCredentials { .. }
            | Self::NoDatagrams { .. }
            | Self::TooManyDials { .. }
            | Self::ConnectTimeout { .. }
            | Self::TooManyConnections { .. }
            | Self::Request(_) => None,
        }
    }

    /// Sorts a failure of the HTTP layer.
    pub(super) fn of_http(authority: &Authority, peer: SocketAddr, error: &hyper::Error) -> Self {
        let authority = authority.clone();
        let detail = with_causes(error);
        if error.is_user() {
            return Self::RequestBody { peer, detail };
        }
        let lost = error.is_incomplete_message()
            || error.is_canceled()
            || error.is_closed()
            || cause::<io::Error>(error).is_some();
        if lost {
            Self::Closed {
                authority,
                peer,
                detail,
            }
        } else {
            Self::Protocol {
                authority,
                peer,
                detail,
            }
        }
    }
}

/// `error` and what caused it, in one line.
pub(super) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = chain(error).map(ToString::to_string).collect();
    texts.join(": ")
}

/// The first of `error` and its causes that is an `E`.
fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}
