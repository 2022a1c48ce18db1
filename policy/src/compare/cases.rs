//! Protocols, ports and methods: each combination for which other rules are in question is a case.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use super::extent::Extent;
use super::judge::{Side, Slot};
use super::view::RuleView;
use super::walk::{Budget, TooLong};
use crate::Protocol;
use crate::canonical::check_method;

/// Requests that the same rules are in question for, as far as the first line without the path goes.
pub(super) struct Case<'v, 'a> {
    pub(super) protocol: Protocol,
    pub(super) ports: Values<u16>,
    /// Of HTTP requests.
    pub(super) methods: Option<Values<String>>,
    pub(super) old: Side<'v, 'a>,
    pub(super) new: Side<'v, 'a>,
}

/// Values of a dimension, and one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Values<T> {
    pub(super) extent: Extent<T>,
    pub(super) example: T,
}

impl Case<'_, '_> {
    /// Whether OPTIONS is one of the methods.
    pub(super) fn has_options(&self) -> bool {
        let options = "OPTIONS".to_owned();
        self.methods
            .as_ref()
            .is_some_and(|methods| match &methods.extent {
                Extent::Only(list) => list.contains(&options),
                Extent::AllBut(list) => !list.contains(&options),
            })
    }
}

/// Calls `each` with every case in which the rules of both sides aren't alike and something could
/// come through.
pub(super) fn differing<'v, 'a>(
    old: &Side<'v, 'a>,
    new: &Side<'v, 'a>,
    budget: &mut Budget,
    mut each: impl FnMut(Case<'v, 'a>, &mut Budget),
) -> Result<(), TooLong> {
    for protocol in Protocol::ALL {
        let speaks =
            |view: &RuleView<'_>| view.rule.protocols.has(protocol) && reads(view, protocol);
        let (old, new) = (old.only(speaks), new.only(speaks));
        if !differ(&old, &new, protocol) {
            continue;
        }
        for (ports, old, new) in by_port(&old, &new, protocol, budget)? {
            if !differ(&old, &new, protocol) {
                continue;
            }
            if !protocol.is_http() {
                let methods = None;
                each(
                    Case {
                        protocol,
                        ports,
                        methods,
                        old,
                        new,
                    },
                    budget,
                );
                continue;
            }
            for (methods, old, new) in by_method(&old, &new, budget)? {
                if differ(&old, &new, protocol) {
                    let case = Case {
                        protocol,
                        ports: ports.clone(),
                        methods: Some(methods),
                        old,
                        new,
                    };
                    each(case, budget);
                }
            }
        }
    }
    Ok(())
}

/// A flow without requests has neither method nor path nor content.
fn reads(view: &RuleView<'_>, protocol: Protocol) -> bool {
    protocol.is_http() || !view.rule.has_http_matchers()
}

fn differ(old: &Side<'_, '_>, new: &Side<'_, '_>, protocol: Protocol) -> bool {
    let is_http = protocol.is_http();
    !old.is_like(new) && (old.is_open(is_http) || new.is_open(is_http))
}

type Group<'v, 'a, T> = (Values<T>, Side<'v, 'a>, Side<'v, 'a>);

fn by_port<'v, 'a>(
    old: &Side<'v, 'a>,
    new: &Side<'v, 'a>,
    protocol: Protocol,
    budget: &mut Budget,
) -> Result<Vec<Group<'v, 'a, u16>>, TooLong> {
    let rules = old.rules().chain(new.rules());
    let mentioned: BTreeSet<u16> = rules
        .flat_map(|candidate| candidate.view.rule.ports.iter().flatten().copied())
        .collect();
    let default = protocol.default_port();
    let usual = default.into_iter().chain([8443, 8080]).chain(1..=u16::MAX);
    let other = usual.into_iter().find(|port| !mentioned.contains(port));
    let first = default.filter(|port| mentioned.contains(port));
    let rest = mentioned
        .iter()
        .copied()
        .filter(|port| Some(*port) != first);
    let mentioned: Vec<u16> = first.into_iter().chain(rest).collect();
    let speaks = |view: &RuleView<'_>, port: &u16| view.rule.has_port(*port);
    group(old, new, &mentioned, other.as_ref(), speaks, budget)
}

fn by_method<'v, 'a>(
    old: &Side<'v, 'a>,
    new: &Side<'v, 'a>,
    budget: &mut Budget,
) -> Result<Vec<Group<'v, 'a, String>>, TooLong> {
    let rules = old.rules().chain(new.rules());
    let mut mentioned: Vec<String> = rules
        .flat_map(|candidate| candidate.view.rule.methods.iter().flatten())
        .filter(|method| check_method(method).is_ok())
        .cloned()
        .collect();
    mentioned.sort_unstable_by_key(|method| (method != "GET", method.clone()));
    mentioned.dedup();
    let usual = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"];
    let numbered = (1..).map(|number| format!("METHOD-{number}"));
    let mut usual = usual.into_iter().map(str::to_owned).chain(numbered);
    let other = usual.find(|method| !mentioned.contains(method));
    // Deny rules ignore the case of a method, others don't.
    let lower = mentioned.iter().map(|method| method.to_ascii_lowercase());
    let lower: Vec<String> = lower.filter(|method| !mentioned.contains(method)).collect();
    mentioned.extend(lower);
    let speaks = |view: &RuleView<'_>, method: &String| {
        let same =
            |one: &String| one == method || (view.is_deny() && one.eq_ignore_ascii_case(method));
        let methods = view.rule.methods.as_ref();
        methods.is_none_or(|methods| methods.iter().any(same))
    };
    group(old, new, &mentioned, other.as_ref(), speaks, budget)
}

/// Values for which the same rules speak, together. `other` stands for all that aren't mentioned.
fn group<'v, 'a, T: Clone + Eq + Hash>(
    old: &Side<'v, 'a>,
    new: &Side<'v, 'a>,
    mentioned: &[T],
    other: Option<&T>,
    speaks: impl Fn(&RuleView<'_>, &T) -> bool,
    budget: &mut Budget,
) -> Result<Vec<Group<'v, 'a, T>>, TooLong> {
    let mut groups: Vec<Gathered<'v, 'a, T>> = Vec::new();
    let mut known: HashMap<(Vec<Slot>, Vec<Slot>), usize> = HashMap::new();
    let rules = old.rules().count() + new.rules().count();
    // The first value that is mentioned makes the best example, the others make odd ones.
    let mut values: Vec<(&T, bool)> = mentioned.iter().map(|value| (value, false)).collect();
    let place = values.len().min(1);
    values.splice(place..place, other.map(|value| (value, true)));
    for (value, is_other) in values {
        if !budget.take(rules + 1) {
            return Err(TooLong);
        }
        let old = old.only(|view| speaks(view, value));
        let new = new.only(|view| speaks(view, value));
        let next = groups.len();
        let at = *known.entry((old.slots(), new.slots())).or_insert(next);
        if at == next {
            groups.push(Gathered {
                example: value.clone(),
                members: HashSet::new(),
                has_others: false,
                old,
                new,
            });
        }
        if let Some(group) = groups.get_mut(at) {
            if is_other {
                group.has_others = true;
            } else {
                group.members.insert(value.clone());
            }
        }
    }
    let groups = groups.into_iter().map(|group| group.finish(mentioned));
    Ok(groups.collect())
}

struct Gathered<'v, 'a, T> {
    example: T,
    members: HashSet<T>,
    has_others: bool,
    old: Side<'v, 'a>,
    new: Side<'v, 'a>,
}

impl<'v, 'a, T: Clone + Eq + Hash> Gathered<'v, 'a, T> {
    fn finish(self, mentioned: &[T]) -> Group<'v, 'a, T> {
        let listed = mentioned
            .iter()
            .filter(|value| self.members.contains(value) != self.has_others)
            .cloned()
            .collect();
        let extent = if self.has_others {
            Extent::AllBut(listed)
        } else {
            Extent::Only(listed)
        };
        let values = Values {
            extent,
            example: self.example,
        };
        (values, self.old, self.new)
    }
}
