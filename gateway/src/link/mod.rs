//! One sandbox's only network: Ethernet frames in, flows and names out.
//!
//! The far end of the link is ours. [`Stack`] answers ARP, DHCP, ping and DNS for the gateway's own
//! address and terminates TCP towards every address, asking a [`FlowHandler`] before it completes
//! a handshake. The link itself is the sandbox's identity: every guest has the same MAC and IP.
//!
//! What it refuses to do: forward a packet, resolve a name, answer for any host but itself, or hold
//! more for a guest than the constants in these files say. Whatever is not one of the things above
//! is dropped and counted ([`Dropped`]). Nothing survives a restart: segments of flows that this
//! stack does not know are reset.

mod datagram;
mod device;
mod dhcp;
mod dns;
mod drops;
mod flow;
mod frame_socket;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod ingress;
mod names;
mod openings;
mod stack;
mod table;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;

use outgate_policy::Host;
use smoltcp::wire::EthernetAddress;

#[cfg(test)]
pub(crate) use datagram::Reply;
pub use datagram::{DATAGRAMS_PER_SECOND, DatagramFlow, MAX_DATAGRAM_FLOWS};
pub use dns::{QUERIES_PER_SECOND, WILDCARD_NAMES};
pub use drops::Dropped;
pub use flow::FlowStream;
pub use frame_socket::{Link, LinkError};
pub use names::NameKey;
pub use stack::{MAX_FLOWS, MAX_OPENINGS, OPENINGS_PER_SECOND, Stack, StackHandle};

/// The MAC address of every guest.
pub const GUEST_MAC: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x0f]);
/// The address of every guest, in a /24.
pub const GUEST_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// The MAC address of the gateway's end.
pub const GATEWAY_MAC: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x02]);
/// The gateway's address: router, DHCP and DNS server, and `outgate.internal`.
pub const GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Prefix length of the guest's network.
pub const PREFIX_LEN: u8 = 24;
/// Largest IP packet on a link, in bytes, unless its registration says otherwise. Large, because
/// the cost of the link is per frame.
pub const MTU: u16 = 65_520;
/// The smallest MTU that a link may be given: what every Ethernet has.
pub const MIN_MTU: u16 = 1500;
/// Largest Ethernet frame of any link, in bytes: [`MTU`] and the 14 byte header, no FCS.
pub const MAX_FRAME: usize = max_frame(MTU);
/// The name that the gateway answers to inside the link.
pub const GATEWAY_NAME: &str = "outgate.internal";

const ETHERNET_HEADER: usize = 14;
const DNS_PORT: u16 = 53;
const QUIC_PORT: u16 = 443;
pub(crate) const HTTP_PORT: u16 = 80;

/// A boxed future, so that [`FlowHandler`] can be used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Decides what a sandbox's stack may do. Every call is about one sandbox.
///
/// The calls that are not async run on the stack's own task: they must not block.
pub trait FlowHandler: Send + Sync + 'static {
    /// A guest wants to open a TCP connection. Its SYN is held until this resolves; if it takes
    /// longer than a minute, the answer is a reset.
    fn open(&self, to: FlowDestination) -> BoxFuture<'_, Opening>;

    /// May this name get a synthetic address?
    fn resolve(&self, name: &Host) -> NameAdmission;

    /// Could some rule let datagrams to this destination? Asked of every datagram without a flow.
    fn admits_datagrams(&self, to: &FlowDestination) -> bool;

    /// A guest sends datagrams to where [`admits_datagrams`](Self::admits_datagrams) said yes. They
    /// are held until this resolves; if it takes longer than ten seconds, they are dropped.
    fn open_datagrams(&self, to: FlowDestination) -> BoxFuture<'_, DatagramOpening>;

    /// `count` frames or connection attempts were dropped since the last call for this kind.
    /// At most one call per kind and second.
    fn dropped(&self, what: Dropped, count: u64);

    /// A DNS question was answered. `name` is what the guest sent, escaped, at most 1 KiB; it need
    /// not be a valid host name. At most [`QUERIES_PER_SECOND`] calls per second.
    fn name_query(&self, name: &str, answer: NameAnswer);

    /// The names asked for below one domain look like data on its way out. At most once per domain
    /// in ten minutes.
    fn name_alarm(&self, alarm: &NameAlarm);
}

/// What policy says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameAdmission {
    /// No rule can match it.
    Denied,
    /// A rule names it in full: somebody wrote it down, so it tells nobody anything.
    Listed,
    /// Only a wildcard matches: the guest chose some of it.
    Wildcard,
}

/// How a DNS question was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameAnswer {
    /// With what there is: an address, or that there is none of that type.
    Allowed,
    /// No rule can match the name.
    Denied,
    /// The sandbox has asked for too many names that only a wildcard matches.
    OverBudget,
    /// The name would be allowed, but not with this record type.
    TypeDenied,
}

/// Names that look like data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameAlarm {
    /// The registrable domain that they are below.
    pub domain: String,
    /// How many names.
    pub names: u64,
    /// What they hold beside the domain, in bytes.
    pub bytes: usize,
}

/// What a guest is told of a name that no rule can match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeniedNames {
    /// That it does not exist: programs fail at once and do not try again.
    #[default]
    NxDomain,
    /// That the server refuses: honest, but many programs ask again, or call it a passing failure.
    Refused,
}

/// Where a guest wants to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowDestination {
    /// The address in the guest's packet. Meaningless for dialling if `name` is set.
    pub ip: IpAddr,
    /// The TCP port.
    pub port: u16,
    /// The name whose synthetic address `ip` is, or `outgate.internal` for the gateway's own.
    pub name: Option<Host>,
}

impl fmt::Display for FlowDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}:{}", self.port),
            None => write!(f, "{}:{}", self.ip, self.port),
        }
    }
}

/// The answer to a SYN.
pub enum Opening {
    /// Complete the handshake, then hand over the stream. The call must not block: spawn.
    Accept(Box<dyn FnOnce(FlowStream) + Send>),
    /// Answer with a reset.
    Refuse,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept(_) => "Accept",
            Self::Refuse => "Refuse",
        })
    }
}

/// The answer to a first datagram.
pub enum DatagramOpening {
    /// Hand over the flow. The call must not block: spawn.
    Accept(Box<dyn FnOnce(DatagramFlow) + Send>),
    /// Drop what came; the next datagram asks again.
    Refuse,
}

impl fmt::Debug for DatagramOpening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept(_) => "Accept",
            Self::Refuse => "Refuse",
        })
    }
}

/// What differs between the links of two sandboxes.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Largest IP packet in either direction, in bytes: [`MIN_MTU`] to [`MTU`].
    pub mtu: u16,
    /// Decides which synthetic address a name gets. Give the same key to a sandbox's next stack and
    /// the addresses that its guest remembers stay those of the same names.
    pub name_key: NameKey,
    /// What the guest is told of names that no rule can match.
    pub denied_names: DeniedNames,
}

impl Default for LinkConfig {
    /// The largest MTU, a key of its own.
    fn default() -> Self {
        Self {
            mtu: MTU,
            name_key: NameKey::default(),
            denied_names: DeniedNames::default(),
        }
    }
}

/// Largest Ethernet frame of a link, in bytes.
const fn max_frame(mtu: u16) -> usize {
    mtu as usize + ETHERNET_HEADER
}

/// Locks a mutex whose holders never leave it half-changed: a panic elsewhere must not take the
/// sandbox's other flows with it.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Random bytes for keys and sequence numbers.
fn fill_random(bytes: &mut [u8]) {
    // The operating system's generator fails only before it is seeded, long before a gateway runs.
    // A predictable value here is of use to nobody but the sandbox itself.
    if aws_lc_rs::rand::fill(bytes).is_err() {
        tracing::error!("no randomness for a link's keys");
    }
}

#[cfg(test)]
mod tests;
