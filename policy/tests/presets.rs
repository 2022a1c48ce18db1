//! The presets that ship with Outgate load without a finding, and their tests hold.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::path::Path;

use outgate_policy::{Policy, Source};

/// The text of every file under `config/presets`, by name.
fn presets() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/presets");
    let mut presets: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    presets.sort();
    assert!(presets.len() >= 9, "presets are missing");
    presets
}

fn load(name: &str, text: &str) -> Policy {
    Policy::load(&[Source::new(name, text)]).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn presets_load_and_their_tests_hold() {
    let mut failures = Vec::new();
    for (name, text) in presets() {
        let policy = load(&name, &text);
        let outcomes = policy.run_tests();
        for expected in ["allow", "deny"] {
            assert!(
                outcomes.iter().any(|outcome| outcome.expected == expected),
                "{name} has no test that expects {expected}"
            );
        }
        for outcome in outcomes.iter().filter(|outcome| !outcome.passed()) {
            failures.push(format!(
                "{name}:{}: {} ({}): {:?}",
                outcome.line, outcome.name, outcome.request, outcome.differences
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn presets_have_no_findings() {
    for (name, text) in presets() {
        let lints = load(&name, &text).lints();
        let shown: Vec<String> = lints
            .iter()
            .map(outgate_policy::Diagnostic::render)
            .collect();
        assert!(lints.is_empty(), "{}", shown.join("\n"));
    }
}

/// An include merges the rules of several presets into one file, so ids must not collide.
#[test]
fn presets_can_be_included_side_by_side() {
    let mut seen = std::collections::BTreeMap::new();
    for (name, text) in presets() {
        let stem = name
            .strip_suffix(".yaml")
            .expect("a preset is a .yaml file");
        let policy = load(&name, &text);
        assert_eq!(policy.name(), Some(stem), "{name}");
        for rule in policy.rules() {
            assert!(
                rule.id.starts_with(stem),
                "{name}: the id `{}` doesn't begin with the preset's name",
                rule.id
            );
            let earlier = seen.insert(rule.id.to_string(), name.clone());
            assert_eq!(earlier, None, "{name}: `{}` is used twice", rule.id);
        }
    }
}

#[test]
fn presets_say_what_they_open_and_what_can_leave() {
    for (name, text) in presets() {
        let header: String = text
            .lines()
            .take_while(|line| line.starts_with('#'))
            .collect();
        for word in ["Opens:", "Does not open:", "What can leave:"] {
            assert!(header.contains(word), "{name}: the header lacks `{word}`");
        }
    }
}
