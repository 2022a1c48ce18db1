//! Findings on policies that load: what probably doesn't mean what its author thinks.
//!
//! Every finding is exact: a rule is called unreachable only where no request can reach it.

use std::collections::{BTreeSet, HashSet};

use ipnet::IpNet;

use crate::compile::{Credential, Layer};
use crate::diagnostic::MAX_FINDINGS;
use crate::document::nearest;
use crate::glob::{PathGlob, PathPatterns};
use crate::host_pattern::HostPattern;
use crate::policy::Policy;
use crate::rule::Rule;
use crate::{AddressClass, CredentialName, Destination, Diagnostic, Severity};

impl Policy {
    /// Warnings, layer by layer, in the order of the text.
    #[must_use]
    pub fn lints(&self) -> Vec<Diagnostic> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| Linter::of(layer).run()).collect()
    }
}

/// Steps that comparing rules may take. Ten thousand rules take some ten thousand; where far more
/// are needed, every rule is for the same places.
const MAX_STEPS: usize = 10_000_000;

struct Linter<'a> {
    layer: &'a Layer,
    /// At most [`MAX_FINDINGS`].
    found: Vec<Diagnostic>,
    more: bool,
    steps: usize,
}

impl<'a> Linter<'a> {
    const fn of(layer: &'a Layer) -> Self {
        Self {
            layer,
            found: Vec::new(),
            more: false,
            steps: 0,
        }
    }

    fn run(mut self) -> Vec<Diagnostic> {
        let layer = self.layer;
        if layer.rules.is_empty() {
            let message = "there are no rules, so everything is denied";
            let span = layer.span.clone();
            self.add(|| Diagnostic::warning("no_rules", &layer.source, span, message));
        }
        for (position, rule) in layer.rules.iter().enumerate() {
            self.matches_nothing(rule);
            self.breadth(rule);
            self.places(rule);
            self.spellings(rule);
            self.covered(position, rule);
        }
        self.unused_credentials();
        let place = |finding: &Diagnostic| (finding.source.name.clone(), finding.span.start);
        self.found.sort_by_cached_key(place);
        if self.more {
            let more = Diagnostic::more(Severity::Warning, &layer.source);
            self.found.push(more);
        }
        self.found
    }

    /// Adds a finding, which is only made when it is kept.
    fn add(&mut self, finding: impl FnOnce() -> Diagnostic) {
        if self.found.len() < MAX_FINDINGS {
            self.found.push(finding());
        } else {
            self.more = true;
        }
    }

    fn warn(&mut self, code: &'static str, rule: &Rule, message: String, help: &str) {
        self.add(|| Diagnostic::warning(code, &rule.source, rule.span.clone(), message).help(help));
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
        if self.steps > MAX_STEPS {
            return;
        }
        let layer = self.layer;
        for other_position in self.candidates(rule) {
            let Some(other) = layer.rules.get(other_position) else {
                continue;
            };
            self.steps = self.steps.saturating_add(comparing(other, rule));
            if self.steps > MAX_STEPS {
                self.warn(
                    "not_compared",
                    rule,
                    "so many rules are for the same places that they were not all compared; what \
                     covers this rule or a later one may not be found"
                        .to_owned(),
                    "list the methods, paths and ports of one place in one rule",
                );
                return;
            }
            if other_position != position
                && covers(other, rule)
                && let Some((code, message)) = useless(rule, other, other_position < position)
            {
                self.add(|| {
                    Diagnostic::warning(code, &rule.source, rule.span.clone(), message).label(
                        &other.source,
                        other.span.clone(),
                        "this rule covers it",
                    )
                });
                return;
            }
        }
    }

    /// The rules that could cover this one: those that match one of its destinations. A rule that
    /// covers it matches all of them.
    fn candidates(&mut self, rule: &Rule) -> BTreeSet<usize> {
        let index = &self.layer.index;
        let mut positions = BTreeSet::new();
        let mut keep = |position| {
            positions.insert(position);
        };
        match (rule.hosts.first(), rule.ips.first()) {
            (Some(HostPattern::Exact(host)), _) => {
                index.visit_all(&Destination::Name(host.clone()), keep);
            }
            (Some(HostPattern::Below(apex)), _) => index.visit_below(apex, keep),
            (None, Some(network)) => index.visit_around(network, keep),
            (Some(HostPattern::Any) | None, _) => index.any().for_each(&mut keep),
        }
        self.steps = self.steps.saturating_add(positions.len());
        positions
    }

    fn unused_credentials(&mut self) {
        let layer = self.layer;
        let rules = layer.rules.iter();
        let used: HashSet<&CredentialName> =
            rules.filter_map(|rule| rule.credential.as_ref()).collect();
        for Credential { spec, source, span } in &layer.credentials {
            if used.contains(&spec.name) {
                continue;
            }
            let name = &spec.name;
            self.add(|| {
                let message = format!("no rule uses the credential `{name}`");
                Diagnostic::warning("unused_credential", source, span.clone(), message)
                    .help(format!("add `credential: {name}` to a rule, or remove it"))
            });
        }
    }
}

/// What a rule that another one covers is good for: nothing, of two kinds.
fn useless(rule: &Rule, other: &Rule, is_later: bool) -> Option<(&'static str, String)> {
    let (id, wide) = (&rule.reference.id, &other.reference.id);
    if other.is_deny() && !rule.is_deny() {
        let message = format!(
            "the rule `{id}` never allows anything: `{wide}` denies all of it, whatever the order"
        );
        return Some(("unreachable_rule", message));
    }
    let same = same_effect(other, rule) && (!covers(rule, other) || is_later);
    let message = format!("the rule `{id}` does nothing: `{wide}` matches all of it");
    same.then_some(("redundant_rule", message))
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

/// Steps of a comparison of patterns that aren't the same.
const AUTOMATA: usize = 5_000;

/// About how many steps [`covers`] takes.
fn comparing(outer: &Rule, inner: &Rule) -> usize {
    let differ = inner.paths.is_some()
        && outer.paths.is_some()
        && !has_same_paths(outer, inner)
        && covers_all_but_paths(outer, inner);
    let paths = |rule| globs(rule).map_or(0, <[PathGlob]>::len);
    let methods = |rule: &Rule| rule.methods.as_ref().map_or(0, Vec::len);
    [
        inner.hosts.len(),
        inner.ips.len(),
        inner.ports.as_ref().map_or(0, Vec::len),
        methods(inner).saturating_mul(methods(outer)),
        paths(inner).saturating_mul(paths(outer)),
        if differ { AUTOMATA } else { 0 },
    ]
    .into_iter()
    .fold(1, usize::saturating_add)
}

/// Whether every request that `inner` matches is matched by `outer`: exact where it says yes.
fn covers(outer: &Rule, inner: &Rule) -> bool {
    covers_all_but_paths(outer, inner) && covers_paths(outer, inner)
}

fn covers_all_but_paths(outer: &Rule, inner: &Rule) -> bool {
    inner.can_match()
        && outer.can_match()
        && inner.protocols.without(outer.protocols).is_empty()
        && (outer.is_deny() || outer.encoded_slash_is_data || !inner.encoded_slash_is_data)
        && (outer.is_deny() || outer.websocket || !inner.websocket)
        && covers_ports(outer, inner)
        && covers_content(outer, inner)
        && within(inner.methods.as_deref(), outer.methods.as_deref())
        && inner.hosts.iter().all(|host| outer.covers_host(host))
        && inner
            .ips
            .iter()
            .all(|network| outer.covers_network(network))
}

/// The costly one, so the last: patterns that aren't the same are compared as automata.
fn covers_paths(outer: &Rule, inner: &Rule) -> bool {
    match (&inner.paths, &outer.paths) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(_), Some(_)) if has_same_paths(outer, inner) => true,
        (Some(narrow), Some(wide)) if inner.is_deny() => {
            narrow.within_any_reading(wide) == Some(true)
        }
        (Some(narrow), Some(wide)) => narrow.within(wide) == Some(true),
    }
}

fn has_same_paths(outer: &Rule, inner: &Rule) -> bool {
    within(globs(inner), globs(outer))
}

fn globs(rule: &Rule) -> Option<&[PathGlob]> {
    rule.paths.as_ref().map(PathPatterns::globs)
}

/// What a matcher on content leaves out isn't known here.
fn covers_content(outer: &Rule, inner: &Rule) -> bool {
    let key = |rule: &Rule| {
        rule.content
            .as_ref()
            .map(|content| content.key().to_owned())
    };
    outer.content.is_none() || key(outer) == key(inner)
}

fn covers_ports(outer: &Rule, inner: &Rule) -> bool {
    match &inner.ports {
        Some(ports) => ports.iter().all(|port| outer.has_port(*port)),
        None => outer.ports.is_none(),
    }
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
        && outer.limits == inner.limits
        && outer.ask == inner.ask
        && outer.message == inner.message
        && outer.credential == inner.credential
        && (outer.private || !inner.private)
}
