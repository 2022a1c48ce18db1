//! The guest's side of a TLS connection, in two steps.
//!
//! First the `ClientHello` is read and nothing is answered: what it asks for is a fact to decide
//! on. Only then does [`PendingHandshake::accept`] finish the handshake with a certificate. It
//! refuses a hello that is too slow or too large, and a server name that is not a host name; there
//! is no way to get at the raw bytes, so nothing can pass them on unread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outgate_policy::Host;
use rustls::ServerConfig;
use rustls::server::{Acceptor, ClientHello};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use super::TlsError;

/// How long a client may take to send its `ClientHello`, however it is cut up. Its size is bounded
/// by the TLS layer: 64 KiB, where a post-quantum hello takes 2.
pub(super) const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the rest of the handshake may take; a slow guest under emulation needs seconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a client asks for, before anything is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientHelloFacts {
    /// The server name, normalised. `None` if the client named none, or an IP address, which the
    /// extension can't hold (RFC 6066 section 3).
    pub sni: Option<Host>,
    /// The application protocols on offer, in the client's order.
    pub alpn: Vec<Vec<u8>>,
}

/// A connection whose `ClientHello` was read and not answered.
pub struct PendingHandshake<S> {
    facts: ClientHelloFacts,
    start: StartHandshake<S>,
}

/// Reads the `ClientHello` of `stream`, over any number of segments, and answers nothing.
///
/// # Errors
/// [`TlsError::NotTls`], [`TlsError::ClientHelloTimeout`], [`TlsError::ClientHelloTooLarge`],
/// [`TlsError::BadServerName`] and [`TlsError::MalformedServerName`]; the client has then been
/// sent an alert where TLS has one.
pub async fn read_client_hello<S>(stream: S) -> Result<PendingHandshake<S>, TlsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let start = timeout(CLIENT_HELLO_TIMEOUT, acceptor)
        .await
        .map_err(|_| TlsError::ClientHelloTimeout)?
        .map_err(TlsError::from_client_hello)?;
    let facts = ClientHelloFacts::of(&start.client_hello())?;
    Ok(PendingHandshake { facts, start })
}

impl<S> PendingHandshake<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// What the client asks for.
    pub fn facts(&self) -> &ClientHelloFacts {
        &self.facts
    }

    /// Finishes the handshake as `config` says. The stream relays `close_notify` both ways: a
    /// clean end reads as end of file, a cut as [`std::io::ErrorKind::UnexpectedEof`], and
    /// shutting down sends one.
    ///
    /// # Errors
    /// [`TlsError::ClientAlert`] if the client refuses, [`TlsError::Handshake`] and
    /// [`TlsError::Io`] for the rest.
    pub async fn accept(self, config: Arc<ServerConfig>) -> Result<TlsStream<S>, TlsError> {
        timeout(HANDSHAKE_TIMEOUT, self.start.into_stream(config))
            .await
            .map_err(|elapsed| TlsError::Io(elapsed.into()))?
            .map_err(TlsError::from_handshake)
    }
}

impl<S> fmt::Debug for PendingHandshake<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandshake")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// Reads a `ClientHello` from bytes that somebody else will read again.
#[derive(Default)]
pub(crate) struct HelloReader(Acceptor);

impl HelloReader {
    /// Takes the bytes that came since the last call; `None` when more are needed.
    ///
    /// # Errors
    /// As [`read_client_hello`], but for time and end of the stream.
    pub(crate) fn push(&mut self, mut new: &[u8]) -> Result<Option<ClientHelloFacts>, TlsError> {
        while !new.is_empty() {
            self.0.read_tls(&mut new).map_err(TlsError::Io)?;
            match self.0.accept() {
                Ok(Some(accepted)) => {
                    return ClientHelloFacts::of(&accepted.client_hello()).map(Some);
                }
                Ok(None) => {}
                Err((error, _alert)) => {
                    let error = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
                    return Err(TlsError::from_client_hello(error));
                }
            }
        }
        Ok(None)
    }
}

impl ClientHelloFacts {
    fn of(hello: &ClientHello<'_>) -> Result<Self, TlsError> {
        let sni = match hello.server_name() {
            None => None,
            Some(name) => Some(Host::parse(name).map_err(|source| TlsError::BadServerName {
                name: name.to_owned(),
                source,
            })?),
        };
        let alpn = hello
            .alpn()
            .into_iter()
            .flatten()
            .map(<[u8]>::to_vec)
            .collect();
        Ok(Self { sni, alpn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{CertificateAuthority, LeafName, Leaves};

    use std::num::NonZeroUsize;

    use outgate_policy::Reason;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, ServerName};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::TlsConnector;

    fn client_config(ca: &CertificateAuthority, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(ca.certificate_pem().as_bytes()).unwrap();
        roots.add(root).unwrap();
        let mut config = ClientConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }

    fn authority() -> (CertificateAuthority, Leaves) {
        let ca = CertificateAuthority::generate().unwrap();
        let leaves = Leaves::new(ca.clone(), NonZeroUsize::MIN).unwrap();
        (ca, leaves)
    }

    /// The bytes of a `ClientHello` for `name`, with `instead` written over the name. As long as
    /// the two are, every length in the message still holds.
    fn hello_for(name: &str, instead: &str) -> Vec<u8> {
        assert_eq!(name.len(), instead.len());
        let (ca, _) = authority();
        let server = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(client_config(&ca, &[]), server).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        let place = bytes
            .windows(name.len())
            .position(|part| part == name.as_bytes())
            .unwrap();
        bytes[place..place + name.len()].copy_from_slice(instead.as_bytes());
        bytes
    }

    /// What is made of `bytes` that arrive `at_once` bytes at a time.
    async fn facts_of(bytes: &[u8], at_once: usize) -> Result<ClientHelloFacts, TlsError> {
        let (mut client, server) = duplex(at_once);
        let (outcome, _) = tokio::join!(read_client_hello(server), client.write_all(bytes));
        outcome.map(|pending| pending.facts().clone())
    }

    #[tokio::test]
    async fn a_client_that_trusts_the_authority_completes_the_handshake() {
        for (alpn, expected) in [
            (&[b"h2".as_slice(), b"http/1.1"][..], Some(b"h2".as_slice())),
            (&[b"h2"], Some(b"h2")),
            (&[b"http/1.1"], Some(b"http/1.1")),
            (&[], None),
        ] {
            let (ca, leaves) = authority();
            let (client, server) = duplex(1 << 16);
            let connector = TlsConnector::from(client_config(&ca, alpn));
            let serve = async {
                let pending = read_client_hello(server).await.unwrap();
                assert_eq!(pending.facts().alpn, alpn);
                let name = LeafName::Name(pending.facts().sni.clone().unwrap());
                pending
                    .accept(leaves.server_config(&name).await.unwrap())
                    .await
                    .unwrap()
            };
            let name = ServerName::try_from("a.test").unwrap();
            let (client, server) = tokio::join!(connector.connect(name, client), serve);
            assert_eq!(client.unwrap().get_ref().1.alpn_protocol(), expected);
            assert_eq!(server.get_ref().1.server_name(), Some("a.test"));
        }
    }

    #[tokio::test]
    async fn b049_close_notify_is_relayed_and_a_cut_is_told_apart() {
        let (ca, leaves) = authority();
        let config = leaves
            .server_config(&LeafName::parse("a.test").unwrap())
            .await
            .unwrap();
        for clean in [true, false] {
            let (client, server) = duplex(1 << 16);
            let connector = TlsConnector::from(client_config(&ca, &[]));
            let serve = async {
                read_client_hello(server)
                    .await?
                    .accept(config.clone())
                    .await
            };
            let name = ServerName::try_from("a.test").unwrap();
            let (client, server) = tokio::join!(connector.connect(name, client), serve);
            let (mut client, mut server) = (client.unwrap(), server.unwrap());

            server.write_all(b"bye").await.unwrap();
            if clean {
                server.shutdown().await.unwrap();
                // Half-closed: the other direction still works.
                client.write_all(b"still here").await.unwrap();
                let mut heard = [0; 10];
                server.read_exact(&mut heard).await.unwrap();
                assert_eq!(&heard, b"still here");
            } else {
                server.flush().await.unwrap();
            }
            drop(server);
            let mut heard = Vec::new();
            let ended = client.read_to_end(&mut heard).await;
            assert_eq!(heard, b"bye");
            assert_eq!(ended.is_ok(), clean);
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_trust_the_authority_is_told_apart() {
        let ((_, leaves), (other, _)) = (authority(), authority());
        let (client, server) = duplex(1 << 16);
        let config = leaves
            .server_config(&LeafName::parse("a.test").unwrap())
            .await
            .unwrap();
        let serve = async { read_client_hello(server).await?.accept(config).await };
        let connector = TlsConnector::from(client_config(&other, &[]));
        let name = ServerName::try_from("a.test").unwrap();
        let (client, server) = tokio::join!(connector.connect(name, client), serve);
        client.unwrap_err();
        let error = server.map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the client refused the handshake: UnknownCA (does it trust this authority?)"
        );
        assert_eq!(error.reason(), Reason::TlsClient);
    }

    #[tokio::test]
    async fn c11_a_hello_is_read_over_any_number_of_segments() {
        let bytes = hello_for("a.test", "a.test");
        for at_once in [1, 7, 1 << 16] {
            let facts = facts_of(&bytes, at_once).await.unwrap();
            assert_eq!(facts.sni.unwrap().as_str(), "a.test");
        }
    }

    #[tokio::test]
    async fn b046_an_address_as_server_name_is_no_server_name() {
        let facts = facts_of(&hello_for("10x9x8x7", "10.9.8.7"), 1 << 16)
            .await
            .unwrap();
        assert_eq!(facts.sni, None);
    }

    #[tokio::test]
    async fn b047_case_and_trailing_dot_are_normalised() {
        let facts = facts_of(&hello_for("a.testx", "A.tESt."), 1 << 16)
            .await
            .unwrap();
        assert_eq!(facts.sni.unwrap().as_str(), "a.test");
    }

    #[tokio::test]
    async fn c03_a_server_name_that_is_no_host_name_is_refused() {
        for bad in [
            "a\0.test",
            "a .test",
            "a..test",
            ".a.test",
            "a.test:",
            "a%.test",
            "\u{e9}.test",
        ] {
            let stand_in = "x".repeat(bad.len());
            let error = facts_of(&hello_for(&stand_in, bad), 1 << 16)
                .await
                .unwrap_err();
            assert_eq!(error.reason(), Reason::BadHost, "{bad:?}: {error}");
        }
    }

    #[tokio::test]
    async fn what_is_not_tls_is_told_apart() {
        for bytes in [
            b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".as_slice(),
            b"SSH-2.0-OpenSSH_9\r\n",
        ] {
            let error = facts_of(bytes, 1 << 16).await.unwrap_err();
            assert!(matches!(error, TlsError::NotTls), "{error}");
        }
    }

    #[tokio::test]
    async fn a_hello_of_more_than_64_kib_is_refused() {
        // A handshake record that announces a message of 0x010001 bytes.
        let bytes = [22, 3, 1, 0, 4, 1, 1, 0, 1];
        let error = facts_of(&bytes, 1 << 16).await.unwrap_err();
        assert!(matches!(error, TlsError::ClientHelloTooLarge), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_nothing_is_given_up() {
        let (_silent, server) = duplex(16);
        let error = read_client_hello(server).await.unwrap_err();
        assert_eq!(error.to_string(), "no ClientHello within 5 s");
        assert_eq!(error.reason(), Reason::ConnectionIdle);
    }
}
