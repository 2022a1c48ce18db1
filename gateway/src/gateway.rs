//! The gateway as a whole: what it is started with, and the sandboxes behind it.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;
use outgate_policy::{Destination, Diagnostics, Feature, Policy, Source, Verdict};
use sha2::{Digest, Sha256};

use crate::admin::protocol::{Network, PolicySet, Registered, Registration};
use crate::audit::{AuditConfig, AuditError, AuditLog, Event, EventKind, SandboxRef};
use crate::credential::{Broker, CredentialError, Placeholders};
use crate::link::{self, DeniedNames, Link, LinkConfig, LinkError, NameKey, Stack, StackHandle};
use crate::listener::ServerTls;
use crate::sandbox::{SandboxContext, SandboxIdentity, SandboxServices};
use crate::tls::{CertificateAuthority, Leaves, TlsError};
use crate::upstream::{Upstream, UpstreamConfig, UpstreamError};

/// Sandboxes behind one gateway. Each may use its full share of flows and buffers at once, so this
/// bounds the gateway's memory.
pub const MAX_SANDBOXES: usize = 1024;
/// Characters in a sandbox id, which is written into every audit record.
const MAX_ID_CHARS: usize = 64;
/// Leaf certificates kept per sandbox: more names than an agent uses, a bound for one that scans.
const LEAVES_PER_SANDBOX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// What this gateway keeps of a policy beyond its decisions. A policy that asks for more is refused.
///
/// An `action: ask` is denied for `approval_required`: there is nobody yet to ask.
pub const ENFORCED: &[Feature] = &[
    Feature::Ask,
    Feature::Body,
    Feature::Headers,
    Feature::Observe,
    Feature::RequestBody,
    Feature::Udp,
];

/// What a gateway is started with.
#[derive(Debug)]
pub struct GatewayConfig {
    /// Where the certificate authority comes from.
    pub ca: CertificateAuthoritySource,
    /// Where the audit log goes.
    pub audit: AuditConfig,
    /// How upstreams are reached.
    pub upstream: UpstreamConfig,
    /// What guests are told of names that no rule can match.
    pub denied_names: DeniedNames,
}

/// Where the certificate authority comes from.
#[derive(Debug)]
pub enum CertificateAuthoritySource {
    /// Made in memory; the key never touches a disk and ends with the gateway.
    Ephemeral,
    /// Read from this folder, or made there on first start.
    Directory(PathBuf),
}

/// Why a gateway did not start, or a sandbox was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The certificate authority can't be made or read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The audit log can't be written, so nothing may leave.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A placeholder that the node handed back is none.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The upstream side can't be set up.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The sandbox's policy doesn't load.
    #[error("the policy does not load:\n{0}")]
    Policy(Diagnostics),
    /// The link can't be used.
    #[error("the descriptor handed over is no usable link: {0}")]
    Link(#[from] LinkError),
    /// The id is taken.
    #[error("a sandbox `{id}` is registered already; choose another id or wait for it to end")]
    IdInUse {
        /// The id asked for.
        id: String,
    },
    /// The id can't be written into an audit record as a name.
    #[error("`{id}` is no sandbox id: use 1 to {MAX_ID_CHARS} characters of `a-z A-Z 0-9 . _ -`")]
    BadId {
        /// The id asked for.
        id: String,
    },
    /// There is no such sandbox.
    #[error("no sandbox `{id}` is registered here")]
    NotRegistered {
        /// The id asked for.
        id: String,
    },
    /// The link can't be run with this MTU.
    #[error(
        "`{mtu}` is no MTU for a link: use {} to {} bytes, or leave it out for the largest",
        link::MIN_MTU,
        link::MTU
    )]
    BadMtu {
        /// The MTU asked for, in bytes.
        mtu: u16,
    },
    /// The gateway is full.
    #[error("the gateway serves {MAX_SANDBOXES} sandboxes, its maximum; start another gateway")]
    TooManySandboxes,
}

/// A running gateway. Clones are the same gateway.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    ca: CertificateAuthority,
    audit: AuditLog,
    upstream: Upstream,
    denied_names: DeniedNames,
    /// By id. One that is still being set up can't be upgraded.
    sandboxes: Mutex<HashMap<String, Weak<SandboxContext>>>,
}

impl Shared {
    fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Weak<SandboxContext>>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    /// Opens the audit log and makes or reads the certificate authority.
    ///
    /// # Errors
    /// See [`GatewayError`]. A gateway that can't record does not start.
    pub async fn start(config: GatewayConfig) -> Result<Self, GatewayError> {
        let audit = AuditLog::open(config.audit)?;
        let ca = match config.ca {
            CertificateAuthoritySource::Ephemeral => CertificateAuthority::generate()?,
            CertificateAuthoritySource::Directory(dir) => {
                CertificateAuthority::load_or_create(&dir)?
            }
        };
        let upstream = Upstream::new(config.upstream)?;
        audit.append(&Event::new(EventKind::GatewayStart)).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                ca,
                audit,
                upstream,
                denied_names: config.denied_names,
                sandboxes: Mutex::default(),
            }),
        })
    }

    /// Puts a sandbox behind the gateway: from here on its link is served.
    ///
    /// # Errors
    /// See [`GatewayError`]; the link is closed then and nothing is served.
    pub async fn register(
        &self,
        registration: Registration,
        link: OwnedFd,
    ) -> Result<RegisteredSandbox, GatewayError> {
        let mtu = registration.mtu.unwrap_or(link::MTU);
        if !(link::MIN_MTU..=link::MTU).contains(&mtu) {
            return Err(GatewayError::BadMtu { mtu });
        }
        let link_config = LinkConfig {
            mtu,
            name_key: self.name_key(&registration.id),
            denied_names: self.shared.denied_names,
        };
        let mut sandbox = self.prepare(registration).await?;
        let link = Link::from_fd(link)?;
        self.record_registered(&sandbox.context).await?;
        let handler = sandbox.context.flow_handler();
        sandbox.stack = Some(Stack::spawn(link, handler, link_config));
        Ok(sandbox)
    }

    /// Puts a sandbox behind the gateway that has no link, and is served by a
    /// [listener](crate::listener) that recognises it.
    ///
    /// # Errors
    /// See [`GatewayError`].
    pub async fn register_unlinked(
        &self,
        registration: Registration,
    ) -> Result<RegisteredSandbox, GatewayError> {
        let sandbox = self.prepare(registration).await?;
        self.record_registered(&sandbox.context).await?;
        Ok(sandbox)
    }

    /// Where everything is recorded.
    #[must_use]
    pub fn audit(&self) -> AuditLog {
        self.shared.audit.clone()
    }

    /// What a listener of this gateway shows for `name`: a certificate that whoever trusts its
    /// authority accepts.
    ///
    /// # Errors
    /// [`GatewayError::Tls`] when there is no randomness.
    pub fn listener_tls(&self, name: Destination) -> Result<ServerTls, GatewayError> {
        Ok(ServerTls::minted(self.shared.ca.clone(), name)?)
    }

    async fn record_registered(&self, context: &SandboxContext) -> Result<(), AuditError> {
        let event = context.event(EventKind::SandboxRegister);
        self.shared.audit.append(&event).await.map(drop)
    }

    /// A sandbox under its policy that nothing leads to yet.
    async fn prepare(&self, registration: Registration) -> Result<RegisteredSandbox, GatewayError> {
        let seat = self.take_seat(&registration.id)?;
        let mtu = registration.mtu.unwrap_or(link::MTU);
        let policy = match enforceable(&registration.policy) {
            Ok(policy) => policy,
            Err(diagnostics) => {
                let sandbox = SandboxRef {
                    id: registration.id,
                    labels: registration.labels,
                    tier: registration.tier,
                };
                self.record_refused_policy(Arc::new(sandbox), &diagnostics)
                    .await?;
                return Err(GatewayError::Policy(diagnostics));
            }
        };
        let placeholders = Placeholders::restore(policy.credentials(), registration.placeholders)?;
        let registered = Registered {
            ca_pem: self.shared.ca.certificate_pem().to_owned(),
            env: placeholders.env(),
            placeholders: placeholders.by_credential(),
            network: guest_network(mtu),
            policy_revision: policy.revision().to_owned(),
        };
        let context = Arc::new(SandboxContext::new(
            SandboxIdentity {
                id: registration.id,
                tier: registration.tier,
                labels: registration.labels,
            },
            policy,
            SandboxServices {
                audit: self.shared.audit.clone(),
                upstream: self.shared.upstream.for_sandbox(),
                broker: Broker::new(),
                placeholders: ArcSwap::from_pointee(placeholders),
                leaves: Leaves::new(self.shared.ca.clone(), LEAVES_PER_SANDBOX)?,
                ca_pem: registered.ca_pem.clone(),
            },
        ));
        if let Some(seated) = self.shared.sandboxes().get_mut(context.id()) {
            *seated = Arc::downgrade(&context);
        }
        Ok(RegisteredSandbox {
            context,
            stack: None,
            registered,
            _seat: seat,
        })
    }

    /// Puts `sources` in force for the sandbox `id`: for its next request, and at once for everything
    /// it has under way. All of it or nothing: what does not load
    /// leaves the old policy in force.
    ///
    /// # Errors
    /// [`GatewayError::NotRegistered`], [`GatewayError::Policy`], [`GatewayError::Credential`], and
    /// [`GatewayError::Audit`] when the change can't be recorded.
    pub async fn set_policy(
        &self,
        id: &str,
        sources: &[Source],
    ) -> Result<PolicySet, GatewayError> {
        let context = self.shared.sandboxes().get(id).and_then(Weak::upgrade);
        let context = context.ok_or_else(|| GatewayError::NotRegistered {
            id: id.escape_debug().to_string(),
        })?;
        let policy = match enforceable(sources) {
            Ok(policy) => policy,
            Err(diagnostics) => {
                self.record_refused_policy(context.reference(), &diagnostics)
                    .await?;
                return Err(GatewayError::Policy(diagnostics));
            }
        };
        let desired = policy.revision().to_owned();
        let known = context.services().placeholders.load().by_credential();
        let placeholders = Placeholders::restore(policy.credentials(), known)?;
        let event = Event {
            verdict: Some(Verdict::Allow),
            policy_revision: Some(desired.clone()),
            ..context.event(EventKind::PolicyLoad)
        };
        self.shared.audit.append(&event).await?;
        context
            .services()
            .placeholders
            .store(Arc::new(placeholders));
        context.set_policy(policy);
        Ok(PolicySet {
            id: context.id().to_owned(),
            enforced: context.policy().revision().to_owned(),
            desired,
        })
    }

    /// Lets every sandbox's HTTP connections end after the answers under way, and resolves when
    /// nothing is open any more. Byte streams may take as long as they like: bound it.
    pub async fn drain(&self) {
        let sandboxes: Vec<_> = self
            .shared
            .sandboxes()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for sandbox in &sandboxes {
            sandbox.drain();
        }
        for sandbox in sandboxes {
            sandbox.drained().await;
        }
    }

    /// Writes the last record and closes the log. Sandboxes that are still registered can do nothing
    /// from here on, since nothing can be recorded.
    pub async fn stop(&self) {
        if let Err(error) = self
            .shared
            .audit
            .append(&Event::new(EventKind::GatewayStop))
            .await
        {
            tracing::error!(%error, "the end of the gateway could not be recorded");
        }
        if let Err(error) = self.shared.audit.clone().close().await {
            tracing::error!(%error, "the audit log could not be closed");
        }
    }

    /// A policy that was turned down put nothing in force, and is on record all the same.
    async fn record_refused_policy(
        &self,
        sandbox: Arc<SandboxRef>,
        diagnostics: &Diagnostics,
    ) -> Result<(), AuditError> {
        let event = Event {
            sandbox: Some(sandbox),
            verdict: Some(Verdict::Deny),
            detail: Some(diagnostics.render()),
            ..Event::new(EventKind::PolicyLoad)
        };
        self.shared.audit.append(&event).await.map(drop)
    }

    /// The same for a sandbox that comes back to a gateway with the same authority, so that the
    /// addresses its guest remembers go on to stand for the same names.
    fn name_key(&self, sandbox: &str) -> NameKey {
        let authority = Sha256::digest(self.shared.ca.certificate_pem());
        let key = Sha256::new()
            .chain_update(authority)
            .chain_update(sandbox)
            .finalize();
        NameKey::new(key.into())
    }

    fn take_seat(&self, id: &str) -> Result<Seat, GatewayError> {
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if id.is_empty() || id.len() > MAX_ID_CHARS || !id.chars().all(named) {
            return Err(GatewayError::BadId {
                id: id.escape_debug().to_string(),
            });
        }
        let mut sandboxes = self.shared.sandboxes();
        if sandboxes.len() >= MAX_SANDBOXES {
            return Err(GatewayError::TooManySandboxes);
        }
        if sandboxes.contains_key(id) {
            return Err(GatewayError::IdInUse { id: id.to_owned() });
        }
        sandboxes.insert(id.to_owned(), Weak::new());
        drop(sandboxes);
        Ok(Seat {
            shared: Arc::clone(&self.shared),
            id: id.to_owned(),
        })
    }
}

/// A sandbox that is served until this is dropped or [released](Self::release).
#[derive(Debug)]
pub struct RegisteredSandbox {
    context: Arc<SandboxContext>,
    /// None for a sandbox without a link.
    stack: Option<StackHandle>,
    registered: Registered,
    _seat: Seat,
}

impl RegisteredSandbox {
    /// What the node needs to set the guest up.
    #[must_use]
    pub fn registered(&self) -> &Registered {
        &self.registered
    }

    /// The sandbox, for a listener that serves it.
    #[must_use]
    pub fn context(&self) -> Arc<SandboxContext> {
        Arc::clone(&self.context)
    }

    /// Stops serving the link and records the end of the sandbox.
    pub async fn release(self) {
        drop(self.stack);
        if let Err(error) = self.context.record(EventKind::SandboxRelease).await {
            tracing::error!(%error, "the end of a sandbox could not be recorded");
        }
    }
}

/// One of [`MAX_SANDBOXES`] places, held by id.
struct Seat {
    shared: Arc<Shared>,
    id: String,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.id).finish()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.sandboxes().remove(&self.id);
    }
}

/// A policy that loads, and that this gateway keeps all of.
fn enforceable(sources: &[Source]) -> Result<Policy, Diagnostics> {
    // A sandbox that no policy selects has none, and reaches nothing.
    if sources.is_empty() {
        return Ok(Policy::none());
    }
    let policy = Policy::load(sources)?;
    policy.require(ENFORCED)?;
    Ok(policy)
}

fn guest_network(mtu: u16) -> Network {
    Network {
        address: link::GUEST_IP,
        prefix: link::PREFIX_LEN,
        gateway: link::GATEWAY_IP,
        dns: link::GATEWAY_IP,
        mtu,
        // Six pairs with colons, as people and `ip link` write it.
        mac: link::GUEST_MAC
            .0
            .map(|byte| format!("{byte:02x}"))
            .join(":"),
    }
}
