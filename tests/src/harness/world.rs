//! Lab, gateway and guest put together: what most tests start from.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use super::admin::{Refused, Registration, SandboxSpec, register};
use super::audit::AuditTrail;
use super::gateway::{Gateway, GatewayHome};
use super::wait::eventually;
use crate::guest::{Guest, link, own_network};
use crate::lab::Lab;

/// The value of the credential that most tests use: only upstreams may ever see it.
pub const SECRET: &str = "s3cret-4f1d7a90c2e85b36-only-upstream";

/// The variable of the gateway's environment that holds [`SECRET`].
pub const SECRET_VARIABLE: &str = "LAB_SECRET";

/// A public address of the lab's origin, in the lab's own network. Nobody's in the world outside.
pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(192, 0, 1, 80);

/// A lab, a gateway and one guest under a policy.
#[derive(Debug)]
pub struct World {
    // Declared in the order in which they end: the guest first, the lab last.
    guest: Guest,
    registration: Option<Registration>,
    gateway: Option<Gateway>,
    pub home: GatewayHome,
    pub lab: Lab,
    spec: SandboxSpec,
    // A duplicate of the link's gateway end, as a node keeps it: the guest never notices when a
    // gateway goes and another comes.
    gateway_end: OwnedFd,
}

impl World {
    /// Everything running, with `rules` as the sandbox's policy: see [`policy`].
    #[track_caller]
    pub fn new(rules: &str) -> Self {
        Self::in_lab(lab(), rules)
    }

    /// The same in a lab that the test prepared.
    #[track_caller]
    pub fn in_lab(lab: Lab, rules: &str) -> Self {
        let home = GatewayHome::new(&lab).expect("a folder for the gateway");
        Self::with_home(lab, home, rules)
    }

    /// The same with further arguments of the gateway.
    #[track_caller]
    pub fn with_arguments(lab: Lab, arguments: &[&str], rules: &str) -> Self {
        let mut home = GatewayHome::new(&lab).expect("a folder for the gateway");
        home.arguments(arguments);
        Self::with_home(lab, home, rules)
    }

    /// The same with the audit log in a folder of the test's choice.
    #[track_caller]
    pub fn with_audit_folder(rules: &str, folder: &Path) -> Self {
        let lab = lab();
        let mut home = GatewayHome::new(&lab).expect("a folder for the gateway");
        home.keep_audit_in(folder);
        Self::with_home(lab, home, rules)
    }

    #[track_caller]
    fn with_home(lab: Lab, mut home: GatewayHome, rules: &str) -> Self {
        let text = policy(rules);
        home.env(SECRET_VARIABLE, SECRET);
        let gateway = home.start().expect("the gateway starts");
        let mut spec = sandbox("sandbox-1", &text);
        let (guest_end, gateway_end) = link().expect("a link");
        let registration = register(&home.admin(), &spec, gateway_end.as_fd())
            .expect("the gateway answers")
            .unwrap_or_else(|refused| panic!("registration refused: {refused:?}\n{text}"));
        let granted = &registration.granted;
        let guest = Guest::start(
            guest_end,
            granted.network.clone(),
            &granted.ca_pem,
            &granted.env,
        )
        .expect("the guest starts");
        spec.placeholders = granted.placeholders.clone();
        let (registration, gateway) = (Some(registration), Some(gateway));
        Self {
            guest,
            registration,
            gateway,
            home,
            lab,
            spec,
            gateway_end,
        }
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    pub fn audit(&self) -> AuditTrail {
        self.home.audit()
    }

    /// What the gateway granted.
    #[track_caller]
    pub fn registration(&self) -> &Registration {
        self.registration
            .as_ref()
            .expect("the sandbox is registered")
    }

    /// The running gateway.
    #[track_caller]
    pub fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect("the gateway runs")
    }

    /// Takes the gateway away by SIGKILL; the guest and its link stay.
    pub fn kill_gateway(&mut self) {
        self.registration = None;
        if let Some(gateway) = self.gateway.take() {
            gateway.kill();
        }
    }

    /// Takes the gateway away by SIGTERM; gives back its exit code.
    #[track_caller]
    pub fn terminate_gateway(&mut self) -> Option<i32> {
        self.registration = None;
        let gateway = self.gateway.take().expect("the gateway runs");
        gateway.terminate().expect("the gateway can be signalled")
    }

    /// Starts another gateway in the same folders and hands it the same link.
    #[track_caller]
    pub fn start_gateway(&mut self) {
        self.gateway = Some(self.home.start().expect("the gateway starts again"));
        self.register_again().expect("the policy still loads");
    }

    /// Releases the sandbox and registers it anew on the same link with other rules.
    #[track_caller]
    pub fn replace_policy(&mut self, rules: &str) {
        self.registration = None;
        self.spec.policy = vec![("policy.yaml".to_owned(), policy(rules))];
        self.register_again().expect("the new policy loads");
    }

    /// Tries to register another sandbox with `rules`; gives back why it was refused.
    #[track_caller]
    pub fn refused(&self, rules: &str) -> Refused {
        let text = policy(rules);
        let (_guest_end, gateway_end) = link().expect("a link");
        let answer = register(
            &self.home.admin(),
            &sandbox("refused", &text),
            gateway_end.as_fd(),
        );
        match answer.expect("the gateway answers") {
            Ok(_) => panic!("this policy was accepted:\n{text}"),
            Err(refused) => refused,
        }
    }

    /// Starts a second guest at the same gateway, with a sandbox and a link of its own.
    #[track_caller]
    pub fn second_guest(&self, id: &str, rules: &str) -> (Guest, Registration) {
        self.guest_of(&sandbox(id, &policy(rules)))
    }

    /// The same for a sandbox that is described in full.
    #[track_caller]
    pub fn guest_of(&self, spec: &SandboxSpec) -> (Guest, Registration) {
        let (guest_end, gateway_end) = link().expect("a link");
        let registration = register(&self.home.admin(), spec, gateway_end.as_fd())
            .expect("the gateway answers")
            .expect("the second sandbox is accepted");
        let granted = &registration.granted;
        let guest = Guest::start(
            guest_end,
            granted.network.clone(),
            &granted.ca_pem,
            &granted.env,
        )
        .expect("the second guest starts");
        (guest, registration)
    }

    fn register_again(&mut self) -> Result<(), Refused> {
        // The gateway notices a moment later that the former registration has ended.
        let registration = eventually("the sandbox's id is free", || {
            let answer = register(&self.home.admin(), &self.spec, self.gateway_end.as_fd())
                .expect("the gateway answers");
            match answer {
                Err(refused) if refused.code == "id_in_use" => None,
                answer => Some(answer),
            }
        })?;
        self.registration = Some(registration);
        Ok(())
    }
}

/// A lab in a network of its own: what a test gets wrong cannot leave this machine, and no other
/// test can meet it.
#[track_caller]
pub fn lab() -> Lab {
    own_network().expect("a network namespace");
    let lab = Lab::start().expect("the lab starts");
    lab.serve_origin_at(PUBLIC).expect("another address");
    lab
}

/// A sandbox with one policy layer.
pub fn sandbox(id: &str, policy: &str) -> SandboxSpec {
    SandboxSpec {
        id: id.to_owned(),
        labels: BTreeMap::from([("suite".to_owned(), "end-to-end".to_owned())]),
        policy: vec![("policy.yaml".to_owned(), policy.to_owned())],
        placeholders: BTreeMap::new(),
        mtu: None,
    }
}

/// A whole policy file from its rules and credentials.
pub fn policy(rules: &str) -> String {
    format!("version: 1\nname: end-to-end\n{rules}")
}
