//! Finding the few rules that can match a destination without looking at the others.
//!
//! A lookup by name costs one hash per label of the name, however many rules there are. The index
//! only narrows: [`crate::rule::Rule`] alone says what matches.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::host_pattern::HostPattern;
use crate::rule::Rule;
use crate::{Destination, Host};

/// Positions in the list of rules.
type Positions = Vec<usize>;

/// Rules by destination.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    exact: HashMap<Host, Positions>,
    /// By the name after `*.`.
    below: HashMap<Host, Positions>,
    /// Networks by prefix length and network address: one lookup per length in use.
    networks: HashMap<IpNet, Positions>,
    lengths: Vec<(bool, u8)>,
    any: Positions,
}

impl Index {
    /// Indexes rules by their place in `rules`.
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (position, rule) in rules.iter().enumerate() {
            for pattern in &rule.hosts {
                match pattern {
                    HostPattern::Any => index.any.push(position),
                    HostPattern::Exact(host) => {
                        index.exact.entry(host.clone()).or_default().push(position)
                    }
                    HostPattern::Below(apex) => {
                        index.below.entry(apex.clone()).or_default().push(position)
                    }
                }
            }
            for network in &rule.ips {
                index
                    .networks
                    .entry(network.trunc())
                    .or_default()
                    .push(position);
                let length = (network.addr().is_ipv4(), network.prefix_len());
                if !index.lengths.contains(&length) {
                    index.lengths.push(length);
                }
            }
        }
        index
    }

    /// The rules for everything.
    pub(crate) fn any(&self) -> impl Iterator<Item = usize> {
        self.any.iter().copied()
    }

    /// Calls `visit` with every rule that can match the destination; some may come twice, and the
    /// order is not that of the file.
    pub(crate) fn visit(&self, destination: &Destination, mut visit: impl FnMut(usize)) {
        let mut each = |positions: Option<&Positions>| {
            positions
                .into_iter()
                .flatten()
                .copied()
                .for_each(&mut visit);
        };
        each(Some(&self.any));
        match destination {
            Destination::Name(name) => {
                each(self.exact.get(name));
                let mut rest = name.as_str();
                while let Some((_, parent)) = rest.split_once('.') {
                    each(self.below.get(parent));
                    rest = parent;
                }
            }
            Destination::Ip(address) => {
                for (is_v4, length) in &self.lengths {
                    if address.is_ipv4() == *is_v4 {
                        each(
                            network(*address, *length)
                                .and_then(|network| self.networks.get(&network)),
                        );
                    }
                }
            }
        }
    }
}

fn network(address: IpAddr, length: u8) -> Option<IpNet> {
    IpNet::new(address, length)
        .ok()
        .map(|network| network.trunc())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{Destination, Policy, Source};

    fn load(rules: &str) -> Policy {
        Policy::load(&[Source::new(
            "p.yaml",
            format!("version: 1\nrules:\n{rules}"),
        )])
        .unwrap()
    }

    fn entry() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "hosts: [a.test]",
            "hosts: [\"*.test\"]",
            "hosts: [\"*.a.test\", b.test]",
            "hosts: [any]",
            "hosts: [x.a.test, test]",
            "ips: [10.0.0.0/8]",
            "ips: [10.1.0.0/16, 1.1.1.1]",
            "ips: [\"2606:4700::/32\"]",
            "ips: [0.0.0.0/0, \"::/0\"]",
            "hosts: [b.test], ips: [1.1.1.1]",
        ])
    }

    proptest! {
        #[test]
        fn finds_exactly_the_rules_that_match(entries in prop::collection::vec(entry(), 0..8)) {
            let rules: String = entries.iter().enumerate()
                .map(|(at, to)| format!("  - {{ id: r{at}, action: allow, to: {{ {to} }} }}\n")).collect();
            let text = if rules.is_empty() { "  []\n".to_owned() } else { rules };
            let policy = load(&text);
            let layer = policy.layers.first().unwrap();
            for destination in ["a.test", "x.a.test", "y.x.a.test", "b.test", "test", "atest", "10.1.2.3", "10.2.0.1", "1.1.1.1", "[2606:4700::1]", "[2a00::1]"] {
                let destination = Destination::parse(destination).unwrap();
                let mut found = std::collections::BTreeSet::new();
                layer.index.visit(&destination, |position| { found.insert(position); });
                let slow = layer.rules.iter().enumerate().filter(|(_, rule)| rule.has_destination(&destination));
                prop_assert_eq!(found, slow.map(|(position, _)| position).collect(), "{}", destination);
            }
        }
    }
}
