//! Comparisons against what the policies really decide.

mod content;
mod paths;
mod random;
mod scale;
mod table;

use crate::{Change, Difference, Policy, Source, Within};

/// One layer per text: the rules, each a line of `{ … }`.
fn policy(layers: &[&str]) -> Policy {
    let sources: Vec<Source> = layers
        .iter()
        .enumerate()
        .map(|(at, text)| Source::new(format!("layer{at}.yaml"), file(text)))
        .collect();
    Policy::load(&sources).unwrap_or_else(|errors| panic!("{}\n{layers:?}", errors.render()))
}

/// Lines that begin with `{` are rules; others stand as they are.
fn file(text: &str) -> String {
    let mut file = "version: 1\n".to_owned();
    let is_rule = |line: &&str| line.trim_start().starts_with('{');
    for line in text.lines().filter(|line| !is_rule(line)) {
        file.push_str(line);
        file.push('\n');
    }
    file.push_str("rules:\n");
    let rules: Vec<&str> = text.lines().filter(is_rule).collect();
    if rules.is_empty() {
        file.push_str("  []\n");
    }
    for rule in rules {
        file.push_str(&format!("  - {}\n", rule.trim()));
    }
    file
}

fn diff(old: &str, new: &str) -> Difference {
    policy(&[old]).diff(&policy(&[new]))
}

/// `region -> request` of every change in a list.
fn shown(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| format!("{} -> {}", change.region, change.request))
        .collect()
}

/// Checks that only one list has anything.
fn only<'d>(difference: &'d Difference, list: &'d [Change]) -> &'d [Change] {
    let lists = [
        &difference.allowed,
        &difference.denied,
        &difference.changed,
        &difference.depends,
    ];
    let count: usize = lists.into_iter().map(Vec::len).sum();
    assert_eq!(count, list.len(), "{difference}");
    assert!(difference.undecided.is_empty(), "{difference}");
    assert!(difference.beside.is_empty(), "{difference}");
    list
}

fn counterexample(answer: Within) -> Change {
    match answer {
        Within::Counterexample { change } => *change,
        other => panic!("{other}"),
    }
}
