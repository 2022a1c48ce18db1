//! The gateway's side of a TLS connection to an origin.
//!
//! The origin's certificate is verified against the platform's roots and the operator's extra
//! ones, for the very name or address that was judged. There is no way to skip that, no fallback
//! to a raw tunnel, and no ECH. What failed is named in [`TlsFailure`], because "handshake failed"
//! costs a person an afternoon.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use outgate_policy::Destination;
use rustls::client::Resumption;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ALPN, provider, rustls_cause};

/// How long an origin may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// How many origins of one sandbox are remembered for resumption; the oldest goes first.
const SESSIONS: usize = 64;

/// Which application protocols are offered to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Offer {
    /// `h2` and `http/1.1`: the origin picks.
    Any,
    /// `http/1.1` alone, for a request that wants to leave HTTP (RFC 9110 section 7.8).
    Http1,
}

/// Why there is no usable set of trusted roots.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// An extra root is not a usable certificate.
    #[error("extra root certificate number {number} can't be used: {source}")]
    Unusable {
        number: usize,
        source: rustls::Error,
    },
    /// The cryptography provider lacks what TLS 1.2 and 1.3 need.
    #[error("unusable cryptography provider: {0}")]
    Provider(rustls::Error),
    /// Neither the platform nor the operator trusts anybody.
    #[error(
        "no trusted root certificates: install the platform's (package `ca-certificates`) or name extra roots"
    )]
    None,
}

/// A verifying TLS client.
#[derive(Clone)]
pub(crate) struct OriginTls(TlsConnector);

impl OriginTls {
    /// A client that trusts the platform's roots and `extra`.
    ///
    /// # Errors
    /// [`RootError`] for an unusable extra root, or if there would be no root at all.
    pub(crate) fn new(extra: &[CertificateDer<'static>]) -> Result<Self, RootError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::DEFAULT_VERSIONS)
            .map_err(RootError::Provider)?
            .with_root_certificates(trusted_roots(extra)?)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// The same trust for another use: what rustls calls the configuration, nothing offered yet.
    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::clone(self.0.config());
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        config
    }

    /// The same trust with a session store of its own: no origin can tell by a resumed session
    /// that two sandboxes belong together, and none can resume another's.
    pub(crate) fn for_sandbox(&self) -> Self {
        Self(TlsConnector::from(Arc::new(self.client_config())))
    }

    /// Completes a verified handshake with `destination` over `stream`. The server name sent is
    /// the destination: none for an address (RFC 6066 section 3).
    pub(crate) async fn connect<S>(
        &self,
        destination: &Destination,
        offer: Offer,
        stream: S,
    ) -> Result<TlsStream<S>, TlsFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match destination {
            Destination::Name(host) => ServerName::try_from(host.as_str().to_owned())
                .map_err(|_| TlsFailure::NoServerName)?,
            Destination::Ip(ip) => ServerName::IpAddress((*ip).into()),
        };
        let offered = match offer {
            Offer::Any => ALPN.as_slice(),
            Offer::Http1 => &ALPN[1..],
        };
        let offered = offered.iter().map(|protocol| protocol.to_vec()).collect();
        timeout(
            HANDSHAKE_TIMEOUT,
            self.0.with_alpn(offered).connect(name, stream),
        )
        .await
        .map_err(|_| TlsFailure::Timeout)?
        .map_err(|error| TlsFailure::of(&error))
    }
}

impl fmt::Debug for OriginTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginTls").finish_non_exhaustive()
    }
}

/// Why there is no verified TLS connection to an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFailure {
    /// The certificate's validity is over.
    #[error("the certificate has expired")]
    Expired,
    /// The certificate's validity has not begun; perhaps our own clock lags.
    #[error("the certificate is not valid yet (is the gateway's clock right?)")]
    NotValidYet,
    /// The certificate leads to no trusted root, a self-signed one included.
    #[error(
        "the certificate's issuer is not trusted (is a root missing in the gateway's extra roots?)"
    )]
    UnknownIssuer,
    /// The certificate is for other names.
    #[error("the certificate is for another name ({0})")]
    WrongName(String),
    /// The certificate was revoked.
    #[error("the certificate was revoked")]
    Revoked,
    /// The certificate is not acceptable for another reason.
    #[error("the certificate is not acceptable: {0}")]
    Certificate(String),
    /// The origin refused our handshake.
    #[error("the origin refused the handshake with alert {0:?}")]
    Alert(AlertDescription),
    /// The origin closed or reset the connection during the handshake, without a word.
    #[error("the origin closed the connection during the handshake ({0:?})")]
    Closed(io::ErrorKind),
    /// The origin took too long.
    #[error("the origin did not finish the handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    /// The origin speaks no acceptable version, suite or application protocol, or misbehaved.
    #[error("the handshake failed: {0}")]
    Handshake(String),
    /// The host name can't stand in a certificate, so none can be valid for it.
    #[error("the host name can't be verified by TLS")]
    NoServerName,
}

impl TlsFailure {
    fn of(error: &io::Error) -> Self {
        match rustls_cause(error) {
            Some(rustls::Error::InvalidCertificate(cause)) => Self::of_certificate(cause),
            Some(rustls::Error::AlertReceived(alert)) => Self::Alert(*alert),
            Some(cause) => Self::Handshake(cause.to_string()),
            None => Self::Closed(error.kind()),
        }
    }

    fn of_certificate(cause: &CertificateError) -> Self {
        match cause {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotValidYet
            }
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::NotValidForName => Self::WrongName("it names none".into()),
            CertificateError::NotValidForNameContext { presented, .. } => {
                Self::WrongName(presented.join(", "))
            }
            CertificateError::Revoked => Self::Revoked,
            cause => Self::Certificate(cause.to_string()),
        }
    }
}

fn trusted_roots(extra: &[CertificateDer<'static>]) -> Result<RootCertStore, RootError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in extra.iter().enumerate() {
        roots
            .add(certificate.clone())
            .map_err(|source| RootError::Unusable {
                number: index + 1,
                source,
            })?;
    }
    let platform = rustls_native_certs::load_native_certs();
    for error in &platform.errors {
        tracing::warn!(%error, "part of the platform's trusted roots can't be read");
    }
    // Old platform stores hold certificates that no verifier accepts; the rest still counts.
    roots.add_parsable_certificates(platform.certs);
    if roots.is_empty() {
        return Err(RootError::None);
    }
    Ok(roots)
}
