//! Findings on policies that load: what probably doesn't mean what its author thinks.
//!
//! Every finding is exact: a rule is called unreachable only where no request can reach it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;

use crate::compile::Layer;
use crate::document::nearest;
use crate::host_pattern::HostPattern;
use crate::policy::Policy;
use crate::rule::Rule;
use crate::{AddressClass, Destination, Diagnostic, Host};

impl Policy {
    /// Warnings, layer by layer, in the order of the text.
    #[must_use]
    pub fn lints(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for layer in &self.layers {
            let start = found.len();
            Linter {
                layer,
                found: &mut found,
            }
            .run();
            if let Some(fresh) = found.get_mut(start..) {
                fresh.sort_by_key(|finding| finding.span.start);
            }
        }
        found
    }
}

struct Linter<'a> {
    layer: &'a Layer,
    found: &'a mut Vec<Diagnostic>,
}

impl Linter<'_> {
    fn run(&mut self) {
        let layer = self.layer;
        if layer.rules.is_empty() {
            let source = &layer.source;
            let warning = Diagnostic::warning(
                "no_rules",
                source,
                layer.span.clone(),
                "there are no rules, so everything is denied",
            );
            self.found.push(warning);
        }
        for (position, rule) in layer.rules.iter().enumerate() {
            self.matches_nothing(rule);
            self.breadth(rule);
            self.places(rule);
            self.spellings(rule);
            self.covered(position, rule);
        }
        self.unused_credentials();
    }

    fn warn(&mut self, code: &'static str, rule: &Rule, message: String, help: &str) {
        let source = &self.layer.source;
        self.found
            .push(Diagnostic::warning(code, source, rule.span.clone(), message).help(help));
    }

    fn matches_nothing(&mut self, rule: &Rule) {
        if !rule.can_match() {
            let message = format!(
                "the rule `{}` matches nothing: one of its lists is empty",
                rule.reference.id
            );
            self.warn(
                "matches_nothing",
                rule,
                message,
                "an absent key is unconstrained; an empty list matches nothing",
            );
        }
    }

    fn breadth(&mut self, rule: &Rule) {
        if rule.is_deny() {
            return;
        }
        let id = &rule.reference.id;
        if rule.is_any() {
            let message = format!("the rule `{id}` allows any host");
            self.warn(
                "any_host",
                rule,
                message,
                "name the hosts that are needed; data can leave to every place that is allowed",
            );
        }
        for pattern in rule
            .hosts
            .iter()
            .filter(|pattern| matches!(pattern, HostPattern::Below(_)))
        {
            if pattern.public_suffix().is_some()
                || pattern
                    .host()
                    .is_some_and(|host| !host.as_str().contains('.'))
            {
                let message = format!("`{pattern}` in the rule `{id}` spans names of many owners");
                self.warn(
                    "broad_wildcard",
                    rule,
                    message,
                    "name the hosts that are needed",
                );
            } else if rule.credential.is_some() {
                let message =
                    format!("the rule `{id}` sends its credential to every name below `{pattern}`");
                self.warn(
                    "broad_credential",
                    rule,
                    message,
                    "name the hosts that need the credential",
                );
            }
        }
        for network in rule.ips.iter().filter(|network| network.prefix_len() == 0) {
            let message = format!("`{network}` in the rule `{id}` is every address of its kind");
            self.warn(
                "any_host",
                rule,
                message,
                "name the networks that are needed",
            );
        }
    }

    fn places(&mut self, rule: &Rule) {
        let id = &rule.reference.id;
        let local = |name: &str| name == "localhost" || name.ends_with(".localhost");
        let names_local = rule
            .hosts
            .iter()
            .filter_map(HostPattern::host)
            .any(|host| local(host.as_str()));
        let loopback = rule.ips.iter().any(|network| network.addr().is_loopback());
        if !rule.is_deny() && (names_local || loopback) {
            let message =
                format!("the rule `{id}` opens the gateway's own machine, not the sandbox's");
            self.warn(
                "localhost_rule",
                rule,
                message,
                "loopback inside of the sandbox needs no rule",
            );
        }
        let closed = rule.ips.iter().find(|network| is_special(network));
        if let (Some(network), false, false) = (closed, rule.private, rule.is_deny()) {
            let message = format!(
                "`{network}` in the rule `{id}` is private, and the rule doesn't open private addresses"
            );
            self.warn(
                "private_closed",
                rule,
                message,
                "add `private: true` to `to`",
            );
        }
        if rule.is_deny() && rule.hosts.is_empty() && !rule.ips.is_empty() {
            let message = format!(
                "the rule `{id}` denies requests that name an address, not names that resolve to one"
            );
            self.warn(
                "deny_by_address",
                rule,
                message,
                "deny the names too; private addresses are denied without a rule",
            );
        }
    }

    fn spellings(&mut self, rule: &Rule) {
        for method in rule.methods.iter().flatten() {
            if let Some(near) = nearest(method, &METHODS).filter(|near| near != method) {
                let message = format!(
                    "`{method}` in the rule `{}` is no registered method",
                    rule.reference.id
                );
                self.warn(
                    "unusual_method",
                    rule,
                    message,
                    &format!("did you mean `{near}`?"),
                );
            }
        }
        for pattern in rule.paths.iter().flat_map(|paths| paths.texts()) {
            if pattern
                .split_once('?')
                .is_some_and(|(_, rest)| rest.contains('='))
            {
                let message = format!(
                    "`{pattern}` in the rule `{}` looks like a path with a query",
                    rule.reference.id
                );
                self.warn(
                    "query_in_path",
                    rule,
                    message,
                    "paths are matched without the query, and `?` is any one character",
                );
            }
        }
    }

    /// Rules that another rule leaves nothing to do.
    fn covered(&mut self, position: usize, rule: &Rule) {
        let id = &rule.reference.id;
        for other_position in self.candidates(rule) {
            let Some(other) = self.layer.rules.get(other_position) else {
                continue;
            };
            if other_position == position || !covers(other, rule) {
                continue;
            }
            let (code, message) = if other.is_deny() && !rule.is_deny() {
                (
                    "unreachable_rule",
                    format!(
                        "the rule `{id}` never allows anything: `{}` denies all of it, whatever the order",
                        other.reference.id
                    ),
                )
            } else if same_effect(other, rule)
                && (!covers(rule, other) || other_position < position)
            {
                (
                    "redundant_rule",
                    format!(
                        "the rule `{id}` does nothing: `{}` matches all of it",
                        other.reference.id
                    ),
                )
            } else {
                continue;
            };
            let source = Arc::clone(&self.layer.source);
            let warning = Diagnostic::warning(code, &source, rule.span.clone(), message);
            self.found
                .push(warning.label(&source, other.span.clone(), "this rule covers it"));
            return;
        }
    }

    /// The rules that could cover this one: those that match one of its destinations. A rule that
    /// covers it matches all of them.
    fn candidates(&self, rule: &Rule) -> BTreeSet<usize> {
        let sample = match (rule.hosts.first(), rule.ips.first()) {
            (Some(HostPattern::Exact(host)), _) => Some(Destination::Name(host.clone())),
            (Some(HostPattern::Below(apex)), _) => Host::parse(&format!("x.{apex}"))
                .ok()
                .map(Destination::Name),
            (None, Some(network)) => Some(Destination::Ip(network.addr())),
            (Some(HostPattern::Any) | None, _) => None,
        };
        let mut positions = BTreeSet::new();
        match sample {
            Some(sample) => self.layer.index.visit(&sample, |position| {
                positions.insert(position);
            }),
            None => positions.extend(self.layer.index.any()),
        }
        positions
    }

    fn unused_credentials(&mut self) {
        for (spec, span) in self
            .layer
            .credentials
            .iter()
            .zip(&self.layer.credential_spans)
        {
            let used = self
                .layer
                .rules
                .iter()
                .any(|rule| rule.credential.as_ref() == Some(&spec.name));
            if !used {
                let message = format!("no rule uses the credential `{}`", spec.name);
                let warning = Diagnostic::warning(
                    "unused_credential",
                    &self.layer.source,
                    span.clone(),
                    message,
                );
                self.found.push(warning.help(format!(
                    "add `credential: {}` to a rule, or remove it",
                    spec.name
                )));
            }
        }
    }
}

/// Whether the whole network needs `private: true`. Special networks are no larger than a /8, so
/// that of a network within one both ends are special.
fn is_special(network: &IpNet) -> bool {
    let ends = [network.network(), network.broadcast()];
    network.prefix_len() >= 8
        && ends
            .iter()
            .all(|end| AddressClass::of(*end) == AddressClass::Private)
}

/// Methods with a meaning that many servers share.
const METHODS: [&str; 16] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
];

/// Whether every request that `inner` matches is matched by `outer`: exact where it says yes.
fn covers(outer: &Rule, inner: &Rule) -> bool {
    let hosts = inner
        .hosts
        .iter()
        .all(|host| outer.hosts.iter().any(|wide| wide.covers(host)));
    let ips = inner
        .ips
        .iter()
        .all(|net| outer.is_any() || outer.ips.iter().any(|wide| wide.contains(net)));
    let ports = within(inner.ports.as_deref(), outer.ports.as_deref());
    let methods = within(inner.methods.as_deref(), outer.methods.as_deref());
    let texts = |rule: &'_ Rule| rule.paths.as_ref().map(|paths| paths.texts().to_vec());
    let paths = within(texts(inner).as_deref(), texts(outer).as_deref());
    let slashes = outer.is_deny() || outer.encoded_slash_is_data || !inner.encoded_slash_is_data;
    let protocols = inner.protocols.without(outer.protocols).is_empty();
    inner.can_match()
        && outer.can_match()
        && hosts
        && ips
        && ports
        && methods
        && paths
        && slashes
        && protocols
}

/// `None` is everything.
fn within<T: PartialEq>(inner: Option<&[T]>, outer: Option<&[T]>) -> bool {
    match (inner, outer) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(inner), Some(outer)) => inner.iter().all(|item| outer.contains(item)),
    }
}

fn same_effect(outer: &Rule, inner: &Rule) -> bool {
    outer.action == inner.action
        && outer.message == inner.message
        && outer.credential == inner.credential
        && (outer.private || !inner.private)
}
