//! Runs of addresses, and one of a class in each: the class decides whether a rule needs
//! `private: true`, and where it changes is not where networks of a policy end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use ipnet::IpNet;

use crate::AddressClass;

/// All addresses from one to another of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    is_v4: bool,
    first: u128,
    last: u128,
}

/// An address of a class in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    At(IpAddr),
    Nowhere,
    /// Metadata services in transition forms lie too scattered to be sure.
    Unknown,
}

impl Run {
    /// Cuts all addresses where one of the networks begins or ends.
    pub(super) fn between(networks: &[IpNet]) -> Vec<Self> {
        let mut runs = Vec::new();
        for is_v4 in [true, false] {
            let end = if is_v4 {
                u128::from(u32::MAX)
            } else {
                u128::MAX
            };
            let mut starts = vec![0];
            for network in networks {
                if network.addr().is_ipv4() == is_v4 {
                    starts.push(number(network.network()));
                    starts.extend(number(network.broadcast()).checked_add(1));
                }
            }
            starts.retain(|start| *start <= end);
            starts.sort_unstable();
            starts.dedup();
            let ends = starts.iter().skip(1).map(|next| next - 1);
            let ends: Vec<u128> = ends.chain([end]).collect();
            runs.extend(starts.iter().zip(ends).map(|(first, last)| Self {
                is_v4,
                first: *first,
                last,
            }));
        }
        runs
    }

    pub(super) fn first(self) -> IpAddr {
        address(self.is_v4, self.first)
    }

    /// This run and the next one as one.
    pub(super) fn joined(self, next: Self) -> Option<Self> {
        let touches = self.is_v4 == next.is_v4 && self.last.checked_add(1) == Some(next.first);
        touches.then_some(Self {
            last: next.last,
            ..self
        })
    }

    /// An address of this class, if there is one.
    pub(super) fn find(self, class: AddressClass) -> Found {
        let mut candidates = vec![self.first, self.last];
        // A metadata service may lie at either end.
        candidates.extend(self.first.checked_add(1));
        candidates.extend(self.last.checked_sub(1));
        let all = borders(self.is_v4);
        let from = all.partition_point(|border| *border < self.first);
        candidates.extend(
            all.iter()
                .skip(from)
                .take_while(|border| **border <= self.last),
        );
        if !self.is_v4 {
            let starts = candidates.clone();
            candidates.extend(starts.into_iter().flat_map(isatap));
        }
        let is_one = |candidate: &u128| {
            let address = address(self.is_v4, *candidate);
            (self.first..=self.last).contains(candidate)
                && AddressClass::of(address) == class
                // An IPv4 address in an IPv6 dress is that IPv4 address.
                && address.to_canonical() == address
        };
        match candidates.into_iter().find(is_one) {
            Some(found) => Found::At(address(self.is_v4, found)),
            None if !self.is_v4 && AddressClass::of(self.first()) == AddressClass::Metadata => {
                Found::Unknown
            }
            None => Found::Nowhere,
        }
    }
}

/// As networks where it is one, else from first to last.
impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bits = if self.is_v4 { 32 } else { 128 };
        let first = self.first();
        for length in 0..=bits {
            let network = IpNet::new(first, length).ok();
            let Some(network) = network.filter(|network| network.network() == first) else {
                continue;
            };
            if number(network.broadcast()) == self.last {
                return if length == bits {
                    first.fmt(f)
                } else {
                    network.fmt(f)
                };
            }
        }
        write!(f, "{first} to {}", address(self.is_v4, self.last))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn address(is_v4: bool, number: u128) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if is_v4 => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

/// Any /64 has ISATAP addresses, which embed an IPv4 address: where they begin and where they are
/// over, in the /64 of this address and in the next.
fn isatap(address: u128) -> Vec<u128> {
    let network = address >> 64 << 64;
    let networks = [Some(network), network.checked_add(1 << 64)];
    let starts = networks.into_iter().flatten().flat_map(|network| {
        let interface = 0x5efe_u128 << 32;
        [network | interface, network | 0x200 << 48 | interface]
    });
    starts
        .flat_map(|start| [Some(start), start.checked_add(1 << 32)])
        .flatten()
        .collect()
}

/// Where the class of an address can change, ISATAP and single addresses in transition forms apart.
fn borders(is_v4: bool) -> &'static [u128] {
    static V4: OnceLock<Vec<u128>> = OnceLock::new();
    static V6: OnceLock<Vec<u128>> = OnceLock::new();
    let (cell, networks) = if is_v4 {
        (&V4, &V4_NETWORKS[..])
    } else {
        (&V6, &V6_NETWORKS[..])
    };
    cell.get_or_init(|| {
        let networks = networks
            .iter()
            .filter_map(|text| text.parse::<IpNet>().ok());
        let mut borders: Vec<u128> = networks
            .flat_map(|network| {
                let behind = number(network.broadcast()).checked_add(1);
                std::iter::once(number(network.network())).chain(behind)
            })
            .collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    })
}

const V4_NETWORKS: [&str; 25] = [
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
    "224.0.0.0/3",
    "169.254.169.254/32",
    "169.254.170.2/32",
    "169.254.170.23/32",
    "169.254.42.42/32",
    "169.254.0.23/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "168.63.129.16/32",
];

const V6_NETWORKS: [&str; 14] = [
    "2000::/3",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "::ffff:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "fd00:ec2::254/128",
    "fd00:ec2::23/128",
    "fd20:ce::254/128",
    "fd00:42::42/128",
    "fe80::a9fe:a9fe/128",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the table says of an address: the class at the last border before it.
    fn by_table(address: IpAddr) -> AddressClass {
        let borders = borders(address.is_ipv4());
        let at = borders.partition_point(|border| *border <= number(address));
        let border = at.checked_sub(1).map_or(0, |at| borders[at]);
        AddressClass::of(super::address(address.is_ipv4(), border))
    }

    #[test]
    fn between_its_borders_the_class_of_ipv4_never_changes() {
        for block in 0..=0x00ff_ffff_u32 {
            let address = Ipv4Addr::from(block << 8 | 1).into();
            assert_eq!(AddressClass::of(address), by_table(address), "{address}");
        }
        for block in [
            "169.254.0.0/16",
            "192.0.0.0/24",
            "168.63.129.0/24",
            "100.100.100.0/24",
        ] {
            for address in block.parse::<ipnet::Ipv4Net>().unwrap().hosts() {
                assert_eq!(AddressClass::of(address.into()), by_table(address.into()));
            }
        }
    }

    fn v6() -> impl Strategy<Value = Ipv6Addr> {
        let word = prop::sample::select(vec![
            0, 1, 0x64, 0xff9b, 0x2001, 0x2002, 0x2620, 0x4f, 0x8000, 0xdb8, 0x1ff, 0x200, 0x5efe,
            0x3fff, 0xfff, 0x1000, 0xa9fe, 0xfd00, 0x4000, 0xffff, 0x2a00,
        ]);
        let wild = prop_oneof![word, any::<u16>()];
        prop::array::uniform8(wild).prop_map(Ipv6Addr::from)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8192))]

        #[test]
        fn between_its_borders_ipv6_is_public_or_closed_but_for_isatap(address in v6()) {
            let address = IpAddr::V6(address);
            let is_public = |class| class == AddressClass::Public;
            let is_isatap = matches!(number(address) >> 32 & 0xfdff_ffff, 0x5efe);
            if !is_isatap {
                prop_assert_eq!(is_public(AddressClass::of(address)), is_public(by_table(address)), "{}", address);
            }
        }

        #[test]
        fn an_address_of_the_class_is_found_where_there_is_one(address in v6(), length in 0_u8..=128) {
            let network = IpNet::new(address.into(), length).unwrap();
            let run = Run { is_v4: false, first: number(network.network()), last: number(network.broadcast()) };
            let class = AddressClass::of(address.into());
            if IpAddr::V6(address).to_canonical() == address {
                match run.find(class) {
                    Found::At(found) => {
                        prop_assert!(network.contains(&found));
                        prop_assert_eq!(AddressClass::of(found), class);
                    }
                    Found::Nowhere => prop_assert_eq!(class, AddressClass::Metadata, "{} in {}", address, network),
                    Found::Unknown => {}
                }
            }
        }
    }

    #[test]
    fn runs_are_cut_at_networks() {
        let networks: Vec<IpNet> = ["10.0.0.0/8", "10.1.0.0/16", "2600::/16"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let shown: Vec<String> = Run::between(&networks)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "0.0.0.0 to 9.255.255.255",
            "10.0.0.0/16",
            "10.1.0.0/16",
            "10.2.0.0 to 10.255.255.255",
            "11.0.0.0 to 255.255.255.255",
            ":: to 25ff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2600::/16",
            "2601:: to ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ];
        assert_eq!(shown, expected);
        let all: Vec<String> = Run::between(&[]).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["0.0.0.0/0", "::/0"]);
    }
}
