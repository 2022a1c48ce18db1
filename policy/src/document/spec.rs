//! The types of the policy language. The JSON Schema for editors is generated from these.
//!
//! What this version doesn't enforce has no type here, so that no schema advertises it.

use std::borrow::Cow;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::Protocol;

/// A value and the bytes that it was read from.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
}

/// In the schema, the place of a value is not seen.
impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// A policy: what may leave a sandbox. What no rule allows is denied.
#[derive(Debug, JsonSchema)]
#[schemars(title = "Outgate policy", rename = "Policy", deny_unknown_fields)]
pub(crate) struct PolicySpec {
    /// Version of the language.
    #[schemars(range(min = 1, max = 1))]
    #[expect(dead_code, reason = "checked while it is read; here for the schema")]
    pub(crate) version: u8,
    /// Name of the policy, for people.
    pub(crate) name: Option<String>,
    /// What the policy is for, for people.
    pub(crate) description: Option<String>,
    /// Every policy is enforced; the key may say so.
    #[expect(dead_code, reason = "it has one value; here for the schema")]
    pub(crate) mode: Option<Mode>,
    /// A request passes when an allow rule matches and no deny rule does, whatever the order.
    #[schemars(default)]
    pub(crate) rules: Vec<RuleSpec>,
    /// Secrets that the gateway attaches to requests.
    #[schemars(default)]
    pub(crate) credentials: Vec<CredentialEntry>,
    /// Requests with the verdict they must get; `outgate policy test` runs them.
    #[schemars(default)]
    pub(crate) tests: Vec<TestSpec>,
    /// Where to point when the file has no rules.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
}

/// How a policy is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Denied requests are refused.
    Enforce,
}

/// What a rule does with a request that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Let it through, unless a deny rule matches.
    Allow,
    /// Refuse it, whatever other rules say.
    Deny,
}

/// One rule.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Rule", deny_unknown_fields)]
pub(crate) struct RuleSpec {
    /// Unique name: letters, digits, `.`, `_` and `-`.
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$"))]
    pub(crate) id: At<String>,
    /// Allow or deny.
    pub(crate) action: At<Action>,
    /// For an allow rule https unless given; a deny rule without it denies every protocol.
    #[schemars(with = "Option<RuleProtocol>")]
    pub(crate) protocol: Option<At<Protocol>>,
    /// Destinations.
    pub(crate) to: ToSpec,
    /// Matchers on HTTP requests; what is absent is unconstrained.
    pub(crate) http: Option<HttpSpec>,
    /// Name of the credential to attach; for allow rules over https.
    pub(crate) credential: Option<At<String>>,
    /// What a denied guest is told; for deny rules.
    pub(crate) message: Option<At<String>>,
    /// Accept wildcards over a public suffix such as `*.github.io`.
    #[schemars(default)]
    pub(crate) allow_public_suffix: bool,
}

/// The protocols that a rule may name.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(
    dead_code,
    reason = "the schema of `Protocol` without udp, which no rule opens"
)]
pub(crate) enum RuleProtocol {
    /// HTTP over TLS, intercepted.
    Https,
    /// HTTP in clear text.
    Http,
    /// Bytes, passed on unread.
    Tcp,
}

/// Destinations: any of `hosts` or `ips`, at any of `ports`.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "To", deny_unknown_fields)]
pub(crate) struct ToSpec {
    /// Names (`api.example.com`), wildcards (`*.example.com`: any depth, not the apex), or `any`.
    pub(crate) hosts: Option<Vec<At<String>>>,
    /// Addresses and networks (`10.0.0.0/8`) for requests that name an address, not a host.
    pub(crate) ips: Option<Vec<At<String>>>,
    /// For an allow rule 443 for https and 80 for http unless given; a deny rule without it denies
    /// every port.
    #[schemars(with = "Option<Vec<PortNumber>>")]
    pub(crate) ports: Option<Vec<At<u16>>>,
    /// Let the destination be a private, local or otherwise special address.
    #[schemars(default)]
    pub(crate) private: bool,
    /// Where to point when there is no destination.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
    /// Where `private` is written.
    #[schemars(skip)]
    pub(crate) private_span: Option<Range<usize>>,
}

/// A port.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
#[expect(dead_code, reason = "the schema of a port")]
pub(crate) struct PortNumber(#[schemars(range(min = 1, max = 65535))] u16);

/// Matchers on HTTP requests.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Http", deny_unknown_fields)]
pub(crate) struct HttpSpec {
    /// Methods, case-sensitive.
    pub(crate) methods: Option<Vec<At<String>>>,
    /// Globs on the canonical path: `*` within a segment, `**` for any depth, `?`, `[a-z]`, `{a,b}`.
    pub(crate) paths: Option<Vec<At<String>>>,
    /// What an encoded slash (`%2F`) in a path is.
    pub(crate) encoded_slash: Option<At<EncodedSlash>>,
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

/// A secret that the gateway attaches.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Credential", deny_unknown_fields)]
pub(crate) struct CredentialEntry {
    /// Unique name: letters, digits, `.`, `_` and `-`.
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$"))]
    pub(crate) name: At<String>,
    /// Where the gateway gets the secret.
    pub(crate) source: At<SourceSpec>,
    /// What the sandbox sees in its place.
    pub(crate) expose: Option<ExposeSpec>,
    /// Headers to set.
    #[schemars(length(min = 1))]
    pub(crate) attach: Vec<HeaderSpec>,
    /// Where `attach` or the entry is written.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
}

/// Where the gateway gets a secret.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(
    rename = "CredentialSource",
    rename_all = "lowercase",
    deny_unknown_fields
)]
pub(crate) enum SourceSpec {
    /// Name of an environment variable of the gateway.
    Env(String),
    /// Absolute path of a file on the gateway's machine.
    File(String),
}

/// A placeholder for the sandbox.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Expose", deny_unknown_fields)]
pub(crate) struct ExposeSpec {
    /// Environment variable in the sandbox.
    pub(crate) env: At<String>,
    /// How the placeholder looks: text around one `{n}`, n random letters and digits.
    pub(crate) shape: Option<At<String>>,
}

/// A header that carries the secret.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Header", deny_unknown_fields)]
pub(crate) struct HeaderSpec {
    /// Header name.
    pub(crate) header: At<String>,
    /// Header value with exactly one `{}` for the secret.
    pub(crate) format: At<String>,
}

/// A request with the verdict it must get.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Test", deny_unknown_fields)]
pub(crate) struct TestSpec {
    /// What is tested, for people.
    pub(crate) name: At<String>,
    /// `METHOD URL`, or a mapping.
    pub(crate) request: RequestSpec,
    /// The verdict.
    pub(crate) expect: At<Expectation>,
    /// Id of the rule that must decide.
    pub(crate) rule: Option<At<String>>,
    /// Name of the credential that must be attached.
    pub(crate) credential: Option<At<String>>,
    /// Reason code that must be given.
    pub(crate) reason: Option<At<String>>,
}

/// The verdict that a test expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum Expectation {
    /// Allowed.
    Allow,
    /// Denied by the rules, or by there being none.
    Deny,
    /// Never a canonical request, so no rule was asked.
    Reject,
}

/// The request of a test.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "TestRequest", untagged)]
pub(crate) enum RequestSpec {
    /// `METHOD URL`; for a tcp flow just `tcp://host:port`.
    Line(String),
    /// In parts.
    Map(RequestMap),
}

/// The request of a test in parts.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "TestRequestParts", deny_unknown_fields)]
pub(crate) struct RequestMap {
    /// GET unless given.
    pub(crate) method: Option<String>,
    /// Absolute URL: https, http or tcp.
    pub(crate) url: String,
    /// What is spoken, where it differs from the URL's scheme.
    #[schemars(with = "Option<RuleProtocol>")]
    pub(crate) protocol: Option<Protocol>,
    /// TLS server name, where it differs from the URL's host.
    pub(crate) sni: Option<String>,
    /// `host:port` of the connection, where it differs from the URL's.
    pub(crate) connect: Option<String>,
}
