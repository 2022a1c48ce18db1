//! TLS around a listener: the gateway's own certificate, for clients that speak to a proxy over TLS.
//!
//! It has nothing to do with interception: this is the proxy's name, and only HTTP/1 is spoken inside.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outgate_policy::Destination;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::tls::{CertificateAuthority, HTTP_1, Leaves, TlsError, provider};

/// What a listener shows to its clients.
#[derive(Clone, Debug)]
pub struct ServerTls(Certificate);

#[derive(Clone)]
enum Certificate {
    /// The operator's.
    Given(TlsAcceptor),
    /// Minted for this name, and again before it ends.
    Minted(Leaves, Destination),
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Given(_) => "Given",
            Self::Minted(..) => "Minted",
        })
    }
}

/// A certificate or key that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("can't use `{}` for a listener: {why}", path.display())]
pub struct ServerTlsError {
    path: PathBuf,
    why: String,
}

impl ServerTls {
    /// With the certificate chain and key in these PEM files.
    ///
    /// # Errors
    /// When one can't be read or they don't belong together.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, ServerTlsError> {
        let failed = |path: &Path, why: String| ServerTlsError {
            path: path.to_owned(),
            why,
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| failed(certificate, error.to_string()))?;
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error.to_string()))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(chain, private)
            });
        let mut config = config.map_err(|error| failed(certificate, error.to_string()))?;
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        Ok(Self(Certificate::Given(TlsAcceptor::from(Arc::new(
            config,
        )))))
    }

    /// With a certificate for `name` by `ca`.
    pub(crate) fn minted(ca: CertificateAuthority, name: Destination) -> Result<Self, TlsError> {
        Ok(Self(Certificate::Minted(Leaves::of_own_name(ca)?, name)))
    }

    /// Accepts TLS on `stream`.
    ///
    /// # Errors
    /// What went wrong, for people.
    pub(super) async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let failed = |error: io::Error| format!("the TLS handshake failed: {error}");
        match &self.0 {
            Certificate::Given(acceptor) => acceptor.accept(stream).await.map_err(failed),
            Certificate::Minted(leaves, name) => {
                let config = leaves.server_config(name).await;
                let config = config.map_err(|error: TlsError| error.to_string())?;
                let acceptor = TlsAcceptor::from(config);
                acceptor.accept(stream).await.map_err(failed)
            }
        }
    }
}
