//! Rules: what belongs together, and what a rule of each action may say.

use std::sync::Arc;

use super::credentials::Declared;
use super::{content, destinations, http};
use crate::document::{
    Action, AskReuse, AskSpec, At, EncodedSlash, Findings, HttpSpec, LimitsSpec, RuleSpec,
    TlsHandling,
};
use crate::feature::{Demand, Feature};
use crate::host_pattern::HostPattern;
use crate::limits::{AskTerms, Limits, Rate};
use crate::rule::{Protocols, Rule};
use crate::{Protocol, RuleRef, Source};

/// Where the rules of a source come from.
pub(super) struct Origin {
    file: Arc<str>,
    layer: u32,
    lines: Lines,
}

impl Origin {
    pub(super) fn new(source: &Source, layer: usize) -> Self {
        Self {
            file: source.name.as_str().into(),
            layer: u32::try_from(layer).unwrap_or(u32::MAX),
            lines: Lines::of(&source.text),
        }
    }
}

/// Offsets at which lines begin: a file of ten thousand rules is searched once per rule.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        Self(
            std::iter::once(0)
                .chain(text.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
        )
    }

    /// The line of an offset, from 1.
    pub(crate) fn at(&self, offset: usize) -> u32 {
        u32::try_from(self.0.partition_point(|start| *start <= offset)).unwrap_or(u32::MAX)
    }
}

pub(super) fn compile(
    spec: &RuleSpec,
    origin: &Origin,
    declared: &Declared,
    demands: &mut Vec<Demand>,
    found: &mut Findings,
) -> Option<Rule> {
    let errors = found.count();
    let is_deny = spec.action.value == Action::Deny;
    match spec.action.value {
        Action::Deny => check_deny_keys(spec, found),
        Action::Allow | Action::Ask => check_open_keys(spec, found),
    }
    check_ask_keys(spec, found);
    let (hosts, ips) = destinations::check(spec, found);
    let matchers = spec.http.as_ref();
    let methods = matchers.and_then(|matchers| http::methods(matchers, found));
    let slash_is_data = matchers
        .and_then(|matchers| matchers.encoded_slash.as_ref())
        .is_some_and(|slash| slash.value == EncodedSlash::Data);
    let paths = matchers.and_then(|matchers| http::paths(matchers, is_deny, slash_is_data, found));
    let content = matchers.and_then(|matchers| content::compile(matchers, found));
    let credential = spec.credential.as_ref();
    let credential = credential.and_then(|name| declared.resolve(name, found));
    if let Some(name) = &spec.credential {
        check_reach(&hosts, name, found);
    }
    let has_matchers = methods.is_some() || paths.is_some() || content.is_some();
    let ask = (spec.action.value == Action::Ask).then(|| ask(spec.ask.as_ref(), found));
    demand_features(spec, demands, found);
    (found.count() == errors).then(|| Rule {
        reference: Arc::new(RuleRef {
            id: spec.id.value.as_str().into(),
            file: Arc::clone(&origin.file),
            line: origin.lines.at(spec.id.span.start),
            layer: origin.layer,
        }),
        action: spec.action.value,
        protocols: protocols(spec, has_matchers),
        many: Rule::many(&hosts, &ips),
        hosts,
        ips,
        ports: ports(spec),
        private: spec.to.private,
        methods,
        paths,
        encoded_slash_is_data: slash_is_data,
        websocket: matchers.is_some_and(|matchers| matchers.websocket.is_some()),
        content: content.map(Box::new),
        limits: limits(spec).map(Arc::new),
        credential,
        ask,
        message: spec
            .message
            .as_ref()
            .map(|message| message.value.as_str().into()),
        source: Arc::clone(&found.source),
        span: spec.id.span.clone(),
        order: 0,
    })
}

/// An allow rule speaks of https unless it says otherwise. A deny rule that names no protocol denies
/// whatever it can look into: a forgotten key must not leave a way through.
fn protocols(spec: &RuleSpec, has_matchers: bool) -> Protocols {
    match (&spec.protocol, spec.action.value) {
        _ if is_passthrough(spec) => Protocols::of(Protocol::Tls),
        (Some(protocol), _) => Protocols::of(protocol.value),
        (None, Action::Allow | Action::Ask) => Protocols::of(Protocol::Https),
        (None, Action::Deny) if has_matchers => Protocols::HTTP,
        (None, Action::Deny) => Protocols::ALL,
    }
}

/// As with [`protocols`]: the default port is for allow rules; a deny rule without ports denies all.
fn ports(spec: &RuleSpec) -> Option<Vec<u16>> {
    if let Some(ports) = &spec.to.ports {
        let mut ports: Vec<u16> = ports.iter().map(|port| port.value).collect();
        ports.sort_unstable();
        ports.dedup();
        return Some(ports);
    }
    match spec.action.value {
        Action::Allow | Action::Ask => protocol(spec).default_port().map(|port| vec![port]),
        Action::Deny => None,
    }
}

fn protocol(spec: &RuleSpec) -> Protocol {
    spec.protocol
        .as_ref()
        .map_or(Protocol::Https, |protocol| protocol.value)
}

fn is_passthrough(spec: &RuleSpec) -> bool {
    spec.tls
        .as_ref()
        .is_some_and(|tls| tls.value == TlsHandling::Passthrough)
}

fn check_open_keys(spec: &RuleSpec, found: &mut Findings) {
    let protocol = protocol(spec);
    if let (Some(message), Action::Allow) = (&spec.message, spec.action.value) {
        let help = "remove it, or move it to the deny rule that it explains";
        let what = "an allow rule shows no message";
        found.error_help("useless_key", &message.span, what, help);
    }
    if spec.to.ports.is_none() && protocol.default_port().is_none() {
        let message = format!("a {protocol} rule needs `ports`: the protocol has no default port");
        let help = "for example: `ports: [5432]`";
        found.error_help("missing_ports", &spec.to.span, message, help);
    }
    if let (Some(tls), true) = (&spec.tls, protocol != Protocol::Https) {
        let message = format!("a {protocol} rule has no TLS of which the gateway knows");
        found.error_help("useless_key", &tls.span, message, "remove `tls`");
    }
    if let Some(http) = &spec.http {
        check_bytes_are_read(spec, http, protocol, found);
    }
    let Some(credential) = &spec.credential else {
        return;
    };
    if protocol != Protocol::Https {
        let message = format!(
            "a credential can't be attached over {protocol}: only https is intercepted and encrypted"
        );
        let help = "remove `credential`, or make it an https rule";
        found.error_help("credential_needs_https", &credential.span, message, help);
    } else if is_passthrough(spec) {
        let message = "a credential can't be attached to TLS that is passed through";
        let help = "remove `credential`, or `tls: passthrough`";
        found.error_help("credential_needs_https", &credential.span, message, help);
    }
}

/// A secret that goes to places of many owners is given away.
fn check_reach(hosts: &[HostPattern], credential: &At<String>, found: &mut Findings) {
    let broad = |host: &&HostPattern| **host == HostPattern::Any || host.public_suffix().is_some();
    if let Some(host) = hosts.iter().find(broad) {
        let message = format!(
            "the credential `{}` would be sent to `{host}`",
            credential.value
        );
        let help = "name the hosts that it belongs to in a rule of its own";
        found.error_help("credential_everywhere", &credential.span, message, help);
    }
}

fn check_deny_keys(spec: &RuleSpec, found: &mut Findings) {
    let mut useless = |span: &std::ops::Range<usize>, message: &str, help: &str| {
        found.error_help("useless_key", span, message, help);
    };
    if let Some(credential) = &spec.credential {
        useless(
            &credential.span,
            "a deny rule attaches no credential",
            "remove it",
        );
    }
    if let (true, Some(span)) = (spec.to.private, &spec.to.private_span) {
        let message = "a deny rule opens nothing, so `private: true` has no meaning in it";
        useless(
            span,
            message,
            "remove it; a deny rule covers private addresses too",
        );
    }
    if let Some(limits) = &spec.limits {
        useless(
            &limits.span,
            "a deny rule lets nothing through that limits could count",
            "remove them",
        );
    }
    if let Some(tls) = &spec.tls {
        useless(
            &tls.span,
            "a deny rule denies TLS of both kinds",
            "remove `tls`",
        );
    }
    if let Some(http) = &spec.http {
        if let Some(slash) = &http.encoded_slash {
            let message = "a deny rule matches a path in every reading, so `encoded_slash` has no meaning in it";
            useless(&slash.span, message, "remove it");
        }
        if let Some(socket) = &http.websocket {
            useless(
                &socket.span,
                "a deny rule opens no WebSockets",
                "remove `websocket`",
            );
        }
        if let Some(most) = &http.max_body {
            let message = "`max_body` is what an allow rule takes; in a deny rule it would deny the small bodies";
            useless(&most.span, message, "move it to the allow rule");
        }
        if let Some(protocol) = &spec.protocol {
            check_bytes_are_read(spec, http, protocol.value, found);
        }
    }
}

fn check_ask_keys(spec: &RuleSpec, found: &mut Findings) {
    if let (Some(ask), true) = (&spec.ask, spec.action.value != Action::Ask) {
        let span = ask
            .timeout
            .as_ref()
            .map_or(&spec.id.span, |timeout| &timeout.span);
        let message = "`ask` is for rules with `action: ask`";
        found.error_help(
            "useless_key",
            span,
            message,
            "write `action: ask`, or remove `ask`",
        );
    }
}

fn check_bytes_are_read(
    spec: &RuleSpec,
    http: &HttpSpec,
    protocol: Protocol,
    found: &mut Findings,
) {
    if protocol.is_http() && !is_passthrough(spec) {
        return;
    }
    let what = if is_passthrough(spec) {
        "TLS passthrough"
    } else {
        protocol.as_str()
    };
    let message =
        format!("`http` matchers can't be enforced on a {what} rule: its bytes are not read");
    let help = "remove `http`, or make it an https or http rule";
    found.error_help("matchers_need_http", &http.span, message, help);
}

fn ask(spec: Option<&AskSpec>, found: &mut Findings) -> AskTerms {
    let timeout = spec.and_then(|spec| spec.timeout.as_ref());
    let (least, most) = (AskTerms::MIN_TIMEOUT, AskTerms::MAX_TIMEOUT);
    if let Some(timeout) = timeout.filter(|at| !(least..=most).contains(&at.value)) {
        let message =
            "a person needs at least 10 seconds to answer, and no client waits over an hour";
        found.error_help(
            "bad_timeout",
            &timeout.span,
            message,
            "write a time from `10s` to `1h`",
        );
    }
    AskTerms {
        timeout: timeout.map_or(AskTerms::TIMEOUT, |at| at.value),
        session: spec
            .and_then(|spec| spec.reuse.as_ref())
            .is_some_and(|reuse| reuse.value == AskReuse::Session),
    }
}

/// The limits of a rule; `max_body` is one of them where the length isn't known beforehand.
fn limits(spec: &RuleSpec) -> Option<Limits> {
    let most = spec.http.as_ref().and_then(|http| http.max_body.as_ref());
    let most = most.map(|at| at.value);
    let nothing = LimitsSpec::default();
    let written = spec.limits.as_ref();
    if written.is_none() && most.is_none() {
        return None;
    }
    let written = written.unwrap_or(&nothing);
    let value = |at: &Option<At<u64>>| at.as_ref().map(|at| at.value);
    Some(Limits {
        rate: written.rate.as_ref().map(|rate| Rate {
            count: rate.value.count,
            per: rate.value.per,
        }),
        concurrency: value(&written.concurrency),
        request_body: value(&written.request_body).into_iter().chain(most).min(),
        response_body: value(&written.response_body),
        duration: written.duration.as_ref().map(|at| at.value),
    })
}

/// Everything in the rule that takes more than a decision to keep.
fn demand_features(spec: &RuleSpec, demands: &mut Vec<Demand>, found: &Findings) {
    let mut need = |feature, span: Option<&std::ops::Range<usize>>| {
        demands.extend(span.map(|span| Demand::new(feature, &found.source, span)));
    };
    if spec.action.value == Action::Ask {
        need(Feature::Ask, Some(&spec.action.span));
    }
    if is_passthrough(spec) {
        need(
            Feature::TlsPassthrough,
            spec.tls.as_ref().map(|at| &at.span),
        );
    }
    if spec.action.value != Action::Deny && protocol(spec) == Protocol::Udp {
        need(Feature::Udp, spec.protocol.as_ref().map(|at| &at.span));
    }
    if let Some(http) = &spec.http {
        need(
            Feature::WebSocket,
            http.websocket.as_ref().map(|at| &at.span),
        );
        need(
            Feature::RequestBody,
            http.max_body.as_ref().map(|at| &at.span),
        );
        let headers = http.headers.is_some() || http.content_types.is_some();
        need(Feature::Headers, headers.then_some(&http.span));
        let body = http.git.as_ref().is_some_and(|git| git.refs.is_some())
            || http.graphql.is_some()
            || http.mcp.is_some();
        need(Feature::Body, body.then_some(&http.span));
    }
    if let Some(limits) = &spec.limits {
        need(Feature::Rate, limits.rate.as_ref().map(|at| &at.span));
        need(
            Feature::Concurrency,
            limits.concurrency.as_ref().map(|at| &at.span),
        );
        need(
            Feature::RequestBody,
            limits.request_body.as_ref().map(|at| &at.span),
        );
        need(
            Feature::ResponseBody,
            limits.response_body.as_ref().map(|at| &at.span),
        );
        need(
            Feature::Duration,
            limits.duration.as_ref().map(|at| &at.span),
        );
    }
}
