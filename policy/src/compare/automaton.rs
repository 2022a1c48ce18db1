//! Path patterns side by side as one automaton, whose state is a row of bits: the positions in
//! patterns where a path that was read so far may stand.

use std::ops::Range;

use super::bits::{Bits, clear, row, set};
use crate::glob::{ByteSet, PathGlob, Segment, Token};

/// Patterns that are followed at the same time.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    positions: Vec<Position>,
    words: usize,
    start: Bits,
    ends: Bits,
    jumps: Bits,
    stays_at_slash: Bits,
    stays_elsewhere: Bits,
    /// Where a pattern matches whatever follows, and for each glob its positions, the first of these
    /// in front.
    settled: Bits,
    globs: Vec<(usize, Range<usize>)>,
}

/// A place between two elements of a pattern.
#[derive(Debug, Default)]
struct Position {
    /// The bytes that lead to the next position.
    onward: ByteSet,
    /// Those bytes lead to the position after the next as well.
    jumps: bool,
    /// Other bytes may come in between.
    stays: Stays,
    begins: bool,
    /// The pattern that matches when the path ends here.
    ends: Option<u32>,
    /// The place of its glob.
    glob: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stays {
    #[default]
    Never,
    WithinSegment,
    Always,
}

impl Position {
    /// Whether the pattern matches, whatever follows.
    fn is_settled(&self) -> bool {
        self.ends.is_some() && self.stays == Stays::Always
    }
}

impl Automaton {
    /// Patterns, each with the number that it is known by.
    pub(super) fn new<'p>(patterns: impl IntoIterator<Item = (u32, &'p PathGlob)>) -> Self {
        let mut automaton = Self::default();
        for (number, pattern) in patterns {
            let first = automaton.positions.len();
            for segments in pattern.alternatives() {
                automaton.add(number, segments);
            }
            let mut own = automaton.positions.iter().enumerate().skip(first);
            let settled = own.find(|(_, position)| position.is_settled());
            let range = first..automaton.positions.len();
            automaton
                .globs
                .push((settled.map_or(first, |(at, _)| at), range));
        }
        automaton.finish()
    }

    fn add(&mut self, number: u32, segments: &[Segment]) {
        let mut here = Position {
            begins: true,
            glob: self.globs.len(),
            ..Position::default()
        };
        // Behind a `**` the slash of the next segment has been read.
        let mut is_inside = false;
        let mut rest = segments;
        while let [segment, behind @ ..] = rest {
            rest = behind;
            if !std::mem::take(&mut is_inside) {
                here.jumps = *segment == Segment::AnyDepth && !rest.is_empty();
                here = self.push(here, slash());
            }
            match segment {
                Segment::AnyDepth => {
                    here.stays = Stays::Always;
                    if !rest.is_empty() {
                        here = self.push(here, slash());
                        is_inside = true;
                    }
                }
                Segment::Literal(bytes) => {
                    for byte in bytes {
                        here = self.push(here, ByteSet::of_one(*byte));
                    }
                }
                Segment::Pattern(tokens) => {
                    for token in tokens {
                        here = match token {
                            Token::Star => Position {
                                stays: Stays::WithinSegment,
                                ..here
                            },
                            Token::Byte(byte) => self.push(here, ByteSet::of_one(*byte)),
                            Token::Any => self.push(here, ByteSet::of(|byte| byte != b'/')),
                            Token::Class(bytes) => self.push(here, **bytes),
                        };
                    }
                }
            }
        }
        here.ends = Some(number);
        self.positions.push(here);
    }

    /// Ends a position with what leads on from it, and begins the next.
    fn push(&mut self, mut position: Position, onward: ByteSet) -> Position {
        let glob = position.glob;
        position.onward = onward;
        self.positions.push(position);
        Position {
            glob,
            ..Position::default()
        }
    }

    fn finish(mut self) -> Self {
        self.words = self.positions.len().div_ceil(64);
        self.start = self.where_(|position| position.begins);
        self.ends = self.where_(|position| position.ends.is_some());
        self.jumps = self.where_(|position| position.jumps);
        self.stays_at_slash = self.where_(|position| position.stays == Stays::Always);
        self.stays_elsewhere = self.where_(|position| position.stays != Stays::Never);
        self.settled = self.where_(Position::is_settled);
        self
    }

    fn where_(&self, holds: impl Fn(&Position) -> bool) -> Bits {
        let mut bits = row(self.words);
        for (at, position) in self.positions.iter().enumerate() {
            if holds(position) {
                set(&mut bits, at);
            }
        }
        bits
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Length of a state.
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    /// The state before anything was read.
    pub(super) fn start(&self) -> &[u64] {
        &self.start
    }

    /// Every set of bytes that leads on from somewhere.
    pub(super) fn sets(&self) -> impl Iterator<Item = &ByteSet> {
        self.positions
            .iter()
            .filter(|position| position.ends.is_none())
            .map(|position| &position.onward)
    }

    /// What [`Self::step`] wants to know of a byte.
    pub(super) fn on(&self, byte: u8) -> On {
        On {
            onward: self.where_(|position| position.onward.contains(byte)),
            is_slash: byte == b'/',
        }
    }

    /// Reads a byte.
    pub(super) fn step(&self, on: &On, state: &mut [u64]) {
        let stays = if on.is_slash {
            &self.stays_at_slash
        } else {
            &self.stays_elsewhere
        };
        let (mut next, mut after_next) = (0, 0);
        let masks = on.onward.iter().zip(&self.jumps).zip(stays);
        for (word, ((onward, jumps), stays)) in state.iter_mut().zip(masks) {
            let moved = *word & onward;
            let jumped = moved & jumps;
            *word = (*word & stays) | (moved << 1 | next) | (jumped << 2 | after_next);
            next = moved >> 63;
            after_next = jumped >> 62;
        }
    }

    /// Forgets where else the globs stand that match whatever follows, in any of several states that
    /// stand for one: fewer states are left to tell apart.
    pub(super) fn settle(&self, states: &mut [u64]) {
        for at in 0..states.len() {
            let word = at % self.words.max(1);
            let settled = self.settled.get(word).copied().unwrap_or(0);
            let mut left = states.get(at).copied().unwrap_or(0) & settled;
            while left != 0 {
                let position = self
                    .positions
                    .get(word * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
                let glob = position.and_then(|position| self.globs.get(position.glob));
                if let Some((first, range)) = glob {
                    for state in states.chunks_mut(self.words.max(1)) {
                        clear(state, range.clone());
                    }
                    set(states, *first);
                }
            }
        }
    }

    /// Calls `each` with every pattern that matches when the path ends in this state; some come
    /// more than once.
    pub(super) fn matched(&self, state: &[u64], mut each: impl FnMut(u32)) {
        for (at, (word, ends)) in state.iter().zip(&self.ends).enumerate() {
            let mut left = word & ends;
            while left != 0 {
                let position = at * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let position = self.positions.get(position);
                position
                    .and_then(|position| position.ends)
                    .into_iter()
                    .for_each(&mut each);
            }
        }
    }
}

/// A byte, as an automaton sees it.
#[derive(Debug)]
pub(super) struct On {
    onward: Bits,
    is_slash: bool,
}

fn slash() -> ByteSet {
    ByteSet::of_one(b'/')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &PathGlob, path: &str) -> bool {
        let automaton = Automaton::new([(7, pattern)]);
        let mut state = automaton.start().to_vec();
        for byte in path.bytes() {
            automaton.step(&automaton.on(byte), &mut state);
        }
        let mut found = false;
        automaton.matched(&state, |number| found |= number == 7);
        found
    }

    fn pattern() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/",
            "/",
            "a",
            "b",
            "*",
            "?",
            "/**",
            "/**/",
            "[ab]",
            "[!a]",
            "{a,b}",
            "{,/**}",
            "{a/b,*}",
            "%2F",
            "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
        ]);
        prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn it_matches_what_the_glob_matches(pattern in pattern(), paths in prop::collection::vec("(/|a|b|%2F|abcdefghijklmnopqrstuvwxyz){0,8}", 8)) {
            let Ok(glob) = PathGlob::parse(&pattern) else { return Ok(()) };
            for path in paths {
                let path = format!("/{path}");
                prop_assert_eq!(matches(&glob, &path), glob.matches(path.as_bytes()), "{} {}", pattern, path);
            }
        }
    }
}
