//! Rules that would cancel each other out: a raw tunnel beside a rule that looks into requests.
//!
//! Whoever may open a byte stream to a host and port can say over it what an https rule for the same
//! place forbids. Such a pair is refused instead of leaving it to which of the two is asked.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostic::MAX_FINDINGS;
use crate::host_pattern::HostPattern;
use crate::index::Index;
use crate::rule::{Protocols, Rule};
use crate::{Destination, Diagnostic, Protocol};

/// Steps that looking for overlaps may take. Ten thousand rules take some ten thousand; where far
/// more are needed, every rule is for the same places.
const MAX_STEPS: usize = 10_000_000;

/// Reports each rule for raw bytes that overlaps a rule with matchers or a credential.
pub(super) fn check(rules: &[Rule]) -> Vec<Diagnostic> {
    let mut search = Search {
        rules,
        steps: 0,
        overlaps: BTreeMap::new(),
    };
    let tunnels = search.positions(is_tunnel);
    let judged = search.positions(is_judged);
    // Two places overlap only where one holds the other, so asking each way finds every pair.
    let inside = search.run(&tunnels, &judged, |tunnel, other| (tunnel, other))
        && search.run(&judged, &tunnels, |other, tunnel| (tunnel, other));
    let pairs = search.overlaps.iter().take(MAX_FINDINGS);
    let reports = pairs.filter_map(|(tunnel, other)| {
        let (tunnel, other) = (rules.get(*tunnel)?, rules.get(*other)?);
        Some(report(tunnel, other))
    });
    let mut found: Vec<Diagnostic> = reports.collect();
    let first = tunnels.first().and_then(|first| rules.get(*first));
    if let (false, Some(first)) = (inside, first) {
        // What isn't checked must not load.
        let message = "too many rules are for the same places as tcp rules to compare them all";
        let help = "list the ports of one place in one rule, or split the file into layers";
        let span = first.span.clone();
        found.push(Diagnostic::error("tcp_bypass", &first.source, span, message).help(help));
    }
    found
}

struct Search<'a> {
    rules: &'a [Rule],
    steps: usize,
    /// The first rule found for each tunnel.
    overlaps: BTreeMap<usize, usize>,
}

impl Search<'_> {
    fn positions(&self, holds: fn(&Rule) -> bool) -> Vec<usize> {
        let chosen = self
            .rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| holds(rule));
        chosen.map(|(position, _)| position).collect()
    }

    /// Looks each of `these` up among `those`; `false` when that takes too long.
    fn run(
        &mut self,
        these: &[usize],
        those: &[usize],
        order: fn(usize, usize) -> (usize, usize),
    ) -> bool {
        let rules = self.rules;
        let index = Index::of(rules, those.iter().copied());
        for (position, rule) in these.iter().filter_map(|at| Some((*at, rules.get(*at)?))) {
            let mut met = BTreeSet::new();
            for host in &rule.hosts {
                self.meet(&mut met, |visit| match host {
                    HostPattern::Any => index.any().for_each(visit),
                    HostPattern::Exact(host) => {
                        index.visit_all(&Destination::Name(host.clone()), visit)
                    }
                    HostPattern::Below(apex) => index.visit_below(apex, visit),
                });
            }
            for network in &rule.ips {
                self.meet(&mut met, |visit| index.visit_around(network, visit));
            }
            for other in met {
                let (tunnel, other) = order(position, other);
                if self.share_a_port(tunnel, other) {
                    self.overlaps.entry(tunnel).or_insert(other);
                }
            }
            if self.steps > MAX_STEPS {
                return false;
            }
        }
        true
    }

    fn meet(&mut self, met: &mut BTreeSet<usize>, look_up: impl FnOnce(&mut dyn FnMut(usize))) {
        if self.steps > MAX_STEPS {
            return;
        }
        look_up(&mut |other| {
            self.steps += 1;
            met.insert(other);
        });
        self.steps += 1;
    }

    fn share_a_port(&mut self, one: usize, other: usize) -> bool {
        let (Some(one), Some(other)) = (self.rules.get(one), self.rules.get(other)) else {
            return false;
        };
        let number = |rule: &Rule| rule.ports.as_ref().map_or(0, Vec::len);
        let (few, many) = if number(one) <= number(other) {
            (one, other)
        } else {
            (other, one)
        };
        if self.steps > MAX_STEPS {
            return false;
        }
        self.steps += number(few);
        few.ports.iter().flatten().any(|port| many.has_port(*port))
    }
}

/// Rules for streams that can carry HTTP unread.
fn is_tunnel(rule: &Rule) -> bool {
    !rule.is_deny() && (rule.protocols.has(Protocol::Tcp) || rule.protocols.has(Protocol::Tls))
}

/// Rules that judge single requests to ports they name.
fn is_judged(rule: &Rule) -> bool {
    let over_http = !rule.protocols.and(Protocols::HTTP).is_empty();
    over_http && rule.ports.is_some() && (rule.has_http_matchers() || rule.credential.is_some())
}

fn report(tunnel: &Rule, other: &Rule) -> Diagnostic {
    let kind = if tunnel.protocols.has(Protocol::Tcp) {
        "tcp"
    } else {
        "passthrough"
    };
    let message = format!(
        "the {kind} rule `{}` opens a way around the rule `{}`: bytes of a tunnel are not read",
        tunnel.reference.id, other.reference.id
    );
    let why = "this rule judges single requests to the same place";
    Diagnostic::error("tcp_bypass", &tunnel.source, tunnel.span.clone(), message)
        .label(&other.source, other.span.clone(), why)
        .help("give the two rules different hosts or ports")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Source;

    /// The definition, each with each.
    fn overlap(a: &Rule, b: &Rule) -> bool {
        let ports = a.ports.iter().flatten().any(|port| b.has_port(*port));
        let hosts = a
            .hosts
            .iter()
            .any(|one| b.hosts.iter().any(|other| one.overlaps(other)));
        let networks = a.ips.iter().any(|one| {
            let touch = |other: &ipnet::IpNet| one.contains(other) || other.contains(one);
            b.ips.iter().any(touch)
        });
        ports && (a.is_any() || b.is_any() || hosts || networks)
    }

    fn rule() -> impl Strategy<Value = String> {
        let place = prop::sample::select(vec![
            "hosts: [a.test]",
            "hosts: [x.a.test, b.test]",
            "hosts: [\"*.a.test\"]",
            "hosts: [\"*.test\"]",
            "hosts: [\"*.x.a.test\", c.test]",
            "hosts: [any]",
            "ips: [10.0.0.0/8]",
            "ips: [10.1.0.0/16, 192.0.2.7]",
            "ips: [10.1.2.3, \"2001:db8::/32\"]",
            "ips: [\"2001:db8::7\"]",
            "ips: [0.0.0.0/0]",
            "hosts: [test], ips: [192.0.2.0/24]",
        ]);
        let kind = prop::sample::select(vec![
            ("action: allow, protocol: tcp", ""),
            (
                "action: allow, allow_public_suffix: true",
                ", http: {methods: [GET]}",
            ),
            ("action: deny", ", http: {paths: [\"/x\"]}"),
            ("action: allow, protocol: http", ""),
        ]);
        let ports = prop::sample::select(vec!["1", "1, 2", "2", "3, 1"]);
        (place, kind, ports).prop_map(|(place, (keys, http), ports)| {
            format!("{keys}, to: {{{place}, ports: [{ports}]}}{http}")
        })
    }

    proptest! {
        #[test]
        fn finds_what_comparing_each_with_each_finds(keys in prop::collection::vec(rule(), 0..10)) {
            let rules = keys.iter().enumerate().map(|(at, keys)| format!("  - {{id: r{at}, {keys}}}\n"));
            let text = format!("version: 1\nrules:\n  - {{id: r, action: deny, to: {{hosts: [z]}}}}\n{}", rules.collect::<String>());
            let (layer, found) = crate::compile::layer(&Source::new("p.yaml", text), 0);
            let rules = layer.unwrap().rules;
            prop_assert_eq!(rules.len(), keys.len() + 1);
            prop_assert!(found.iter().all(|finding| finding.code == "tcp_bypass"));
            let slow = rules.iter().filter(|rule| {
                is_tunnel(rule) && rules.iter().any(|other| is_judged(other) && overlap(rule, other))
            });
            let slow: BTreeSet<usize> = slow.map(|rule| rule.span.start).collect();
            let fast: BTreeSet<usize> = found.iter().map(|finding| finding.span.start).collect();
            prop_assert_eq!(fast, slow);
        }
    }

    #[test]
    fn what_is_too_much_to_compare_does_not_load() {
        let judged = "action: allow, to: {hosts: [any], ports: [1]}, http: {methods: [GET]}";
        let tunnel = "action: allow, protocol: tcp, to: {hosts: [any], ports: [2]}";
        let rules = (0..8_000).map(|at| {
            let keys = if at % 2 == 0 { judged } else { tunnel };
            format!("  - {{id: r{at}, {keys}}}\n")
        });
        let text = format!("version: 1\nrules:\n{}", rules.collect::<String>());
        let (_, found) = crate::compile::layer(&Source::new("p.yaml", text), 0);
        let found: Vec<_> = found.iter().map(|found| (found.code, found.line)).collect();
        assert_eq!(found, [("tcp_bypass", 4)]);
    }
}
