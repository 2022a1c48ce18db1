//! Rules that would cancel each other out: a raw tunnel beside a rule that looks into requests.
//!
//! Whoever may open a byte stream to a host and port can say over it what an https rule for the same
//! place forbids. Such a pair is refused instead of leaving it to which of the two is asked.

use crate::document::Findings;
use crate::rule::{Protocols, Rule};
use crate::{Diagnostic, Protocol};

/// Reports each tcp rule that overlaps a rule with matchers or a credential.
pub(super) fn check(rules: &[Rule], found: &mut Findings) {
    let raw = rules
        .iter()
        .filter(|rule| !rule.is_deny() && rule.protocols.has(Protocol::Tcp));
    for tunnel in raw {
        let judged = rules.iter().filter(|rule| is_judged(rule));
        if let Some(other) = judged.into_iter().find(|other| overlap(tunnel, other)) {
            let message = format!(
                "the tcp rule `{}` opens a way around the rule `{}`: bytes of a tunnel are not read",
                tunnel.reference.id, other.reference.id
            );
            let source = &found.source;
            let diagnostic = Diagnostic::error("tcp_bypass", source, tunnel.span.clone(), message)
                .label(
                    source,
                    other.span.clone(),
                    "this rule judges single requests to the same place",
                )
                .help("give the two rules different hosts or ports");
            found.list.push(diagnostic);
        }
    }
}

/// Rules that judge single requests to ports they name.
fn is_judged(rule: &Rule) -> bool {
    let over_http = !rule.protocols.and(Protocols::HTTP).is_empty();
    over_http && rule.ports.is_some() && (rule.has_http_matchers() || rule.credential.is_some())
}

fn overlap(a: &Rule, b: &Rule) -> bool {
    let ports = a.ports.iter().flatten().any(|port| b.has_port(*port));
    let hosts = || {
        a.hosts
            .iter()
            .any(|one| b.hosts.iter().any(|other| one.overlaps(other)))
    };
    let any = || a.is_any() || b.is_any();
    let networks = || {
        let touch =
            |one: &ipnet::IpNet, other: &ipnet::IpNet| one.contains(other) || other.contains(one);
        a.ips
            .iter()
            .any(|one| b.ips.iter().any(|other| touch(one, other)))
    };
    ports && (any() || hosts() || networks())
}
