//! How the host makes a booted guest its own, and asks how it is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Reply of `GET /v1/health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// [`super::PROTOCOL`] of the guest.
    pub protocol: u32,
    /// Version of the program.
    pub version: String,
    /// Since the kernel started, in milliseconds.
    pub uptime_ms: u64,
    /// Whether the configuration was applied: no command runs before.
    pub configured: bool,
    /// How many times this guest was cloned; 0 for a fresh boot.
    pub generation: u64,
}

/// Everything that a guest is told about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigureRequest {
    /// Host name of the guest.
    pub hostname: String,
    /// The time, in nanoseconds since the Unix epoch.
    pub wall_clock_ns: u64,
    /// Fresh randomness for the kernel's generator: at most 128 bytes, in hexadecimal.
    pub entropy: String,
    /// The one interface; none for a guest without a network.
    pub network: Option<Network>,
    /// A certificate authority to trust, PEM.
    pub ca_pem: Option<String>,
    /// Environment of every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// The guest's side of its link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Its only address.
    pub address: Ipv4Addr,
    /// Prefix length of the on-link network.
    pub prefix: u8,
    /// Default route.
    pub gateway: Ipv4Addr,
    /// Name server.
    pub dns: Ipv4Addr,
    /// IP MTU, in bytes.
    pub mtu: u16,
}

/// What the configuration did, step by step. A step that failed fails the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigureReply {
    /// Names of the steps done, such as `clock`, `entropy`, `network`, `ca:/etc/ssl/certs/…`.
    pub steps: Vec<String>,
    /// What the image has and nobody set up yet, such as `java:/etc/ssl/certs/java/cacerts`.
    #[serde(default)]
    pub left_out: Vec<String>,
}
