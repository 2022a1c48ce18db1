//! The walk finds exactly the combinations of patterns that canonical paths match.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use proptest::prelude::*;

use crate::canonical::CanonicalPath;
use crate::compare::letters::Alphabet;
use crate::compare::walk::{Budget, Example, Reads, Walk};
use crate::glob::{PathGlob, PathPatterns};

fn pattern() -> impl Strategy<Value = Option<PathGlob>> {
    let piece = prop::sample::select(vec![
        "/", "/", "/", "a", "b", ".", "*", "?", "/**", "/**/", "[ab]", "[!a]", "[.;]", "{a,b}",
        "{,/**}", "{/**,/b}", ";", "%3B", "%2F", "%25", "%3A", ":", "2", "F", "{,/a}", "1",
    ]);
    let text = prop::collection::vec(piece, 0..6);
    text.prop_map(|pieces| PathGlob::parse(&format!("/{}", pieces.concat())).ok())
}

fn path() -> impl Strategy<Value = Option<CanonicalPath>> {
    let piece = prop::sample::select(vec![
        "/", "/", "/", "a", "b", "x", ".", ";", "%3B", "%2F", "%3A", ":", "%25", "2F", "3B", "61",
        "1", "..", "%C3%BC", "a/b", "?", "2",
    ]);
    let text = prop::collection::vec(piece, 0..7);
    text.prop_map(|pieces| {
        let text = format!("/{}", pieces.concat());
        let is_path = !text.contains('?');
        let path = CanonicalPath::parse(&text).ok()?;
        is_path.then_some(path)
    })
}

struct Patterns {
    allow: Vec<PathPatterns>,
    deny: Vec<PathPatterns>,
}

impl Patterns {
    fn new(allow: Vec<Option<PathGlob>>, deny: Vec<Option<PathGlob>>) -> Self {
        let allow = allow.into_iter().flatten();
        let deny = deny.into_iter().flatten();
        Self {
            allow: allow.map(|glob| PathPatterns::new(vec![glob])).collect(),
            deny: deny
                .map(|glob| PathPatterns::for_deny(vec![glob]))
                .collect(),
        }
    }

    fn walk(&self, reads: Reads, alphabet: Alphabet) -> Vec<Example> {
        let numbered = |all: &'_ [PathPatterns], from: u32| -> Vec<(u32, PathGlob)> {
            let each = (from..).zip(all);
            each.flat_map(|(number, patterns)| {
                patterns.all().map(move |glob| (number, glob.clone()))
            })
            .collect()
        };
        let (allow, deny) = (numbered(&self.allow, 0), numbered(&self.deny, 100));
        let walk = Walk::new(
            allow.iter().map(|(number, glob)| (*number, glob)),
            deny.iter().map(|(number, glob)| (*number, glob)),
            reads,
            alphabet,
        );
        let mut examples = Vec::new();
        let mut budget = Budget::COMPARISON;
        walk.run(&mut budget, |example| {
            examples.push(example);
            ControlFlow::Continue(())
        })
        .unwrap();
        examples
    }

    fn matched(&self, path: &CanonicalPath, reads: Reads) -> Vec<u32> {
        let text = path.as_str().as_bytes();
        let allow = (0..).zip(&self.allow);
        let allow = allow.filter(|(_, patterns)| patterns.matches(path));
        let deny = (100..).zip(&self.deny).filter(|(_, patterns)| match reads {
            Reads::Text => patterns.all().any(|glob| glob.matches(text)),
            Reads::EveryReading => patterns.matches_any_reading(path),
        });
        allow.chain(deny).map(|(number, _)| number).collect()
    }
}

fn key(matched: &[u32], path: &str) -> (Vec<u32>, bool) {
    (matched.to_vec(), path.contains("%2F"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30000))]

    #[test]
    fn every_path_has_its_example_and_every_example_is_true(
        allow in prop::collection::vec(pattern(), 0..4),
        deny in prop::collection::vec(pattern(), 0..3),
        paths in prop::collection::vec(path(), 24),
    ) {
        let patterns = Patterns::new(allow, deny);
        for (reads, alphabet) in [(Reads::EveryReading, Alphabet::WithoutPercent), (Reads::Text, Alphabet::Canonical)] {
            let examples = patterns.walk(reads, alphabet);
            let mut known = BTreeSet::new();
            for example in &examples {
                let text = String::from_utf8(example.path.clone()).unwrap();
                let path = CanonicalPath::parse(&text);
                prop_assert!(path.is_ok(), "{} is no path", text);
                let path = path.unwrap();
                prop_assert_eq!(path.as_str(), &text);
                prop_assert_eq!(example.has_slash, path.has_encoded_slash());
                prop_assert!(!text.contains("%25") || alphabet == Alphabet::Canonical);
                prop_assert_eq!(&example.matched, &patterns.matched(&path, reads), "{}", text);
                known.insert(key(&example.matched, &text));
            }
            for path in paths.iter().flatten() {
                let text = path.as_str();
                if alphabet == Alphabet::Canonical || !text.contains("%25") {
                    let matched = patterns.matched(path, reads);
                    prop_assert!(known.contains(&key(&matched, text)), "{} matches {:?}", text, matched);
                }
            }
        }
    }

    #[test]
    fn inclusion_is_true_and_exact(
        inner in prop::collection::vec(pattern(), 1..3),
        outer in prop::collection::vec(pattern(), 1..4),
        paths in prop::collection::vec(path(), 24),
    ) {
        let globs = |globs: &[Option<PathGlob>]| globs.iter().flatten().cloned().collect::<Vec<_>>();
        let (inner, outer) = (globs(&inner), globs(&outer));
        let allow = (PathPatterns::new(inner.clone()), PathPatterns::new(outer.clone()));
        let deny = (PathPatterns::for_deny(inner.clone()), PathPatterns::for_deny(outer.clone()));
        let (is_within, is_within_any) = (allow.0.within(&allow.1), deny.0.within_any_reading(&deny.1));
        prop_assert!(is_within.is_some());
        for path in paths.iter().flatten() {
            let (one, other) = (allow.0.matches(path), allow.1.matches(path));
            prop_assert!(!one || other || is_within != Some(true), "{}", path.as_str());
            let (one, other) = (deny.0.matches_any_reading(path), deny.1.matches_any_reading(path));
            prop_assert!(!one || other || is_within_any != Some(true), "{}", path.as_str());
        }
        if is_within == Some(false) {
            // The walk that says so has an example.
            let patterns = Patterns::new(
                inner.into_iter().map(Some).collect(),
                Vec::new(),
            );
            let walk = patterns.walk(Reads::Text, Alphabet::Canonical);
            prop_assert!(walk.iter().any(|example| !example.matched.is_empty()));
        }
    }
}

#[test]
fn inclusion_by_language_and_not_by_text() {
    let patterns = |texts: &[&str]| {
        let globs = texts.iter().map(|text| PathGlob::parse(text).unwrap());
        PathPatterns::new(globs.collect())
    };
    for (inner, outer, expected) in [
        (&["/a/**"][..], &["/**"][..], true),
        (&["/a/b"], &["/a/*"], true),
        (&["/a/*"], &["/a/b"], false),
        (&["/a/{b,c}"], &["/a/b", "/a/c"], true),
        (&["/a/{b,c,d}"], &["/a/b", "/a/c"], false),
        (&["/a{,/**}"], &["/a", "/a/**"], true),
        (&["/a/[0-9]"], &["/a/?"], true),
        (&["/a/?"], &["/a/[0-9]"], false),
        (&["/a/*"], &["/a/**"], true),
        (&["/**/b"], &["/**/b", "/b"], true),
        // No canonical path has a segment of dots.
        (&["/?"], &["/[!.]", "/[!a-z]"], true),
        (&["/a/[./]"], &["/b"], true),
        (&[], &["/a"], true),
        (&["/a"], &[], false),
    ] {
        let is_within = patterns(inner).within(&patterns(outer));
        assert_eq!(is_within, Some(expected), "{inner:?} {outer:?}");
    }
}
