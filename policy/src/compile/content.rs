//! Matchers on query, headers, media type and body.

use super::http::report_glob;
use crate::body::{MediaTypePattern, OperationPattern};
use crate::content::{Content, Field, Git, Grpc, Matcher};
use crate::document::{At, Findings, GitSpec, GrpcSpec, HttpSpec, ValuesSpec};
use crate::glob::{GlobError, PathGlob, TextGlob};

/// The matchers of a rule in the order in which they are tried, the cheap ones first.
pub(super) fn compile(spec: &HttpSpec, found: &mut Findings) -> Option<Content> {
    let mut matchers = Vec::new();
    matchers.extend(
        spec.max_body
            .as_ref()
            .map(|most| Matcher::MaxBody(most.value)),
    );
    if let Some(query) = &spec.query {
        matchers.push(Matcher::Query(fields(query, found, query_name)));
    }
    if let Some(headers) = &spec.headers {
        matchers.push(Matcher::Headers(fields(headers, found, header_name)));
    }
    if let Some(types) = &spec.content_types {
        matchers.push(Matcher::ContentTypes(each(
            types,
            MediaTypePattern::parse,
            found,
        )));
    }
    matchers.extend(
        spec.grpc
            .as_ref()
            .map(|spec| Matcher::Grpc(grpc(spec, found))),
    );
    matchers.extend(spec.git.as_ref().map(|spec| Matcher::Git(git(spec, found))));
    if let Some(spec) = &spec.graphql {
        matchers.push(Matcher::Graphql(each(
            &spec.operations,
            OperationPattern::parse,
            found,
        )));
    }
    if let Some(spec) = &spec.mcp {
        matchers.push(Matcher::Mcp(each(&spec.tools, name, found)));
    }
    Content::new(matchers)
}

fn fields(
    specs: &[(At<String>, ValuesSpec)],
    found: &mut Findings,
    name: impl Fn(&At<String>, &mut Findings) -> String,
) -> Box<[Field]> {
    specs
        .iter()
        .map(|(at, values)| Field {
            name: name(at, found),
            values: match values {
                ValuesSpec::Absent => None,
                ValuesSpec::OneOf(values) => Some(each(values, TextGlob::parse, found)),
            },
        })
        .collect()
}

fn query_name(name: &At<String>, found: &mut Findings) -> String {
    if name.value.contains('%') || name.value.is_empty() {
        let message = format!(
            "`{}` is no decoded name of a parameter",
            name.value.escape_default()
        );
        let help = "write the name as the server reads it, without escapes";
        found.error_help("bad_query", &name.span, message, help);
    }
    name.value.clone()
}

/// Fields that the gateway judges or writes itself, with the matcher that speaks of them.
const OTHERWISE: [(&str, &str); 5] = [
    ("host", "`to: { hosts: […] }`"),
    ("content-type", "`content_types`"),
    ("content-length", "`max_body`"),
    ("upgrade", "`websocket`"),
    (
        "transfer-encoding",
        "nothing: the gateway frames bodies anew",
    ),
];

fn header_name(name: &At<String>, found: &mut Findings) -> String {
    let lower = name.value.to_ascii_lowercase();
    if !crate::canonical::is_token(&lower) {
        let message = format!("`{}` is no name of a header", name.value.escape_default());
        found.error("bad_header", &name.span, message);
    } else if let Some((_, instead)) = OTHERWISE.iter().find(|(known, _)| *known == lower) {
        let message = format!("`{}` is not matched as a header", name.value);
        found.error_help("bad_header", &name.span, message, format!("use {instead}"));
    }
    lower
}

fn grpc(spec: &GrpcSpec, found: &mut Findings) -> Grpc {
    if !Grpc::is_service(&spec.service.value) {
        let message = format!(
            "`{}` is no full name of a gRPC service",
            spec.service.value.escape_default()
        );
        let help = "write package and service, as in `google.pubsub.v1.Publisher`";
        found.error_help("bad_grpc", &spec.service.span, message, help);
    }
    let methods = spec.methods.as_ref();
    Grpc {
        service: spec.service.value.clone(),
        methods: methods.map(|methods| each(methods, name, found)),
    }
}

fn git(spec: &GitSpec, found: &mut Findings) -> Git {
    let operations = spec.operations.as_ref();
    let globs = |list: &Option<Vec<At<String>>>, found: &mut Findings| {
        let list = list.as_ref()?;
        Some(each(list, PathGlob::parse_relative, found))
    };
    // Written from a clone URL, most likely.
    for repo in spec.repos.iter().flatten() {
        if let Some(plain) = repo.value.strip_suffix(".git") {
            let message = format!(
                "`{}` never matches: repositories are named without `.git`",
                repo.value.escape_default()
            );
            found.error_help("bad_git", &repo.span, message, format!("write `{plain}`"));
        }
    }
    Git {
        repos: globs(&spec.repos, found),
        operations: operations.map(|list| list.iter().map(|at| at.value).collect()),
        refs: globs(&spec.refs, found),
    }
}

/// A pattern over names of tools and methods.
fn name(text: &str) -> Result<TextGlob, GlobError> {
    if text.is_empty() || text.contains([' ', '/', '\\']) && !text.contains('*') {
        let message = format!("`{}` is no name", text.escape_default());
        return Err(GlobError::new(message).help("write a name; `*` stands for any characters"));
    }
    TextGlob::parse(text)
}

/// Compiles each entry; what is wrong is reported and left out.
fn each<T, E: Into<GlobError>>(
    list: &[At<String>],
    parse: impl Fn(&str) -> Result<T, E>,
    found: &mut Findings,
) -> Box<[T]> {
    let compiled = list.iter().filter_map(|at| match parse(&at.value) {
        Ok(value) => Some(value),
        Err(error) => {
            report_glob("bad_pattern", at, error.into(), found);
            None
        }
    });
    compiled.collect()
}
