//! Path patterns that both languages can say exactly.
//!
//! Cedar's `*` also crosses slashes. A pattern with one `*` is said by two conditions: it matches
//! with its star, and not with `*/*` in place of it.

use std::fmt;

use crate::random::Random;

const SEGMENTS: [&str; 4] = ["a", "b", "ab", "a.js"];

/// A pattern, by its parts: what stands before, in the place of, and after its wildcard.
#[derive(Debug)]
pub(super) enum Path {
    /// `/a/b`
    Literal(String),
    /// `/a/**`
    Below(String),
    /// `/**/a/b`
    Ending(String),
    /// `/a/*`, `/a/*/b`, `/a/*.js`: one star between two texts.
    Star(String, String),
    /// `/a/{b,ab}/a`
    Alternatives(String, [&'static str; 2], String),
}

/// Zero to four segments.
pub(super) fn random_path(random: &mut Random) -> String {
    segments(random, 0, 4)
}

impl Path {
    pub(super) fn random(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Literal(segments(random, 1, 3)),
            1 => Self::Ending(segments(random, 1, 2)),
            2 => {
                let ending = random.pick(["", "", ".js", "b"]);
                Self::Star(segments(random, 0, 2) + "/", ending.to_owned())
            }
            3 => Self::Star(segments(random, 0, 2) + "/", segments(random, 1, 2)),
            4 => {
                let alternatives = random.pick([["a", "b"], ["b", "ab"], ["a.js", "a"]]);
                let before = segments(random, 0, 1) + "/";
                Self::Alternatives(before, alternatives, segments(random, 0, 2))
            }
            _ => Self::Below(segments(random, 0, 2)),
        }
    }

    /// A path that it matches, or nearly.
    pub(super) fn path_within(&self, random: &mut Random) -> String {
        match self {
            Self::Literal(path) => path.clone(),
            Self::Below(path) => path.clone() + &segments(random, 0, 2),
            Self::Ending(path) => segments(random, 0, 2) + path,
            Self::Star(before, after) => {
                let within = random.pick(["", "a", "ab", "a/b"]);
                // An empty segment has a second reading, which deny rules also look at.
                let within = match after.starts_with('/') {
                    true if within.is_empty() => "b",
                    _ => within,
                };
                format!("{before}{within}{after}")
            }
            Self::Alternatives(before, alternatives, after) => {
                format!("{before}{}{after}", random.pick(*alternatives))
            }
        }
    }

    /// The condition that says the same. A deny rule also matches a path that has one more slash at
    /// its end.
    pub(super) fn cedar(&self, is_deny: bool) -> String {
        let exact = self.with_ending("");
        if is_deny {
            format!("{exact} || {}", self.with_ending("/"))
        } else {
            exact
        }
    }

    fn with_ending(&self, end: &str) -> String {
        let like = |pattern: String| format!("context.path like \"{pattern}\"");
        match self {
            Self::Literal(path) => like(format!("{path}{end}")),
            Self::Below(path) => like(format!("{path}/*")),
            Self::Ending(path) => {
                let direct = like(format!("{path}{end}"));
                format!("{direct} || {}", like(format!("/*{path}{end}")))
            }
            Self::Star(before, after) => {
                let matches = like(format!("{before}*{after}{end}"));
                let crosses = like(format!("{before}*/*{after}{end}"));
                format!("({matches} && !({crosses}))")
            }
            Self::Alternatives(before, [one, other], after) => {
                let one = like(format!("{before}{one}{after}{end}"));
                format!("{one} || {}", like(format!("{before}{other}{after}{end}")))
            }
        }
    }
}

/// As a policy file has it.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(path) => f.write_str(path),
            Self::Below(path) => write!(f, "{path}/**"),
            Self::Ending(path) => write!(f, "/**{path}"),
            Self::Star(before, after) => write!(f, "{before}*{after}"),
            Self::Alternatives(before, [one, other], after) => {
                write!(f, "{before}{{{one},{other}}}{after}")
            }
        }
    }
}

/// Between `least` and `most` segments, each with a slash before it.
fn segments(random: &mut Random, least: usize, most: usize) -> String {
    let count = least + random.below(most - least + 1);
    (0..count)
        .map(|_| format!("/{}", random.pick(SEGMENTS)))
        .collect()
}
