//! Hosts and networks of one rule, looked up instead of asked one by one: a rule may name a million.

use std::collections::HashSet;

use ipnet::IpNet;

use crate::host_pattern::HostPattern;
use crate::{Destination, Host};

/// What a rule's `to:` stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct DestinationSet {
    any: bool,
    exact: HashSet<Host>,
    /// By the name after `*.`.
    below: HashSet<Host>,
    networks: HashSet<IpNet>,
    /// Of the networks: one lookup per prefix length in use.
    lengths: Vec<(bool, u8)>,
}

impl DestinationSet {
    pub(crate) fn new(hosts: &[HostPattern], ips: &[IpNet]) -> Self {
        let mut set = Self::default();
        for pattern in hosts {
            match pattern {
                HostPattern::Any => set.any = true,
                HostPattern::Exact(host) => {
                    set.exact.insert(host.clone());
                }
                HostPattern::Below(apex) => {
                    set.below.insert(apex.clone());
                }
            }
        }
        for network in ips {
            set.networks.insert(network.trunc());
            let length = (network.addr().is_ipv4(), network.prefix_len());
            if !set.lengths.contains(&length) {
                set.lengths.push(length);
            }
        }
        set
    }

    pub(crate) fn contains(&self, destination: &Destination) -> bool {
        match destination {
            Destination::Name(name) => self.any || self.contains_name(name),
            Destination::Ip(address) => self.covers_network(&IpNet::from(*address)),
        }
    }

    fn contains_name(&self, name: &Host) -> bool {
        let parent = name.as_str().split_once('.').map(|(_, parent)| parent);
        self.exact.contains(name) || parent.is_some_and(|parent| self.is_below(parent))
    }

    /// Whether `name` or one of its parents is an apex.
    fn is_below(&self, name: &str) -> bool {
        let mut parents = std::iter::successors(Some(name), |name| {
            let (_, parent) = name.split_once('.')?;
            Some(parent)
        });
        parents.any(|name| self.below.contains(name))
    }

    /// Whether every name of the pattern is matched.
    pub(crate) fn covers_host(&self, host: &HostPattern) -> bool {
        self.any
            || match host {
                HostPattern::Any => false,
                HostPattern::Exact(host) => self.contains_name(host),
                HostPattern::Below(apex) => self.is_below(apex.as_str()),
            }
    }

    /// Whether every address of the network is matched.
    pub(crate) fn covers_network(&self, network: &IpNet) -> bool {
        let wide = |(is_v4, length): &(bool, u8)| {
            let fits = network.addr().is_ipv4() == *is_v4 && *length <= network.prefix_len();
            let wide = fits
                .then(|| IpNet::new(network.addr(), *length).ok())
                .flatten();
            wide.is_some_and(|wide| self.networks.contains(&wide.trunc()))
        };
        self.any || self.lengths.iter().any(wide)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn answers_as_asking_each(
            hosts in prop::collection::vec(prop::sample::select(vec!["any", "a.test", "*.a.test", "*.test", "x.a.test", "test"]), 0..4),
            ips in prop::collection::vec(prop::sample::select(vec!["10.0.0.0/8", "10.1.0.0/16", "1.1.1.1/32", "2606:4700::/32", "::/0"]), 0..3),
        ) {
            let hosts: Vec<HostPattern> = hosts.iter().map(|text| HostPattern::parse(text).unwrap()).collect();
            let ips: Vec<IpNet> = ips.iter().map(|text| text.parse().unwrap()).collect();
            let set = DestinationSet::new(&hosts, &ips);
            let any = hosts.contains(&HostPattern::Any);
            for name in ["a.test", "x.a.test", "y.x.a.test", "b.test", "test", "atest"] {
                let name = Host::parse(name).unwrap();
                let slow = hosts.iter().any(|pattern| pattern.matches(&name));
                prop_assert_eq!(set.contains(&Destination::Name(name)), slow);
            }
            for pattern in ["any", "a.test", "*.a.test", "*.test", "x.a.test", "*.b.test", "*.x.a.test"] {
                let pattern = HostPattern::parse(pattern).unwrap();
                let slow = hosts.iter().any(|wide| wide.covers(&pattern));
                prop_assert_eq!(set.covers_host(&pattern), slow, "{}", pattern);
            }
            for network in ["10.0.0.0/8", "10.0.0.0/7", "10.1.2.0/24", "1.1.1.1/32", "2606:4700::/48", "::/0"] {
                let network: IpNet = network.parse().unwrap();
                let slow = any || ips.iter().any(|wide| wide.contains(&network));
                prop_assert_eq!(set.covers_network(&network), slow, "{}", network);
            }
        }
    }
}
