//! Path globs as the language page defines them, by walking sets of places: slow, without any
//! library, and always at most `pattern × path` steps.

/// A pattern as a graph. Place `i` goes on to others, by a byte or without one.
#[derive(Debug, Default)]
pub struct Graph {
    places: Vec<Place>,
}

#[derive(Debug, Default)]
struct Place {
    free: Vec<usize>,
    by: Option<(Test, usize)>,
}

#[derive(Clone, Debug)]
enum Test {
    Byte(u8),
    AnyButSlash,
    Any,
    Class {
        negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

impl Test {
    fn holds(&self, byte: u8) -> bool {
        match self {
            Self::Byte(wanted) => byte == *wanted,
            Self::AnyButSlash => byte != b'/',
            Self::Any => true,
            Self::Class { negated, ranges } => {
                let within = ranges
                    .iter()
                    .any(|(low, high)| (*low..=*high).contains(&byte));
                byte != b'/' && within != *negated
            }
        }
    }
}

impl Graph {
    /// Reads a pattern that the policy's reader accepted.
    pub fn new(pattern: &str) -> Self {
        let mut graph = Self::default();
        let start = graph.add();
        let mut rest = pattern.as_bytes();
        let end = graph.sequence(start, &mut rest, false);
        assert!(rest.is_empty(), "{pattern}: {} bytes are left", rest.len());
        // The last place is the goal.
        let goal = graph.add();
        graph.places[end].free.push(goal);
        graph
    }

    /// Whether the whole path is matched.
    pub fn matches(&self, path: &str) -> bool {
        let mut here = vec![false; self.places.len()];
        self.reach(&mut here, 0);
        for byte in path.bytes() {
            let mut next = vec![false; self.places.len()];
            for (place, _) in here.iter().enumerate().filter(|(_, reached)| **reached) {
                if let Some((test, to)) = &self.places[place].by
                    && test.holds(byte)
                {
                    self.reach(&mut next, *to);
                }
            }
            here = next;
        }
        here.last().copied().unwrap_or(false)
    }

    fn reach(&self, reached: &mut [bool], place: usize) {
        let mut open = vec![place];
        while let Some(place) = open.pop() {
            if !std::mem::replace(&mut reached[place], true) {
                open.extend(&self.places[place].free);
            }
        }
    }

    fn add(&mut self) -> usize {
        self.places.push(Place::default());
        self.places.len() - 1
    }

    fn step(&mut self, from: usize, test: Test) -> usize {
        let to = self.add();
        let door = self.add();
        self.places[door].by = Some((test, to));
        self.places[from].free.push(door);
        to
    }

    /// Any number of bytes that pass the test.
    fn many(&mut self, from: usize, test: Test) -> usize {
        let before = self.fork(from);
        let after = self.step(before, test);
        self.places[after].free.push(before);
        before
    }

    /// Reads up to the end, or to the `,` or `}` that ends an alternative.
    fn sequence(&mut self, start: usize, rest: &mut &[u8], in_braces: bool) -> usize {
        let mut at = start;
        loop {
            *rest = match *rest {
                [] => return at,
                [b',' | b'}', ..] if in_braces => return at,
                // Any depth in the middle: nothing, or a slash and anything, before the next slash.
                [b'/', b'*', b'*', b'/', ..] => {
                    let inside = self.step(at, Test::Byte(b'/'));
                    let inside = self.many(inside, Test::Any);
                    let on = self.fork(inside);
                    self.places[at].free.push(on);
                    at = on;
                    &rest[3..]
                }
                // Any depth at the end.
                [b'/', b'*', b'*', after @ ..] => {
                    at = self.step(at, Test::Byte(b'/'));
                    at = self.many(at, Test::Any);
                    after
                }
                [b'*', after @ ..] => {
                    at = self.many(at, Test::AnyButSlash);
                    after
                }
                [b'?', after @ ..] => {
                    at = self.step(at, Test::AnyButSlash);
                    after
                }
                [b'[', after @ ..] => {
                    let (test, after) = class(after);
                    at = self.step(at, test);
                    after
                }
                [b'{', after @ ..] => {
                    let join = self.add();
                    let mut left = after;
                    loop {
                        let branch = self.fork(at);
                        let end = self.sequence(branch, &mut left, true);
                        self.places[end].free.push(join);
                        let [mark, after @ ..] = left else {
                            panic!("a brace is not closed");
                        };
                        left = after;
                        if *mark == b'}' {
                            break;
                        }
                    }
                    at = join;
                    left
                }
                [byte, after @ ..] => {
                    at = self.step(at, Test::Byte(*byte));
                    after
                }
            };
        }
    }

    /// A place of its own that is reached for free: loops must not leak into what came before.
    fn fork(&mut self, from: usize) -> usize {
        let to = self.add();
        self.places[from].free.push(to);
        to
    }
}

/// A class after its opening bracket, and what follows it. A `]` in front and a `-` at either end
/// stand for themselves; in `[a-c-e]` the last end counts.
fn class(text: &[u8]) -> (Test, &[u8]) {
    let (negated, mut rest) = match text {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    let mut to = false;
    loop {
        let [byte, after @ ..] = rest else {
            panic!("a class is not closed");
        };
        rest = after;
        match (byte, ranges.last_mut()) {
            (b']', Some(_)) => break,
            (b'-', Some(_)) if !to => to = true,
            (byte, Some((_, high))) if to => {
                *high = *byte;
                to = false;
            }
            (byte, _) => ranges.push((*byte, *byte)),
        }
    }
    if to {
        ranges.push((b'-', b'-'));
    }
    (Test::Class { negated, ranges }, rest)
}
