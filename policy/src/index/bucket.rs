//! The rules of one destination: what they open to a connection, and which of them a path can match.

use super::paths::PathTree;
use crate::CanonicalRequest;
use crate::rule::{Protocols, Rule};

/// Up to so many rules are asked one by one.
const FEW: usize = 12;

/// The rules that speak of one name, of everything below one name, or of one network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    all: Box<[u32]>,
    /// Only where there are many rules.
    tree: Option<Box<Tree>>,
    /// What the rules make of a connection before a byte is read, by port.
    openings: Box<[Opening]>,
}

/// What the rules that speak of a port make of a connection, before a byte is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    /// `None` is every port.
    port: Option<u16>,
    /// What some rule allows.
    pub(crate) allowed: Protocols,
    /// What some rule denies, whatever is asked.
    pub(crate) denied: Protocols,
    /// Some allow rule opens private addresses.
    pub(crate) private: bool,
    /// The first rule that denies.
    pub(crate) closed_by: Option<u32>,
}

/// Many rules by what they want of a path and a port.
#[derive(Clone, Debug)]
struct Tree {
    by_path: PathTree,
    /// Rules without path patterns, by the ports that they name, in order.
    by_port: Box<[(u16, u32)]>,
    /// Rules with neither.
    rest: Box<[u32]>,
}

impl Bucket {
    pub(super) fn new(rules: &[Rule], mut positions: Vec<usize>) -> Self {
        positions.dedup();
        let small = |position: &usize| u32::try_from(*position).ok();
        let all: Box<[u32]> = positions.iter().filter_map(small).collect();
        let tree = (all.len() > FEW).then(|| Box::new(Tree::new(rules, &all)));
        let openings = openings(rules, &all);
        Self {
            all,
            tree,
            openings,
        }
    }

    /// Every rule, in the order of the file.
    pub(crate) fn all(&self) -> impl Iterator<Item = usize> {
        self.all.iter().map(|position| *position as usize)
    }

    /// The rules that can match the request's port and path.
    pub(super) fn visit(&self, request: &CanonicalRequest, visit: &mut impl FnMut(usize)) {
        match &self.tree {
            None => self.all().for_each(visit),
            Some(tree) => tree.visit(request, visit),
        }
    }

    /// What the rules make of a connection to a port.
    pub(crate) fn openings(&self, port: u16) -> impl Iterator<Item = &Opening> {
        let speaks = move |opening: &&Opening| opening.port.is_none_or(|own| own == port);
        self.openings.iter().filter(speaks)
    }

    /// As [`Self::openings`], for whatever port.
    pub(crate) fn all_openings(&self) -> impl Iterator<Item = (&Opening, bool)> {
        self.openings
            .iter()
            .map(|opening| (opening, opening.port.is_none()))
    }
}

impl Tree {
    fn new(rules: &[Rule], positions: &[u32]) -> Self {
        let mut by_path = PathTree::builder();
        let mut by_port = Vec::new();
        let mut rest = Vec::new();
        for position in positions {
            let Some(rule) = rules.get(*position as usize) else {
                continue;
            };
            match (&rule.paths, &rule.ports) {
                (Some(paths), _) => {
                    for glob in paths.all() {
                        by_path.add(glob.text(), *position);
                    }
                }
                (None, Some(ports)) => by_port.extend(ports.iter().map(|port| (*port, *position))),
                (None, None) => rest.push(*position),
            }
        }
        by_port.sort_unstable();
        Self {
            by_path: by_path.build(),
            by_port: by_port.into(),
            rest: rest.into(),
        }
    }

    fn visit(&self, request: &CanonicalRequest, visit: &mut impl FnMut(usize)) {
        let mut each = |position: u32| visit(position as usize);
        self.rest.iter().copied().for_each(&mut each);
        let port = request.port();
        let first = self.by_port.partition_point(|(own, _)| *own < port);
        let same = self.by_port.iter().skip(first);
        same.take_while(|(own, _)| *own == port)
            .for_each(|(_, position)| each(*position));
        let path = request.canonical_path();
        if path.as_str().starts_with('/') {
            self.by_path.visit(path.as_str().as_bytes(), &mut each);
            // A deny rule also matches what lenient servers make of the path.
            for reading in path.readings() {
                self.by_path.visit(reading, &mut each);
            }
        }
    }
}

fn openings(rules: &[Rule], positions: &[u32]) -> Box<[Opening]> {
    let mut by_port: std::collections::BTreeMap<Option<u16>, Opening> =
        std::collections::BTreeMap::new();
    for position in positions {
        let Some(rule) = rules
            .get(*position as usize)
            .filter(|rule| rule.can_match())
        else {
            continue;
        };
        let whole = rule.is_deny() && !rule.has_http_matchers();
        if rule.is_deny() && !whole {
            continue;
        }
        let ports = rule.ports.iter().flatten().copied().map(Some);
        let every = rule.ports.is_none().then_some(None);
        for port in ports.chain(every) {
            let opening = by_port.entry(port).or_insert(Opening {
                port,
                allowed: Protocols::NONE,
                denied: Protocols::NONE,
                private: false,
                closed_by: None,
            });
            if whole {
                opening.denied = opening.denied.or(rule.protocols);
                opening.closed_by = opening.closed_by.or(Some(*position));
            } else {
                opening.allowed = opening.allowed.or(rule.protocols);
                opening.private |= rule.private;
            }
        }
    }
    by_port.into_values().collect()
}
