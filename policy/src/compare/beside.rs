//! What differs beside the rules: budgets, and for which sandboxes a policy is.

use super::report::Beside;
use crate::Budget;
use crate::effective::budget_text;
use crate::policy::Policy;

pub(super) fn compare(old: &Policy, new: &Policy) -> Vec<Beside> {
    let mut found = Vec::new();
    let text = |budgets: &[&Budget]| {
        let texts: Vec<String> = budgets.iter().map(|budget| budget_text(budget)).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    };
    let mut names: Vec<&str> = Vec::new();
    for budget in old.budgets().chain(new.budgets()) {
        if !names.contains(&budget.name.as_str()) {
            names.push(&budget.name);
        }
    }
    for name in names {
        let of = |policy: &'_ Policy| -> Vec<Budget> {
            let budgets = policy.budgets().filter(|budget| budget.name == name);
            budgets.cloned().collect()
        };
        let (before, after) = (of(old), of(new));
        if before != after {
            found.push(Beside {
                what: format!("budget {name}"),
                old: text(&before.iter().collect::<Vec<_>>()),
                new: text(&after.iter().collect::<Vec<_>>()),
                widens: !before
                    .iter()
                    .all(|wanted| after.iter().any(|own| keeps(own, wanted))),
            });
        }
    }
    let selection = |policy: &Policy| {
        let layers = policy
            .layers
            .iter()
            .filter_map(|layer| layer.selects.as_ref());
        let labels = layers
            .flatten()
            .map(|(label, value)| format!("{label}={value}"));
        let labels: Vec<String> = labels.collect();
        policy.has_selection().then(|| labels.join(", "))
    };
    let (before, after) = (selection(old), selection(new));
    if before != after {
        found.push(Beside {
            what: "the sandboxes that the policy is for".to_owned(),
            old: before,
            new: after,
            widens: false,
        });
    }
    found
}

/// Whether whoever keeps to `inner` keeps to `outer`.
fn keeps(inner: &Budget, outer: &Budget) -> bool {
    let amounts = |budget: &Budget| {
        [
            budget.requests,
            budget.egress,
            budget.tokens,
            budget.micro_usd,
        ]
    };
    let mut pairs = amounts(inner).into_iter().zip(amounts(outer));
    inner.window == outer.window
        && (inner.shared || !outer.shared)
        && pairs.all(|(inner, outer)| match (inner, outer) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(inner), Some(outer)) => inner <= outer,
        })
}
