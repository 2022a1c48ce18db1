//! The `budgets:` of a file.

use super::check_name;
use super::unique::Unique;
use crate::document::{At, BudgetPer, BudgetSpec, Findings};
use crate::feature::{Demand, Feature};
use crate::limits::Budget;

pub(super) fn compile(
    specs: &[BudgetSpec],
    names: &mut Unique,
    demands: &mut Vec<Demand>,
    found: &mut Findings,
) -> Vec<Budget> {
    specs
        .iter()
        .map(|spec| {
            check_name(&spec.name, "budget name", found);
            names.check(&spec.name, found);
            let amounts = [&spec.requests, &spec.egress, &spec.tokens, &spec.usd];
            if amounts.iter().all(|amount| amount.is_none()) {
                let message = format!(
                    "the budget `{}` counts nothing",
                    spec.name.value.escape_default()
                );
                let help = "give it `requests`, `egress`, `tokens` or `usd`";
                found.error_help("empty_budget", &spec.name.span, message, help);
            }
            demands.push(Demand::new(
                Feature::Budgets,
                &found.source,
                &spec.name.span,
            ));
            let value = |at: &Option<At<u64>>| at.as_ref().map(|at| at.value);
            Budget {
                name: spec.name.value.clone(),
                shared: spec.per.value == BudgetPer::Policy,
                window: spec.window.value,
                requests: value(&spec.requests),
                egress: value(&spec.egress),
                tokens: value(&spec.tokens),
                micro_usd: value(&spec.usd),
            }
        })
        .collect()
}
