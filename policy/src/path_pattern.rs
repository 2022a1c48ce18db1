//! Which canonical paths a rule's `http.paths:` speaks of: globs by `globset`, segment by segment.
//!
//! A pattern that no canonical path can match is refused when it is read, with what to write
//! instead: such a pattern would make an allow rule useless and a deny rule a hole.

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::canonical::{CanonicalPath, canonical_escapes};

/// Bytes of one pattern; longer ones cost too much to compile.
const MAX_PATTERN: usize = 1024;

/// The compiled patterns of one rule.
#[derive(Clone, Debug)]
pub(crate) struct PathPatterns {
    texts: Vec<String>,
    set: GlobSet,
}

impl PathPatterns {
    /// Compiles patterns that were each read by [`parse`].
    pub(crate) fn new(globs: Vec<Glob>) -> Result<Self, globset::Error> {
        let mut builder = GlobSetBuilder::new();
        let texts = globs.iter().map(|glob| glob.glob().to_owned()).collect();
        for glob in globs {
            builder.add(glob);
        }
        Ok(Self {
            texts,
            set: builder.build()?,
        })
    }

    /// The patterns as written.
    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether a pattern matches the canonical path.
    pub(crate) fn matches(&self, path: &CanonicalPath) -> bool {
        // The asterisk of OPTIONS and the empty path of a tunnel are no paths.
        path.as_str().starts_with('/')
            && self
                .set
                .is_match_candidate(&candidate(path.as_str().as_bytes()))
    }

    /// As [`Self::matches`], and also true for the path as more lenient upstreams read it: a deny
    /// rule must not be avoided by `%3A` for `:`, by `;x`, or by a second slash.
    pub(crate) fn matches_any_reading(&self, path: &CanonicalPath) -> bool {
        self.matches(path)
            || path
                .readings()
                .any(|reading| self.set.is_match_candidate(&candidate(reading)))
    }
}

fn candidate(path: &[u8]) -> Candidate<'_> {
    Candidate::from_bytes(path)
}

/// What is wrong with a pattern and what to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PathPatternError {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

fn error(message: impl Into<String>, help: impl Into<String>) -> PathPatternError {
    PathPatternError {
        message: message.into(),
        help: Some(help.into()),
    }
}

/// Reads a pattern.
pub(crate) fn parse(text: &str) -> Result<Glob, PathPatternError> {
    if !text.starts_with('/') {
        return Err(error(
            format!("the path pattern `{text}` doesn't start with `/`"),
            format!("write `/{}`", text.trim_start_matches("./")),
        ));
    }
    if text.len() > MAX_PATTERN {
        let message = format!("the path pattern is longer than {MAX_PATTERN} bytes");
        return Err(PathPatternError {
            message,
            help: None,
        });
    }
    check_spelling(text)?;
    check_stars(text)?;
    GlobBuilder::new(text)
        .literal_separator(true)
        .backslash_escape(false)
        .empty_alternates(true)
        .build()
        .map_err(|glob| PathPatternError {
            message: format!("`{text}` is no glob: {}", glob.kind()),
            help: Some(
                "brackets and braces that are meant literally are written `[[]`, `[{]`".to_owned(),
            ),
        })
}

/// Canonical paths have one spelling; a pattern in another spelling would never match.
fn check_spelling(text: &str) -> Result<(), PathPatternError> {
    if text.contains('\\') {
        return Err(error(
            format!("`{text}` has a backslash, which no canonical path has"),
            "a literal `*` is written `[*]`; backslash is no escape",
        ));
    }
    let written: String = text
        .chars()
        .map(|c| {
            if c == ' ' || !c.is_ascii() {
                escape(c)
            } else {
                c.to_string()
            }
        })
        .collect();
    match canonical_escapes(&written) {
        Ok(canonical) if canonical != text => {
            let message =
                format!("`{text}` is not the canonical spelling, so it would never match");
            return Err(error(message, format!("write `{canonical}`")));
        }
        Ok(_) => {}
        Err(reject) => {
            return Err(PathPatternError {
                message: format!("`{}` has {}", text.escape_debug(), reject.detail),
                help: None,
            });
        }
    }
    if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        let message = format!("`{text}` has a dot segment, which no canonical path has");
        return Err(error(
            message,
            "write the path without `.` and `..` segments",
        ));
    }
    Ok(())
}

fn escape(c: char) -> String {
    c.to_string()
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect()
}

/// `**` is a whole segment. Within braces it may only end the pattern, as in `/x{,/**}`: in other
/// places globset reads it as something that nobody would guess.
fn check_stars(text: &str) -> Result<(), PathPatternError> {
    for (at, _) in text.match_indices("**") {
        let (front, back) = text.split_at_checked(at).unwrap_or_default();
        let back = back.get(2..).unwrap_or_default();
        let in_braces = front.matches('{').count() > front.matches('}').count();
        let ends_well = match in_braces {
            true => {
                back.starts_with([',', '}'])
                    && back
                        .find('}')
                        .is_some_and(|close| is_all_braces(back, close))
            }
            false => back.is_empty() || back.starts_with('/'),
        };
        if !front.ends_with('/') || !ends_well {
            let message = format!("in `{text}` `**` is not a whole segment");
            return Err(error(
                message,
                "write `/**` for any depth, `*` within a segment",
            ));
        }
    }
    Ok(())
}

fn is_all_braces(text: &str, from: usize) -> bool {
    text.get(from..)
        .is_some_and(|rest| rest.bytes().all(|byte| byte == b'}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let patterns = PathPatterns::new(vec![parse(pattern).unwrap()]).unwrap();
        patterns.matches(&CanonicalPath::parse(path).unwrap())
    }

    #[test]
    fn the_documented_table() {
        for (pattern, path, expected) in [
            ("/public/**", "/public/x", true),
            ("/public/**", "/public/x/y", true),
            ("/public/**", "/public/", true),
            ("/public/**", "/public", false),
            ("/public/**", "/publicx", false),
            ("/public/**", "/PUBLIC/x", false),
            ("/public/**", "//public/x", false),
            ("/public{,/**}", "/public", true),
            ("/public{,/**}", "/public/x/y", true),
            ("/public{,/**}", "/publicx", false),
            ("/repos/*/x", "/repos/a/x", true),
            ("/repos/*/x", "/repos/a/b/x", false),
            ("/repos/*/x", "/repos//x", true),
            ("/a?c", "/abc", true),
            ("/a?c", "/a/c", false),
            ("/a[a-z]c", "/abc", true),
            ("/a[!x]c", "/a/c", false),
            ("/a[+-9]c", "/a/c", false),
            ("/{a,b}/c", "/b/c", true),
            ("/{a,b}/c", "/c/c", false),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/**/x", "/x", true),
            ("/**/x", "/a/b/x", true),
            ("/**/x", "/ax", false),
            ("/a/**/b", "/a/b", true),
            ("/a/**/b", "/a/x/y/b", true),
            ("/a/**/b", "/ab", false),
            ("/*", "/a", true),
            ("/*", "/a/b", false),
            ("/", "/", true),
            ("/*.js", "/a.js", true),
            ("/*.js", "/a/b.js", false),
            ("/a.b", "/axb", false),
            ("/user", "/user/", false),
            ("/@*/%2F", "/@x/%2f", true),
            ("/x[*]", "/x*", true),
            ("/a%20b", "/a%20b", true),
            ("/**/*.js", "/x/y.js", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_that_could_never_match_are_refused() {
        for (pattern, help) in [
            ("public/**", "write `/public/**`"),
            ("**", "write `/**`"),
            ("/a b", "write `/a%20b`"),
            ("/ü", "write `/%C3%BC`"),
            ("/%61", "write `/a`"),
            ("/%2f", "write `/%2F`"),
            ("/a/../b", "write the path without `.` and `..` segments"),
            ("/./b", "write the path without `.` and `..` segments"),
            (
                "/a\\*",
                "a literal `*` is written `[*]`; backslash is no escape",
            ),
            ("/a**", "write `/**` for any depth, `*` within a segment"),
            ("/**a", "write `/**` for any depth, `*` within a segment"),
            ("/a/***", "write `/**` for any depth, `*` within a segment"),
            (
                "/a{,/**}b",
                "write `/**` for any depth, `*` within a segment",
            ),
            (
                "/{a,/**/b}",
                "write `/**` for any depth, `*` within a segment",
            ),
            (
                "/x{/**,}/y",
                "write `/**` for any depth, `*` within a segment",
            ),
            (
                "/{a",
                "brackets and braces that are meant literally are written `[[]`, `[{]`",
            ),
            (
                "/[a",
                "brackets and braces that are meant literally are written `[[]`, `[{]`",
            ),
            (
                "/[z-a]",
                "brackets and braces that are meant literally are written `[[]`, `[{]`",
            ),
        ] {
            assert_eq!(
                parse(pattern).unwrap_err().help.as_deref(),
                Some(help),
                "{pattern}"
            );
        }
        for pattern in [
            "/a#b",
            "/%zz",
            "/a\nb",
            &format!("/{}", "a".repeat(MAX_PATTERN)),
        ] {
            assert!(parse(pattern).is_err(), "{pattern:?}");
        }
    }

    #[test]
    fn a_deny_pattern_sees_every_reading_of_an_escape() {
        let patterns = PathPatterns::new(vec![
            parse("/m/*:run").unwrap(),
            parse("/admin/**").unwrap(),
        ])
        .unwrap();
        for path in [
            "/m/x%3Arun",
            "/m/x:run",
            "/admin%2fkeys",
            "/admin/keys",
            "//admin/keys",
            "/admin;x/keys",
            "/admin%252fkeys",
        ] {
            assert!(
                patterns.matches_any_reading(&CanonicalPath::parse(path).unwrap()),
                "{path}"
            );
        }
        assert!(!patterns.matches(&CanonicalPath::parse("/m/x%3Arun").unwrap()));
        assert!(!patterns.matches_any_reading(&CanonicalPath::asterisk()));
    }

    /// Globs by backtracking over characters, for comparison.
    mod oracle {
        pub(super) fn matches(pattern: &str, path: &str) -> bool {
            expand(pattern).iter().any(|plain| {
                let pattern: Vec<char> = plain.chars().collect();
                let path: Vec<char> = path.chars().collect();
                go(&pattern, &path)
            })
        }

        /// Alternatives without nesting.
        fn expand(pattern: &str) -> Vec<String> {
            let Some((front, rest)) = pattern.split_once('{') else {
                return vec![pattern.to_owned()];
            };
            let (inner, back) = rest.split_once('}').unwrap();
            inner
                .split(',')
                .flat_map(|choice| expand(&format!("{front}{choice}{back}")))
                .collect()
        }

        fn go(pattern: &[char], path: &[char]) -> bool {
            match pattern {
                [] => path.is_empty(),
                ['/', '*', '*', '/', rest @ ..] => {
                    // Zero or more whole segments.
                    path.first() == Some(&'/')
                        && (0..path.len()).any(|at| path[at] == '/' && go(rest, &path[at + 1..]))
                }
                ['/', '*', '*'] => path.first() == Some(&'/'),
                ['*', rest @ ..] => (0..=path.len())
                    .take_while(|&at| at == 0 || path[at - 1] != '/')
                    .any(|at| go(rest, &path[at..])),
                ['?', rest @ ..] => path.first().is_some_and(|c| *c != '/') && go(rest, &path[1..]),
                ['[', 'a', '-', 'c', ']', rest @ ..] => {
                    path.first().is_some_and(|c| ('a'..='c').contains(c)) && go(rest, &path[1..])
                }
                ['[', '!', 'a', ']', rest @ ..] => {
                    path.first().is_some_and(|c| *c != 'a' && *c != '/') && go(rest, &path[1..])
                }
                [c, rest @ ..] => path.first() == Some(c) && go(rest, &path[1..]),
            }
        }
    }

    fn pattern() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/", "/", "/", "a", "b", ".", ".js", "*", "?", "/**", "/**/", "[a-c]", "[!a]", "{a,b}",
            "{,/**}", "{,/**/a}", "{/**,/b}", "{a/b,c}", "ab", "%3A",
        ]);
        prop::collection::vec(piece, 0..7).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn agrees_with_the_slow_oracle(pattern in pattern(), paths in prop::collection::vec("/[abjs./]{0,8}(%3A)?[ab./]{0,3}", 6)) {
            let Ok(glob) = parse(&pattern) else { return Ok(()) };
            let patterns = PathPatterns::new(vec![glob]).unwrap();
            for path in paths {
                let Ok(path) = CanonicalPath::parse(&path) else { continue };
                prop_assert_eq!(patterns.matches(&path), oracle::matches(&pattern, path.as_str()), "{} {}", pattern, path.as_str());
            }
        }
    }
}
