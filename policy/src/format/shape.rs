//! What the formatter knows of the language: the order of keys, and which collections stand in
//! block style however small they are. A file needn't compile to be formatted, so nothing here is
//! required or refused.

use crate::document::{Kind, Node};

/// How one kind of collection is laid out.
#[derive(Debug)]
pub(super) struct Shape {
    /// Keys in order, with what their values are. Other keys come after these as they stood.
    keys: &'static [(&'static str, &'static Shape)],
    /// What the items of a list are.
    items: Option<&'static Shape>,
    /// In block style unless it is empty.
    block: bool,
    /// A blank line between items when one of them spans lines.
    pub(super) spaced: bool,
}

impl Shape {
    const fn map(keys: &'static [(&'static str, &'static Self)]) -> Self {
        Self {
            keys,
            items: None,
            block: false,
            spaced: false,
        }
    }

    const fn list(items: &'static Self) -> Self {
        Self {
            keys: &[],
            items: Some(items),
            block: false,
            spaced: false,
        }
    }

    const fn block(self) -> Self {
        Self {
            block: true,
            ..self
        }
    }

    const fn spaced(self) -> Self {
        Self {
            spaced: true,
            ..self
        }
    }

    /// The shape of the value under a key.
    pub(super) fn of_key(&self, key: &Node) -> &'static Self {
        self.find(key).map_or(&ANY, |(_, (_, shape))| shape)
    }

    /// The shape of an item.
    pub(super) fn of_item(&self) -> &'static Self {
        self.items.unwrap_or(&ANY)
    }

    /// Whether a collection of this shape is in block style however small it is.
    pub(super) const fn is_block(&self, is_list: bool) -> bool {
        self.block && is_list == self.items.is_some()
    }

    /// Place of a key among the others: the sort must be stable, for duplicates and unknown keys.
    pub(super) fn rank(&self, key: &Node) -> usize {
        self.find(key).map_or(self.keys.len(), |(at, _)| at)
    }

    fn find(&self, key: &Node) -> Option<(usize, &(&'static str, &'static Self))> {
        let Kind::Scalar { text, .. } = &key.kind else {
            return None;
        };
        let mut keys = self.keys.iter().enumerate();
        keys.find(|(_, (name, _))| name == text)
    }
}

pub(super) static ANY: Shape = Shape::map(&[]);

pub(super) static POLICY: Shape = Shape::map(&[
    ("version", &ANY),
    ("name", &ANY),
    ("description", &ANY),
    ("include", &ANY),
    ("sandboxes", &ANY),
    ("mode", &ANY),
    ("rules", &RULES),
    ("credentials", &CREDENTIALS),
    ("budgets", &BUDGETS),
    ("tests", &TESTS),
])
.block();

static RULES: Shape = Shape::list(&RULE).block().spaced();
static RULE: Shape = Shape::map(&[
    ("id", &ANY),
    ("action", &ANY),
    ("protocol", &ANY),
    ("tls", &ANY),
    ("to", &TO),
    ("http", &HTTP),
    ("credential", &ANY),
    ("ask", &ASK),
    ("limits", &LIMITS),
    ("message", &ANY),
    ("allow_public_suffix", &ANY),
])
.block();
static TO: Shape = Shape::map(&[
    ("hosts", &ANY),
    ("ips", &ANY),
    ("ports", &ANY),
    ("private", &ANY),
]);
static HTTP: Shape = Shape::map(&[
    ("methods", &ANY),
    ("paths", &ANY),
    ("encoded_slash", &ANY),
    ("query", &ANY),
    ("headers", &ANY),
    ("content_types", &ANY),
    ("max_body", &ANY),
    ("websocket", &ANY),
    ("grpc", &GRPC),
    ("git", &GIT),
    ("graphql", &ANY),
    ("mcp", &ANY),
]);
static GRPC: Shape = Shape::map(&[("service", &ANY), ("methods", &ANY)]);
static GIT: Shape = Shape::map(&[("repos", &ANY), ("operations", &ANY), ("refs", &ANY)]);
static ASK: Shape = Shape::map(&[("timeout", &ANY), ("reuse", &ANY)]);
static LIMITS: Shape = Shape::map(&[
    ("rate", &ANY),
    ("concurrency", &ANY),
    ("request_body", &ANY),
    ("response_body", &ANY),
    ("duration", &ANY),
]);

static CREDENTIALS: Shape = Shape::list(&CREDENTIAL).block().spaced();
static CREDENTIAL: Shape = Shape::map(&[
    ("name", &ANY),
    ("source", &SOURCE),
    ("expose", &EXPOSE),
    ("attach", &ATTACH),
])
.block();
static SOURCE: Shape = Shape::map(&[("env", &ANY), ("file", &ANY), ("vault", &VAULT)]);
static VAULT: Shape = Shape::map(&[("mount", &ANY), ("path", &ANY), ("field", &ANY)]);
static EXPOSE: Shape = Shape::map(&[("env", &ANY), ("shape", &ANY)]);
static ATTACH: Shape = Shape::list(&HEADER);
static HEADER: Shape = Shape::map(&[("header", &ANY), ("format", &ANY)]);

static BUDGETS: Shape = Shape::list(&BUDGET).block();
static BUDGET: Shape = Shape::map(&[
    ("name", &ANY),
    ("per", &ANY),
    ("window", &ANY),
    ("requests", &ANY),
    ("egress", &ANY),
    ("usd", &ANY),
]);

static TESTS: Shape = Shape::list(&TEST).block();
static TEST: Shape = Shape::map(&[
    ("name", &ANY),
    ("request", &REQUEST),
    ("expect", &ANY),
    ("rule", &ANY),
    ("credential", &ANY),
    ("reason", &ANY),
]);
static REQUEST: Shape = Shape::map(&[
    ("method", &ANY),
    ("url", &ANY),
    ("headers", &ANY),
    ("body", &ANY),
    ("protocol", &ANY),
    ("sni", &ANY),
    ("connect", &ANY),
    ("sandbox", &ANY),
]);
