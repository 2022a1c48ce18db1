//! The types of the policy language, written once: the loader reads files into them, and the JSON
//! Schema and the language reference are generated from them.

mod at;
mod budget;
mod credential;
mod http;
mod rule;
mod test;

use std::collections::BTreeMap;
use std::ops::Range;

use schemars::JsonSchema;

pub(crate) use self::at::At;
pub(crate) use self::budget::{BudgetPer, BudgetSpec};
pub(crate) use self::credential::{CredentialEntry, ExposeSpec, HeaderSpec, SourceSpec, VaultSpec};
pub(crate) use self::http::{
    EncodedSlash, GitOperation, GitSpec, GraphqlSpec, GrpcSpec, HttpSpec, McpSpec, ValuesSpec,
    WebSocketSpec,
};
pub(crate) use self::rule::{
    Action, AskReuse, AskSpec, LimitsSpec, RateSpec, RuleSpec, TlsHandling, ToSpec,
};
pub(crate) use self::test::{Expectation, RequestMap, RequestSpec, TestSpec};

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
    /// Files whose rules and credentials are part of this policy: `preset:NAME`, or a path that begins
    /// with `./`, `../` or `/`. Their tests, names and selections stay their own.
    #[schemars(default)]
    pub(crate) include: Vec<At<String>>,
    /// Which sandboxes the policy is for, when it lies in a directory of policies.
    pub(crate) sandboxes: Option<SandboxesSpec>,
    /// Enforce unless given.
    pub(crate) mode: Option<At<Mode>>,
    /// A request passes when an allow rule matches and no deny rule does, whatever the order.
    #[schemars(default)]
    pub(crate) rules: Vec<RuleSpec>,
    /// Secrets that the gateway attaches to requests.
    #[schemars(default)]
    pub(crate) credentials: Vec<CredentialEntry>,
    /// What a sandbox may spend in a time.
    #[schemars(default)]
    pub(crate) budgets: Vec<BudgetSpec>,
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
    /// What would be denied is recorded as such and let through, without a credential.
    Observe,
}

/// Which sandboxes a policy in a directory is for.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Sandboxes", deny_unknown_fields)]
pub(crate) struct SandboxesSpec {
    /// The sandbox has each of these labels with this value.
    #[schemars(with = "BTreeMap<String, String>")]
    pub(crate) labels: Vec<(At<String>, At<String>)>,
}
