//! Two policies as the comparison sees them: for each rule what it matches and does apart from its
//! destination, with numbers in place of texts. Whatever a rule learns to match has to come in here.

use std::collections::HashMap;

use crate::document::Action;
use crate::glob::PathGlob;
use crate::policy::Policy;
use crate::rule::Rule;
use crate::{AskTerms, CredentialSpec, Limits};

/// Both policies.
pub(super) struct Views<'a> {
    pub(super) old: View<'a>,
    pub(super) new: View<'a>,
    /// By number: of allow and ask rules, and of deny rules, which read a path in every way.
    pub(super) patterns: Vec<&'a PathGlob>,
    /// The patterns of a deny rule, by number.
    pub(super) deny_sets: Vec<Box<[u32]>>,
}

/// One policy.
pub(super) struct View<'a> {
    pub(super) policy: &'a Policy,
    pub(super) layers: Vec<LayerView<'a>>,
}

/// One layer; its rules in the order of [`crate::compile::Layer::rules`].
pub(super) struct LayerView<'a> {
    pub(super) observes: bool,
    pub(super) rules: Vec<RuleView<'a>>,
}

/// One rule.
pub(super) struct RuleView<'a> {
    pub(super) rule: &'a Rule,
    /// Equal for rules that match and do the same wherever both match the destination.
    pub(super) shape: u32,
    /// Numbers of path patterns; unconstrained when `None`.
    pub(super) paths: Option<Box<[u32]>>,
    /// Of a deny rule: equal numbers for equal patterns.
    pub(super) deny_set: Option<u32>,
    /// Stands for the matchers that aren't compared: equal numbers for equal matchers.
    pub(super) content: Option<u32>,
    /// Equal numbers for credentials that are declared alike.
    pub(super) credential: Option<u32>,
}

impl RuleView<'_> {
    pub(super) fn is_deny(&self) -> bool {
        self.rule.is_deny()
    }
}

impl<'a> Views<'a> {
    pub(super) fn new(old: &'a Policy, new: &'a Policy) -> Self {
        let mut numbers = Numbers::default();
        let old = numbers.view(old);
        let new = numbers.view(new);
        Self {
            old,
            new,
            patterns: numbers.patterns,
            deny_sets: numbers.deny_sets,
        }
    }

    pub(super) fn pattern(&self, number: u32) -> Option<&'a PathGlob> {
        self.patterns.get(number as usize).copied()
    }
}

/// What decides whether rules have one shape.
#[derive(PartialEq, Eq, Hash)]
struct Shape<'a> {
    action: Action,
    protocols: Vec<crate::Protocol>,
    ports: Option<&'a [u16]>,
    methods: Option<&'a [String]>,
    paths: Option<Box<[u32]>>,
    /// `private`, `encoded_slash: data`, `websocket: allow`.
    flags: [bool; 3],
    content: Option<u32>,
    credential: Option<u32>,
    /// Requests are counted rule by rule, so that the id belongs to the limits.
    limits: Option<(&'a str, &'a Limits)>,
    ask: Option<AskTerms>,
}

/// Gives numbers to what is equal.
#[derive(Default)]
struct Numbers<'a> {
    patterns: Vec<&'a PathGlob>,
    pattern_numbers: HashMap<(bool, &'a str), u32>,
    deny_sets: Vec<Box<[u32]>>,
    deny_set_numbers: HashMap<Box<[u32]>, u32>,
    contents: HashMap<(bool, &'a str), u32>,
    /// Those of one name, with their numbers: a name may mean something else in the other policy.
    credentials: HashMap<&'a str, Vec<(&'a CredentialSpec, u32)>>,
    credential_count: u32,
    shapes: HashMap<Shape<'a>, u32>,
}

impl<'a> Numbers<'a> {
    fn view(&mut self, policy: &'a Policy) -> View<'a> {
        let credentials = policy.credentials();
        let credentials: HashMap<&str, u32> = credentials
            .map(|spec| (spec.name.as_str(), self.credential(spec)))
            .collect();
        let layers = policy.layers.iter().map(|layer| LayerView {
            observes: layer.observes,
            rules: layer
                .rules
                .iter()
                .map(|rule| self.rule(rule, &credentials))
                .collect(),
        });
        let layers = layers.collect();
        View { policy, layers }
    }

    fn rule(&mut self, rule: &'a Rule, credentials: &HashMap<&str, u32>) -> RuleView<'a> {
        let is_deny = rule.is_deny();
        let paths = rule.paths.as_ref().map(|patterns| -> Box<[u32]> {
            let read = if is_deny {
                patterns.all().collect::<Vec<_>>()
            } else {
                patterns.globs().iter().collect()
            };
            let numbers = read.into_iter().map(|glob| self.pattern(is_deny, glob));
            let mut numbers: Vec<u32> = numbers.collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into()
        });
        let content = rule.content.as_ref().map(|content| {
            let next = number(self.contents.len());
            // A deny rule takes an unclear request for a match, an allow rule doesn't.
            *self
                .contents
                .entry((is_deny, content.key()))
                .or_insert(next)
        });
        let credential = rule.credential.as_ref();
        let credential = credential.and_then(|name| credentials.get(name.as_str()).copied());
        let next = number(self.shapes.len());
        let shape = Shape {
            action: rule.action,
            protocols: rule.protocols.iter().collect(),
            ports: rule.ports.as_deref(),
            methods: rule.methods.as_deref(),
            paths: paths.clone(),
            flags: [rule.private, rule.encoded_slash_is_data, rule.websocket],
            content,
            credential,
            limits: rule
                .limits
                .as_deref()
                .map(|limits| (rule.reference.id.as_ref(), limits)),
            ask: rule.ask,
        };
        RuleView {
            rule,
            shape: *self.shapes.entry(shape).or_insert(next),
            deny_set: paths
                .as_ref()
                .filter(|_| is_deny)
                .map(|set| self.deny_set(set)),
            paths,
            content,
            credential,
        }
    }

    fn deny_set(&mut self, set: &[u32]) -> u32 {
        if let Some(known) = self.deny_set_numbers.get(set) {
            return *known;
        }
        let number = number(self.deny_sets.len());
        self.deny_sets.push(set.into());
        self.deny_set_numbers.insert(set.into(), number);
        number
    }

    fn pattern(&mut self, is_deny: bool, glob: &'a PathGlob) -> u32 {
        let next = number(self.patterns.len());
        let known = self.pattern_numbers.entry((is_deny, glob.text()));
        let known = *known.or_insert(next);
        if known == next {
            self.patterns.push(glob);
        }
        known
    }

    fn credential(&mut self, spec: &'a CredentialSpec) -> u32 {
        let known = self.credentials.entry(spec.name.as_str()).or_default();
        if let Some((_, number)) = known.iter().find(|(known, _)| *known == spec) {
            return *number;
        }
        let number = self.credential_count;
        self.credential_count += 1;
        known.push((spec, number));
        number
    }
}

/// There are fewer of everything than bytes in the files.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
