//! Rules with their destinations, asks and limits.

use crate::Protocol;
use crate::document::amounts::{count, duration, rate, size};
use crate::document::fields::{Fields, Findings, choice, flag, list, port, text};
use crate::document::spec::{
    Action, AskReuse, AskSpec, At, LimitsSpec, RuleSpec, TlsHandling, ToSpec,
};
use crate::document::yaml::Node;

const LATER_RULE: &[&str] = &["schedule", "expires", "budget", "foreign"];

pub(super) fn rule(node: &Node, found: &mut Findings) -> Option<RuleSpec> {
    let mut fields = Fields::of(node, "a rule", found)?;
    let id = fields.required("id", found);
    let id = id.and_then(|node| text(node, found));
    let action = fields.required("action", found);
    let action = action.and_then(|node| self::action(node, found));
    let protocol = fields.read("protocol", found, protocol);
    let tls = fields.read("tls", found, tls);
    let to = fields.required("to", found);
    let to = to.and_then(|node| self::to(node, found));
    let http = fields.read("http", found, super::http::http);
    let credential = fields.read("credential", found, text);
    let ask = fields.read("ask", found, ask);
    let limits = fields.read("limits", found, limits);
    let message = fields.read("message", found, text);
    let suffix = fields.read("allow_public_suffix", found, flag);
    fields.finish(LATER_RULE, found);
    Some(RuleSpec {
        id: id?,
        action: action?,
        protocol,
        tls,
        to: to?,
        http,
        credential,
        ask,
        limits,
        message,
        allow_public_suffix: suffix.unwrap_or(false),
    })
}

fn action(node: &Node, found: &mut Findings) -> Option<At<Action>> {
    let words = [
        ("allow", Action::Allow),
        ("deny", Action::Deny),
        ("ask", Action::Ask),
    ];
    choice(node, found, &words)
}

pub(super) fn protocol(node: &Node, found: &mut Findings) -> Option<At<Protocol>> {
    let words = [
        Protocol::Https,
        Protocol::Http,
        Protocol::Tcp,
        Protocol::Udp,
    ];
    choice(node, found, &words.map(|known| (known.as_str(), known)))
}

fn tls(node: &Node, found: &mut Findings) -> Option<At<TlsHandling>> {
    let words = [
        ("intercept", TlsHandling::Intercept),
        ("passthrough", TlsHandling::Passthrough),
    ];
    choice(node, found, &words)
}

fn to(node: &Node, found: &mut Findings) -> Option<ToSpec> {
    let mut fields = Fields::of(node, "`to`", found)?;
    let hosts = fields.read_list("hosts", found, text);
    let ips = fields.read_list("ips", found, text);
    let ports = fields.read_list("ports", found, port);
    let private = fields.optional("private");
    let private_span = private.map(|node| node.span.clone());
    let private = private.and_then(|node| flag(node, found)).unwrap_or(false);
    let span = fields.span.clone();
    fields.finish(&[], found);
    Some(ToSpec {
        hosts,
        ips,
        ports,
        private,
        span,
        private_span,
    })
}

fn ask(node: &Node, found: &mut Findings) -> Option<AskSpec> {
    let mut fields = Fields::of(node, "`ask`", found)?;
    let timeout = fields.read("timeout", found, duration);
    let words = [("once", AskReuse::Once), ("session", AskReuse::Session)];
    let reuse = fields.read("reuse", found, |node, found| choice(node, found, &words));
    fields.finish(&["approvers", "channel"], found);
    Some(AskSpec { timeout, reuse })
}

fn limits(node: &Node, found: &mut Findings) -> Option<LimitsSpec> {
    let mut fields = Fields::of(node, "`limits`", found)?;
    let spec = LimitsSpec {
        rate: fields.read("rate", found, rate),
        concurrency: fields.read("concurrency", found, count),
        request_body: fields.read("request_body", found, size),
        response_body: fields.read("response_body", found, size),
        duration: fields.read("duration", found, duration),
        span: fields.span.clone(),
    };
    fields.finish(&["burst"], found);
    Some(spec)
}

/// A list of texts.
pub(super) fn texts(node: &Node, found: &mut Findings) -> Option<Vec<At<String>>> {
    list(node, found, text)
}
