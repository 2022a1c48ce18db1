//! Which IP addresses a sandbox may be let to: the one table for rules and for every dial.
//!
//! A resolver's answer is attacker-controlled input. Everything that isn't plainly a public unicast
//! address is closed unless a rule says `private: true`, and a metadata service is closed always.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is, as far as letting a sandbox reach it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// Public unicast.
    Public,
    /// Loopback, private, shared, link-local, unique local, multicast, benchmark, documentation,
    /// reserved, or an IPv6 form that embeds an IPv4 address (mapped, compatible, NAT64, 6to4,
    /// Teredo): only where the rule says `private: true`.
    Private,
    /// A cloud metadata service, also when embedded: never.
    Metadata,
}

impl AddressClass {
    /// Classifies an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Private => "private",
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

fn of_v4(address: Ipv4Addr) -> AddressClass {
    if METADATA_V4.contains(&address) {
        return AddressClass::Metadata;
    }
    // IANA's special-purpose registry (RFC 6890), multicast (RFC 5771) and class E (RFC 1112).
    let special = matches!(
        address.octets(),
        [0 | 10 | 127 | 224..=255, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 168, ..]
            | [192, 0, 0 | 2, _]
            | [192, 31, 196, _]
            | [192, 52, 193, _]
            | [192, 88, 99, _]
            | [192, 175, 48, _]
            | [198, 18..=19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    );
    if special {
        AddressClass::Private
    } else {
        AddressClass::Public
    }
}

fn of_v6(address: Ipv6Addr) -> AddressClass {
    if METADATA_V6.contains(&address) {
        return AddressClass::Metadata;
    }
    let embedded = embedded_v4(address);
    if embedded
        .iter()
        .any(|inner| of_v4(*inner) == AddressClass::Metadata)
    {
        return AddressClass::Metadata;
    }
    if !embedded.is_empty() {
        return AddressClass::Private;
    }
    // Public unicast is 2000::/3 (RFC 4291) without what IANA set aside within it.
    let [first, second, ..] = address.segments();
    let global = first & 0xe000 == 0x2000;
    let set_aside = match (first, second) {
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => true,
        (0x2620, 0x4f) => matches!(address.segments(), [_, _, 0x8000, ..]),
        _ => false,
    };
    if global && !set_aside {
        AddressClass::Public
    } else {
        AddressClass::Private
    }
}

/// The IPv4 addresses that a transition form may stand for, in any of its encodings.
fn embedded_v4(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // Local-use NAT64 (RFC 8215): the operator picks the length of the prefix.
        [0x64, 0xff9b, 1, ..] => nat64_readings(address).to_vec(),
        // Mapped (RFC 4291), translated (RFC 2765), compatible; `::` and `::1` count as embedded too.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0, 0, 0, 0, 0, 0, high, low]
        // NAT64 (RFC 6052).
        | [0x64, 0xff9b, _, _, _, _, high, low]
        // ISATAP (RFC 5214), in any prefix.
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low]
        // 6to4 (RFC 3056).
        | [0x2002, high, low, ..] => vec![join(high, low)],
        // Teredo (RFC 4380): a server, and a client whose address is inverted.
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            vec![join(server_high, server_low), join(!high, !low)]
        }
        _ => Vec::new(),
    }
}

/// With a prefix of 48, 56, 64 or 96 bits; octet 8 is skipped by all but the last (RFC 6052, 2.2).
fn nat64_readings(address: Ipv6Addr) -> [Ipv4Addr; 4] {
    let [_, _, _, _, _, _, a, b, _, c, d, e, f, g, h, i] = address.octets();
    [[a, b, c, d], [b, c, d, e], [c, d, e, f], [f, g, h, i]].map(Ipv4Addr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> AddressClass {
        AddressClass::of(text.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00::1",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(class(text), AddressClass::Public, "{text}");
        }
    }

    #[test]
    fn special_addresses_are_private() {
        for text in [
            "0.0.0.0",
            "10.0.2.2",
            "127.0.0.1",
            "100.64.0.1",
            "169.254.1.2",
            "172.16.0.1",
            "192.168.1.1",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "100::1",
            "fec0::1",
            "3fff::1",
            "5f00::1",
            "4000::1",
            // These embed a public address, and are still no way to reach it.
            "::ffff:1.1.1.1",
            "::1.1.1.1",
            "64:ff9b::1.1.1.1",
            "64:ff9b:1::1.1.1.1",
            "2002:101:101::1",
            "2001::1",
        ] {
            assert_eq!(class(text), AddressClass::Private, "{text}");
        }
    }

    /// IANA's IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and what came after), with
    /// multicast, class E and the unique and site local prefixes.
    #[test]
    fn no_block_of_the_special_purpose_registries_is_public() {
        let blocks = [
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::1/128",
            "::/128",
            "::ffff:0:0/96",
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "100::/64",
            "100:0:0:1::/64",
            "2001::/23",
            "2001::/32",
            "2001:1::1/128",
            "2001:1::2/128",
            "2001:1::3/128",
            "2001:2::/48",
            "2001:3::/32",
            "2001:4:112::/48",
            "2001:10::/28",
            "2001:20::/28",
            "2001:30::/28",
            "2001:db8::/32",
            "2002::/16",
            "2620:4f:8000::/48",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
        ];
        for block in blocks {
            let block: ipnet::IpNet = block.parse().unwrap();
            for address in [block.network(), block.broadcast()] {
                assert_ne!(AddressClass::of(address), AddressClass::Public, "{address}");
            }
        }
        // The neighbours of those that lie between public ones.
        for text in [
            "192.0.3.0",
            "192.31.195.255",
            "192.31.197.0",
            "192.88.98.255",
            "192.175.49.0",
            "2001:200::1",
            "2001:db7:ffff::1",
            "2001:db9::1",
            "2003::1",
            "2620:4f:7fff::1",
            "2620:4f:8001::1",
            "3ffe:ffff::1",
        ] {
            assert_eq!(class(text), AddressClass::Public, "{text}");
        }
    }

    #[test]
    fn c02_metadata_is_metadata_in_every_dress() {
        for text in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "::ffff:a9fe:a9fe",
            "::a9fe:a9fe",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001:0:1:2:3:4:5601:5601",
            "::ffff:0:a9fe:a9fe",
            "2606:4700::5efe:a9fe:a9fe",
            "169.254.170.2",
            "100.100.100.200",
            "fd00:ec2::254",
            "fe80::a9fe:a9fe",
            "168.63.129.16",
            "169.254.42.42",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2001:0:a9fe:a9fe::",
            "192.0.0.192",
        ] {
            assert_eq!(class(text), AddressClass::Metadata, "{text}");
        }
    }
}
