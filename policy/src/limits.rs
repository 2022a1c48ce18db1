//! What a rule lets its requests use, what a policy lets a sandbox spend, and how a person is asked:
//! plain values that whoever runs the policy keeps to.

use std::time::Duration;

use serde::Serialize;

/// What the requests of one rule may use, per sandbox. `None` is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Limits {
    /// Requests per time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Requests at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u64>,
    /// Bytes of a request body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_body: Option<u64>,
    /// Bytes of a response body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_body: Option<u64>,
    /// Longest time of an exchange or tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
}

/// So many in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rate {
    /// How many, from 1.
    pub count: u64,
    /// In which time.
    pub per: Duration,
}

/// How a person is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AskTerms {
    /// How long the request waits; then it is denied.
    pub timeout: Duration,
    /// Whether an answer holds for equal requests as long as the sandbox lives.
    pub session: bool,
}

impl AskTerms {
    /// Where a policy gives no timeout.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
    /// Shorter, nobody can answer.
    pub(crate) const MIN_TIMEOUT: Duration = Duration::from_secs(10);
    /// Longer, clients have given up.
    pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
}

/// What may be spent in a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Budget {
    /// Unique in a policy.
    pub name: String,
    /// Whether all sandboxes of the policy share it; else each has its own.
    pub shared: bool,
    /// The time after which it begins anew.
    pub window: Duration,
    /// Requests.
    pub requests: Option<u64>,
    /// Bytes that leave.
    pub egress: Option<u64>,
    /// Tokens of language models.
    pub tokens: Option<u64>,
    /// US dollars, in millionths.
    pub micro_usd: Option<u64>,
}
