//! Large policies and patterns that are made to be slow: an answer in time, and never a wrong one.

use super::{diff, only, policy, shown};
use crate::Policy;

fn large(count: usize, change: impl Fn(usize) -> Option<String>) -> Policy {
    let rules: String = (0..count)
        .filter_map(|at| {
            let keys = change(at)?;
            Some(format!("{{ id: r{at}, action: allow, to: {{ hosts: [h{at}.example.com] }}, http: {{ methods: [GET], paths: [{keys}] }} }}\n"))
        })
        .collect();
    policy(&[&rules])
}

fn paths(at: usize) -> Option<String> {
    Some(format!("\"/repos/o{at}/**\", \"/user/*/keys\""))
}

#[test]
fn ten_thousand_rules_with_few_changes() {
    let old = large(10_000, paths);
    let new = large(10_000, |at| match at {
        77 => None,
        4_000 => Some("\"/repos/o4000/**\", \"/user/*/k?ys\"".to_owned()),
        _ => paths(at),
    });
    let difference = old.diff(&new);
    assert_eq!(
        shown(&difference.allowed),
        [
            "GET over https to h4000.example.com, path /user/*/k?ys, but not /user/*/keys -> GET https://h4000.example.com/user/x/kxys"
        ]
    );
    assert_eq!(
        shown(&difference.denied),
        [
            "GET over https to h77.example.com, path /repos/o77/** or /user/*/keys -> GET https://h77.example.com/repos/o77/x"
        ]
    );
    assert!(difference.undecided.is_empty());
}

#[test]
fn a_rule_for_all_of_ten_thousand_hosts() {
    let rules = |last: &str| -> String {
        let each = (0..3_000).map(|at| format!("{{ id: r{at}, action: allow, to: {{ hosts: [h{at}.example.com] }}, http: {{ methods: [GET], paths: [\"/repos/o{at}/**\"] }} }}\n"));
        each.chain([last.to_owned()]).collect()
    };
    let deny = "{ id: secrets, action: deny, to: { hosts: [any] }, http: { paths: [\"/**/secrets/**\"] } }";
    let difference = diff(&rules(""), &rules(deny));
    assert_eq!(difference.denied.len(), 3_000);
    assert_eq!(
        shown(&difference.denied[..1]),
        [
            "GET over https to h0.example.com, path /**/secrets/** -> GET https://h0.example.com/repos/o0/secrets/x"
        ]
    );
    assert!(!difference.allows_more());
}

#[test]
fn patterns_that_are_made_to_be_slow_end() {
    let rule = |path: &str| {
        format!(
            "{{ id: r, action: allow, to: {{ hosts: [a.test] }}, http: {{ paths: [\"{path}\"] }} }}"
        )
    };
    for (old, new) in [
        ("/**/a????????????????", "/**/b"),
        ("/*a????????????????????", "/*b????????????????????"),
        ("/**/*a*/**/*b*/**/*c*/**/*d*", "/**/*a?*/**/*b?*/**/*c?*"),
        (
            "/{*a*,*b*}{*c*,*d*}{*e*,*f*}{*g*,*h*}",
            "/{*a?*,*b*}{*c*,*d?*}{*e*,*f*}{*g*,*h*}",
        ),
    ] {
        let difference = diff(&rule(old), &rule(new));
        // Something is found, or it is said that not all was looked at; never nothing.
        assert!(!difference.is_empty(), "{old} {new}");
        let within = policy(&[&rule(new)]).within(&policy(&[&rule(old)]));
        assert!(!within.is_proven(), "{old} {new}");
    }
}

#[test]
fn what_is_too_much_is_never_called_equal() {
    let rule = |path: &str| {
        format!(
            "{{ id: r, action: allow, to: {{ hosts: [a.test] }}, http: {{ paths: [\"{path}\"] }} }}"
        )
    };
    // These match the same, which takes too long to see.
    let (one, two) = (
        "/*a????????????????????????",
        "/{*a????????????????????????,*a????????????????????????}",
    );
    assert!(diff(&rule(one), &rule(two)).undecided.len() == 1);
    let within = policy(&[&rule(one)]).within(&policy(&[&rule(two)]));
    assert!(!within.is_proven());
    assert!(
        within.to_string().contains("rule r (layer0.yaml:3)"),
        "{within}"
    );
}

#[test]
fn every_port_and_many_methods() {
    let ports: Vec<String> = (1..=2000).map(|port| port.to_string()).collect();
    let rule = |ports: &[String]| {
        format!(
            "{{ id: r, action: allow, to: {{ hosts: [a.test], ports: [{}] }} }}",
            ports.join(", ")
        )
    };
    let difference = diff(&rule(&ports[..1999]), &rule(&ports));
    let expected = ["https to a.test, port 2000 -> GET https://a.test:2000/"];
    assert_eq!(shown(only(&difference, &difference.allowed)), expected);
}
