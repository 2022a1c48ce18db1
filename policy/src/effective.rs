//! The effective policy as plain data and as text: what is enforced, defaults filled in, every rule
//! with the place where it is written.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::compile::Layer;
use crate::document::Action;
use crate::host_pattern::HostPattern;
use crate::policy::Policy;
use crate::rule::Rule;
use crate::yaml_text::{list, name, quoted};
use crate::{AskTerms, Budget, CredentialSource, CredentialSpec, Limits, Protocol, RuleRef};

/// What is enforced, layer by layer. [`fmt::Display`] is YAML; that of one layer loads as a policy
/// that decides the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effective {
    /// SHA-256 of the sources.
    pub revision: String,
    /// The first one is the most general; all of them must allow a request.
    pub layers: Vec<EffectiveLayer>,
}

/// One layer of an effective policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveLayer {
    /// Name of the source.
    pub file: String,
    /// `name:` of the layer.
    pub name: Option<String>,
    /// `description:` of the layer.
    pub description: Option<String>,
    /// Whether what the layer denies is only recorded.
    pub observes: bool,
    /// The labels of the sandboxes that it is for; `None` is whoever it is given to.
    pub sandboxes: Option<BTreeMap<String, String>>,
    /// In the order of the text.
    pub rules: Vec<EffectiveRule>,
    /// In the order of the text.
    pub credentials: Vec<EffectiveCredential>,
    /// In the order of the text.
    pub budgets: Vec<Budget>,
    /// How many tests the layer has.
    pub tests: usize,
}

/// One rule. What is `None` is unconstrained; an empty list matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveRule {
    /// Its id, and where it is written.
    #[serde(flatten)]
    pub rule: RuleRef,
    /// `allow` or `deny`.
    pub action: &'static str,
    /// What it speaks of.
    pub protocols: Vec<Protocol>,
    /// Names and wildcards, or `any`.
    pub hosts: Vec<String>,
    /// Networks.
    pub ips: Vec<String>,
    /// Ports.
    pub ports: Option<Vec<u16>>,
    /// Whether private addresses are opened.
    pub private: bool,
    /// Whether a wildcard over a public suffix is meant.
    pub allow_public_suffix: bool,
    /// Methods.
    pub methods: Option<Vec<String>>,
    /// Path patterns.
    pub paths: Option<Vec<String>>,
    /// Whether an encoded slash is part of its segment.
    pub encoded_slash_is_data: bool,
    /// Whether WebSockets are let through.
    pub websocket: bool,
    /// Matchers on query, headers and body, as a policy writes them under `http:`.
    pub content: Option<String>,
    /// What its requests may use.
    pub limits: Option<Limits>,
    /// How a person is asked.
    pub ask: Option<AskTerms>,
    /// Name of the credential that is attached.
    pub credential: Option<String>,
    /// What a denied guest is told.
    pub message: Option<String>,
}

/// One credential: where it comes from and how it is attached, never its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveCredential {
    /// Its name.
    pub name: String,
    /// `{ env: … }` or `{ file: … }`.
    pub source: EffectiveSource,
    /// The headers that are set.
    pub attach: Vec<EffectiveHeader>,
    /// What the sandbox sees in its place.
    pub expose: Option<EffectiveExpose>,
}

/// A header that carries a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveHeader {
    /// Its name, in lower case.
    pub header: String,
    /// Its value, with `{}` for the secret.
    pub format: String,
}

/// A placeholder for the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveExpose {
    /// Environment variable in the sandbox.
    pub env: String,
    /// How the placeholder looks.
    pub shape: String,
}

/// Where the gateway gets a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EffectiveSource {
    /// An environment variable of the gateway.
    Env(String),
    /// A file on the gateway's machine.
    File(String),
    /// A field of a secret in Vault or OpenBao.
    Vault {
        /// Mount of the secrets engine.
        mount: String,
        /// Path of the secret below the mount.
        path: String,
        /// Name of the field.
        field: String,
    },
}

impl Policy {
    /// What is enforced, as plain data.
    #[must_use]
    pub fn effective(&self) -> Effective {
        Effective {
            revision: self.revision().to_owned(),
            layers: self.layers.iter().map(EffectiveLayer::of).collect(),
        }
    }
}

impl EffectiveLayer {
    fn of(layer: &Layer) -> Self {
        Self {
            file: layer.source.name.clone(),
            name: layer.name.clone(),
            description: layer.description.clone(),
            observes: layer.observes,
            sandboxes: layer.selects.clone(),
            rules: layer.rules.iter().map(EffectiveRule::of).collect(),
            credentials: layer
                .credentials
                .iter()
                .map(|credential| EffectiveCredential::of(&credential.spec))
                .collect(),
            budgets: layer.budgets.clone(),
            tests: layer.tests.len(),
        }
    }
}

impl EffectiveRule {
    /// Every field is named, so that a new matcher can't be left out of what people are shown.
    fn of(rule: &Rule) -> Self {
        let Rule {
            reference,
            action: _,
            protocols,
            hosts,
            ips,
            many: _,
            ports,
            private,
            methods,
            paths,
            encoded_slash_is_data,
            websocket,
            content,
            limits,
            credential,
            ask,
            message,
            source: _,
            span: _,
            order: _,
        } = rule;
        let is_allow = !rule.is_deny();
        let spans_suffix = |host: &HostPattern| host.public_suffix().is_some();
        Self {
            rule: reference.as_ref().clone(),
            action: match rule.action {
                Action::Allow => "allow",
                Action::Deny => "deny",
                Action::Ask => "ask",
            },
            protocols: protocols.iter().collect(),
            hosts: hosts.iter().map(ToString::to_string).collect(),
            ips: ips.iter().map(|network| network_text(*network)).collect(),
            ports: ports.clone(),
            private: *private,
            allow_public_suffix: is_allow && hosts.iter().any(spans_suffix),
            methods: methods.clone(),
            paths: paths
                .as_ref()
                .map(|paths| paths.texts().map(str::to_owned).collect()),
            encoded_slash_is_data: *encoded_slash_is_data,
            websocket: *websocket,
            content: content.as_ref().map(|content| content.key().to_owned()),
            limits: limits.as_deref().cloned(),
            ask: *ask,
            credential: credential.as_ref().map(ToString::to_string),
            message: message.as_deref().map(str::to_owned),
        }
    }

    /// The protocol where the rule has to say it: an allow rule names one, and a deny rule without
    /// one denies whatever it can look into.
    fn protocol(&self) -> Option<Protocol> {
        match self.protocols.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }
}

/// As a policy writes it: a single address has no prefix length.
fn network_text(network: ipnet::IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() {
        return network.addr().to_string();
    }
    network.to_string()
}

impl EffectiveCredential {
    fn of(spec: &CredentialSpec) -> Self {
        Self {
            name: spec.name.to_string(),
            source: match &spec.source {
                CredentialSource::Env { var } => EffectiveSource::Env(var.clone()),
                CredentialSource::File { path } => {
                    EffectiveSource::File(path.to_string_lossy().into_owned())
                }
                CredentialSource::Vault { mount, path, field } => EffectiveSource::Vault {
                    mount: mount.clone(),
                    path: path.clone(),
                    field: field.clone(),
                },
            },
            attach: spec
                .attach
                .iter()
                .map(|header| EffectiveHeader {
                    header: header.header.clone(),
                    format: header.format().to_owned(),
                })
                .collect(),
            expose: spec.expose.as_ref().map(|expose| EffectiveExpose {
                env: expose.env.clone(),
                shape: expose.shape.to_string(),
            }),
        }
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, layer) in self.layers.iter().enumerate() {
            if position > 0 {
                writeln!(f, "---")?;
            }
            if self.layers.len() > 1 {
                let count = self.layers.len();
                writeln!(f, "# layer {position} of {count}; all of them must allow")?;
            }
            layer.fmt(f)?;
        }
        let rules = || self.layers.iter().flat_map(|layer| &layer.rules);
        let kinds = ["allow", "ask", "deny"].map(|action| {
            let count = rules().filter(|rule| rule.action == action).count();
            (count > 0).then(|| format!("{count} {action}"))
        });
        let kinds: Vec<String> = kinds.into_iter().flatten().collect();
        let kinds = if kinds.is_empty() {
            String::new()
        } else {
            format!(" ({})", kinds.join(", "))
        };
        let credentials = self.layers.iter().map(|layer| layer.credentials.len());
        writeln!(
            f,
            "# total: {}, {}{kinds}, {}, {}",
            counted(self.layers.len(), "layer"),
            counted(rules().count(), "rule"),
            counted(credentials.sum(), "credential"),
            counted(self.layers.iter().map(|layer| layer.tests).sum(), "test"),
        )?;
        writeln!(f, "# revision: {}", self.revision)
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

impl fmt::Display for EffectiveLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version: 1")?;
        for (key, value) in [("name", &self.name), ("description", &self.description)] {
            if let Some(value) = value {
                writeln!(f, "{key}: {}", quoted(value))?;
            }
        }
        if let Some(labels) = &self.sandboxes {
            let labels = labels.iter();
            let labels: Vec<String> = labels
                .map(|(label, value)| format!("{}: {}", quoted(label), quoted(value)))
                .collect();
            writeln!(f, "sandboxes: {{ labels: {{ {} }} }}", labels.join(", "))?;
        }
        if self.observes {
            writeln!(f, "mode: observe")?;
        }
        if self.rules.is_empty() {
            writeln!(f, "rules: []")?;
        } else {
            writeln!(f, "rules:")?;
        }
        for rule in &self.rules {
            rule.fmt(f)?;
        }
        if !self.credentials.is_empty() {
            writeln!(f, "credentials:")?;
        }
        for credential in &self.credentials {
            credential.fmt(f)?;
        }
        if !self.budgets.is_empty() {
            writeln!(f, "budgets:")?;
        }
        for budget in &self.budgets {
            writeln!(f, "  - {{ {} }}", budget_text(budget))?;
        }
        Ok(())
    }
}

impl fmt::Display for EffectiveRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = crate::yaml_text::comment(&format!("{}:{}", self.rule.file, self.rule.line));
        writeln!(f, "  - id: {} # {origin}", name(&self.rule.id))?;
        writeln!(f, "    action: {}", self.action)?;
        match self.protocol() {
            Some(Protocol::Tls) => writeln!(f, "    tls: passthrough")?,
            Some(protocol) => writeln!(f, "    protocol: {protocol}")?,
            None => {}
        }
        let mut to = Vec::new();
        if !self.hosts.is_empty() || self.ips.is_empty() {
            to.push(format!("hosts: {}", list(&self.hosts)));
        }
        if !self.ips.is_empty() {
            to.push(format!("ips: {}", list(&self.ips)));
        }
        if let Some(ports) = &self.ports {
            to.push(format!("ports: {ports:?}"));
        }
        if self.private {
            to.push("private: true".to_owned());
        }
        writeln!(f, "    to: {{ {} }}", to.join(", "))?;
        let mut http = Vec::new();
        if let Some(methods) = &self.methods {
            http.push(format!("methods: {}", list(methods)));
        }
        if let Some(paths) = &self.paths {
            http.push(format!("paths: {}", list(paths)));
        }
        if self.encoded_slash_is_data {
            http.push("encoded_slash: data".to_owned());
        }
        if self.websocket {
            http.push("websocket: allow".to_owned());
        }
        http.extend(self.content.clone());
        if !http.is_empty() {
            writeln!(f, "    http: {{ {} }}", http.join(", "))?;
        }
        if self.allow_public_suffix {
            writeln!(f, "    allow_public_suffix: true")?;
        }
        if let Some(credential) = &self.credential {
            writeln!(f, "    credential: {}", name(credential))?;
        }
        if let Some(ask) = &self.ask {
            let reuse = if ask.session { "session" } else { "once" };
            let timeout = ask.timeout.as_secs();
            writeln!(f, "    ask: {{ timeout: {timeout}s, reuse: {reuse} }}")?;
        }
        if let Some(limits) = self.limits.as_ref().map(limits_text) {
            writeln!(f, "    limits: {{ {limits} }}")?;
        }
        if let Some(message) = &self.message {
            writeln!(f, "    message: {}", quoted(message))?;
        }
        Ok(())
    }
}

/// A budget as a policy writes it.
pub(crate) fn budget_text(budget: &Budget) -> String {
    let per = if budget.shared { "policy" } else { "sandbox" };
    let mut parts = vec![
        format!("name: {}", name(&budget.name)),
        format!("per: {per}"),
        format!("window: {}s", budget.window.as_secs()),
    ];
    let amounts = [
        ("requests", budget.requests),
        ("egress", budget.egress),
        ("tokens", budget.tokens),
    ];
    for (key, amount) in amounts {
        parts.extend(amount.map(|amount| format!("{key}: {amount}")));
    }
    let usd = |micro: u64| format!("usd: {}.{:06}", micro / 1_000_000, micro % 1_000_000);
    parts.extend(budget.micro_usd.map(usd));
    parts.join(", ")
}

/// Limits as a policy writes them.
pub(crate) fn limits_text(limits: &Limits) -> String {
    let rate = limits.rate.map(|rate| {
        let unit = match rate.per.as_secs() {
            1 => "s",
            60 => "min",
            3600 => "h",
            _ => "day",
        };
        format!("rate: {}/{unit}", rate.count)
    });
    let number = |key: &str, value: Option<u64>| value.map(|value| format!("{key}: {value}"));
    let duration = limits
        .duration
        .map(|time| format!("duration: {}s", time.as_secs()));
    let parts = [
        rate,
        number("concurrency", limits.concurrency),
        number("request_body", limits.request_body),
        number("response_body", limits.response_body),
        duration,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

impl fmt::Display for EffectiveCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  - name: {}", name(&self.name))?;
        let source = match &self.source {
            EffectiveSource::Env(var) => format!("env: {}", quoted(var)),
            EffectiveSource::File(path) => format!("file: {}", quoted(path)),
            EffectiveSource::Vault { mount, path, field } => format!(
                "vault: {{ mount: {}, path: {}, field: {} }}",
                quoted(mount),
                quoted(path),
                quoted(field)
            ),
        };
        writeln!(f, "    source: {{ {source} }}")?;
        if let Some(expose) = &self.expose {
            let (env, shape) = (quoted(&expose.env), quoted(&expose.shape));
            writeln!(f, "    expose: {{ env: {env}, shape: {shape} }}")?;
        }
        let attach = self.attach.iter().map(|attach| {
            let (header, format) = (quoted(&attach.header), quoted(&attach.format));
            format!("{{ header: {header}, format: {format} }}")
        });
        let attach: Vec<String> = attach.collect();
        writeln!(f, "    attach: [{}]", attach.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    const WIDE: &str = r#"
version: 1
name: "no"
description: "a\nb # c: \"d\" é"
rules:
  - { id: "1e3", action: deny, to: { hosts: [any] }, message: "no: \\ way" }
  - { id: paths, action: deny, to: { hosts: [a.test] }, http: { paths: ["/x\"{a,b}/**"] } }
  - { id: clear, action: deny, protocol: http, to: { hosts: [] } }
  - { id: suffix, action: allow, to: { hosts: ["*.github.io"] }, allow_public_suffix: true }
  - { id: db, action: allow, protocol: tcp, to: { ips: [10.0.0.0/8, 1.1.1.1, "2606:4700::/32"], ports: [5432, 1], private: true } }
  - { id: npm, action: allow, to: { hosts: [n.test, münchen.test] }, http: { methods: [GET], paths: ["/@*/%2F"], encoded_slash: data }, credential: "null" }
  - { id: none, action: allow, to: { hosts: [n.test] }, http: { methods: [] } }
  - { id: pinned, action: allow, tls: passthrough, to: { hosts: [p.test] } }
  - { id: ask, action: ask, to: { hosts: [n.test] }, ask: { timeout: 5m, reuse: session }, message: why, limits: { rate: 10/h, concurrency: 2, request_body: 1KiB, response_body: 2, duration: 1m } }
  - { id: inside, action: allow, to: { hosts: [i.test] }, http: { query: { "a b": [x, "*"], c: absent }, headers: { X-A: ["1"] }, content_types: [text/*], max_body: 1MiB, websocket: allow, git: { repos: [a/*], operations: [push], refs: ["refs/**"] } } }
  - { id: rpc, action: deny, to: { hosts: [i.test] }, http: { grpc: { service: a.B, methods: [C*] }, mcp: { tools: [x] } } }
  - { id: graph, action: allow, to: { hosts: [i.test] }, http: { graphql: { operations: [query, mutation.x*] } } }
mode: observe
sandboxes: { labels: { team: "a b" } }
budgets: [{ name: b, per: sandbox, window: 24h, requests: 1, egress: 2GiB, tokens: 3, usd: 0.25 }]
credentials:
  - { name: v, source: { vault: { mount: kv, path: a/b, field: c } }, attach: [{ header: A, format: "{}" }] }
  - { name: "null", source: { file: "/a b" }, expose: { env: X, shape: "x_{16}" }, attach: [{ header: A, format: "Bearer {}" }] }
  - { name: e, source: { env: X }, attach: [{ header: B, format: "{}" }, { header: C, format: "{}" }] }
tests:
  - { name: t, request: "GET https://a.test", expect: deny }
"#;

    fn load(text: &str) -> Policy {
        Policy::load(&[Source::new("p.yaml", text)])
            .unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    /// Without what the text of a policy can't hold: where its rules were written once.
    fn rules(policy: &Policy) -> Vec<EffectiveRule> {
        let mut rules: Vec<_> = policy.effective().layers.remove(0).rules;
        for rule in &mut rules {
            rule.rule.line = 0;
        }
        rules
    }

    #[test]
    fn what_is_shown_loads_and_is_the_same_policy() {
        let examples = [
            include_str!("../../config/policies/coding-agent.yaml"),
            include_str!("../../config/policies/package-installs.yaml"),
            include_str!("../../config/policies/deny-all.yaml"),
            WIDE,
        ];
        for text in examples {
            let policy = load(text);
            let again = load(&policy.effective().to_string());
            assert_eq!(rules(&policy), rules(&again));
            let rest = |policy: &Policy| {
                let layer = policy.effective().layers.remove(0);
                (
                    layer.credentials,
                    layer.budgets,
                    layer.observes,
                    layer.sandboxes,
                )
            };
            assert_eq!(rest(&policy), rest(&again));
            assert_eq!(
                (policy.name(), policy.description()),
                (again.name(), again.description())
            );
        }
    }

    #[test]
    fn every_rule_names_its_place_and_the_end_counts() {
        let base = "version: 1\nrules:\n  - { id: all, action: allow, to: { hosts: [any] } }\n";
        let sources = [Source::new("a\n.yaml", base), Source::new("p.yaml", WIDE)];
        let text = Policy::load(&sources).unwrap().effective().to_string();
        assert!(
            text.starts_with("# layer 0 of 2; all of them must allow\nversion: 1\n"),
            "{text}"
        );
        assert!(text.contains("  - id: all # a\\n.yaml:3\n    action: allow\n    protocol: https\n    to: { hosts: [\"any\"], ports: [443] }\n"), "{text}");
        assert!(text.contains("  - id: \"1e3\" # p.yaml:6\n"), "{text}");
        assert!(
            text.contains(
                "# total: 2 layers, 13 rules (8 allow, 1 ask, 4 deny), 3 credentials, 1 test\n"
            ),
            "{text}"
        );
    }
}
