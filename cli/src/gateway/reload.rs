//! Putting a changed configuration file in force while the gateway runs.
//!
//! Everything is read and checked first; what does not load changes nothing. Sandboxes come, go and
//! change their policies and tokens. What a running gateway can't change (sockets, folders, upstream
//! settings) is named and left as it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use outgate_gateway::admin::protocol::{PolicySet, Registration, Reloaded};
use outgate_gateway::gateway::{Gateway, GatewayError, RegisteredSandbox};
use outgate_gateway::listener::{Directory, Recognised, TokenHash};

use super::GatewayArgs;
use super::plan::{Fixed, Plan};

/// The sandboxes of the configuration file, as they are served.
pub(super) struct Served {
    gateway: Gateway,
    fixed: Fixed,
    sandboxes: BTreeMap<String, Sandbox>,
    directory: Arc<ArcSwap<Directory>>,
}

struct Sandbox {
    registration: Registration,
    /// Revision of the policy that the file asks for.
    desired: String,
    token: Option<TokenHash>,
    registered: RegisteredSandbox,
}

type Wanted = Vec<(Registration, Option<TokenHash>)>;

impl Served {
    /// Registers the sandboxes of the file for the first time.
    ///
    /// # Errors
    /// When one of them is refused; none stays then.
    pub(super) async fn start(
        gateway: Gateway,
        fixed: Fixed,
        sandboxes: Wanted,
    ) -> Result<Self, GatewayError> {
        let mut served = Self {
            gateway,
            fixed,
            sandboxes: BTreeMap::new(),
            directory: Arc::default(),
        };
        served.apply(sandboxes).await?;
        Ok(served)
    }

    /// Whom listeners serve, now and after each reload.
    pub(super) fn directory(&self) -> Arc<ArcSwap<Directory>> {
        Arc::clone(&self.directory)
    }

    /// Reads the file again and puts it in force.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub(super) async fn reload(&mut self, args: &GatewayArgs) -> anyhow::Result<Reloaded> {
        let plan = Plan::new(args)?;
        let needs_restart = self.fixed.changed(&plan.fixed());
        let mut reloaded = self.apply(plan.sandboxes).await?;
        reloaded.needs_restart = needs_restart;
        Ok(reloaded)
    }

    /// Releases everybody.
    pub(super) async fn stop(self) {
        for sandbox in self.sandboxes.into_values() {
            sandbox.registered.release().await;
        }
    }

    async fn apply(&mut self, wanted: Wanted) -> Result<Reloaded, GatewayError> {
        let mut reloaded = Reloaded::default();
        let mut added = Vec::new();
        // Who comes new can be refused, so they come first: nobody else has been touched then.
        for (registration, token) in &wanted {
            if !self.sandboxes.contains_key(&registration.id) {
                reloaded.added.push(registration.id.clone());
                added.push(self.register(registration.clone(), *token).await?);
            }
        }
        for (registration, token) in wanted.iter().cloned() {
            let Some(sandbox) = self.sandboxes.get_mut(&registration.id) else {
                continue;
            };
            sandbox.token = token;
            if sandbox.registration.policy != registration.policy {
                let (id, policy) = (&registration.id, &registration.policy);
                sandbox.desired = self.gateway.set_policy(id, policy).await?.desired;
                sandbox.registration.policy = registration.policy.clone();
            }
            if sandbox.registration != registration {
                // Its records would go on with the old labels: it is another sandbox now.
                if let Some(old) = self.sandboxes.remove(&registration.id) {
                    old.registered.release().await;
                }
                added.push(self.register(registration, token).await?);
            }
        }
        for sandbox in added {
            self.sandboxes
                .insert(sandbox.registration.id.clone(), sandbox);
        }
        let is_gone = |id: &String| !wanted.iter().any(|(wanted, _)| wanted.id == *id);
        let gone: Vec<_> = self
            .sandboxes
            .keys()
            .filter(|id| is_gone(id))
            .cloned()
            .collect();
        let gone: Vec<_> = gone
            .iter()
            .filter_map(|id| self.sandboxes.remove_entry(id))
            .collect();
        let recognised = self.sandboxes.values().map(|sandbox| Recognised {
            sandbox: sandbox.registered.context(),
            token: sandbox.token,
        });
        let directory = self.directory.load().followed_by(recognised);
        self.directory.store(Arc::new(directory));
        for (id, sandbox) in gone {
            sandbox.registered.release().await;
            reloaded.removed.push(id);
        }
        reloaded.sandboxes = self.sandboxes.values().map(Sandbox::in_force).collect();
        Ok(reloaded)
    }

    async fn register(
        &self,
        registration: Registration,
        token: Option<TokenHash>,
    ) -> Result<Sandbox, GatewayError> {
        let registered = self.gateway.register_unlinked(registration.clone()).await?;
        Ok(Sandbox {
            desired: registered.registered().policy_revision.clone(),
            registration,
            token,
            registered,
        })
    }
}

impl Sandbox {
    fn in_force(&self) -> PolicySet {
        PolicySet {
            id: self.registration.id.clone(),
            desired: self.desired.clone(),
            enforced: self.registered.context().policy().revision().to_owned(),
        }
    }
}
