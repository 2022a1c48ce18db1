//! Counts what the stack throws away and reports it without letting a flood become a log flood.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::FlowHandler;

/// Shortest time between two reports of one kind.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

macro_rules! dropped {
    ($($(#[doc = $doc:literal])+ $variant:ident = $code:literal,)+) => {
        /// Why a frame or a connection attempt got no answer, or only a reset.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dropped { $($(#[doc = $doc])+ $variant,)+ }

        impl Dropped {
            /// Every kind, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// A stable code for logs and metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }
        }
    };
}

dropped! {
    /// The frame's source is not the guest's MAC address.
    SpoofedMac = "spoofed_mac",
    /// The packet's source is not the guest's IP address.
    SpoofedAddress = "spoofed_address",
    /// An ARP request for somebody other than the gateway.
    Arp = "arp",
    /// An IPv6 packet.
    Ipv6 = "ipv6",
    /// Neither IPv4, IPv6 nor ARP.
    EtherType = "ether_type",
    /// A frame, packet or message that breaks its format.
    Malformed = "malformed",
    /// A frame beyond the link's MTU.
    Oversize = "oversize",
    /// An IPv4 packet with options, such as source routing.
    IpOptions = "ip_options",
    /// A fragment. The MTU leaves no honest packet a reason to be cut, so none is reassembled.
    Fragment = "fragment",
    /// A destination that is no single other host: multicast, broadcast, loopback, the guest.
    Destination = "destination",
    /// ICMP other than an echo request to the gateway.
    Icmp = "icmp",
    /// UDP to port 443 without a `protocol: udp` rule for it.
    Quic = "quic",
    /// UDP to port 53 or 853 of anybody but the gateway.
    ForeignDns = "foreign_dns",
    /// Any other UDP without such a rule.
    Udp = "udp",
    /// An IP protocol other than TCP, UDP and ICMP.
    IpProtocol = "ip_protocol",
    /// A datagram above the rate limit, or that a slow relay has no room for.
    DatagramRate = "datagram_rate",
    /// A datagram that would open a flow while the sandbox has all that it may have.
    DatagramFlows = "datagram_flows",
    /// A datagram for the guest that does not fit the link's MTU.
    DatagramSize = "datagram_size",
    /// A SYN while too many connections wait for their decision or their handshake, or come too
    /// fast.
    SynBacklog = "syn_backlog",
    /// A SYN while the sandbox has all the flows that it may have.
    FlowLimit = "flow_limit",
    /// A connection to a synthetic address that belongs to no name; reset.
    UnknownName = "unknown_name",
    /// A connection to a gateway port other than 53 and 80; reset.
    GatewayPort = "gateway_port",
    /// A DNS question above the rate limit.
    DnsRate = "dns_rate",
    /// A DNS message that is no question; answered with a format error.
    DnsMalformed = "dns_malformed",
    /// A DNS connection while the sandbox has all that it may have; reset.
    DnsConnections = "dns_connections",
    /// An answer that found no room because the guest does not read its link.
    Unread = "unread",
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Counters of one link. The first drop of a kind is reported at once, the next after
/// [`REPORT_INTERVAL`] and with the count since.
#[derive(Debug)]
pub(super) struct DropCounters {
    kinds: [Counter; Dropped::ALL.len()],
    unreported: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    count: u64,
    quiet_until: Option<Instant>,
}

impl DropCounters {
    pub(super) fn new() -> Self {
        Self {
            kinds: [Counter::default(); Dropped::ALL.len()],
            unreported: false,
        }
    }

    pub(super) fn add(&mut self, what: Dropped) {
        self.add_many(what, 1);
    }

    pub(super) fn add_many(&mut self, what: Dropped, count: u64) {
        if count > 0 {
            self.kinds[what as usize].count += count;
            self.unreported = true;
        }
    }

    /// Reports what is due and returns when the rest will be.
    pub(super) fn report(&mut self, now: Instant, handler: &dyn FlowHandler) -> Option<Instant> {
        if !self.unreported {
            return None;
        }
        let mut next: Option<Instant> = None;
        for (counter, what) in self.kinds.iter_mut().zip(Dropped::ALL) {
            if counter.count == 0 {
                continue;
            }
            match counter.quiet_until {
                Some(until) if now < until => {
                    next = Some(next.map_or(until, |earliest| earliest.min(until)));
                }
                _ => {
                    handler.dropped(*what, std::mem::take(&mut counter.count));
                    counter.quiet_until = Some(now + REPORT_INTERVAL);
                }
            }
        }
        self.unreported = next.is_some();
        next
    }

    /// Reports everything; the link is going away.
    pub(super) fn finish(&mut self, handler: &dyn FlowHandler) {
        for (counter, what) in self.kinds.iter_mut().zip(Dropped::ALL) {
            if counter.count > 0 {
                handler.dropped(*what, std::mem::take(&mut counter.count));
            }
        }
    }
}
