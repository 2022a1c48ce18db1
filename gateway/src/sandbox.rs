//! One sandbox as the gateway knows it: who it is, what it may do, and what serves it.
//!
//! Everything a sandbox can reach goes through its own context: policy snapshot, upstream pool, TLS
//! sessions, placeholders, leaf certificates and limits. Nothing in it is shared with another
//! sandbox but the audit log and the certificate authority.

mod datagrams;
mod exchanges;
mod flow;
mod ledger;
mod notes;
mod open;
mod tunnel;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use outgate_policy::{Authority, Policy, Protocol};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::audit::{AuditError, AuditLog, Event, EventKind, Ingress, RecordId, SandboxRef};
use crate::credential::{Broker, Placeholders};
use crate::link::FlowHandler;
use crate::tls::Leaves;
use crate::upstream::SandboxUpstream;

pub(crate) use self::exchanges::{Direction, Listed};
pub(crate) use self::ledger::Ledger;
pub(crate) use self::open::{Opened, Refusal};

/// Requests and tunnels that one sandbox may have open at a time. Each can hold the buffers of two
/// connections, so this bounds the memory of a sandbox.
const MAX_EXCHANGES: usize = 1024;

/// Bodies that a policy looks at, at a time: each may take [`outgate_policy::Needs::MAX_BODY`] twice.
const MAX_BODIES: usize = 16;

/// Who a sandbox is. Comes from the node that runs it, never from the guest.
#[derive(Clone, Debug)]
pub struct SandboxIdentity {
    /// Unique among the sandboxes of one gateway.
    pub id: String,
    /// Isolation tier that runs it, as in `microvm`.
    pub tier: String,
    /// Labels that the node gave.
    pub labels: BTreeMap<String, String>,
}

/// What serves one sandbox.
#[derive(Debug)]
pub struct SandboxServices {
    /// Where everything is recorded.
    pub audit: AuditLog,
    /// The sandbox's own connections to upstreams.
    pub upstream: SandboxUpstream,
    /// Fetches credentials.
    pub broker: Broker,
    /// What the sandbox holds instead of credentials.
    pub placeholders: ArcSwap<Placeholders>,
    /// The certificates that the sandbox is shown.
    pub leaves: Leaves,
    /// The authority that signs them, as PEM, for a guest that asks for it.
    pub ca_pem: String,
}

/// One sandbox behind the gateway.
pub struct SandboxContext {
    identity: Arc<SandboxRef>,
    policy: ArcSwap<Policy>,
    /// Tells open tunnels that there is another policy to be judged by.
    policy_changes: watch::Sender<()>,
    services: SandboxServices,
    exchanges: Arc<Semaphore>,
    exchanges_under_way: exchanges::Exchanges,
    bodies: Arc<Semaphore>,
    draining: CancellationToken,
}

impl SandboxContext {
    /// A sandbox under `policy`. Writes no record; see [`record`](Self::record).
    #[must_use]
    pub fn new(identity: SandboxIdentity, policy: Policy, services: SandboxServices) -> Self {
        let SandboxIdentity { id, tier, labels } = identity;
        Self {
            identity: Arc::new(SandboxRef { id, labels, tier }),
            policy: ArcSwap::from_pointee(policy),
            policy_changes: watch::Sender::new(()),
            services,
            exchanges: Arc::new(Semaphore::new(MAX_EXCHANGES)),
            exchanges_under_way: exchanges::Exchanges::default(),
            bodies: Arc::new(Semaphore::new(MAX_BODIES)),
            draining: CancellationToken::new(),
        }
    }

    /// Decides for the sandbox's link: hand it to [`Stack::spawn`](crate::link::Stack::spawn).
    /// What it accepted is served until it is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn flow_handler(self: &Arc<Self>) -> Arc<dyn FlowHandler> {
        Arc::new(flow::Flows::new(Arc::clone(self)))
    }

    /// The id, as it is in every record.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.identity.id
    }

    /// Who it is, as records say it.
    pub(crate) fn reference(&self) -> Arc<SandboxRef> {
        Arc::clone(&self.identity)
    }

    /// The policy in force now.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Puts another policy in force: for the next request of every open connection, and at once for
    /// every exchange and tunnel under way, which is cut if `policy` does not allow it. Writes no
    /// record.
    pub fn set_policy(&self, policy: Policy) {
        let policy = Arc::new(policy);
        self.policy.store(Arc::clone(&policy));
        self.policy_changes.send_replace(());
        self.exchanges_under_way.judge(&policy);
    }

    /// Lets HTTP connections end after the answers under way: HTTP/1 by `Connection: close`, HTTP/2 by
    /// GOAWAY. Byte streams go on.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Waits until no exchange and no byte stream is open.
    pub async fn drained(&self) {
        // An error only of a closed semaphore, and nothing closes this one.
        let _all = self.exchanges.acquire_many(MAX_EXCHANGES as u32).await;
    }

    /// Fires when the sandbox is drained.
    pub(crate) fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// An event about this sandbox under the policy in force.
    #[must_use]
    pub fn event(&self, kind: EventKind) -> Event {
        Event {
            sandbox: Some(Arc::clone(&self.identity)),
            policy_revision: Some(self.policy.load().revision().to_owned()),
            ..Event::new(kind)
        }
    }

    /// Records that something of this `kind` happened to the sandbox.
    ///
    /// # Errors
    /// When it could not be recorded.
    pub async fn record(&self, kind: EventKind) -> Result<RecordId, AuditError> {
        self.services.audit.append(&self.event(kind)).await
    }

    /// An event about traffic of this sandbox to `to` that came in by `ingress`.
    pub(crate) fn traffic_event(
        &self,
        kind: EventKind,
        ingress: Ingress,
        protocol: Option<Protocol>,
        to: &Authority,
    ) -> Event {
        Event {
            ingress: Some(ingress),
            protocol,
            host: Some(to.destination.to_string()),
            port: Some(to.port),
            ..self.event(kind)
        }
    }

    pub(crate) fn services(&self) -> &SandboxServices {
        &self.services
    }

    pub(crate) fn policy_changes(&self) -> watch::Receiver<()> {
        self.policy_changes.subscribe()
    }

    /// A place among [`MAX_EXCHANGES`], if there is one left.
    pub(crate) fn admit_exchange(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.exchanges).try_acquire_owned().ok()
    }

    /// Waits for a place among [`MAX_BODIES`]. Those that wait are bounded by the streams that a
    /// guest may open.
    pub(crate) async fn admit_body(&self) -> Option<OwnedSemaphorePermit> {
        // `None` only of a closed semaphore, and nothing closes this one.
        Arc::clone(&self.bodies).acquire_owned().await.ok()
    }
}

impl fmt::Debug for SandboxContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxContext")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
