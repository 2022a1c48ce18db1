//! Matchers on HTTP requests.

use std::collections::BTreeMap;
use std::ops::Range;

use schemars::JsonSchema;

use super::At;

/// Matchers on HTTP requests: all that are given must hold.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Http", deny_unknown_fields)]
pub(crate) struct HttpSpec {
    /// Methods, case-sensitive.
    pub(crate) methods: Option<Vec<At<String>>>,
    /// Globs on the canonical path: `*` within a segment, `**` for any depth, `?`, `[a-z]`, `{a,b}`.
    pub(crate) paths: Option<Vec<At<String>>>,
    /// What an encoded slash (`%2F`) in a path is.
    pub(crate) encoded_slash: Option<At<EncodedSlash>>,
    /// Query parameters by decoded name: a list of values, each exact or a glob, or `absent`.
    #[schemars(with = "Option<BTreeMap<String, ValuesSchema>>")]
    pub(crate) query: Option<Vec<(At<String>, ValuesSpec)>>,
    /// Header fields by name: a list of values, each exact or a glob, or `absent`.
    #[schemars(with = "Option<BTreeMap<String, ValuesSchema>>")]
    pub(crate) headers: Option<Vec<(At<String>, ValuesSpec)>>,
    /// Media types of the request body: `application/json`, `text/*`, `application/*+json`.
    pub(crate) content_types: Option<Vec<At<String>>>,
    /// Largest request body, as in `1MiB`; for allow and ask rules.
    #[schemars(with = "Option<super::at::SizeText>")]
    pub(crate) max_body: Option<At<u64>>,
    /// Whether the rule opens WebSockets; it doesn't unless given.
    pub(crate) websocket: Option<At<WebSocketSpec>>,
    /// Calls of a gRPC service.
    pub(crate) grpc: Option<GrpcSpec>,
    /// Fetches from and pushes to Git repositories over smart HTTP.
    pub(crate) git: Option<GitSpec>,
    /// GraphQL operations.
    pub(crate) graphql: Option<GraphqlSpec>,
    /// Messages of the Model Context Protocol.
    pub(crate) mcp: Option<McpSpec>,
    /// Where `http` is written.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
}

/// What an encoded slash in a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum EncodedSlash {
    /// The rule doesn't match such a request.
    Refuse,
    /// Part of its segment, as in npm scopes.
    Data,
}

/// What a parameter or header must be.
#[derive(Debug)]
pub(crate) enum ValuesSpec {
    /// There is none.
    Absent,
    /// There is one, and each that is there matches one of these.
    OneOf(Vec<At<String>>),
}

/// `absent`, or values.
#[derive(JsonSchema)]
#[schemars(rename = "Values", untagged)]
#[expect(dead_code, reason = "the schema of `ValuesSpec`")]
pub(crate) enum ValuesSchema {
    /// The word `absent`: there is none.
    Absent(AbsentWord),
    /// Every value that is there matches one of these, and there is one. `*` and `?` are wildcards.
    OneOf(Vec<String>),
}

/// The word `absent`.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "the schema of a word")]
pub(crate) enum AbsentWord {
    Absent,
}

/// Whether a rule opens WebSockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum WebSocketSpec {
    /// A full RFC 6455 handshake is passed on.
    Allow,
}

/// Calls of a gRPC service.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Grpc", deny_unknown_fields)]
pub(crate) struct GrpcSpec {
    /// Full name with package, as in `google.pubsub.v1.Publisher`.
    pub(crate) service: At<String>,
    /// Names of methods, each exact or a glob; all unless given.
    pub(crate) methods: Option<Vec<At<String>>>,
}

/// Fetches from and pushes to Git repositories.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Git", deny_unknown_fields)]
pub(crate) struct GitSpec {
    /// Globs on the repository's path without the slash in front and `.git`, as in `acme/*`; all
    /// unless given.
    pub(crate) repos: Option<Vec<At<String>>>,
    /// Fetch, push or both; both unless given.
    pub(crate) operations: Option<Vec<At<GitOperation>>>,
    /// Globs on the refs that a push may change, as in `refs/heads/agent/**`; all unless given.
    pub(crate) refs: Option<Vec<At<String>>>,
}

/// What is done with a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum GitOperation {
    /// Clone, fetch, pull, ls-remote.
    Fetch,
    /// Push.
    Push,
}

impl GitOperation {
    /// As in a policy file.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Push => "push",
        }
    }
}

/// GraphQL operations.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Graphql", deny_unknown_fields)]
pub(crate) struct GraphqlSpec {
    /// `query`, `mutation`, `subscription`, or one with a root field, as in `mutation.createIssue`.
    /// Every root field of a request must match one.
    pub(crate) operations: Vec<At<String>>,
}

/// Messages of the Model Context Protocol.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Mcp", deny_unknown_fields)]
pub(crate) struct McpSpec {
    /// Names of tools that may be called, each exact or a glob. An allow rule lets all messages
    /// through that call no tool; a deny rule matches calls only.
    pub(crate) tools: Vec<At<String>>,
}
