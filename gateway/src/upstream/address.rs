//! What kind of place an IP address is.
//!
//! Decides one thing: which [`AddressClass`] an address belongs to. An IPv6 address that carries
//! an IPv4 one (mapped, compatible, NAT64, 6to4, Teredo, SIIT) is judged by what it carries, so
//! `::ffff:169.254.169.254` is the metadata service and nothing else. It refuses to guess: an
//! IPv6 address outside the global unicast block is reserved until it is known to be something.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of place an address is, as far as egress is concerned.
///
/// The order is the order of danger: where an address embeds others, the greatest class counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AddressClass {
    /// Globally reachable unicast.
    Public,
    /// Examples in texts: 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32, 3fff::/20.
    Documentation,
    /// Benchmark networks (RFC 2544, RFC 5180): 198.18.0.0/15, 2001:2::/48. The guest's synthetic
    /// DNS answers live here too.
    Benchmark,
    /// Between a carrier and its customers (RFC 6598): 100.64.0.0/10.
    CarrierNat,
    /// RFC 1918, IPv6 site-local and local-use NAT64.
    Private,
    /// IPv6 unique local (RFC 4193): fc00::/7.
    UniqueLocal,
    /// 169.254.0.0/16 and fe80::/10.
    LinkLocal,
    /// 127.0.0.0/8 and ::1.
    Loopback,
    /// Assigned to nobody, or to a mechanism that has no business in an answer.
    Reserved,
    /// Groups, never a TCP peer: 224.0.0.0/4, ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// "This network": 0.0.0.0/8 and ::. Linux dials the machine itself.
    Unspecified,
    /// An instance metadata or workload credential service of a cloud.
    Metadata,
}

impl AddressClass {
    /// The class of `address`.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => class_of_v4(v4),
            IpAddr::V6(v6) => class_of_v6(v6),
        }
    }

    /// Whether a rule with `private: true` opens this class. The rest stays shut whatever a policy
    /// says: a metadata service is never meant, and nothing else here is the address of a peer.
    pub fn opened_by_private(self) -> bool {
        match self {
            Self::Public
            | Self::Documentation
            | Self::Benchmark
            | Self::CarrierNat
            | Self::Private
            | Self::UniqueLocal
            | Self::LinkLocal
            | Self::Loopback
            | Self::Reserved => true,
            Self::Multicast | Self::Broadcast | Self::Unspecified | Self::Metadata => false,
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Documentation => "documentation",
            Self::Benchmark => "benchmark",
            Self::CarrierNat => "carrier NAT",
            Self::Private => "private",
            Self::UniqueLocal => "unique local",
            Self::LinkLocal => "link-local",
            Self::Loopback => "loopback",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Unspecified => "unspecified",
            Self::Reserved => "reserved",
            Self::Metadata => "cloud metadata",
        })
    }
}

/// Services that hand credentials or machine identity to whoever can connect.
const METADATA_V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(169, 254, 169, 254), // AWS, Azure, Google, Oracle, OpenStack, DigitalOcean …
    Ipv4Addr::new(169, 254, 170, 2),   // AWS ECS task credentials
    Ipv4Addr::new(169, 254, 170, 23),  // AWS EKS pod identity
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(169, 254, 0, 23),    // Tencent Cloud
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba Cloud
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle Cloud, older shapes
    Ipv4Addr::new(168, 63, 129, 16),   // Azure WireServer; a public address by its looks
];

const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // AWS EKS pod identity
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google Cloud
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // OpenStack
];

fn class_of_v4(address: Ipv4Addr) -> AddressClass {
    if METADATA_V4.contains(&address) {
        return AddressClass::Metadata;
    }
    match address.octets() {
        [0, ..] => AddressClass::Unspecified,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressClass::Private,
        [100, 64..=127, ..] => AddressClass::CarrierNat,
        [127, ..] => AddressClass::Loopback,
        [169, 254, ..] => AddressClass::LinkLocal,
        // IETF protocol assignments, and the anycast relays of the retired 6to4.
        [192, 0, 0, _] | [192, 88, 99, _] => AddressClass::Reserved,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressClass::Documentation,
        [198, 18 | 19, ..] => AddressClass::Benchmark,
        [224..=239, ..] => AddressClass::Multicast,
        [255, 255, 255, 255] => AddressClass::Broadcast,
        [240..=255, ..] => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn class_of_v6(address: Ipv6Addr) -> AddressClass {
    if METADATA_V6.contains(&address) {
        return AddressClass::Metadata;
    }
    let carried = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        class_of_v4(Ipv4Addr::new(a, b, c, d))
    };
    // ISATAP (RFC 5214) tunnels to the address in the interface identifier, in any prefix.
    let tunnelled = match address.segments() {
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => carried(high, low),
        _ => AddressClass::Public,
    };
    tunnelled.max(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        // IPv4-mapped (RFC 4291): the kernel dials IPv4.
        [0, 0, 0, 0, 0, 0xffff, high, low] => carried(high, low),
        // IPv4-compatible (retired) and SIIT (RFC 2765): never routed, so reserved at the least.
        [0, 0, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            carried(high, low).max(AddressClass::Reserved)
        }
        // NAT64 (RFC 6052): a translator dials the embedded address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => carried(high, low),
        // Local-use NAT64 (RFC 8215). The operator picks the prefix length, so the IPv4 address
        // may sit at /48, /56, /64 or /96 (RFC 6052 section 2.2): each reading is judged.
        [0x64, 0xff9b, 1, ..] => nat64_local_readings(address)
            .map(class_of_v4)
            .into_iter()
            // No translator dials 0.0.0.0/8: that is how the wrong readings look.
            .filter(|class| *class != AddressClass::Unspecified)
            .fold(AddressClass::Private, AddressClass::max),
        [0x100, 0, 0, 0, ..] => AddressClass::Reserved, // discard-only, RFC 6666
        // Teredo (RFC 4380): a server, and a client whose address is stored inverted.
        [
            0x2001,
            0,
            server_high,
            server_low,
            _,
            _,
            client_high,
            client_low,
        ] => carried(server_high, server_low).max(carried(!client_high, !client_low)),
        [0x2001, 2, 0, ..] => AddressClass::Benchmark,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressClass::Documentation,
        // The rest of 2001::/23 is protocol assignments: ORCHID, drone identifiers, AMT …
        [0x2001, 0..=0x1ff, ..] => AddressClass::Reserved,
        [0x2002, high, low, ..] => carried(high, low), // 6to4, RFC 3056
        [0x2000..=0x3fff, ..] => AddressClass::Public,
        [0xfc00..=0xfdff, ..] => AddressClass::UniqueLocal,
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        [0xfec0..=0xfeff, ..] => AddressClass::Private, // site-local, retired by RFC 3879
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        _ => AddressClass::Reserved,
    })
}

/// The IPv4 addresses that a local-use NAT64 address may stand for. Octet 8 is skipped by every
/// format but /96 (RFC 6052 section 2.2).
fn nat64_local_readings(address: Ipv6Addr) -> [Ipv4Addr; 4] {
    let octets = address.octets();
    [
        [6, 7, 9, 10],
        [7, 9, 10, 11],
        [9, 10, 11, 12],
        [12, 13, 14, 15],
    ]
    .map(|places| Ipv4Addr::from(places.map(|place| octets[place])))
}

#[cfg(test)]
mod tests {
    use super::AddressClass::{self, *};
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn class(text: &str) -> AddressClass {
        AddressClass::of(text.parse().expect(text))
    }

    #[test]
    fn every_block_has_its_class() {
        let table: &[(&str, AddressClass)] = &[
            ("1.1.1.1", Public),
            ("9.255.255.255", Public),
            ("100.63.255.255", Public),
            ("100.128.0.0", Public),
            ("172.15.255.255", Public),
            ("172.32.0.0", Public),
            ("192.0.1.1", Public),
            ("198.17.255.255", Public),
            ("198.20.0.0", Public),
            ("223.255.255.255", Public),
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Unspecified),
            ("10.0.0.0", Private),
            ("10.255.255.255", Private),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.168.0.1", Private),
            ("100.64.0.0", CarrierNat),
            ("100.127.255.255", CarrierNat),
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("169.254.0.1", LinkLocal),
            ("192.0.0.1", Reserved),
            ("192.88.99.1", Reserved),
            ("192.0.2.1", Documentation),
            ("198.51.100.1", Documentation),
            ("203.0.113.1", Documentation),
            ("198.18.0.0", Benchmark),
            ("198.19.255.255", Benchmark),
            ("224.0.0.1", Multicast),
            ("239.255.255.255", Multicast),
            ("240.0.0.1", Reserved),
            ("255.255.255.254", Reserved),
            ("255.255.255.255", Broadcast),
            ("2606:4700::1111", Public),
            ("2001:4860:4860::8888", Public),
            ("::", Unspecified),
            ("::1", Loopback),
            ("::2", Unspecified),
            ("100::1", Reserved),
            ("2001:2::1", Benchmark),
            ("2001:10::1", Reserved),
            ("2001:20::1", Reserved),
            ("2001:db8::1", Documentation),
            ("3fff::1", Documentation),
            ("3fff:1000::1", Public),
            ("4000::1", Reserved),
            ("5f00::1", Reserved),
            ("fc00::1", UniqueLocal),
            ("fdff::1", UniqueLocal),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("fec0::1", Private),
            ("ff02::1", Multicast),
        ];
        for (text, expected) in table {
            assert_eq!(class(text), *expected, "{text}");
        }
    }

    #[test]
    fn c02_metadata_is_metadata_in_every_dress() {
        for text in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "::ffff:a9fe:a9fe",
            "::a9fe:a9fe",
            "::ffff:0:a9fe:a9fe",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::",
            "2001:0:808:808:0:0:5601:5601",
            "::ffff:168.63.129.16",
            "64:ff9b::6464:64c8",
            "2606:4700::5efe:a9fe:a9fe",
            "fe80::200:5efe:a9fe:a9fe",
        ] {
            assert_eq!(class(text), Metadata, "{text}");
            assert!(!class(text).opened_by_private(), "{text}");
        }
    }

    #[test]
    fn translated_addresses_are_judged_by_what_they_carry() {
        assert_eq!(class("::ffff:8.8.8.8"), Public);
        assert_eq!(class("64:ff9b::8.8.8.8"), Public);
        assert_eq!(class("64:ff9b::10.0.0.1"), Private);
        assert_eq!(class("64:ff9b:1::8.8.8.8"), Private);
        assert_eq!(class("2002:808:808::1"), Public);
        assert_eq!(class("2002:7f00:1::1"), Loopback);
        assert_eq!(class("::8.8.8.8"), Reserved);
    }

    proptest! {
        #[test]
        fn a_mapped_address_has_the_class_of_its_v4(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let direct = AddressClass::of(IpAddr::V4(v4));
            prop_assert_eq!(AddressClass::of(IpAddr::V6(v4.to_ipv6_mapped())), direct);
        }

        #[test]
        fn what_the_policy_calls_metadata_is_metadata_here(high: u64, place in 0..3usize) {
            let embedded = [0xa9fe_a9fe_u64, 0xffff_a9fe_a9fe, 0x5efe_a9fe_a9fe][place];
            let v6 = IpAddr::V6(Ipv6Addr::from(u128::from(high) << 64 | u128::from(embedded)));
            if outgate_policy::AddressClass::of(v6) == outgate_policy::AddressClass::Metadata {
                prop_assert_eq!(AddressClass::of(v6), Metadata);
            }
        }

        #[test]
        fn outside_global_unicast_only_nat64_and_mapped_are_public(bits: u128) {
            let v6 = Ipv6Addr::from(bits);
            let global = (0x2000..=0x3fff).contains(&v6.segments()[0]);
            let translated = v6.to_ipv4_mapped().is_some() || v6.segments()[..2] == [0x64, 0xff9b];
            if !global && !translated {
                prop_assert_ne!(AddressClass::of(IpAddr::V6(v6)), Public);
            }
        }
    }
}
