//! The tree of a file read into the types of the language.
//!
//! The words listed as `LATER_…` may come to the language. They are errors: a file that uses one
//! must not look as if it were kept.

mod credential;
mod http;
mod rule;
mod test;

use std::sync::Arc;

use super::fields::{Fields, Findings, choice, list, pairs, text};
use super::spec::{At, Mode, PolicySpec, SandboxesSpec, TestSpec};
use super::yaml::{self, Kind, Node};
use crate::Source;

const LATER_TOP: &[&str] = &["limits", "extends"];

/// The version of the language that this crate reads.
const VERSION: &str = "1";

/// Reads one source. `None` only together with at least one finding.
pub(crate) fn decode(source: &Arc<Source>) -> (Option<PolicySpec>, Findings) {
    let mut found = Findings::new(Arc::clone(source));
    let help = "a policy that denies everything is the single line `version: 1`";
    let spec = root(source, help, &mut found).and_then(|root| policy(&root, &mut found));
    (spec, found)
}

/// Reads a file that holds nothing but `tests:`.
pub(crate) fn decode_cases(source: &Arc<Source>) -> (Vec<TestSpec>, Findings) {
    let mut found = Findings::new(Arc::clone(source));
    let help = "write the cases under `tests:`";
    let tests = root(source, help, &mut found).and_then(|root| cases(&root, &mut found));
    (tests.unwrap_or_default(), found)
}

/// What a file includes, whatever else is wrong with it.
pub(crate) fn decode_includes(source: &Arc<Source>) -> Vec<At<String>> {
    let mut unseen = Findings::new(Arc::clone(source));
    let Ok(Some(Node {
        kind: Kind::Map(entries),
        ..
    })) = yaml::parse(source)
    else {
        return Vec::new();
    };
    let includes = entries
        .iter()
        .find(|(key, _)| matches!(&key.kind, Kind::Scalar { text, .. } if text == "include"));
    includes
        .and_then(|(_, node)| list(node, &mut unseen, text))
        .unwrap_or_default()
}

fn root(source: &Arc<Source>, when_empty: &str, found: &mut Findings) -> Option<Node> {
    match yaml::parse(source) {
        Ok(Some(root)) => return Some(root),
        Ok(None) => found.error_help("empty_file", &(0..0), "the file is empty", when_empty),
        Err(errors) => errors.into_iter().for_each(|error| found.add(|_| error)),
    }
    None
}

fn policy(node: &Node, found: &mut Findings) -> Option<PolicySpec> {
    let mut fields = Fields::of(node, "a policy", found)?;
    let span = fields.span.clone();
    if let Some(node) = fields.required("version", found) {
        version(node, found);
    }
    let spec = PolicySpec {
        version: 1,
        name: fields.read("name", found, text).map(|at| at.value),
        description: fields.read("description", found, text).map(|at| at.value),
        include: fields.read_list("include", found, text).unwrap_or_default(),
        sandboxes: fields.read("sandboxes", found, sandboxes),
        mode: fields.read("mode", found, mode),
        rules: fields
            .read_list("rules", found, rule::rule)
            .unwrap_or_default(),
        credentials: fields
            .read_list("credentials", found, credential::credential)
            .unwrap_or_default(),
        budgets: fields
            .read_list("budgets", found, credential::budget)
            .unwrap_or_default(),
        tests: fields
            .read_list("tests", found, test::test)
            .unwrap_or_default(),
        span,
    };
    fields.finish(LATER_TOP, found);
    Some(spec)
}

fn cases(node: &Node, found: &mut Findings) -> Option<Vec<TestSpec>> {
    let mut fields = Fields::of(node, "a file of tests", found)?;
    if let Some(node) = fields.optional("version") {
        version(node, found);
    }
    let tests = fields.required("tests", found);
    let tests = tests.and_then(|node| list(node, found, test::test));
    fields.finish(&[], found);
    tests
}

fn version(node: &Node, found: &mut Findings) {
    let known = matches!(&node.kind, Kind::Scalar { text, plain: true } if text == VERSION);
    if !known {
        let message = "this version of outgate reads version 1 of the policy language only";
        found.error_help("unknown_version", &node.span, message, "write `version: 1`");
    }
}

fn mode(node: &Node, found: &mut Findings) -> Option<At<Mode>> {
    let words = [("enforce", Mode::Enforce), ("observe", Mode::Observe)];
    choice(node, found, &words)
}

fn sandboxes(node: &Node, found: &mut Findings) -> Option<SandboxesSpec> {
    let mut fields = Fields::of(node, "`sandboxes`", found)?;
    let labels = fields.required("labels", found);
    let labels = labels.and_then(|node| labels_of(node, found));
    fields.finish(&[], found);
    Some(SandboxesSpec { labels: labels? })
}

/// A mapping of labels to values.
fn labels_of(node: &Node, found: &mut Findings) -> Option<Vec<(At<String>, At<String>)>> {
    let labels = pairs(node, "labels", found, |_, value, found| text(value, found))?;
    if labels.is_empty() {
        let help = "for example: `labels: { team: payments }`";
        found.error_help("no_labels", &node.span, "no label is given", help);
    }
    Some(labels)
}
