//! Finding the few rules that can match a request without looking at the others.
//!
//! By name that costs one lookup per label of the name, then one per segment of the path, however
//! many rules there are. The index only narrows: [`crate::rule::Rule`] alone says what matches.

mod bucket;
mod paths;

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

pub(crate) use self::bucket::Bucket;
use crate::host_pattern::HostPattern;
use crate::rule::Rule;
use crate::{CanonicalRequest, Destination, Host};

/// Rules by destination.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    exact: HashMap<Host, Bucket>,
    /// By the name after `*.`.
    below: HashMap<Host, Bucket>,
    /// Networks by prefix length and network address: one lookup per length in use.
    networks: HashMap<IpNet, Bucket>,
    lengths: Vec<(bool, u8)>,
    any: Bucket,
}

impl Index {
    /// Indexes rules by their place in `rules`.
    pub(crate) fn new(rules: &[Rule]) -> Self {
        Self::of(rules, 0..rules.len())
    }

    /// Indexes some of the rules by their place among all.
    pub(crate) fn of(rules: &[Rule], chosen: impl IntoIterator<Item = usize>) -> Self {
        let mut places: Places = Places::default();
        let mut index = Self::default();
        for position in chosen {
            if let Some(rule) = rules.get(position) {
                places.add(position, rule);
            }
        }
        let bucket = |positions: Vec<usize>| Bucket::new(rules, positions);
        let by_host = |map: HashMap<Host, Vec<usize>>| {
            map.into_iter()
                .map(|(host, positions)| (host, bucket(positions)))
                .collect()
        };
        for network in places.networks.keys() {
            let length = (network.addr().is_ipv4(), network.prefix_len());
            if !index.lengths.contains(&length) {
                index.lengths.push(length);
            }
        }
        index.exact = by_host(places.exact);
        index.below = by_host(places.below);
        let networks = places.networks.into_iter();
        index.networks = networks
            .map(|(network, positions)| (network, bucket(positions)))
            .collect();
        index.any = bucket(places.any);
        index
    }

    /// Calls `visit` with every rule that can match the request; some may come twice, and the order
    /// is not that of the file.
    pub(crate) fn visit(&self, request: &CanonicalRequest, mut visit: impl FnMut(usize)) {
        self.buckets(request.destination(), |bucket| {
            bucket.visit(request, &mut visit);
        });
    }

    /// Calls `visit` with every rule that can match the destination, as [`Self::visit`] does.
    pub(crate) fn visit_all(&self, destination: &Destination, mut visit: impl FnMut(usize)) {
        self.buckets(destination, |bucket| {
            bucket.all().for_each(&mut visit);
        });
    }

    /// As [`Self::visit_all`], and stops after `most` rules of each group.
    pub(crate) fn visit_some(
        &self,
        destination: &Destination,
        most: usize,
        mut visit: impl FnMut(usize),
    ) {
        self.buckets(destination, |bucket| {
            bucket.all().take(most).for_each(&mut visit);
        });
    }

    /// Calls `visit` with every rule that matches all names below `apex`.
    pub(crate) fn visit_below(&self, apex: &Host, mut visit: impl FnMut(usize)) {
        self.any().for_each(&mut visit);
        let mut rest = Some(apex.as_str());
        while let Some(name) = rest {
            let bucket = self.below.get(name);
            bucket
                .into_iter()
                .flat_map(Bucket::all)
                .for_each(&mut visit);
            rest = name.split_once('.').map(|(_, parent)| parent);
        }
    }

    /// Calls `visit` with every rule that matches all addresses of `network`.
    pub(crate) fn visit_around(&self, network: &IpNet, mut visit: impl FnMut(usize)) {
        self.any().for_each(&mut visit);
        for (is_v4, length) in &self.lengths {
            if network.addr().is_ipv4() == *is_v4 && *length <= network.prefix_len() {
                let wide = self::network(network.addr(), *length);
                let bucket = wide.and_then(|wide| self.networks.get(&wide));
                bucket
                    .into_iter()
                    .flat_map(Bucket::all)
                    .for_each(&mut visit);
            }
        }
    }

    /// The rules for everything.
    pub(crate) fn any(&self) -> impl Iterator<Item = usize> {
        self.any.all()
    }

    /// The rules that name a host in full.
    pub(crate) fn exact(&self, name: &Host) -> Option<&Bucket> {
        self.exact.get(name)
    }

    /// The groups of rules that speak of the destination.
    pub(crate) fn buckets<'a>(
        &'a self,
        destination: &Destination,
        mut each: impl FnMut(&'a Bucket),
    ) {
        each(&self.any);
        match destination {
            Destination::Name(name) => {
                self.exact.get(name).into_iter().for_each(&mut each);
                let mut rest = name.as_str();
                while let Some((_, parent)) = rest.split_once('.') {
                    self.below.get(parent).into_iter().for_each(&mut each);
                    rest = parent;
                }
            }
            Destination::Ip(address) => {
                for (is_v4, length) in &self.lengths {
                    if address.is_ipv4() == *is_v4
                        && let Some(network) = network(*address, *length)
                    {
                        self.networks.get(&network).into_iter().for_each(&mut each);
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

/// Positions by destination, while the index is made.
#[derive(Default)]
struct Places {
    exact: HashMap<Host, Vec<usize>>,
    below: HashMap<Host, Vec<usize>>,
    networks: HashMap<IpNet, Vec<usize>>,
    any: Vec<usize>,
}

impl Places {
    fn add(&mut self, position: usize, rule: &Rule) {
        for pattern in &rule.hosts {
            match pattern {
                HostPattern::Any => self.any.push(position),
                HostPattern::Exact(host) => {
                    self.exact.entry(host.clone()).or_default().push(position);
                }
                HostPattern::Below(apex) => {
                    self.below.entry(apex.clone()).or_default().push(position);
                }
            }
        }
        for network in &rule.ips {
            let network = network.trunc();
            self.networks.entry(network).or_default().push(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use proptest::prelude::*;

    use crate::host_pattern::HostPattern;
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
                layer.index.visit_all(&destination, |position| { found.insert(position); });
                let slow = layer.rules.iter().enumerate().filter(|(_, rule)| rule.has_destination(&destination));
                prop_assert_eq!(found, slow.map(|(position, _)| position).collect(), "{}", destination);
            }
        }
    }

    proptest! {
        #[test]
        fn finds_exactly_the_rules_that_match_all_of_a_pattern(entries in prop::collection::vec(entry(), 1..8)) {
            let rules: String = entries.iter().enumerate()
                .map(|(at, to)| format!("  - {{ id: r{at}, action: allow, to: {{ {to} }} }}\n")).collect();
            let policy = load(&rules);
            let layer = policy.layers.first().unwrap();
            for name in ["test", "a.test", "x.a.test", "b.test", "other"] {
                let below = HostPattern::parse(&format!("*.{name}")).unwrap();
                let mut found = std::collections::BTreeSet::new();
                layer.index.visit_below(below.host().unwrap(), |position| { found.insert(position); });
                let slow = layer.rules.iter().enumerate().filter(|(_, rule)| rule.covers_host(&below));
                prop_assert_eq!(found, slow.map(|(position, _)| position).collect(), "{}", below);
            }
            for network in ["10.0.0.0/8", "10.0.0.0/7", "10.1.2.0/24", "1.1.1.1/32", "2606:4700::/48", "::/0"] {
                let network: IpNet = network.parse().unwrap();
                let mut found = std::collections::BTreeSet::new();
                layer.index.visit_around(&network, |position| { found.insert(position); });
                let slow = layer.rules.iter().enumerate().filter(|(_, rule)| rule.covers_network(&network));
                prop_assert_eq!(found, slow.map(|(position, _)| position).collect(), "{}", network);
            }
        }
    }

    fn pattern() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "/",
            "/**",
            "/a",
            "/a/**",
            "/a/*",
            "/*/b",
            "/**/b",
            "/a/{b,c}",
            "/{a,b/c}/d",
            "/a{,/**}",
            "/a/b/c",
            "/*",
            "/a/*/c",
            "/**/b/*",
            "/a/**/c",
            "/x?",
            "/a/",
            "/*/",
            "/**/c.js",
        ])
    }

    proptest! {
        #[test]
        fn by_path_it_finds_exactly_the_rules_that_match(
            rules in prop::collection::vec((pattern(), pattern(), any::<bool>(), any::<bool>()), 0..40),
            paths in prop::collection::vec("(/(a|b|c|d|x1|c\\.js|a;b|%2F|)){1,4}", 8),
        ) {
            let text: String = rules.iter().enumerate().map(|(at, (one, two, deny, bare))| {
                let action = if *deny { "deny" } else { "allow" };
                let http = if *bare { String::new() } else { format!(", http: {{ paths: [\"{one}\", \"{two}\"] }}") };
                format!("  - {{ id: r{at}, action: {action}, to: {{ hosts: [a.test] }}{http} }}\n")
            }).collect();
            let policy = load(if text.is_empty() { "  []\n" } else { &text });
            let layer = policy.layers.first().unwrap();
            for path in paths {
                let Ok(request) = crate::CanonicalRequest::from_line(&format!("GET https://a.test{path}")) else { continue };
                let mut seen = std::collections::BTreeSet::new();
                layer.index.visit(&request, |position| {
                    if layer.rules[position].matches(&request) { seen.insert(position); }
                });
                let slow = layer.rules.iter().enumerate().filter(|(_, rule)| rule.matches(&request));
                prop_assert_eq!(seen, slow.map(|(position, _)| position).collect(), "{}", path);
            }
        }
    }
}
