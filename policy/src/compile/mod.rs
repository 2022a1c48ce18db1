//! From what a file says to what is enforced: every name, pattern and reference checked.
//!
//! A rule that can't be kept exactly as it reads is an error, never a weaker rule.

mod bypass;
mod credentials;
mod destinations;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use self::credentials::Declared;
use crate::document::{
    Action, At, EncodedSlash, Findings, HttpSpec, PolicySpec, RuleSpec, TestSpec, decode, nearest,
};
use crate::host_pattern::HostPattern;
use crate::index::Index;
use crate::path_pattern::{self, PathPatterns};
use crate::rule::{Protocols, Rule};
use crate::{CredentialSpec, Diagnostic, Protocol, Reason, RuleRef, Source};

/// One compiled source.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) source: Arc<Source>,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// Where to point when there are no rules.
    pub(crate) span: Range<usize>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) index: Index,
    pub(crate) credentials: Vec<CredentialSpec>,
    /// Where each credential's name is written.
    pub(crate) credential_spans: Vec<Range<usize>>,
    pub(crate) tests: Arc<[TestSpec]>,
}

/// Reads and compiles one source. `None` only together with at least one error.
pub(crate) fn layer(source: &Source, position: usize) -> (Option<Layer>, Vec<Diagnostic>) {
    let source = Arc::new(source.clone());
    let (spec, mut found) = decode(&source);
    let layer = spec.map(|spec| compile(spec, position, &mut found));
    (layer, found.list)
}

fn compile(spec: PolicySpec, position: usize, found: &mut Findings) -> Layer {
    let declared = Declared::check(&spec.credentials, found);
    let lines = Lines::of(&found.source.text);
    let origin = Origin {
        file: found.source.name.as_str().into(),
        layer: u32::try_from(position).unwrap_or(u32::MAX),
        lines,
    };
    unique_ids(&spec.rules, found);
    let rules: Vec<Rule> = spec
        .rules
        .iter()
        .filter_map(|rule| compile_rule(rule, &origin, &declared, found))
        .collect();
    bypass::check(&rules, found);
    check_tests(&spec.tests, found);
    Layer {
        source: Arc::clone(&found.source),
        name: spec.name,
        description: spec.description,
        span: spec.span,
        index: Index::new(&rules),
        rules,
        credential_spans: declared.spans,
        credentials: declared.specs,
        tests: spec.tests.into(),
    }
}

/// Where the rules of a source come from.
struct Origin {
    file: Arc<str>,
    layer: u32,
    lines: Lines,
}

/// Offsets at which lines begin: a file of ten thousand rules is searched once per rule.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(
            std::iter::once(0)
                .chain(text.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
        )
    }

    fn at(&self, offset: usize) -> u32 {
        u32::try_from(self.0.partition_point(|start| *start <= offset)).unwrap_or(u32::MAX)
    }
}

/// Longest id or name.
const MAX_NAME: usize = 64;

/// Ids and names go into logs and command lines as they are.
fn check_name(name: &At<String>, what: &str, found: &mut Findings) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.value.is_empty() || name.value.len() > MAX_NAME || !name.value.bytes().all(plain) {
        let message = format!("`{}` is no {what}", name.value.escape_default());
        let help = format!("use 1 to {MAX_NAME} letters, digits, `.`, `_` and `-`");
        found.error_help("bad_name", &name.span, message, help);
    }
}

fn unique_ids(rules: &[RuleSpec], found: &mut Findings) {
    let mut seen: HashMap<&str, &Range<usize>> = HashMap::with_capacity(rules.len());
    for RuleSpec { id, .. } in rules {
        check_name(id, "rule id", found);
        if let Some(first) = seen.insert(&id.value, &id.span) {
            let message = format!("the rule id `{}` is given twice", id.value);
            found.duplicate("duplicate_id", &id.span, first, message);
        }
    }
}

fn compile_rule(
    spec: &RuleSpec,
    origin: &Origin,
    declared: &Declared,
    found: &mut Findings,
) -> Option<Rule> {
    let errors = found.list.len();
    let is_deny = spec.action.value == Action::Deny;
    if is_deny {
        check_deny_keys(spec, found);
    } else {
        check_allow_keys(spec, found);
    }
    let (hosts, ips) = destinations::check(spec, found);
    let methods = spec.http.as_ref().and_then(|http| methods(http, found));
    let slash_is_data = spec.http.as_ref().is_some_and(|http| {
        http.encoded_slash
            .as_ref()
            .is_some_and(|slash| slash.value == EncodedSlash::Data)
    });
    let paths = spec
        .http
        .as_ref()
        .and_then(|http| paths(http, is_deny || slash_is_data, found));
    let credential = spec
        .credential
        .as_ref()
        .and_then(|name| declared.resolve(name, found));
    if let Some(name) = &spec.credential {
        check_reach(&hosts, name, found);
    }
    let has_matchers = methods.is_some() || paths.is_some();
    (found.list.len() == errors).then(|| Rule {
        reference: Arc::new(RuleRef {
            id: spec.id.value.as_str().into(),
            file: Arc::clone(&origin.file),
            line: origin.lines.at(spec.id.span.start),
            layer: origin.layer,
        }),
        action: spec.action.value,
        protocols: protocols(spec, has_matchers),
        hosts,
        ips,
        ports: ports(spec),
        private: spec.to.private,
        methods,
        paths,
        encoded_slash_is_data: slash_is_data,
        credential,
        message: spec
            .message
            .as_ref()
            .map(|message| message.value.as_str().into()),
        span: spec.id.span.clone(),
    })
}

/// An allow rule speaks of https unless it says otherwise. A deny rule that names no protocol denies
/// whatever it can look into: a forgotten key must not leave a way through.
fn protocols(spec: &RuleSpec, has_matchers: bool) -> Protocols {
    match (&spec.protocol, spec.action.value) {
        (Some(protocol), _) => Protocols::of(protocol.value),
        (None, Action::Allow) => Protocols::of(Protocol::Https),
        (None, Action::Deny) if has_matchers => Protocols::HTTP,
        (None, Action::Deny) => Protocols::ALL,
    }
}

/// As with [`protocols`]: the default port is for allow rules; a deny rule without ports denies all.
fn ports(spec: &RuleSpec) -> Option<Vec<u16>> {
    if let Some(ports) = &spec.to.ports {
        return Some(ports.iter().map(|port| port.value).collect());
    }
    match spec.action.value {
        Action::Allow => protocol(spec).default_port().map(|port| vec![port]),
        Action::Deny => None,
    }
}

fn protocol(spec: &RuleSpec) -> Protocol {
    spec.protocol
        .as_ref()
        .map_or(Protocol::Https, |protocol| protocol.value)
}

fn check_allow_keys(spec: &RuleSpec, found: &mut Findings) {
    let protocol = protocol(spec);
    if let Some(message) = &spec.message {
        let help = "remove it, or move it to the deny rule that it explains";
        found.error_help(
            "useless_key",
            &message.span,
            "an allow rule shows no message",
            help,
        );
    }
    if spec.to.ports.is_none() && protocol.default_port().is_none() {
        let message = format!("a {protocol} rule needs `ports`: the protocol has no default port");
        found.error_help(
            "missing_ports",
            &spec.to.span,
            message,
            "for example: `ports: [5432]`",
        );
    }
    if let (Some(http), false) = (&spec.http, protocol.is_http()) {
        raw_bytes(http, protocol, found);
    }
    if let (Some(credential), true) = (&spec.credential, protocol != Protocol::Https) {
        let message = format!(
            "a credential can't be attached over {protocol}: only https is intercepted and encrypted"
        );
        let help = "remove `credential`, or make it an https rule";
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
    if let Some(credential) = &spec.credential {
        found.error(
            "useless_key",
            &credential.span,
            "a deny rule attaches no credential",
        );
    }
    if let (true, Some(span)) = (spec.to.private, &spec.to.private_span) {
        let message = "a deny rule opens nothing, so `private: true` has no meaning in it";
        found.error_help(
            "useless_key",
            span,
            message,
            "remove it; a deny rule covers private addresses too",
        );
    }
    let slash = spec
        .http
        .as_ref()
        .and_then(|http| http.encoded_slash.as_ref());
    if let Some(slash) = slash {
        let message =
            "a deny rule matches a path in every reading, so `encoded_slash` has no meaning in it";
        found.error_help("useless_key", &slash.span, message, "remove it");
    }
    if let (Some(http), Some(protocol)) = (&spec.http, &spec.protocol)
        && !protocol.value.is_http()
    {
        raw_bytes(http, protocol.value, found);
    }
}

fn raw_bytes(http: &HttpSpec, protocol: Protocol, found: &mut Findings) {
    let message =
        format!("`http` matchers can't be enforced on a {protocol} rule: its bytes are not read");
    let help = "remove `http`, or make it an https or http rule";
    found.error_help("matchers_need_http", &http.span, message, help);
}

/// Methods that are denied before any rule is asked.
const NEVER: [&str; 3] = ["TRACE", "TRACK", "CONNECT"];

fn methods(http: &HttpSpec, found: &mut Findings) -> Option<Vec<String>> {
    let methods = http.methods.as_ref()?;
    for method in methods {
        let upper = method.value.to_ascii_uppercase();
        let shown = method.value.escape_default();
        if method.value == "*" {
            let help = "leave `methods` out to match every method";
            found.error_help("bad_method", &method.span, "`*` is no method", help);
        } else if !crate::canonical::is_token(&method.value) {
            found.error(
                "bad_method",
                &method.span,
                format!("`{shown}` is no method"),
            );
        } else if NEVER.contains(&upper.as_str()) {
            found.error(
                "bad_method",
                &method.span,
                format!("`{shown}` is always denied, so no rule can name it"),
            );
        } else if upper != method.value {
            let message = format!("`{shown}` would never match: methods are upper case");
            found.error_help(
                "bad_method",
                &method.span,
                message,
                format!("write `{upper}`"),
            );
        }
    }
    Some(methods.iter().map(|method| method.value.clone()).collect())
}

fn paths(http: &HttpSpec, slash_matches: bool, found: &mut Findings) -> Option<PathPatterns> {
    let patterns = http.paths.as_ref()?;
    let mut globs = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        match path_pattern::parse(&pattern.value) {
            Ok(_) if pattern.value.contains("%2F") && !slash_matches => {
                let message = format!(
                    "`{}` never matches: this rule refuses encoded slashes",
                    pattern.value
                );
                found.error_help(
                    "bad_path",
                    &pattern.span,
                    message,
                    "add `encoded_slash: data` to `http`",
                );
            }
            Ok(glob) => globs.push(glob),
            Err(error) => {
                let diagnostic = Diagnostic::error(
                    "bad_path",
                    &found.source,
                    pattern.span.clone(),
                    error.message,
                );
                found.list.push(match error.help {
                    Some(help) => diagnostic.help(help),
                    None => diagnostic,
                });
            }
        }
    }
    match PathPatterns::new(globs) {
        Ok(patterns) => Some(patterns),
        Err(error) => {
            let message = format!("the path patterns of this rule don't compile together: {error}");
            found.error_help("bad_path", &http.span, message, "split the rule");
            None
        }
    }
}

fn check_tests(tests: &[TestSpec], found: &mut Findings) {
    let codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    for reason in tests.iter().filter_map(|test| test.reason.as_ref()) {
        if Reason::from_code(&reason.value).is_none() {
            let message = format!("`{}` is no reason code", reason.value.escape_default());
            let help = match nearest(&reason.value, &codes) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the codes are: {}", codes.join(", ")),
            };
            found.error_help("bad_reason", &reason.span, message, help);
        }
    }
}
