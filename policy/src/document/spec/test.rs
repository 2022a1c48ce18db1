//! Tests: requests with the verdict they must get.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::At;
use crate::Protocol;

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
    /// A person would be asked.
    Ask,
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
    #[schemars(with = "Option<super::rule::RuleProtocol>")]
    pub(crate) protocol: Option<Protocol>,
    /// TLS server name, where it differs from the URL's host.
    pub(crate) sni: Option<String>,
    /// `host:port` of the connection, where it differs from the URL's.
    pub(crate) connect: Option<String>,
    /// Header fields; a list is several fields of one name.
    #[schemars(with = "Option<BTreeMap<String, HeaderValues>>")]
    pub(crate) headers: Option<Vec<(String, Vec<String>)>>,
    /// The body, as text.
    pub(crate) body: Option<String>,
    /// Labels of the sandbox: where the policy has `sandboxes`, it must select these.
    #[schemars(with = "Option<SandboxLabels>")]
    pub(crate) sandbox: Option<BTreeMap<String, String>>,
}

/// A value, or several.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "the schema of header values")]
pub(crate) enum HeaderValues {
    /// One field.
    One(String),
    /// Several fields of the name.
    Several(Vec<String>),
}

/// The sandbox of a test.
#[derive(JsonSchema)]
#[schemars(rename = "TestSandbox", deny_unknown_fields)]
#[expect(dead_code, reason = "the schema of the labels")]
pub(crate) struct SandboxLabels {
    /// Its labels.
    labels: BTreeMap<String, String>,
}
