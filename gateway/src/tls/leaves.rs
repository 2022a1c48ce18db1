//! The leaves of one sandbox, ready to serve.
//!
//! A guest chooses the names, so the cache is bounded and the least recently used name goes first.
//! Signing never runs on an async thread, and a hundred connections to a new name cost one
//! signature. Nothing here is shared with another sandbox: not the key, and not the ticket secret,
//! so that a session begun in one sandbox can't be resumed from another.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use lru::LruCache;
use rcgen::KeyPair;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::sync::OnceCell;

use super::leaf::{self, LeafName};
use super::{ALPN, CertificateAuthority, HTTP_1, TlsError, provider};

/// Mints and keeps the server configurations of one sandbox. Cheap to clone.
#[derive(Clone)]
pub struct Leaves(Arc<Inner>);

struct Inner {
    ca: CertificateAuthority,
    /// One key for all leaves of the sandbox. It lives and dies in this process beside the
    /// authority's own key, which could sign for any name: a key per leaf would protect nothing.
    key: KeyPair,
    /// Stateless tickets (RFC 5077, RFC 8446 section 4.6.1) sealed with a secret of this sandbox:
    /// resumption works and costs no memory that a guest could grow. The server name is sealed in.
    tickets: Arc<dyn ProducesTickets>,
    slots: Mutex<LruCache<LeafName, Arc<OnceCell<Ready>>>>,
    /// What is offered inside, best first.
    alpn: &'static [&'static [u8]],
}

/// A configuration and when it has to be replaced.
struct Ready {
    config: Arc<ServerConfig>,
    renew_at: SystemTime,
}

impl Leaves {
    /// No leaves yet; at most `capacity` names are kept.
    ///
    /// # Errors
    /// [`TlsError::Authority`] if the system's randomness fails.
    pub fn new(ca: CertificateAuthority, capacity: NonZeroUsize) -> Result<Self, TlsError> {
        Self::offering(&ALPN, ca, capacity)
    }

    /// The same for one name of the gateway's own, inside of which HTTP/1 is spoken.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of_own_name(ca: CertificateAuthority) -> Result<Self, TlsError> {
        Self::offering(&[HTTP_1], ca, NonZeroUsize::MIN)
    }

    fn offering(
        alpn: &'static [&'static [u8]],
        ca: CertificateAuthority,
        capacity: NonZeroUsize,
    ) -> Result<Self, TlsError> {
        let no_secret = |error: String| TlsError::Authority(format!("can't make a key: {error}"));
        Ok(Self(Arc::new(Inner {
            ca,
            key: KeyPair::generate().map_err(|error| no_secret(error.to_string()))?,
            tickets: Ticketer::new().map_err(|error| no_secret(error.to_string()))?,
            slots: Mutex::new(LruCache::new(capacity)),
            alpn,
        })))
    }

    /// The configuration that serves `name`: TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`, a leaf
    /// with that one name. Minted on first use and again after two thirds of its life.
    ///
    /// # Errors
    /// [`TlsError::Mint`] if the leaf can't be signed.
    pub async fn server_config(&self, name: &LeafName) -> Result<Arc<ServerConfig>, TlsError> {
        self.server_config_at(name, SystemTime::now()).await
    }

    async fn server_config_at(
        &self,
        name: &LeafName,
        now: SystemTime,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        // The cell is the single flight: whoever comes second waits for the first one's leaf.
        let slot = self.slot(name, now);
        let ready = slot
            .get_or_try_init(|| self.mint(name.clone(), now))
            .await?;
        Ok(ready.config.clone())
    }

    fn slot(&self, name: &LeafName, now: SystemTime) -> Arc<OnceCell<Ready>> {
        // A panic while this is held can leave no half state: every step is one map operation.
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(name)
            && slot.get().is_none_or(|ready| now < ready.renew_at)
        {
            return slot.clone();
        }
        let slot = Arc::new(OnceCell::new());
        slots.put(name.clone(), slot.clone());
        slot
    }

    async fn mint(&self, name: LeafName, now: SystemTime) -> Result<Ready, TlsError> {
        let inner = self.0.clone();
        let failed = TlsError::Mint {
            name: name.clone(),
            detail: "the worker was stopped".into(),
        };
        tokio::task::spawn_blocking(move || inner.mint(&name, now))
            .await
            .unwrap_or(Err(failed))
    }
}

impl fmt::Debug for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaves")
            .field("ca", &self.0.ca)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn mint(&self, name: &LeafName, now: SystemTime) -> Result<Ready, TlsError> {
        let leaf = leaf::mint(&self.ca, name, &self.key, now)?;
        let chain = [leaf.certificate]
            .into_iter()
            .chain(self.ca.intermediates().cloned());
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::DEFAULT_VERSIONS)
            .map(|builder| builder.with_no_client_auth())
            .and_then(|builder| builder.with_single_cert(chain.collect(), key.into()))
            .map_err(|error| TlsError::Mint {
                name: name.clone(),
                detail: error.to_string(),
            })?;
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        config.ticketer = self.tickets.clone();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Ready {
            config: Arc::new(config),
            renew_at: leaf.renew_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use outgate_policy::Host;

    fn leaves(capacity: usize) -> Leaves {
        let ca = CertificateAuthority::generate().unwrap();
        Leaves::new(ca, NonZeroUsize::new(capacity).unwrap()).unwrap()
    }

    fn name(text: &str) -> LeafName {
        LeafName::Name(Host::parse(text).unwrap())
    }

    #[tokio::test]
    async fn one_name_is_minted_once_however_many_ask() {
        let leaves = leaves(8);
        let wanted = name("a.test");
        let (first, second, third) = tokio::join!(
            leaves.server_config(&wanted),
            leaves.server_config(&wanted),
            leaves.server_config(&wanted),
        );
        let first = first.unwrap();
        assert!(Arc::ptr_eq(&first, &second.unwrap()));
        assert!(Arc::ptr_eq(&first, &third.unwrap()));
        assert!(!Arc::ptr_eq(
            &first,
            &leaves.server_config(&name("b.test")).await.unwrap()
        ));
    }

    #[tokio::test]
    async fn a_leaf_is_minted_anew_after_two_thirds_of_its_life() {
        let leaves = leaves(8);
        let wanted = name("a.test");
        let start = SystemTime::now();
        let days = |days: u64| start + Duration::from_hours(24 * days);
        let first = leaves.server_config_at(&wanted, start).await.unwrap();
        let young = leaves.server_config_at(&wanted, days(4)).await.unwrap();
        assert!(Arc::ptr_eq(&first, &young));
        let old = leaves.server_config_at(&wanted, days(5)).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &old));
        let renewed = leaves.server_config_at(&wanted, days(6)).await.unwrap();
        assert!(Arc::ptr_eq(&old, &renewed));
    }

    #[tokio::test]
    async fn the_least_recently_used_name_is_forgotten_first() {
        let leaves = leaves(2);
        let first = leaves.server_config(&name("a.test")).await.unwrap();
        leaves.server_config(&name("b.test")).await.unwrap();
        leaves.server_config(&name("a.test")).await.unwrap();
        leaves.server_config(&name("c.test")).await.unwrap();
        assert_eq!(leaves.0.slots.lock().unwrap().len(), 2);
        assert!(Arc::ptr_eq(
            &first,
            &leaves.server_config(&name("a.test")).await.unwrap()
        ));
    }

    #[tokio::test]
    async fn c21_ticket_secrets_differ_between_sandboxes() {
        let ca = CertificateAuthority::generate().unwrap();
        let one = Leaves::new(ca.clone(), NonZeroUsize::MIN).unwrap();
        let other = Leaves::new(ca, NonZeroUsize::MIN).unwrap();
        let ticket = one.0.tickets.encrypt(b"session").unwrap();
        assert_eq!(
            one.0.tickets.decrypt(&ticket).as_deref(),
            Some(b"session".as_slice())
        );
        assert_eq!(other.0.tickets.decrypt(&ticket), None);
    }
}
