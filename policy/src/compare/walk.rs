//! Walking every path that there is, as far as patterns tell paths apart: breadth first, so that the
//! first path that matches certain patterns and not the others is a shortest one.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::automaton::{Automaton, On};
use super::letters::{Alphabet, Letter, Role, kinds};
use super::reading::{Head, Output};
use crate::glob::PathGlob;

/// What deny patterns are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The path as it is written.
    Text,
    /// Also what lenient servers make of it. Exact for paths without `%25`.
    EveryReading,
}

/// States of one walk. More are only made by patterns that are written to make them.
const MAX_STATES: usize = 200_000;
/// Words of memory for the states of one walk.
const MAX_WORDS: usize = 8 << 20;

/// What all walks together may cost, in words of state that are touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: u64,
    states: usize,
}

impl Budget {
    /// For a comparison of two policies: seconds at the very most.
    pub(super) const COMPARISON: Self = Self {
        left: 1_000_000_000,
        states: MAX_STATES,
    };

    pub(super) const fn small(states: usize) -> Self {
        Self {
            left: 1_000_000,
            states,
        }
    }

    /// Takes this much, or says that there isn't as much left.
    pub(super) fn take(&mut self, cost: usize) -> bool {
        let left = u64::try_from(cost)
            .ok()
            .and_then(|cost| self.left.checked_sub(cost));
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// A path that stands for all paths which match the same patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Example {
    /// The patterns that match, in order.
    pub(super) matched: Vec<u32>,
    /// Whether the path has an encoded slash.
    pub(super) has_slash: bool,
    /// Whether the path has `%25`.
    pub(super) has_percent: bool,
    pub(super) path: Vec<u8>,
}

/// The walk was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Patterns that are followed along all paths.
pub(super) struct Walk {
    allow: Automaton,
    deny: Automaton,
    reads: Reads,
    alphabet: Alphabet,
    steps: Vec<Step>,
    /// The slash that a reading may have where the path has none.
    slash: On,
}

/// A letter, as the automata see it.
struct Step {
    letter: Letter,
    allow: Vec<On>,
    deny: Vec<On>,
    value: On,
}

impl Walk {
    /// Patterns with their numbers; those of allow rules and those of deny rules.
    pub(super) fn new<'p>(
        allow: impl IntoIterator<Item = (u32, &'p PathGlob)>,
        deny: impl IntoIterator<Item = (u32, &'p PathGlob)>,
        reads: Reads,
        alphabet: Alphabet,
    ) -> Self {
        let (allow, deny) = (Automaton::new(allow), Automaton::new(deny));
        let reads_values = reads == Reads::EveryReading && !deny.is_empty();
        let step = |letter: Letter| Step {
            allow: letter.text().iter().map(|byte| allow.on(*byte)).collect(),
            deny: letter.text().iter().map(|byte| deny.on(*byte)).collect(),
            value: deny.on(letter.value),
            letter,
        };
        Self {
            steps: kinds(alphabet, [&allow, &deny], reads_values)
                .into_iter()
                .map(step)
                .collect(),
            slash: deny.on(b'/'),
            reads: if reads_values { reads } else { Reads::Text },
            alphabet,
            allow,
            deny,
        }
    }

    /// Calls `visit` with one example for each combination of patterns that some path matches.
    pub(super) fn run(
        &self,
        budget: &mut Budget,
        mut visit: impl FnMut(Example) -> ControlFlow<()>,
    ) -> Result<(), TooLong> {
        self.follow(budget, |_| true, &mut visit)
    }

    /// As [`Self::run`], only along paths that some allow pattern may still match or does.
    pub(super) fn run_within_allow(
        &self,
        budget: &mut Budget,
        mut visit: impl FnMut(Example) -> ControlFlow<()>,
    ) -> Result<(), TooLong> {
        let words = self.allow.words();
        let is_alive = |state: &[u64]| state.iter().skip(1).take(words).any(|word| *word != 0);
        self.follow(budget, is_alive, &mut visit)
    }

    fn follow(
        &self,
        budget: &mut Budget,
        is_alive: impl Fn(&[u64]) -> bool,
        visit: &mut dyn FnMut(Example) -> ControlFlow<()>,
    ) -> Result<(), TooLong> {
        let start: Rc<[u64]> = self.start().into();
        let cost = start.len() + 2;
        let mut known: HashSet<Rc<[u64]>> = HashSet::from([Rc::clone(&start)]);
        let mut found: HashSet<(Vec<u32>, u64)> = HashSet::new();
        let mut trail = Trail::default();
        trail.states.push(start);
        let mut next = Vec::with_capacity(cost);
        let mut at = 0;
        while let Some(state) = trail.states.get(at).cloned() {
            if let Some((matched, head)) = self.outcome(&state)
                && found.insert((matched.clone(), head.flags()))
            {
                let example = self.example(matched, head, &trail.letters_to(at));
                if visit(example).is_break() {
                    return Ok(());
                }
            }
            for (number, step) in self.steps.iter().enumerate() {
                if !budget.take(cost) {
                    return Err(TooLong);
                }
                next.clear();
                next.extend_from_slice(&state);
                let goes_on = self.step(step, &mut next) && is_alive(&next);
                if !goes_on || known.contains(next.as_slice()) {
                    continue;
                }
                let fresh: Rc<[u64]> = next.as_slice().into();
                known.insert(Rc::clone(&fresh));
                trail.states.push(fresh);
                trail.from.push((at, number));
                if known.len() > budget.states || known.len().saturating_mul(cost) > MAX_WORDS {
                    return Err(TooLong);
                }
            }
            at += 1;
        }
        Ok(())
    }

    fn example(&self, matched: Vec<u32>, head: Head, letters: &[usize]) -> Example {
        let natural = self.natural(&matched, head, letters);
        let letters = natural.as_deref().unwrap_or(letters);
        let steps = letters.iter().filter_map(|number| self.steps.get(*number));
        Example {
            matched,
            has_slash: head.has_slash(),
            has_percent: head.has_percent(),
            path: steps.flat_map(|step| step.letter.text()).copied().collect(),
        }
    }

    /// The path with a name in place of each empty segment, if that matches the same patterns.
    fn natural(&self, matched: &[u32], head: Head, letters: &[usize]) -> Option<Vec<usize>> {
        let is = |number: &usize, role| {
            let step = self.steps.get(*number);
            step.is_some_and(|step| step.letter.role() == role)
        };
        let name = (0..self.steps.len()).find(|number| is(number, Role::Plain))?;
        let mut named = Vec::with_capacity(letters.len() + 1);
        for (at, letter) in letters.iter().enumerate() {
            named.push(*letter);
            let next = letters.get(at + 1);
            let is_empty = next.is_none_or(|next| is(next, Role::Slash));
            if letters.len() > 1 && is(letter, Role::Slash) && is_empty {
                named.push(name);
            }
        }
        let mut state = self.start();
        for number in &named {
            let step = self.steps.get(*number)?;
            if !self.step(step, &mut state) {
                return None;
            }
        }
        let (same, head_of_named) = self.outcome(&state)?;
        (same == matched && head_of_named.flags() == head.flags()).then_some(named)
    }

    fn start(&self) -> Vec<u64> {
        let mut state = vec![Head::START.word()];
        state.extend_from_slice(self.allow.start());
        let tracks = match self.reads {
            Reads::Text => 1,
            Reads::EveryReading => 3,
        };
        for _ in 0..tracks {
            state.extend_from_slice(self.deny.start());
        }
        state
    }

    /// Reads a letter; false where no path goes on with it.
    fn step(&self, step: &Step, state: &mut [u64]) -> bool {
        let Some((head_word, bits)) = state.split_first_mut() else {
            return false;
        };
        let head = Head::from_word(*head_word);
        let role = match step.letter.role() {
            // Without deny patterns it is an escape like others.
            Role::EncodedPercent if self.deny.is_empty() => Role::Plain,
            role => role,
        };
        let Some(mut next) = head.read(&step.letter, role, self.alphabet) else {
            return false;
        };
        let (allow, deny) = bits.split_at_mut(self.allow.words().min(bits.len()));
        for on in &step.allow {
            self.allow.step(on, allow);
        }
        self.allow.settle(allow);
        let (text, readings) = deny.split_at_mut(self.deny.words().min(deny.len()));
        for on in &step.deny {
            self.deny.step(on, text);
        }
        if self.reads == Reads::Text {
            self.deny.settle(text);
        } else {
            let (decoded, simple) = readings.split_at_mut(self.deny.words().min(readings.len()));
            self.deny.step(&step.value, decoded);
            match next.simplify(step.letter.value) {
                Output::Nothing => {}
                Output::Byte => self.deny.step(&step.value, simple),
                Output::SlashAndByte => {
                    self.deny.step(&self.slash, simple);
                    self.deny.step(&step.value, simple);
                }
            }
            self.deny.settle(deny);
        }
        *head_word = next.word();
        true
    }

    /// What matches when the path ends here, if a path can.
    fn outcome(&self, state: &[u64]) -> Option<(Vec<u32>, Head)> {
        let (head, bits) = state.split_first()?;
        let head = Head::from_word(*head);
        if !head.may_end() {
            return None;
        }
        let mut matched = Vec::new();
        let (allow, deny) = bits.split_at_checked(self.allow.words())?;
        self.allow.matched(allow, |number| matched.push(number));
        if !self.deny.is_empty() {
            let mut tracks = deny.chunks_exact(self.deny.words());
            for track in tracks.by_ref().take(2) {
                self.deny.matched(track, |number| matched.push(number));
            }
            if let Some(simple) = tracks.next() {
                let mut simple = simple.to_vec();
                if head.is_nothing_when_simplified() {
                    self.deny.step(&self.slash, &mut simple);
                }
                self.deny.matched(&simple, |number| matched.push(number));
            }
        }
        matched.sort_unstable();
        matched.dedup();
        Some((matched, head))
    }
}

/// How each state was reached.
#[derive(Default)]
struct Trail {
    states: Vec<Rc<[u64]>>,
    /// For each state but the first: the one before it, and the letter that was read.
    from: Vec<(usize, usize)>,
}

impl Trail {
    fn letters_to(&self, mut at: usize) -> Vec<usize> {
        let mut letters = Vec::new();
        while let Some((before, letter)) = at.checked_sub(1).and_then(|index| self.from.get(index))
        {
            letters.push(*letter);
            at = *before;
        }
        letters.reverse();
        letters
    }
}
