//! The destinations that two policies tell apart: every name that a rule gives, one below each
//! wildcard, one that nobody gives, and the runs of addresses between the borders of networks.
//!
//! Destinations with the same rules on both sides are one place. Where the rules of both sides are
//! alike there is nothing to compare.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::addresses::Run;
use super::view::{RuleView, View, Views};
use crate::host_pattern::HostPattern;
use crate::{Destination, Host};

/// A name that stands for itself, or for all names of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) host: Host,
    /// As people say it.
    pub(super) shown: String,
}

/// Rules by layer, in the order of the layers.
pub(super) type Positions = Vec<Vec<usize>>;

/// Destinations for which the same rules speak.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Either names or runs of addresses.
    pub(super) names: Vec<Name>,
    pub(super) runs: Vec<Run>,
    pub(super) old: Positions,
    pub(super) new: Positions,
}

/// Every place where the rules of both sides aren't alike.
pub(super) fn differing(views: &Views<'_>) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let mut known: HashMap<(bool, Positions, Positions), usize> = HashMap::new();
    let mut add = |destination: &Destination| -> Option<usize> {
        let old = positions(&views.old, destination);
        let new = positions(&views.new, destination);
        if are_alike((&views.old, &old), (&views.new, &new)) {
            return None;
        }
        let key = (destination.name().is_some(), old.clone(), new.clone());
        let next = places.len();
        let at = *known.entry(key).or_insert(next);
        if at == next {
            places.push(Place {
                old,
                new,
                ..Place::default()
            });
        }
        Some(at)
    };
    let mut names = Vec::new();
    for name in names_told_apart(views) {
        if let Some(at) = add(&Destination::Name(name.host.clone())) {
            names.push((at, name));
        }
    }
    let mut runs = Vec::new();
    let networks: Vec<IpNet> = rules(views)
        .flat_map(|rule| rule.rule.ips.iter().copied())
        .collect();
    for run in Run::between(&networks) {
        if let Some(at) = add(&Destination::Ip(run.first())) {
            runs.push((at, run));
        }
    }
    for (at, name) in names {
        if let Some(place) = places.get_mut(at) {
            place.names.push(name);
        }
    }
    for (at, run) in runs {
        if let Some(place) = places.get_mut(at) {
            match place.runs.last_mut() {
                Some(last) if last.joined(run).is_some() => *last = last.joined(run).unwrap_or(run),
                _ => place.runs.push(run),
            }
        }
    }
    places
}

fn rules<'v, 'a>(views: &'v Views<'a>) -> impl Iterator<Item = &'v RuleView<'a>> {
    let layers = views.old.layers.iter().chain(&views.new.layers);
    layers.flat_map(|layer| &layer.rules)
}

/// The rules that speak of the destination, each once, in the order of the file.
fn positions(view: &View<'_>, destination: &Destination) -> Positions {
    let layers = view.policy.layers.iter();
    layers
        .map(|layer| {
            let mut positions = Vec::new();
            let index = &layer.index;
            index.visit_all(destination, |position| positions.push(position));
            positions.sort_unstable();
            positions.dedup();
            positions
        })
        .collect()
}

/// Whether the same rules in the same order stand in the same layers.
fn are_alike(old: (&View<'_>, &Positions), new: (&View<'_>, &Positions)) -> bool {
    let ((old, old_positions), (new, new_positions)) = (old, new);
    let shape = |layer: &super::view::LayerView<'_>, position: &usize| {
        layer.rules.get(*position).map(|rule| rule.shape)
    };
    old.layers.len() == new.layers.len()
        && old
            .layers
            .iter()
            .zip(old_positions)
            .zip(new.layers.iter().zip(new_positions))
            .all(|((old, old_positions), (new, new_positions))| {
                old.observes == new.observes
                    && old_positions.len() == new_positions.len()
                    && old_positions
                        .iter()
                        .zip(new_positions)
                        .all(|(before, after)| shape(old, before) == shape(new, after))
            })
}

/// For any name the same patterns match as for one of these.
fn names_told_apart(views: &Views<'_>) -> Vec<Name> {
    let mut exact: BTreeMap<&str, &Host> = BTreeMap::new();
    let mut apexes: BTreeMap<&str, &Host> = BTreeMap::new();
    for pattern in rules(views).flat_map(|rule| &rule.rule.hosts) {
        match pattern {
            HostPattern::Any => {}
            HostPattern::Exact(host) => {
                exact.insert(host.as_str(), host);
            }
            HostPattern::Below(apex) => {
                apexes.insert(apex.as_str(), apex);
            }
        }
    }
    let is_free =
        |host: &Host| !exact.contains_key(host.as_str()) && !apexes.contains_key(host.as_str());
    let mut names: Vec<Name> = exact
        .values()
        .map(|host| Name {
            host: (*host).clone(),
            shown: host.to_string(),
        })
        .collect();
    names.extend(apexes.values().filter_map(|apex| {
        Some(Name {
            host: fresh(|label| format!("{label}.{apex}"), is_free)?,
            shown: format!("*.{apex}"),
        })
    }));
    let is_unmentioned = |host: &Host| {
        let mut rest = host.as_str();
        while let Some((_, parent)) = rest.split_once('.') {
            if apexes.contains_key(parent) {
                return false;
            }
            rest = parent;
        }
        is_free(host)
    };
    let unmentioned = fresh(
        |label| match label {
            "x" => "other.example".to_owned(),
            label => format!("other.{label}-example"),
        },
        is_unmentioned,
    );
    names.extend(unmentioned.map(|host| Name {
        host,
        shown: "any other host".to_owned(),
    }));
    names
}

/// A name that is free, made from a label. `None` where no name is as short as it would have to be.
fn fresh(name: impl Fn(&str) -> String, is_free: impl Fn(&Host) -> bool) -> Option<Host> {
    let numbered = (1_u32..).map(|number| format!("x{number}"));
    let labels = ('a'..='z').map(String::from).chain(numbered);
    for label in std::iter::once("x".to_owned()).chain(labels) {
        let host = Host::parse(&name(&label)).ok()?;
        if is_free(&host) {
            return Some(host);
        }
    }
    None
}
