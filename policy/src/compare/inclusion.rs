//! Whether everything that some path patterns match is matched by others: exact, or not known where
//! finding out would take too long.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::judge::Free;
use super::letters::Alphabet;
use super::view::Views;
use super::walk::{Budget, Example, Reads, Walk};
use crate::canonical::CanonicalPath;
use crate::glob::{PathGlob, PathPatterns, Segment, Token};

/// States that one answer may take: patterns that people write take a few dozen.
const MAX_STATES: usize = 4_000;

impl PathPatterns {
    /// Whether every canonical path that matches these matches `outer`. `None` when it isn't known.
    pub(crate) fn within(&self, outer: &Self) -> Option<bool> {
        let inner: Vec<&PathGlob> = self.globs().iter().collect();
        let outer: Vec<&PathGlob> = outer.globs().iter().collect();
        are_within(&inner, &outer, Alphabet::Canonical)
    }

    /// The same for patterns of deny rules, in whatever reading of a path.
    pub(crate) fn within_any_reading(&self, outer: &Self) -> Option<bool> {
        let (inner, outer): (Vec<_>, Vec<_>) = (self.all().collect(), outer.all().collect());
        if missing(&inner, &outer).is_empty() {
            return Some(true);
        }
        let numbered = inner.iter().map(|glob| (0, *glob));
        let numbered = numbered.chain(outer.iter().map(|glob| (1, *glob)));
        let look = |reads, alphabet, counts: fn(&Example) -> bool| {
            let walk = Walk::new([], numbered.clone(), reads, alphabet);
            let mut is_within = true;
            let ended = walk.run(&mut Budget::small(MAX_STATES), |example| {
                is_within = example.matched != [0] || !counts(&example);
                if is_within {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            ended.is_ok().then_some(is_within)
        };
        if !look(Reads::EveryReading, Alphabet::WithoutPercent, |_| true)? {
            return Some(false);
        }
        // What is decoded more than once may match, or not.
        let is_within = look(Reads::Text, Alphabet::Canonical, |example| {
            example.has_percent
        })? && are_within(&inner, &outer, Alphabet::Decoded)?;
        is_within.then_some(true)
    }
}

/// Patterns that aren't among the others as they are.
fn missing<'p>(inner: &[&'p PathGlob], outer: &[&PathGlob]) -> Vec<&'p PathGlob> {
    let is_there = |glob: &&PathGlob| outer.iter().any(|known| known.text() == glob.text());
    let missing = inner.iter().copied().filter(|glob| !is_there(glob));
    missing.collect()
}

fn are_within(inner: &[&PathGlob], outer: &[&PathGlob], alphabet: Alphabet) -> Option<bool> {
    let rest = missing(inner, outer);
    if rest.is_empty() {
        return Some(true);
    }
    // Most pairs have nothing in common, and one path shows it.
    let is_missed = |glob: &&PathGlob| {
        let path = example(glob);
        path.is_some_and(|path| !outer.iter().any(|glob| glob.matches(path.as_bytes())))
    };
    if alphabet == Alphabet::Canonical && rest.iter().any(is_missed) {
        return Some(false);
    }
    let walk = Walk::new(
        rest.iter().map(|glob| (0, *glob)),
        outer.iter().map(|glob| (1, *glob)),
        Reads::Text,
        alphabet,
    );
    let mut is_within = true;
    let ended = walk.run_within_allow(&mut Budget::small(MAX_STATES), |example| {
        if example.matched == [0] {
            is_within = false;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    ended.is_ok().then_some(is_within)
}

/// A path that the first alternative of the pattern matches, if it is a canonical one.
fn example(glob: &PathGlob) -> Option<String> {
    let mut path = String::new();
    for segment in glob.alternatives().next()? {
        path.push('/');
        match segment {
            Segment::Literal(bytes) => path.push_str(std::str::from_utf8(bytes).ok()?),
            Segment::AnyDepth => path.push('x'),
            Segment::Pattern(tokens) => {
                for token in tokens {
                    path.push(match token {
                        Token::Byte(byte) => char::from(*byte),
                        Token::Any | Token::Star => 'x',
                        Token::Class(bytes) => char::from(bytes.iter().find(u8::is_ascii_graphic)?),
                    });
                }
            }
        }
    }
    let is_canonical = CanonicalPath::parse(&path).is_ok_and(|found| found.as_str() == path);
    (is_canonical && !path.contains('?')).then_some(path)
}

/// Which deny patterns are within which, found out once.
pub(super) struct Inclusions<'v, 'a> {
    views: &'v Views<'a>,
    known: HashMap<(u32, Vec<u32>), bool>,
}

impl<'v, 'a> Inclusions<'v, 'a> {
    pub(super) fn new(views: &'v Views<'a>) -> Self {
        Self {
            views,
            known: HashMap::new(),
        }
    }

    /// Whether it can be that of each of these groups some patterns match, or none, as `chosen` has a
    /// bit for it or not. What matches a reading is within no pattern that doesn't match it.
    pub(super) fn allow(&mut self, groups: &[Vec<Free>], chosen: u32) -> bool {
        let is_chosen = |at: usize| chosen >> at & 1 == 1;
        let mut unmatched = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            if !is_chosen(at) {
                unmatched.extend(sets(group));
            }
        }
        groups.iter().enumerate().all(|(at, group)| {
            let mut sets = sets(group).peekable();
            !is_chosen(at)
                || unmatched.is_empty()
                || sets.peek().is_none()
                || sets.any(|set| !self.is_within(set, &unmatched))
        })
    }

    fn is_within(&mut self, inner: u32, outer: &[u32]) -> bool {
        let key = (inner, outer.to_vec());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let globs = |set: &u32| {
            let numbers = self.views.deny_sets.get(*set as usize);
            let numbers = numbers.into_iter().flat_map(|numbers| numbers.iter());
            numbers
                .filter_map(|number| self.views.pattern(*number))
                .collect::<Vec<_>>()
        };
        let outer: Vec<&PathGlob> = outer.iter().flat_map(globs).collect();
        let is_within = are_within(&globs(&inner), &outer, Alphabet::Decoded) == Some(true);
        self.known.insert(key, is_within);
        is_within
    }
}

fn sets(group: &[Free]) -> impl Iterator<Item = u32> {
    group.iter().filter_map(|free| match free {
        Free::DenySet(set) => Some(*set),
        Free::Content(_) => None,
    })
}
