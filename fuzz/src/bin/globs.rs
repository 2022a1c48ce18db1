//! Path patterns: the first line is a pattern, each other line a path.
//!
//! What a rule matches must be what the language page says (our slow oracle), and what globset says
//! of the single pattern. Nothing may be slow.

#![no_main]

use std::time::Duration;

use globset::GlobBuilder;
use libfuzzer_sys::fuzz_target;
use outgate_fuzz::{glob::Graph, text, within};
use outgate_policy::fuzzing::{PathPattern, canonical_path};

/// For a pattern of 1 KiB, with coverage counters in everything.
const LIMIT: Duration = Duration::from_secs(1);

fuzz_target!(|data: &[u8]| {
    let mut lines = text(data).split('\n');
    let pattern_text = lines.next().unwrap_or_default();
    let read = || PathPattern::parse(pattern_text);
    // Named classes, `[[:alpha:]]`, are not spoken of on the language page.
    if pattern_text.contains("[:") {
        return;
    }
    let Some(pattern) = within(LIMIT, "compiling the pattern", read) else {
        return;
    };
    let oracle = Graph::new(pattern_text);
    let single = GlobBuilder::new(pattern_text)
        .literal_separator(true)
        .backslash_escape(false)
        .empty_alternates(true)
        .build()
        .expect("the policy compiled it")
        .compile_matcher();
    for path in lines {
        let Some(path) = canonical_path(path) else {
            continue;
        };
        let allowed = within(LIMIT, "matching", || pattern.allows(&path)).expect("is canonical");
        let denied = within(LIMIT, "matching", || pattern.denies(&path)).expect("is canonical");
        assert_eq!(
            allowed,
            oracle.matches(&path),
            "oracle: {pattern_text} {path}"
        );
        assert_eq!(
            allowed,
            single.is_match(&path),
            "globset: {pattern_text} {path}"
        );
        assert!(
            denied || !allowed,
            "a deny rule matches less: {pattern_text} {path}"
        );
    }
});
