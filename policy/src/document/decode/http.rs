//! Matchers on HTTP requests.

use super::rule::texts;
use crate::document::amounts::size;
use crate::document::fields::{Fields, Findings, choice, pairs, text};
use crate::document::spec::{
    At, EncodedSlash, GitOperation, GitSpec, GraphqlSpec, GrpcSpec, HttpSpec, McpSpec, ValuesSpec,
    WebSocketSpec,
};
use crate::document::yaml::{Kind, Node};

const LATER_HTTP: &[&str] = &["body", "cookies", "response"];

pub(super) fn http(node: &Node, found: &mut Findings) -> Option<HttpSpec> {
    let mut fields = Fields::of(node, "`http`", found)?;
    let slashes = [
        ("refuse", EncodedSlash::Refuse),
        ("data", EncodedSlash::Data),
    ];
    let sockets = [("allow", WebSocketSpec::Allow)];
    let spec = HttpSpec {
        methods: fields.read_list("methods", found, text),
        paths: fields.read_list("paths", found, text),
        encoded_slash: fields.read("encoded_slash", found, |node, found| {
            choice(node, found, &slashes)
        }),
        query: fields.read("query", found, |node, found| {
            pairs(node, "`query`", found, values)
        }),
        headers: fields.read("headers", found, |node, found| {
            pairs(node, "`headers`", found, values)
        }),
        content_types: fields.read_list("content_types", found, text),
        max_body: fields.read("max_body", found, size),
        websocket: fields.read("websocket", found, |node, found| {
            choice(node, found, &sockets)
        }),
        grpc: fields.read("grpc", found, grpc),
        git: fields.read("git", found, git),
        graphql: fields.read("graphql", found, graphql),
        mcp: fields.read("mcp", found, mcp),
        span: fields.span.clone(),
    };
    fields.finish(LATER_HTTP, found);
    Some(spec)
}

/// `absent`, or a list.
fn values(_: &At<String>, node: &Node, found: &mut Findings) -> Option<ValuesSpec> {
    if matches!(&node.kind, Kind::Scalar { text, plain: true } if text == "absent") {
        return Some(ValuesSpec::Absent);
    }
    texts(node, found).map(ValuesSpec::OneOf)
}

fn grpc(node: &Node, found: &mut Findings) -> Option<GrpcSpec> {
    let mut fields = Fields::of(node, "`grpc`", found)?;
    let service = fields.required("service", found);
    let service = service.and_then(|node| text(node, found));
    let methods = fields.read_list("methods", found, text);
    fields.finish(&[], found);
    Some(GrpcSpec {
        service: service?,
        methods,
    })
}

fn git(node: &Node, found: &mut Findings) -> Option<GitSpec> {
    let mut fields = Fields::of(node, "`git`", found)?;
    let words = [("fetch", GitOperation::Fetch), ("push", GitOperation::Push)];
    let spec = GitSpec {
        repos: fields.read_list("repos", found, text),
        operations: fields.read_list("operations", found, |node, found| {
            choice(node, found, &words)
        }),
        refs: fields.read_list("refs", found, text),
    };
    fields.finish(&[], found);
    Some(spec)
}

fn graphql(node: &Node, found: &mut Findings) -> Option<GraphqlSpec> {
    let mut fields = Fields::of(node, "`graphql`", found)?;
    let operations = fields.required("operations", found);
    let operations = operations.and_then(|node| texts(node, found));
    fields.finish(&[], found);
    Some(GraphqlSpec {
        operations: operations?,
    })
}

fn mcp(node: &Node, found: &mut Findings) -> Option<McpSpec> {
    let mut fields = Fields::of(node, "`mcp`", found)?;
    let tools = fields.required("tools", found);
    let tools = tools.and_then(|node| texts(node, found));
    fields.finish(&["methods", "resources", "prompts"], found);
    Some(McpSpec { tools: tools? })
}
