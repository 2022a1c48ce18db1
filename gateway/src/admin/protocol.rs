//! The words that a node and a gateway exchange on the admin socket.
//!
//! One connection is one sandbox. The node sends a single line of JSON, a [`Request`], with the
//! gateway's end of the link attached to its first byte (`SCM_RIGHTS`); the gateway answers with a
//! single line, a [`Reply`]. The registration lives exactly as long as the connection: a node that
//! dies releases its sandboxes, and a node that sees the connection close registers the same link
//! again at the next gateway.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use outgate_policy::Source;
use serde::{Deserialize, Serialize};

/// Longest line in either direction, in bytes. Policies are the bulk of it.
pub const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// What a node may ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Put a sandbox behind the gateway. Carries one file descriptor.
    Register(Registration),
    /// Put another policy in force for a sandbox that is registered, on this or another connection.
    SetPolicy(PolicyChange),
    /// Read the configuration file again, as SIGHUP does.
    Reload,
}

/// Another policy for a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The sandbox.
    pub id: String,
    /// Its layers from now on, all of them.
    pub policy: Vec<Source>,
}

/// One sandbox, as the node describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Names the sandbox in the audit log; unique among the sandboxes of one gateway.
    pub id: String,
    /// Isolation tier that runs it (`microvm`, `namespace`), recorded as is.
    pub tier: String,
    /// Free-form labels, recorded with every event.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Policy layers by value, since the gateway may not be able to read the node's files; the
    /// sandbox may do what all of them allow.
    pub policy: Vec<Source>,
    /// IP MTU of the link, in bytes, 1500 to 65520; the largest unless given. The link's other end
    /// must be told the same (`host_mtu` of QEMU's network card).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Placeholders that the guest already holds, by credential name, when a link is registered
    /// again after a gateway restart.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub placeholders: BTreeMap<String, String>,
}

/// The gateway's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The link is live.
    Registered(Registered),
    /// The policy is in force, for requests to come and for everything under way.
    PolicySet(PolicySet),
    /// The configuration file is in force, as far as it can be without a restart.
    Reloaded(Reloaded),
    /// Nothing was changed, and a descriptor that came along was closed.
    Error(Refusal),
}

/// What is in force for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySet {
    /// The sandbox.
    pub id: String,
    /// SHA-256 of the policy that was asked for.
    pub desired: String,
    /// SHA-256 of the policy that decides now. The same, unless another change came right after.
    pub enforced: String,
}

/// What a reload changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Sandboxes of the file, with the policies that decide for them now.
    pub sandboxes: Vec<PolicySet>,
    /// Sandboxes that came new.
    pub added: Vec<String>,
    /// Sandboxes that are gone, their connections with them.
    pub removed: Vec<String>,
    /// Keys whose change needs a restart, and was not put in force.
    pub needs_restart: Vec<String>,
}

/// What the node needs to set the guest up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registered {
    /// The certificate authority that the guest must trust, PEM.
    pub ca_pem: String,
    /// Environment for the guest: placeholders under the names that the policy exposes.
    pub env: BTreeMap<String, String>,
    /// The same placeholders by credential name, to hand back on a later registration.
    pub placeholders: BTreeMap<String, String>,
    /// The guest's side of the link.
    pub network: Network,
    /// SHA-256 of the effective policy.
    pub policy_revision: String,
}

/// The guest's side of the link. The same for every guest: the socket is the identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The guest's only address.
    pub address: Ipv4Addr,
    /// Prefix length of the on-link network.
    pub prefix: u8,
    /// Default route.
    pub gateway: Ipv4Addr,
    /// Name server.
    pub dns: Ipv4Addr,
    /// IP MTU of the link, in bytes.
    pub mtu: u16,
    /// MAC address of the guest's interface.
    pub mac: String,
}

/// Why a request was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Stable code: `bad_request`, `forbidden`, `policy`, `configuration`, `id_in_use`,
    /// `not_registered`, `too_many_sandboxes`, `internal`.
    pub code: String,
    /// What happened and what to do.
    pub message: String,
}
