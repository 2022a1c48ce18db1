//! Reading nodes as the types the language expects, and saying what is wrong where they are not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use super::fuzzy::nearest;
use super::spec::At;
use super::yaml::{Kind, Node};
use crate::diagnostic::MAX_FINDINGS;
use crate::{Diagnostic, Severity, Source};

/// What was found in one source so far.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) source: Arc<Source>,
    /// At most [`MAX_FINDINGS`].
    list: Vec<Diagnostic>,
    /// How many there were, with those that were not kept.
    count: usize,
}

impl Findings {
    pub(crate) const fn new(source: Arc<Source>) -> Self {
        Self {
            source,
            list: Vec::new(),
            count: 0,
        }
    }

    /// Adds a finding, which is only made when it is kept.
    pub(crate) fn add(&mut self, finding: impl FnOnce(&Arc<Source>) -> Diagnostic) {
        self.count += 1;
        if self.list.len() < MAX_FINDINGS {
            self.list.push(finding(&self.source));
        }
    }

    /// How many findings there were so far.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// The findings, and one that says so when there were more.
    pub(crate) fn into_list(mut self) -> Vec<Diagnostic> {
        if self.count > self.list.len() {
            self.list
                .push(Diagnostic::more(Severity::Error, &self.source));
        }
        self.list
    }

    /// Adds an error without help.
    pub(crate) fn error(
        &mut self,
        code: &'static str,
        span: &Range<usize>,
        message: impl Into<String>,
    ) {
        self.add(|source| Diagnostic::error(code, source, span.clone(), message));
    }

    /// Adds an error with help.
    pub(crate) fn error_help(
        &mut self,
        code: &'static str,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(|source| Diagnostic::error(code, source, span.clone(), message).help(help));
    }

    /// Adds an error that points at an earlier place too.
    pub(crate) fn duplicate(
        &mut self,
        code: &'static str,
        span: &Range<usize>,
        first: &Range<usize>,
        message: impl Into<String>,
    ) {
        self.add(|source| {
            Diagnostic::error(code, source, span.clone(), message).label(
                source,
                first.clone(),
                "it is here first",
            )
        });
    }

    /// A word of the language that this version can't keep.
    pub(crate) fn not_enforced(&mut self, span: &Range<usize>, what: &str) {
        self.error_help(
            "not_enforced",
            span,
            format!("`{what}` is not enforced by this version, so the file is refused"),
            "remove it, or use a version of outgate that enforces it",
        );
    }

    pub(super) fn wrong_type(&mut self, node: &Node, expected: &str, help: Option<String>) {
        self.add(|source| {
            let message = format!("expected {expected}, found {}", describe(node));
            let span = short_span(node, &source.text);
            let found = Diagnostic::error("wrong_type", source, span, message);
            match help {
                Some(help) => found.help(help),
                None => found,
            }
        });
    }
}

fn describe(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar { text, plain: true } if is_null(text) => "nothing".to_owned(),
        Kind::Scalar { text, .. } => format!("`{}`", text.escape_default()),
        Kind::List(_) => "a list".to_owned(),
        Kind::Map(_) => "a mapping".to_owned(),
    }
}

/// A collection is pointed at by its first line, not underlined to its end.
fn short_span(node: &Node, text: &str) -> Range<usize> {
    let end = text.get(node.span.start..).and_then(|rest| rest.find('\n'));
    node.span.start..end.map_or(node.span.end, |length| {
        node.span.end.min(node.span.start + length)
    })
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Whether some YAML reader takes this plain text for a boolean (YAML 1.1 has many).
fn is_boolean(text: &str) -> bool {
    let words = ["true", "false", "yes", "no", "on", "off", "y", "n"];
    words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn is_number(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']).replace('_', "");
    let based = |prefix: &str, base: u32| {
        let digits = digits.strip_prefix(prefix).unwrap_or_default();
        !digits.is_empty() && digits.chars().all(|c| c.is_digit(base))
    };
    digits.parse::<f64>().is_ok() || based("0x", 16) || based("0o", 8) || digits == ".inf"
}

/// Whether the loader reads this text one way without quotes and another way in quotes. Such a text
/// has no blanks and no signs of YAML's syntax.
pub(crate) fn quotes_matter(text: &str) -> bool {
    is_null(text) || is_boolean(text) || is_number(text)
}

/// Text. Plain words that YAML readers take for something else must be quoted.
pub(super) fn text(node: &Node, found: &mut Findings) -> Option<At<String>> {
    match &node.kind {
        Kind::Scalar { text, plain } => {
            if *plain && quotes_matter(text) {
                let help = (!is_null(text)).then(|| format!("write it in quotes: \"{text}\""));
                found.wrong_type(node, "text", help);
                return None;
            }
            // Texts end up on terminals and in headers.
            if text
                .chars()
                .any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
            {
                found.error(
                    "control_character",
                    &node.span,
                    "the text has a control character",
                );
                return None;
            }
            Some(At {
                value: text.clone(),
                span: node.span.clone(),
            })
        }
        Kind::List(_) | Kind::Map(_) => {
            found.wrong_type(node, "text", None);
            None
        }
    }
}

/// `true` or `false`, nothing else.
pub(super) fn flag(node: &Node, found: &mut Findings) -> Option<bool> {
    match &node.kind {
        Kind::Scalar { text, plain: true } if text == "true" => Some(true),
        Kind::Scalar { text, plain: true } if text == "false" => Some(false),
        Kind::Scalar { text, .. } => {
            let yes = ["true", "yes", "on", "y"]
                .iter()
                .any(|word| text.eq_ignore_ascii_case(word));
            let no = ["false", "no", "off", "n"]
                .iter()
                .any(|word| text.eq_ignore_ascii_case(word));
            let help = (yes || no).then(|| format!("write `{yes}`, without quotes"));
            found.wrong_type(node, "`true` or `false`", help);
            None
        }
        Kind::List(_) | Kind::Map(_) => {
            found.wrong_type(node, "`true` or `false`", None);
            None
        }
    }
}

/// A port.
pub(super) fn port(node: &Node, found: &mut Findings) -> Option<At<u16>> {
    let parsed = match &node.kind {
        Kind::Scalar { text, plain: true } => crate::authority::parse_port(text),
        _ => None,
    };
    if let Some(value) = parsed {
        return Some(At {
            value,
            span: node.span.clone(),
        });
    }
    let help = match &node.kind {
        Kind::Scalar { text, plain: false } if crate::authority::parse_port(text).is_some() => {
            Some(format!("write `{text}` without quotes"))
        }
        Kind::Scalar { text, .. } if text.contains(['-', ':', ',']) => {
            Some("write each port of its own, as in `[8000, 8001]`".to_owned())
        }
        _ => None,
    };
    found.wrong_type(node, "a port from 1 to 65535", help);
    None
}

/// A list; items that don't read are reported and left out.
pub(super) fn list<T>(
    node: &Node,
    found: &mut Findings,
    item: impl Fn(&Node, &mut Findings) -> Option<T>,
) -> Option<Vec<T>> {
    match &node.kind {
        Kind::List(items) => Some(items.iter().filter_map(|node| item(node, found)).collect()),
        Kind::Scalar { text, plain } => {
            let help = if *plain && is_null(text) {
                "write `[]` for an empty list, or leave the key out".to_owned()
            } else {
                format!("write it in brackets: `[{text}]`")
            };
            found.wrong_type(node, "a list", Some(help));
            None
        }
        Kind::Map(_) => {
            found.wrong_type(
                node,
                "a list",
                Some("start each entry with `- `".to_owned()),
            );
            None
        }
    }
}

/// One of a few words.
pub(super) fn choice<T: Copy>(
    node: &Node,
    found: &mut Findings,
    words: &[(&str, T)],
) -> Option<At<T>> {
    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let shown = known
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(" or ");
    let Kind::Scalar { text, .. } = &node.kind else {
        found.wrong_type(node, &shown, None);
        return None;
    };
    if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
        return Some(At {
            value: *value,
            span: node.span.clone(),
        });
    }
    let help = nearest(text, &known).map(|word| format!("did you mean `{word}`?"));
    found.wrong_type(node, &shown, help);
    None
}

/// A mapping whose keys the language doesn't know beforehand; a key comes once.
pub(super) fn pairs<T>(
    node: &Node,
    what: &'static str,
    found: &mut Findings,
    value: impl Fn(&At<String>, &Node, &mut Findings) -> Option<T>,
) -> Option<Vec<(At<String>, T)>> {
    let fields = Fields::of(node, what, found)?;
    let read = fields.entries.into_iter().filter_map(|(key, node)| {
        let value = value(&key, node, found)?;
        Some((key, value))
    });
    Some(read.collect())
}

/// The entries of a mapping, taken one by one; what is left at the end is unknown.
#[derive(Debug)]
pub(super) struct Fields<'n> {
    what: &'static str,
    /// Where to point when a key is missing.
    pub(super) span: Range<usize>,
    entries: Vec<(At<String>, &'n Node)>,
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Reads a mapping; `what` completes "unknown key `x` in …".
    pub(super) fn of(node: &'n Node, what: &'static str, found: &mut Findings) -> Option<Self> {
        let Kind::Map(pairs) = &node.kind else {
            found.wrong_type(node, &format!("{what} (a mapping)"), None);
            return None;
        };
        let mut entries: Vec<(At<String>, &'n Node)> = Vec::with_capacity(pairs.len());
        let mut places: HashMap<&str, &Range<usize>> = HashMap::with_capacity(pairs.len());
        for (key, value) in pairs {
            let Some(name) = key_text(key, found) else {
                continue;
            };
            match places.entry(name) {
                Entry::Occupied(first) => {
                    let message = format!("the key `{name}` is given twice");
                    found.duplicate("duplicate_key", &key.span, first.get(), message);
                }
                Entry::Vacant(place) => {
                    place.insert(&key.span);
                    let key = At {
                        value: name.to_owned(),
                        span: key.span.clone(),
                    };
                    entries.push((key, value));
                }
            }
        }
        let span = entries.first().map_or_else(
            || short_span(node, &found.source.text),
            |(key, _)| key.span.clone(),
        );
        Some(Self {
            what,
            span,
            entries,
            known: Vec::new(),
        })
    }

    /// The value of a key that may be left out.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<&'n Node> {
        self.known.push(key);
        let at = self
            .entries
            .iter()
            .position(|(name, _)| name.value == key)?;
        Some(self.entries.remove(at).1)
    }

    /// Reads the value of a key that may be left out.
    pub(super) fn read<T>(
        &mut self,
        key: &'static str,
        found: &mut Findings,
        value: impl FnOnce(&Node, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        self.optional(key).and_then(|node| value(node, found))
    }

    /// Reads a list that may be left out.
    pub(super) fn read_list<T>(
        &mut self,
        key: &'static str,
        found: &mut Findings,
        item: impl Fn(&Node, &mut Findings) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.read(key, found, |node, found| list(node, found, item))
    }

    /// The value of a key that must be there.
    pub(super) fn required(&mut self, key: &'static str, found: &mut Findings) -> Option<&'n Node> {
        let node = self.optional(key);
        if node.is_none() {
            found.error(
                "missing_key",
                &self.span,
                format!("{} needs the key `{key}`", self.what),
            );
        }
        node
    }

    /// Refuses what is left; `later` are keys of the language that this version refuses.
    pub(super) fn finish(self, later: &[&str], found: &mut Findings) {
        for (key, _) in &self.entries {
            if later.contains(&key.value.as_str()) {
                found.not_enforced(&key.span, &key.value);
                continue;
            }
            found.add(|source| self.unknown_key(key, source));
        }
    }

    fn unknown_key(&self, key: &At<String>, source: &Arc<Source>) -> Diagnostic {
        let message = format!(
            "unknown key `{}` in {}",
            key.value.escape_default(),
            self.what
        );
        let help = match (key.value.as_str(), nearest(&key.value, &self.known)) {
            ("<<", _) => "merge keys are not part of the language; write the keys out".to_owned(),
            (_, Some(near)) => format!("did you mean `{near}`?"),
            ("hosts" | "ips" | "ports" | "private", None) => "it belongs under `to:`".to_owned(),
            (
                "methods" | "paths" | "encoded_slash" | "query" | "headers" | "content_types"
                | "max_body" | "websocket" | "grpc" | "git" | "graphql" | "mcp",
                None,
            ) => "it belongs under `http:`".to_owned(),
            ("rate" | "concurrency" | "request_body" | "response_body" | "duration", None) => {
                "it belongs under `limits:`".to_owned()
            }
            _ => format!("the keys of {} are: {}", self.what, self.known.join(", ")),
        };
        Diagnostic::error("unknown_key", source, key.span.clone(), message).help(help)
    }
}

fn key_text<'n>(key: &'n Node, found: &mut Findings) -> Option<&'n str> {
    match &key.kind {
        Kind::Scalar { text, .. } => Some(text),
        Kind::List(_) | Kind::Map(_) => {
            found.wrong_type(key, "a key (text)", None);
            None
        }
    }
}
