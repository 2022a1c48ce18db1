//! The policies that users start from load without warning, and their tests hold.

use outgate_policy::{Policy, Source};

const EXAMPLES: [(&str, &str); 3] = [
    (
        "coding-agent.yaml",
        include_str!("../../config/policies/coding-agent.yaml"),
    ),
    (
        "deny-all.yaml",
        include_str!("../../config/policies/deny-all.yaml"),
    ),
    (
        "package-installs.yaml",
        include_str!("../../config/policies/package-installs.yaml"),
    ),
];

#[test]
fn examples_load_and_their_tests_hold() {
    for (name, text) in EXAMPLES {
        let policy =
            Policy::load(&[Source::new(name, text)]).unwrap_or_else(|errors| panic!("{errors}"));
        let outcomes = policy.run_tests();
        assert!(!outcomes.is_empty(), "{name} has no tests");
        for outcome in outcomes {
            assert!(
                outcome.passed(),
                "{name}:{}: {}: {:?}",
                outcome.line,
                outcome.name,
                outcome.differences
            );
        }
    }
}

#[test]
fn examples_have_no_findings() {
    for (name, text) in EXAMPLES {
        let policy = Policy::load(&[Source::new(name, text)]).unwrap();
        let codes: Vec<_> = policy.lints().iter().map(|lint| lint.code).collect();
        let expected: &[&str] = if name == "deny-all.yaml" {
            &["no_rules"]
        } else {
            &[]
        };
        assert_eq!(codes, expected, "{name}");
    }
}
