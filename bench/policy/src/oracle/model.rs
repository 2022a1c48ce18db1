//! Small random policies, each written in both languages.
//!
//! Names and paths come from a small alphabet, so that rules overlap and requests hit them. Where
//! Outgate's deny rules match more than they say (a method in any case, a path with a slash at its
//! end), Cedar's text says so: those are promises, and this is where they are checked.

use std::fmt::Write as _;

use super::path::{self, Path};
use crate::random::Random;

const HOSTS: [&str; 6] = [
    "a.test",
    "b.test",
    "x.a.test",
    "y.x.a.test",
    "xa.test",
    "test",
];
/// As in policy files. Requests also have `get`, which no allow rule matches.
const METHODS: [&str; 3] = ["GET", "POST", "PUT"];
const SENT_METHODS: [&str; 4] = ["GET", "POST", "PUT", "get"];
const PORTS: [u16; 3] = [443, 80, 8443];
const PROTOCOLS: [&str; 2] = ["https", "http"];

/// Layers that all have to allow.
#[derive(Debug)]
pub(crate) struct Model(Vec<Layer>);

/// Rules of one file.
#[derive(Debug)]
pub(crate) struct Layer(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    is_deny: bool,
    protocol: Option<&'static str>,
    hosts: Vec<HostPattern>,
    ports: Option<Vec<u16>>,
    methods: Option<Vec<&'static str>>,
    paths: Option<Vec<Path>>,
}

#[derive(Debug)]
enum HostPattern {
    Any,
    Exact(&'static str),
    Below(&'static str),
}

impl Model {
    pub(super) fn random(random: &mut Random) -> Self {
        let layers = if random.once_in(4) { 2 } else { 1 };
        Self((0..layers).map(|_| Layer::random(random)).collect())
    }

    /// `METHOD URL`: in half of the cases a place that some rule speaks of.
    pub(super) fn random_request(&self, random: &mut Random) -> String {
        let (protocol, port) = match random.below(8) {
            0 => ("http", 80),
            1 => ("http", 8443),
            2 => ("https", 8443),
            3 => ("https", 80),
            _ => ("https", 443),
        };
        let method = random.pick(SENT_METHODS);
        let rules: Vec<&Rule> = self.layers().flat_map(|layer| &layer.0).collect();
        let rule = rules.get(random.below(rules.len() * 2));
        let host = match rule.and_then(|rule| rule.hosts.first()) {
            Some(host) => host.name_within(random),
            None => random.pick(HOSTS),
        };
        let path = match rule.and_then(|rule| rule.paths.as_ref()?.first()) {
            Some(path) => path.path_within(random),
            None => path::random_path(random),
        };
        let slash = if path.is_empty() || random.once_in(6) && !path.ends_with('/') {
            "/"
        } else {
            ""
        };
        format!("{method} {protocol}://{host}:{port}{path}{slash}")
    }

    pub(super) fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.0.iter()
    }
}

impl Layer {
    fn random(random: &mut Random) -> Self {
        let rules = 1 + random.below(8);
        Self((0..rules).map(|_| Rule::random(random)).collect())
    }

    pub(super) fn yaml(&self) -> String {
        let mut text = "version: 1\nrules:\n".to_owned();
        for (n, rule) in self.0.iter().enumerate() {
            text.push_str(&format!("  - {{ id: r{n}, {} }}\n", rule.yaml()));
        }
        text
    }

    pub(super) fn cedar(&self) -> String {
        self.0.iter().map(Rule::cedar).collect()
    }
}

impl Rule {
    fn random(random: &mut Random) -> Self {
        let is_deny = random.once_in(4);
        Self {
            is_deny,
            protocol: random.once_in(4).then(|| random.pick(PROTOCOLS)),
            hosts: some(random, 2, HostPattern::random),
            ports: random
                .once_in(4)
                .then(|| some(random, 2, |random| random.pick(PORTS))),
            // Now and then an empty list, which matches nothing.
            methods: random
                .once_in(2)
                .then(|| up_to(random, 2, |random| random.pick(METHODS))),
            paths: (!random.once_in(4)).then(|| up_to(random, 3, Path::random)),
        }
    }

    fn yaml(&self) -> String {
        let mut text = format!("action: {}, ", if self.is_deny { "deny" } else { "allow" });
        if let Some(protocol) = self.protocol {
            text.push_str(&format!("protocol: {protocol}, "));
        }
        text.push_str(&format!(
            "to: {{ hosts: [{}]",
            list(&self.hosts, HostPattern::yaml)
        ));
        if let Some(ports) = &self.ports {
            text.push_str(&format!(", ports: [{}]", list(ports, ToString::to_string)));
        }
        text.push_str(" }");
        let methods = self.methods.as_ref().map(|methods| {
            format!(
                "methods: [{}]",
                list(methods, |method| (*method).to_owned())
            )
        });
        let paths = self
            .paths
            .as_ref()
            .map(|paths| format!("paths: [{}]", list(paths, |path| format!("\"{path}\""))));
        let matchers: Vec<String> = methods.into_iter().chain(paths).collect();
        if !matchers.is_empty() {
            text.push_str(&format!(", http: {{ {} }}", matchers.join(", ")));
        }
        text
    }

    fn cedar(&self) -> String {
        let effect = if self.is_deny { "forbid" } else { "permit" };
        let mut text = format!("{effect}(principal, {}, resource)\n", self.cedar_action());
        if let Some(protocol) = self.cedar_protocol() {
            when(&mut text, &format!("context.protocol == \"{protocol}\""));
        }
        if let Some(ports) = self.cedar_ports() {
            when(
                &mut text,
                &any_of(ports.iter().map(|port| format!("context.port == {port}"))),
            );
        }
        when(
            &mut text,
            &any_of(self.hosts.iter().map(HostPattern::cedar)),
        );
        if let Some(paths) = &self.paths {
            when(
                &mut text,
                &any_of(paths.iter().map(|path| path.cedar(self.is_deny))),
            );
        }
        text.push_str(";\n");
        text
    }

    /// An allow rule speaks of https; a deny rule of every protocol.
    fn cedar_protocol(&self) -> Option<&'static str> {
        match self.protocol {
            None if !self.is_deny => Some("https"),
            protocol => protocol,
        }
    }

    /// An allow rule speaks of its protocol's port; a deny rule of every port.
    fn cedar_ports(&self) -> Option<Vec<u16>> {
        let default = match self.cedar_protocol() {
            Some("http") => 80,
            _ => 443,
        };
        self.ports
            .clone()
            .or_else(|| (!self.is_deny).then(|| vec![default]))
    }

    fn cedar_action(&self) -> String {
        let Some(methods) = &self.methods else {
            return "action".to_owned();
        };
        let mut sent: Vec<String> = methods.iter().map(|method| (*method).to_owned()).collect();
        if self.is_deny {
            sent.extend(methods.iter().map(|method| method.to_ascii_lowercase()));
        }
        let actions = list(&sent, |method| format!("Action::\"{method}\""));
        format!("action in [{actions}]")
    }
}

impl HostPattern {
    fn random(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Any,
            1 | 2 => Self::Below(random.pick(["test", "a.test", "x.a.test", "b.test"])),
            _ => Self::Exact(random.pick(HOSTS)),
        }
    }

    fn name_within(&self, random: &mut Random) -> &'static str {
        match self {
            Self::Any => random.pick(HOSTS),
            Self::Exact(host) => host,
            // The longest name is below all of the apexes but one.
            Self::Below("b.test") => "x.b.test",
            Self::Below(_) => "y.x.a.test",
        }
    }

    fn yaml(&self) -> String {
        match self {
            Self::Any => "any".to_owned(),
            Self::Exact(host) => (*host).to_owned(),
            Self::Below(host) => format!("\"*.{host}\""),
        }
    }

    fn cedar(&self) -> String {
        match self {
            Self::Any => "true".to_owned(),
            Self::Exact(host) => format!("context.host == \"{host}\""),
            Self::Below(host) => format!("context.host like \"*.{host}\""),
        }
    }
}

fn when(text: &mut String, condition: &str) {
    // Writing to a string can't fail.
    let _ = writeln!(text, "  when {{ {condition} }}");
}

/// A condition that no item makes true is false.
fn any_of(conditions: impl Iterator<Item = String>) -> String {
    let conditions: Vec<String> = conditions.map(|one| format!("({one})")).collect();
    if conditions.is_empty() {
        return "false".to_owned();
    }
    conditions.join(" || ")
}

/// Items with commas between them.
fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(text).collect();
    items.join(", ")
}

/// 1 to `most` items.
fn some<T>(random: &mut Random, most: usize, mut item: impl FnMut(&mut Random) -> T) -> Vec<T> {
    let count = 1 + random.below(most);
    (0..count).map(|_| item(random)).collect()
}

/// 0 to `most` items, seldom none.
fn up_to<T>(random: &mut Random, most: usize, item: impl FnMut(&mut Random) -> T) -> Vec<T> {
    if random.once_in(16) {
        return Vec::new();
    }
    some(random, most, item)
}
