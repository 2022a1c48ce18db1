//! Matchers on what is inside of a request: query, headers, media type and body.
//!
//! A matcher can find a request that has two readings. An allow rule takes that for no, a deny rule
//! for yes: what is unclear is never let through.

mod protocols;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::protocols::{Git, Grpc};
use crate::body::{MediaTypePattern, OperationPattern};
use crate::glob::TextGlob;
use crate::rule::Mismatch;
use crate::{CanonicalRequest, QueryPairs, yaml_text};

/// What a decision has to see of a request beyond its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The header fields.
    pub headers: bool,
    /// So many bytes of the body, or all of a shorter one. At most [`Needs::MAX_BODY`].
    pub body: usize,
}

impl Needs {
    /// The most that any matcher looks at: a larger body is unclear to it.
    pub const MAX_BODY: usize = 1024 * 1024;
    /// The list of refs of a push comes first; a thousand of them fit.
    const GIT_BODY: usize = 256 * 1024;

    pub(crate) const NOTHING: Self = Self {
        headers: false,
        body: 0,
    };

    /// Whether the first line is enough.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        !self.headers && self.body == 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            headers: self.headers || other.headers,
            body: self.body.max(other.body),
        }
    }
}

/// Whether a request is what a matcher wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Yes,
    No,
    /// It has no single reading; why.
    Unclear(String),
}

impl Fit {
    pub(crate) fn when(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    fn holds(&self, is_deny: bool) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            Self::Unclear(_) => is_deny,
        }
    }
}

/// The matchers of one rule: all of them must hold.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    matchers: Box<[Matcher]>,
    key: Box<str>,
}

/// One matcher.
#[derive(Clone, Debug)]
pub(crate) enum Matcher {
    Query(Box<[Field]>),
    Headers(Box<[Field]>),
    ContentTypes(Box<[MediaTypePattern]>),
    /// Bytes. Where the length isn't declared, whoever sends the body has to count.
    MaxBody(u64),
    Grpc(Grpc),
    Git(Git),
    Graphql(Box<[OperationPattern]>),
    Mcp(Box<[TextGlob]>),
}

/// What a parameter or header must be.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// `None` is absent.
    pub(crate) values: Option<Box<[TextGlob]>>,
}

impl Content {
    /// `key` is equal for two rules exactly when their matchers are.
    pub(crate) fn new(matchers: Vec<Matcher>) -> Option<Self> {
        if matchers.is_empty() {
            return None;
        }
        let texts: Vec<String> = matchers.iter().map(ToString::to_string).collect();
        Some(Self {
            matchers: matchers.into(),
            key: texts.join(", ").into(),
        })
    }

    /// The matchers as a policy writes them under `http:`, in one order.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// What the first matcher that fails looks at.
    pub(crate) fn mismatch(&self, request: &CanonicalRequest, is_deny: bool) -> Option<Mismatch> {
        self.failing(request, is_deny).next()
    }

    /// What the matchers that fail look at.
    pub(crate) fn mismatches(&self, request: &CanonicalRequest, is_deny: bool) -> Vec<Mismatch> {
        self.failing(request, is_deny).collect()
    }

    fn failing(&self, request: &CanonicalRequest, is_deny: bool) -> impl Iterator<Item = Mismatch> {
        let failing = move |matcher: &&Matcher| !matcher.fit(request, is_deny).holds(is_deny);
        self.matchers.iter().filter(failing).map(Matcher::kind)
    }

    /// What the matcher on `kind` wants, and why it finds the request unclear, if it does.
    pub(crate) fn wanted(&self, kind: Mismatch, request: &CanonicalRequest) -> String {
        let of_kind = self
            .matchers
            .iter()
            .filter(|matcher| matcher.kind() == kind);
        let texts: Vec<String> = of_kind
            .map(|matcher| match matcher.fit(request, false) {
                Fit::Unclear(why) => format!("{matcher}; unclear: {why}"),
                Fit::Yes | Fit::No => matcher.to_string(),
            })
            .collect();
        texts.join(", ")
    }

    pub(crate) fn needs(&self) -> Needs {
        let needs = self.matchers.iter().map(Matcher::needs);
        needs.fold(Needs::NOTHING, Needs::and)
    }
}

impl Matcher {
    pub(crate) const fn kind(&self) -> Mismatch {
        match self {
            Self::Query(_) => Mismatch::Query,
            Self::Headers(_) => Mismatch::Header,
            Self::ContentTypes(_) => Mismatch::ContentType,
            Self::MaxBody(_) => Mismatch::BodySize,
            Self::Grpc(_) => Mismatch::Grpc,
            Self::Git(_) => Mismatch::Git,
            Self::Graphql(_) => Mismatch::Graphql,
            Self::Mcp(_) => Mismatch::Mcp,
        }
    }

    const fn needs(&self) -> Needs {
        let body = match self {
            Self::Query(_) | Self::MaxBody(_) => return Needs::NOTHING,
            Self::Headers(_) | Self::ContentTypes(_) | Self::Grpc(_) => 0,
            Self::Git(git) if git.looks_at_refs() => Needs::GIT_BODY,
            Self::Git(_) => 0,
            Self::Graphql(_) | Self::Mcp(_) => Needs::MAX_BODY,
        };
        Needs {
            headers: true,
            body,
        }
    }

    fn fit(&self, request: &CanonicalRequest, is_deny: bool) -> Fit {
        match self {
            Self::Query(fields) => query(fields, request, is_deny),
            Self::Headers(fields) => headers(fields, request, is_deny),
            Self::ContentTypes(patterns) => content_type(patterns, request),
            Self::MaxBody(most) => Fit::when(request.body_len().is_none_or(|len| len <= *most)),
            Self::Grpc(grpc) => grpc.fit(request, is_deny),
            Self::Git(git) => git.fit(request, is_deny),
            Self::Graphql(wanted) => protocols::graphql(wanted, request, is_deny),
            Self::Mcp(tools) => protocols::mcp(tools, request, is_deny),
        }
    }
}

/// As a policy writes it under `http:`.
impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Query(fields) => write!(f, "query: {}", mapping(fields)),
            Self::Headers(fields) => write!(f, "headers: {}", mapping(fields)),
            Self::ContentTypes(types) => write!(f, "content_types: {}", texts(types)),
            Self::MaxBody(most) => write!(f, "max_body: {most}"),
            Self::Grpc(grpc) => write!(f, "grpc: {grpc}"),
            Self::Git(git) => write!(f, "git: {git}"),
            Self::Graphql(wanted) => {
                write!(f, "graphql: {{ operations: {} }}", texts(wanted))
            }
            Self::Mcp(tools) => write!(f, "mcp: {{ tools: {} }}", texts(tools)),
        }
    }
}

/// A list of quoted texts.
fn texts(items: &[impl ToString]) -> String {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    yaml_text::list(&texts)
}

fn mapping(fields: &[Field]) -> String {
    let entries = fields.iter().map(|Field { name, values }| {
        let values = values.as_deref();
        let values = values.map_or_else(|| "absent".to_owned(), texts);
        format!("{}: {values}", yaml_text::quoted(name))
    });
    let entries: Vec<String> = entries.collect();
    format!("{{ {} }}", entries.join(", "))
}

/// Servers disagree on which of two parameters of a name counts: for an allow each has to be good,
/// for a deny one bad one is enough.
fn fits(values: Option<&[TextGlob]>, mut given: impl Iterator<Item = bool>, is_deny: bool) -> Fit {
    match (values, is_deny) {
        (None, _) => Fit::when(given.next().is_none()),
        (Some(_), true) => Fit::when(given.any(|good| good)),
        (Some(_), false) => match given.next() {
            Some(first) => Fit::when(first && given.all(|good| good)),
            None => Fit::No,
        },
    }
}

fn all(mut fits: impl Iterator<Item = Fit>) -> Fit {
    let mut unclear = None;
    let none_fails = fits.all(|fit| {
        if let Fit::Unclear(why) = &fit {
            unclear.get_or_insert_with(|| why.clone());
        }
        fit != Fit::No
    });
    match (none_fails, unclear) {
        (false, _) => Fit::No,
        (true, Some(why)) => Fit::Unclear(why),
        (true, None) => Fit::Yes,
    }
}

fn query(fields: &[Field], request: &CanonicalRequest, is_deny: bool) -> Fit {
    all(fields.iter().map(|field| {
        let values = field.values.as_deref();
        let good = |value: &str| {
            let mut globs = values.iter().copied().flatten();
            values.is_none() || globs.any(|glob| glob.matches(value.as_bytes()))
        };
        // What must not be there must not be there under any name that a server takes for it.
        if is_deny == values.is_some() {
            let given = loose_pairs(request).filter(|(name, _)| is_loosely(name, &field.name));
            fits(values, given.map(|(_, value)| good(&value)), is_deny)
        } else {
            let given = request
                .query_pairs()
                .filter(|(name, _)| *name == field.name);
            fits(values, given.map(|(_, value)| good(&value)), is_deny)
        }
    }))
}

/// Some servers fold the case of parameters, and some take `name[]` for `name`.
fn is_loosely(given: &str, wanted: &str) -> bool {
    let plain = given.split('[').next().unwrap_or(given).trim();
    given == wanted || plain.eq_ignore_ascii_case(wanted)
}

/// Some servers end a parameter at a semicolon too.
fn loose_pairs(request: &CanonicalRequest) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let query = request.query().unwrap_or_default();
    let pieces = query
        .split(';')
        .filter(move |piece| piece.len() < query.len());
    let pieces = pieces.flat_map(|piece| QueryPairs::new(Some(piece)));
    request.query_pairs().chain(pieces)
}

fn headers(fields: &[Field], request: &CanonicalRequest, is_deny: bool) -> Fit {
    let Some(headers) = request.headers() else {
        return Fit::Unclear("the header fields were not read".to_owned());
    };
    all(fields.iter().map(|field| {
        let good = |value: &[u8]| match &field.values {
            Some(values) => values.iter().any(|glob| glob.matches(value.trim_ascii())),
            None => true,
        };
        let given = headers.values(&field.name).map(good);
        fits(field.values.as_deref(), given, is_deny)
    }))
}

fn content_type(patterns: &[MediaTypePattern], request: &CanonicalRequest) -> Fit {
    let body = match protocols::body_of(request) {
        Ok(body) => body,
        Err(unclear) => return unclear,
    };
    match body.media_type() {
        Ok(Some(media_type)) => Fit::when(patterns.iter().any(|one| one.matches(media_type))),
        Ok(None) => Fit::No,
        Err(unclear) => unclear.into(),
    }
}
