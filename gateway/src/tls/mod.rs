//! Both ends of interception.
//!
//! Toward the guest the gateway is the origin: [`CertificateAuthority`] is what the guest trusts,
//! [`Leaves`] mints one certificate per name, [`read_client_hello`] reads what the client asks for
//! before anything is decided. Toward the origin the gateway is an ordinary client that verifies
//! (`client`). There is one cryptography provider for both, no switch that turns verification
//! off, and nothing here is shared between two sandboxes but the authority itself.

mod accept;
mod ca;
pub(crate) mod client;
mod issuer;
mod leaf;
mod leaves;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use outgate_policy::{HostError, Reason};
use rustls::crypto::CryptoProvider;
use rustls::{AlertDescription, InvalidMessage, PeerMisbehaved};

pub(crate) use accept::HelloReader;
pub use accept::{ClientHelloFacts, PendingHandshake, read_client_hello};
pub use ca::CertificateAuthority;
#[cfg(test)]
pub(crate) use ca::set_validity;
pub use leaf::LeafName;
pub use leaves::Leaves;

/// The protocols offered on both legs, best first (RFC 7301).
const ALPN: [&[u8]; 2] = [b"h2", HTTP_1];
/// HTTP/1.1 in ALPN.
pub(crate) const HTTP_1: &[u8] = b"http/1.1";

/// The one cryptography provider of the gateway. Passed explicitly everywhere, so that no other
/// crate in the process can swap the process-wide default.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

/// What can go wrong on the guest's side of interception.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate authority's files can't be read or written.
    #[error("can't use the certificate authority file `{}`: {source}", path.display())]
    AuthorityFile { path: PathBuf, source: io::Error },
    /// The certificate authority is there, but must not be used.
    #[error("unusable certificate authority: {0}")]
    Authority(String),
    /// A certificate could not be signed.
    #[error("can't mint a certificate for `{name}`: {detail}")]
    Mint { name: LeafName, detail: String },
    /// The client sent no whole `ClientHello` in time.
    #[error("no ClientHello within {} s", accept::CLIENT_HELLO_TIMEOUT.as_secs())]
    ClientHelloTimeout,
    /// The client speaks something else than TLS on this connection.
    #[error("not a TLS ClientHello")]
    NotTls,
    /// The client asked for a name that is not a host name.
    #[error("invalid server name `{name}` in the ClientHello")]
    BadServerName { name: String, source: HostError },
    /// The client's server name extension holds no name at all, or bytes that no name may hold.
    #[error("malformed server name in the ClientHello")]
    MalformedServerName,
    /// The `ClientHello` is larger than the handshake layer takes (64 KiB).
    #[error("ClientHello larger than 64 KiB")]
    ClientHelloTooLarge,
    /// The client broke off: most often it does not trust the authority.
    #[error("the client refused the handshake: {}", alert_hint(*.0))]
    ClientAlert(AlertDescription),
    /// Client and gateway found no common ground, or the client misbehaved.
    #[error("handshake failed: {0}")]
    Handshake(rustls::Error),
    /// The connection to the client broke.
    #[error("connection to the client lost during the handshake: {0}")]
    Io(io::Error),
}

impl TlsError {
    /// The stable reason code for the audit record. Nobody but the log sees it: a client whose
    /// handshake failed can't be told in words.
    pub fn reason(&self) -> Reason {
        match self {
            Self::AuthorityFile { .. } | Self::Authority(_) | Self::Mint { .. } => Reason::Internal,
            Self::BadServerName { .. } | Self::MalformedServerName => Reason::BadHost,
            Self::ClientHelloTooLarge => Reason::LimitExceeded,
            Self::ClientHelloTimeout => Reason::ConnectionIdle,
            Self::NotTls => Reason::NotTls,
            Self::ClientAlert(_) | Self::Handshake(_) | Self::Io(_) => Reason::TlsClient,
        }
    }

    /// Sorts a failure to read the first message.
    fn from_client_hello(error: io::Error) -> Self {
        match rustls_cause(&error) {
            Some(rustls::Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge)) => {
                Self::ClientHelloTooLarge
            }
            Some(rustls::Error::PeerMisbehaved(
                PeerMisbehaved::ServerNameMustContainOneHostName,
            )) => Self::MalformedServerName,
            Some(rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. }) => {
                Self::NotTls
            }
            _ => Self::from_handshake(error),
        }
    }

    /// Sorts a failure of the rest of the handshake.
    fn from_handshake(error: io::Error) -> Self {
        match rustls_cause(&error) {
            Some(rustls::Error::AlertReceived(alert)) => Self::ClientAlert(*alert),
            Some(cause) => Self::Handshake(cause.clone()),
            None => Self::Io(error),
        }
    }
}

/// The TLS error inside an I/O error, where `tokio-rustls` puts it.
fn rustls_cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn alert_hint(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA | AlertDescription::BadCertificate => {
            format!("{alert:?} (does it trust this authority?)")
        }
        AlertDescription::CertificateExpired => format!("{alert:?} (is its clock right?)"),
        alert => format!("{alert:?}"),
    }
}
