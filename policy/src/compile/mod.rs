//! From what a file and its includes say to what is enforced: every name, pattern and reference
//! checked.
//!
//! A rule that can't be kept exactly as it reads is an error, never a weaker rule.

mod budgets;
mod bypass;
mod content;
mod credentials;
mod destinations;
mod http;
mod include;
mod rules;
mod unique;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use self::credentials::Declared;
use self::include::File;
pub(crate) use self::rules::Lines;
use self::unique::Unique;
use crate::document::{At, Findings, Mode, RuleSpec, TestSpec, decode_cases, nearest};
use crate::feature::{Demand, Feature};
use crate::index::Index;
use crate::limits::Budget;
use crate::rule::Rule;
use crate::{CredentialSpec, Diagnostic, Diagnostics, Reason, Source};

/// One compiled source with all that it includes.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) source: Arc<Source>,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// The labels that a sandbox must have for this policy; `None` without `sandboxes:`.
    pub(crate) selects: Option<BTreeMap<String, String>>,
    /// Whether what would be denied is let through.
    pub(crate) observes: bool,
    /// Where to point when there are no rules.
    pub(crate) span: Range<usize>,
    /// Those of included files first.
    pub(crate) rules: Vec<Rule>,
    pub(crate) index: Index,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) budgets: Vec<Budget>,
    pub(crate) demands: Vec<Demand>,
    pub(crate) tests: Arc<[TestSpec]>,
}

/// A credential and where its name is written.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    pub(crate) spec: CredentialSpec,
    pub(crate) source: Arc<Source>,
    pub(crate) span: Range<usize>,
}

/// Reads and compiles one source. `None` only together with at least one error.
pub(crate) fn layer(source: &Source, position: usize) -> (Option<Layer>, Vec<Diagnostic>) {
    let mut files = include::expand(source);
    let declared = Declared::check(&mut files);
    unique_ids(&mut files);
    let mut rules = Vec::new();
    let mut budgets = Vec::new();
    let mut demands = Vec::new();
    let mut budget_names = Unique::new("budget", "duplicate_id");
    let mut patterns = 0;
    for file in &mut files {
        let Some(spec) = &file.spec else { continue };
        let origin = rules::Origin::new(&file.found.source, position);
        for spec in &spec.rules {
            let rule = rules::compile(spec, &origin, &declared, &mut demands, &mut file.found);
            patterns += rule.as_ref().map_or(0, Rule::pattern_cost);
            rules.extend(rule);
            if patterns > MAX_PATTERNS {
                too_many_patterns(&spec.id, &mut file.found);
                break;
            }
        }
        let compiled = budgets::compile(
            &spec.budgets,
            &mut budget_names,
            &mut demands,
            &mut file.found,
        );
        budgets.extend(compiled);
        check_tests(&spec.tests, &mut file.found);
    }
    for (order, rule) in rules.iter_mut().enumerate() {
        rule.order = u32::try_from(order).unwrap_or(u32::MAX);
    }
    demands.extend(declared.demands());
    let mut found = bypass::check(&rules);
    let layer = include::root(&mut files).map(|root| {
        let spec = root.spec;
        let observes = spec
            .mode
            .as_ref()
            .is_some_and(|mode| mode.value == Mode::Observe);
        if let (true, Some(mode)) = (observes, &spec.mode) {
            demands.push(Demand::new(Feature::Observe, &root.source, &mode.span));
        }
        let plain =
            |(label, value): &(At<String>, At<String>)| (label.value.clone(), value.value.clone());
        Layer {
            source: root.source,
            name: spec.name,
            description: spec.description,
            selects: spec
                .sandboxes
                .map(|select| select.labels.iter().map(plain).collect()),
            observes,
            span: spec.span,
            index: Index::new(&rules),
            rules,
            credentials: declared.credentials,
            budgets,
            demands,
            tests: spec.tests.into(),
        }
    });
    found.extend(files.into_iter().flat_map(|file| file.found.into_list()));
    (layer, found)
}

/// Reads and checks a file of tests, which are about a policy in other files.
pub(crate) fn cases(source: &Source) -> Result<Vec<TestSpec>, Diagnostics> {
    let (tests, mut found) = decode_cases(&Arc::new(source.clone()));
    check_tests(&tests, &mut found);
    Diagnostics::check(found.into_list())?;
    Ok(tests)
}

/// Longest id or name.
const MAX_NAME: usize = 64;

/// What the path patterns of a layer may cost together, in elements of patterns: enough for ten
/// thousand rules with several each. An element takes up to 48 bytes.
const MAX_PATTERNS: usize = 2 * 1024 * 1024;

fn too_many_patterns(id: &At<String>, found: &mut Findings) {
    let message = format!(
        "the path patterns up to this rule have more than {MAX_PATTERNS} bytes, braces multiplied out"
    );
    let help = "split the file into several policies, or name prefixes, as in `/repos/**`";
    found.error_help("too_many_patterns", &id.span, message, help);
}

/// Ids and names go into logs and command lines as they are.
fn check_name(name: &At<String>, what: &str, found: &mut Findings) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.value.is_empty() || name.value.len() > MAX_NAME || !name.value.bytes().all(plain) {
        let message = format!("`{}` is no {what}", name.value.escape_default());
        let help = format!("use 1 to {MAX_NAME} letters, digits, `.`, `_` and `-`");
        found.error_help("bad_name", &name.span, message, help);
    }
}

/// One id is one rule in the whole layer, so that a test, a log and a person mean the same.
fn unique_ids(files: &mut [File]) {
    let mut ids = Unique::new("rule id", "duplicate_id");
    for File { spec, found } in files {
        let rules = spec.iter().flat_map(|spec| &spec.rules);
        for RuleSpec { id, .. } in rules {
            check_name(id, "rule id", found);
            ids.check(id, found);
        }
    }
}

fn check_tests(tests: &[TestSpec], found: &mut Findings) {
    let codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    for reason in tests.iter().filter_map(|test| test.reason.as_ref()) {
        if Reason::from_code(&reason.value).is_none() {
            let message = format!("`{}` is no reason code", reason.value.escape_default());
            found.add(|source| {
                let help = match nearest(&reason.value, &codes) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the codes are: {}", codes.join(", ")),
                };
                Diagnostic::error("bad_reason", source, reason.span.clone(), message).help(help)
            });
        }
    }
}
