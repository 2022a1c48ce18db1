//! Policies that are not in force: what cannot be enforced is not loaded, what is empty allows
//! nothing.

use outgate_tests::harness::World;

#[test]
fn b002_an_address_among_host_names_is_an_error_with_its_line() {
    let world = World::new("");
    let refused = world.refused(
        "rules:\n  - id: mixed\n    action: allow\n    to: { hosts: [a.test, 10.9.8.7] }\n",
    );
    assert!(refused.message.contains("10.9.8.7"), "{}", refused.message);
    // `policy.yaml` starts with two lines of its own: `version` and `name`.
    assert!(
        refused.message.contains(":6:"),
        "the line is named: {}",
        refused.message
    );
}

#[test]
fn c15_what_cannot_be_enforced_is_not_loaded() {
    let world = World::new("");
    for rules in [
        "rules:\n  - id: x\n    action: allow\n    to: { hosts: [a.test] }\n    surprise: true\n",
        "rules:\n  - id: x\n    action: allow\n    to: { hosts: [\"*.com\"] }\n",
        "rules:\n  - id: x\n    action: perhaps\n    to: { hosts: [a.test] }\n",
        "rules:\n  - id: x\n    action: allow\n",
        "rules: [\n",
        "allow: [a.test]\n",
        "rules:\n  - { id: x, action: allow, to: { hosts: [a.test] } }\n  - { id: x, action: allow, to: { hosts: [b.test] } }\n",
    ] {
        let refused = world.refused(rules);
        assert_eq!(refused.code, "policy", "{rules}: {refused:?}");
    }
}

#[test]
fn b014_a_policy_that_this_gateway_cannot_keep_is_refused_whole() {
    let world = World::new("");
    for (keys, word) in [
        ("tls: passthrough", "tls: passthrough"),
        ("http: { websocket: allow }", "websocket: allow"),
        ("limits: { rate: 10/s }", "rate"),
        ("limits: { concurrency: 1 }", "concurrency"),
    ] {
        let rules = format!(
            "rules:\n  - {{ id: x, action: allow, to: {{ hosts: [a.test], ports: [443] }}, {keys} }}\n"
        );
        let refused = world.refused(&rules);
        assert_eq!(refused.code, "policy", "{rules}: {refused:?}");
        let message = &refused.message;
        assert!(
            message.contains("error[not_enforced]") && message.contains(word),
            "{message}"
        );
    }
}

#[test]
fn b015_a_policy_without_rules_allows_nothing() {
    for rules in ["", "rules: []\n"] {
        let world = World::new(rules);
        let reply = world.guest().curl("https://a.test/", [""; 0]);
        assert_eq!((reply.curl, reply.status), (6, None));
        assert_eq!(world.lab.journal.all(), []);
        assert_eq!(world.lab.dns.queries(), []);
    }
}
