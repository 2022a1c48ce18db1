//! GraphQL over HTTP: the type of the operation and its root fields, wherever aliases and fragments
//! put them.
//!
//! The operation's name is never looked at: the client chooses it. What an upstream could execute
//! otherwise than it was read here is unclear: batches, persisted queries, several operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use apollo_parser::cst::{
    CstNode, Definition, Document, FragmentDefinition, OperationDefinition, Selection, SelectionSet,
};

use super::json::{Json, Members};
use super::parameter::parameter;
use super::wildcard::Wildcard;
use super::{Content, PatternError, Unclear, shown};
use crate::CanonicalRequest;

/// Nested selections and values. Clients stay far below.
const MAX_DEPTH: usize = 128;
/// Tokens of a document: a large generated query has some ten thousand.
const MAX_TOKENS: usize = 100_000;

/// An operation that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphqlRequest {
    pub(crate) operation: OperationType,
    /// By their names in the schema, aliases resolved; never empty.
    pub(crate) fields: BTreeSet<String>,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationType {
    Query,
    Mutation,
    Subscription,
}

impl OperationType {
    const ALL: [Self; 3] = [Self::Query, Self::Mutation, Self::Subscription];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Mutation => "mutation",
            Self::Subscription => "subscription",
        }
    }
}

/// One entry of a rule's `graphql: { operations }`: a type, or a type with a root field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationPattern {
    operation: OperationType,
    /// `None` is every field.
    field: Option<Wildcard>,
}

impl OperationPattern {
    /// Reads an entry.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let (kind, field) = match text.split_once('.') {
            Some((kind, field)) => (kind, Some(field)),
            None => (text, None),
        };
        let known = OperationType::ALL.into_iter();
        let operation = known.into_iter().find(|known| known.as_str() == kind);
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'*';
        let good = field.is_none_or(|field| !field.is_empty() && field.bytes().all(plain));
        match operation {
            Some(operation) if good => Ok(Self {
                operation,
                field: field.map(Wildcard::new),
            }),
            _ => Err(PatternError::new(
                format!("`{}` is no GraphQL operation", shown(text)),
                "write `query`, `mutation` or `subscription`, alone or with a root field, as in \
                 `mutation.createIssue` or `query.*Issue*`",
            )),
        }
    }

    /// Whether a root field of such an operation is meant.
    pub(crate) fn matches(&self, operation: OperationType, field: &str) -> bool {
        let wanted = self.field.as_ref();
        self.operation == operation && wanted.is_none_or(|wanted| wanted.matches(field))
    }
}

/// As in a policy file.
impl fmt::Display for OperationPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation.as_str())?;
        match &self.field {
            Some(field) => write!(f, ".{}", field.as_str()),
            None => Ok(()),
        }
    }
}

/// Reads a request.
pub(crate) fn graphql_request(
    request: &CanonicalRequest,
    content: &Content<'_>,
) -> Result<Option<GraphqlRequest>, Unclear> {
    let in_url = parameter(request, "query")?;
    match request.method() {
        "POST" if in_url.is_some() => Err(Unclear::new("a query in the URL of a POST")),
        "POST" => posted(content).map(Some),
        _ if !content.is_empty() => Err(Unclear::new("operations with a body are sent with POST")),
        "GET" => match in_url {
            Some(text) => document(&text).map(Some),
            None if names_persisted(request) => Err(Unclear::new("a persisted query")),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Parameters by which servers find a document that isn't in the request.
fn names_persisted(request: &CanonicalRequest) -> bool {
    let mut names = request
        .query_pairs()
        .map(|(name, _)| name.to_ascii_lowercase());
    names.any(|name| PERSISTED.iter().any(|known| name.starts_with(known)))
}

const PERSISTED: [&str; 6] = [
    "extensions",
    "documentid",
    "document_id",
    "doc_id",
    "queryid",
    "hash",
];

fn posted(content: &Content<'_>) -> Result<GraphqlRequest, Unclear> {
    let media_type = content
        .media_type()?
        .filter(|media_type| media_type.is_utf8());
    match media_type.map(|media_type| media_type.essence()) {
        Some("application/json") => match content.json()? {
            Json::Object(members) => in_envelope(&members),
            Json::Array => Err(Unclear::new("a batch of operations")),
            _ => Err(Unclear::new("an operation is a JSON object")),
        },
        Some("application/graphql") => {
            let text = std::str::from_utf8(content.whole()?);
            let text = text.map_err(|_| Unclear::new("the document isn't UTF-8"))?;
            document(text)
        }
        _ => Err(Unclear::new(
            "operations are `application/json` or `application/graphql`, in UTF-8",
        )),
    }
}

/// GraphQL over HTTP has these members and no others; by a further one a server may find another
/// document.
fn in_envelope(members: &Members<'_>) -> Result<GraphqlRequest, Unclear> {
    const MEMBERS: [&str; 4] = ["query", "operationName", "variables", "extensions"];
    if let Some(name) = members.keys().find(|name| !MEMBERS.contains(&&***name)) {
        let why = format!("GraphQL has no member `{}`", shown(name.as_bytes()));
        return Err(Unclear::new(why));
    }
    if let Some(Json::Object(extensions)) = members.get("extensions")
        && extensions
            .keys()
            .any(|name| name.to_ascii_lowercase().contains("persisted"))
    {
        return Err(Unclear::new("a persisted query"));
    }
    match members.get("operationName") {
        None | Some(Json::String(_) | Json::Null) => {}
        Some(_) => return Err(Unclear::new("`operationName` is no text")),
    }
    match members.get("query") {
        Some(Json::String(text)) => document(text),
        Some(_) => Err(Unclear::new("`query` is no text")),
        None => Err(Unclear::new("there is no `query`")),
    }
}

/// Reads a document with exactly one operation.
fn document(text: &str) -> Result<GraphqlRequest, Unclear> {
    let tree = apollo_parser::Parser::new(text)
        .recursion_limit(MAX_DEPTH)
        .token_limit(MAX_TOKENS)
        .parse();
    if let Some(error) = tree.errors().next() {
        let why = format!("the document is no GraphQL: {}", shown(error.message()));
        return Err(Unclear::new(why));
    }
    let parts = Parts::of(&tree.document())?;
    let mut root = Root {
        fragments: &parts.fragments,
        under_way: BTreeSet::new(),
        done: BTreeSet::new(),
        fields: BTreeSet::new(),
    };
    root.add(parts.operation.selection_set())?;
    if root.fields.is_empty() {
        return Err(Unclear::new("the operation selects nothing"));
    }
    Ok(GraphqlRequest {
        operation: type_of(&parts.operation)?,
        fields: root.fields,
    })
}

fn type_of(operation: &OperationDefinition) -> Result<OperationType, Unclear> {
    // A selection alone is a query.
    let Some(written) = operation.operation_type() else {
        return Ok(OperationType::Query);
    };
    let text = written.source_string();
    let mut known = OperationType::ALL.into_iter();
    known
        .find(|known| known.as_str() == text.trim())
        .ok_or_else(|| Unclear::new(format!("`{}` is no type of operation", shown(text))))
}

/// The only operation of a document, and its fragments by name.
struct Parts {
    operation: OperationDefinition,
    fragments: BTreeMap<String, FragmentDefinition>,
}

impl Parts {
    fn of(document: &Document) -> Result<Self, Unclear> {
        let mut operation = None;
        let mut fragments = BTreeMap::new();
        for definition in document.definitions() {
            match definition {
                Definition::OperationDefinition(found) => {
                    if operation.replace(found).is_some() {
                        return Err(Unclear::new("several operations in one document"));
                    }
                }
                Definition::FragmentDefinition(found) => {
                    let name = found.fragment_name().and_then(|name| name.name());
                    let name = name.map(|name| name.text().to_string()).unwrap_or_default();
                    if fragments.insert(name.clone(), found).is_some() {
                        let why = format!("the fragment `{}` is there twice", shown(name));
                        return Err(Unclear::new(why));
                    }
                }
                _ => return Err(Unclear::new("a definition that is not executable")),
            }
        }
        Ok(Self {
            operation: operation.ok_or_else(|| Unclear::new("there is no operation"))?,
            fragments,
        })
    }
}

/// The fields at the root, found through fragments; each fragment is walked once.
struct Root<'a> {
    fragments: &'a BTreeMap<String, FragmentDefinition>,
    under_way: BTreeSet<String>,
    done: BTreeSet<String>,
    fields: BTreeSet<String>,
}

impl Root<'_> {
    fn add(&mut self, selected: Option<SelectionSet>) -> Result<(), Unclear> {
        for selection in selected.into_iter().flat_map(|set| set.selections()) {
            match selection {
                Selection::Field(field) => {
                    let name = field.name().map(|name| name.text().to_string());
                    let name = name.ok_or_else(|| Unclear::new("a field without a name"))?;
                    self.fields.insert(name);
                }
                Selection::InlineFragment(fragment) => self.add(fragment.selection_set())?,
                Selection::FragmentSpread(spread) => {
                    let name = spread.fragment_name().and_then(|name| name.name());
                    let name = name.map(|name| name.text().to_string()).unwrap_or_default();
                    self.spread(&name)?;
                }
            }
        }
        Ok(())
    }

    fn spread(&mut self, name: &str) -> Result<(), Unclear> {
        if self.done.contains(name) {
            return Ok(());
        }
        let Some(fragment) = self.fragments.get(name) else {
            let why = format!("the fragment `{}` isn't defined", shown(name));
            return Err(Unclear::new(why));
        };
        // Fragments lead to fragments: as deep as selections may be.
        if !self.under_way.insert(name.to_owned()) || self.under_way.len() > MAX_DEPTH {
            let why = format!("the fragment `{}` leads to itself", shown(name));
            return Err(Unclear::new(why));
        }
        self.add(fragment.selection_set())?;
        self.under_way.remove(name);
        self.done.insert(name.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{coded, content, cut_off, request};
    use super::*;

    fn posted(body: &str) -> Result<Option<GraphqlRequest>, String> {
        let request = request("POST", "/graphql");
        let content = content("application/json", body.as_bytes());
        graphql_request(&request, &content).map_err(|unclear| unclear.to_string())
    }

    fn query(text: &str) -> Result<Option<GraphqlRequest>, String> {
        posted(&serde_json::json!({ "query": text }).to_string())
    }

    fn asks(operation: OperationType, fields: &[&str]) -> Option<GraphqlRequest> {
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        Some(GraphqlRequest { operation, fields })
    }

    #[test]
    fn root_fields_are_found_wherever_they_stand() {
        for (text, operation, fields) in [
            ("{ a }", OperationType::Query, &["a"] as &[_]),
            (
                "query Q($x: Int = 1) @d { x: a(y: $x) { z } b }",
                OperationType::Query,
                &["a", "b"],
            ),
            ("mutation { a: b }", OperationType::Mutation, &["b"]),
            ("subscription S { s }", OperationType::Subscription, &["s"]),
            (
                "mutation { ... { a } ... on Mutation { b } }",
                OperationType::Mutation,
                &["a", "b"],
            ),
            (
                "mutation { ...F ...F } fragment F on Mutation { a ...G } fragment G on Mutation { b }",
                OperationType::Mutation,
                &["a", "b"],
            ),
            (
                "{ __schema { types { name } } __typename }",
                OperationType::Query,
                &["__schema", "__typename"],
            ),
            (
                "# mutation { x }\n{ a(s: \"mutation { x }\", b: \"\"\"{ y }\"\"\") }",
                OperationType::Query,
                &["a"],
            ),
            ("\u{feff}{ a }", OperationType::Query, &["a"]),
            (
                "query { a @include(if: false) }",
                OperationType::Query,
                &["a"],
            ),
        ] {
            assert_eq!(query(text).unwrap(), asks(operation, fields), "{text}");
        }
    }

    #[test]
    fn what_has_two_readings_is_unclear() {
        for text in [
            "",
            "{",
            "{ }",
            "{ a } { b }",
            "query A { a } mutation B { b }",
            "fragment F on Query { a }",
            "{ ...F }",
            "{ ...F } fragment F on Query { ...F }",
            "{ ...F } fragment F on Query { ...G } fragment G on Query { ...F }",
            "{ ...F } fragment F on Query { a } fragment F on Query { b }",
            "{ a } type T { x: Int }",
            "{ a } schema { query: Q }",
            "Mutation { a }",
            "{ a(x: \"unclosed) }",
        ] {
            assert!(query(text).is_err(), "{text}");
        }
        let deep = format!("{}a{}", "{ a ".repeat(500), "}".repeat(501));
        assert!(query(&deep).is_err());
        let long = format!("{{ {} }}", "a ".repeat(MAX_TOKENS));
        assert!(query(&long).is_err());
        let chain: String = (0..300)
            .map(|at| format!("fragment F{at} on Query {{ ...F{} }} ", at + 1))
            .collect();
        assert!(
            query(&format!(
                "{{ ...F0 }} {chain} fragment F300 on Query {{ a }}"
            ))
            .is_err()
        );
    }

    #[test]
    fn what_is_around_the_document_has_one_reading_too() {
        let good = r#"{"query":"{ a }","operationName":"X","variables":{"query":"mutation { b }"},"extensions":{"t":1}}"#;
        assert_eq!(posted(good).unwrap(), asks(OperationType::Query, &["a"]));
        for body in [
            r#"[{"query":"{ a }"}]"#,
            r#"{"query":"{ a }","query":"mutation { b }"}"#,
            r#"{"query":"{ a }","\u0071uery":"mutation { b }"}"#,
            r#"{"query":"{ a }","Query":"mutation { b }"}"#,
            r#"{"query":"{ a }","documentId":"x"}"#,
            r#"{"extensions":{"persistedQuery":{"version":1}}}"#,
            r#"{"query":"{ a }","extensions":{"persistedQuery":{"version":1}}}"#,
            r#"{"query":["{ a }"]}"#,
            r#"{"query":null}"#,
            r#"{"query":"{ a }","operationName":1}"#,
            r#"{}"#,
            r#""{ a }""#,
            "",
        ] {
            assert!(posted(body).is_err(), "{body}");
        }
        let post = request("POST", "/graphql");
        for content in [
            content("text/plain", br#"{"query":"{ a }"}"#),
            content("multipart/form-data; boundary=x", b"--x--"),
            content("application/x-www-form-urlencoded", b"query={a}"),
            content("application/json; charset=utf-7", br#"{"query":"{ a }"}"#),
            content("", br#"{"query":"{ a }"}"#),
            coded("application/json", "gzip", br#"{"query":"{ a }"}"#),
            cut_off("application/json", br#"{"query":"{ a }"}"#),
            content("application/graphql", b"\xff"),
        ] {
            assert!(graphql_request(&post, &content).is_err(), "{content:?}");
        }
        let plain = content("application/graphql", b"mutation { a }");
        assert_eq!(
            graphql_request(&post, &plain),
            Ok(asks(OperationType::Mutation, &["a"]))
        );
    }

    #[test]
    fn a_get_carries_its_document_in_the_query() {
        let get = |target: &str| {
            let request = request("GET", target);
            graphql_request(&request, &content("", b"")).map_err(|unclear| unclear.to_string())
        };
        assert_eq!(
            get("/g?query=%7Ba%7D").unwrap(),
            asks(OperationType::Query, &["a"])
        );
        assert_eq!(get("/g").unwrap(), None);
        assert_eq!(get("/g?x=1").unwrap(), None);
        for target in [
            "/g?query=%7Ba%7D&query=%7Bb%7D",
            "/g?query=%7Ba%7D&Query=%7Bb%7D",
            "/g?query[]=%7Ba%7D",
            "/g?x=1;query=%7Ba%7D",
            "/g?extensions=%7B%22persistedQuery%22%7D",
            "/g?documentId=1",
        ] {
            assert!(get(target).is_err(), "{target}");
        }
        let with_body = content("application/json", br#"{"query":"mutation { b }"}"#);
        assert!(graphql_request(&request("GET", "/g?query=%7Ba%7D"), &with_body).is_err());
        let both = request("POST", "/g?query=%7Ba%7D");
        assert!(graphql_request(&both, &with_body).is_err());
    }

    #[test]
    fn patterns_are_a_type_and_maybe_a_field() {
        for (pattern, operation, field, expected) in [
            ("query", OperationType::Query, "a", true),
            ("query", OperationType::Mutation, "a", false),
            ("mutation.a", OperationType::Mutation, "a", true),
            ("mutation.a", OperationType::Mutation, "A", false),
            ("mutation.a", OperationType::Query, "a", false),
            ("query.*Issue*", OperationType::Query, "createIssueX", true),
        ] {
            let parsed = OperationPattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(operation, field), expected, "{pattern}");
            assert_eq!(parsed.to_string(), pattern);
        }
        for pattern in [
            "",
            "Query",
            "mutate",
            "query.",
            "query.a b",
            "query.a.b",
            "*",
        ] {
            assert!(OperationPattern::parse(pattern).is_err(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[{}a.()\"#:$@!on \\n]{0,60}|.{0,40}") {
            let _ = query(&text);
            let bytes = content("application/json", text.as_bytes());
            let _ = graphql_request(&request("POST", "/g"), &bytes);
        }
    }
}
