//! Budgets: what may be spent in a time.

use std::time::Duration;

use schemars::JsonSchema;

use super::At;

/// What may be spent in a time; at least one of the amounts is given.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Budget", deny_unknown_fields)]
pub(crate) struct BudgetSpec {
    /// Unique name: letters, digits, `.`, `_` and `-`.
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$"))]
    pub(crate) name: At<String>,
    /// Who shares it.
    pub(crate) per: At<BudgetPer>,
    /// The time after which it begins anew, as in `24h`.
    #[schemars(with = "super::at::DurationText")]
    pub(crate) window: At<Duration>,
    /// Requests.
    #[schemars(with = "Option<super::at::Count>")]
    pub(crate) requests: Option<At<u64>>,
    /// Bytes that leave, as in `2GiB`.
    #[schemars(with = "Option<super::at::SizeText>")]
    pub(crate) egress: Option<At<u64>>,
    /// Tokens of language models.
    #[schemars(with = "Option<super::at::Count>")]
    pub(crate) tokens: Option<At<u64>>,
    /// US dollars, with up to six decimals.
    #[schemars(with = "Option<f64>")]
    pub(crate) usd: Option<At<u64>>,
}

/// Who shares a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum BudgetPer {
    /// Each sandbox has its own.
    Sandbox,
    /// All sandboxes of the policy.
    Policy,
}
