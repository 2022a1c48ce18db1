//! Matchers that aren't compared, and what both policies allow on other terms.

use super::{counterexample, diff, only, policy, shown};
use crate::{Aspect, Verdict, Within};

#[test]
fn a_matcher_that_goes_away_is_a_difference_that_depends_on_it() {
    let narrow =
        "{ id: api, action: allow, to: { hosts: [a.test] }, http: { headers: { X-A: [\"1\"] } } }";
    let wide = "{ id: api, action: allow, to: { hosts: [a.test] } }";
    let difference = diff(narrow, wide);
    let depends = only(&difference, &difference.depends);
    assert_eq!(shown(depends), ["https to a.test -> GET https://a.test/"]);
    assert_eq!(
        depends[0].opaque.as_deref(),
        Some("`headers: { \"x-a\": [\"1\"] }` of api (layer0.yaml:3)")
    );
    assert!(depends[0].widens && difference.allows_more());
    let within = policy(&[wide]).within(&policy(&[narrow]));
    assert!(matches!(within, Within::Undecided { .. }), "{within}");
    assert!(policy(&[narrow]).within(&policy(&[wide])).is_proven());
}

#[test]
fn equal_matchers_are_equal_and_others_are_not() {
    let rule = |headers: &str, paths: &str| {
        format!(
            "{{ id: api, action: allow, to: {{ hosts: [a.test] }}, http: {{ {headers}, paths: [{paths}] }} }}"
        )
    };
    let (one, two) = ("headers: { X-A: [\"1\"] }", "headers: { X-A: [\"2\"] }");
    assert!(diff(&rule(one, "/a"), &rule(one, "/a")).is_empty());
    let difference = diff(&rule(one, "/a"), &rule(one, "/a, /b"));
    let depends = only(&difference, &difference.depends);
    assert_eq!(
        shown(depends),
        ["https to a.test, path /b -> GET https://a.test/b"]
    );
    let difference = diff(&rule(one, "/a"), &rule(two, "/a"));
    let widens: Vec<bool> = difference
        .depends
        .iter()
        .map(|change| change.widens)
        .collect();
    assert_eq!(widens.len(), 2, "{difference}");
    assert!(widens.contains(&true) && widens.contains(&false));
}

#[test]
fn a_difference_whatever_the_matchers_say_is_sure() {
    let rule =
        "{ id: api, action: allow, to: { hosts: [a.test] }, http: { headers: { X-A: [\"1\"] } } }";
    let open = "{ id: open, action: allow, to: { hosts: [b.test] } }";
    let difference = diff(rule, &format!("{rule}\n{open}"));
    assert_eq!(
        shown(only(&difference, &difference.allowed)),
        ["https to b.test -> GET https://b.test/"]
    );
}

#[test]
fn many_matchers_are_more_than_can_be_told_apart() {
    let rules = |last: &str| -> String {
        let each = (0..11).map(|at| {
            format!("{{ id: r{at}, action: allow, to: {{ hosts: [a.test] }}, http: {{ headers: {{ X-A: [\"{at}\"] }} }} }}\n")
        });
        each.chain([last.to_owned()]).collect()
    };
    let deny = "{ id: d, action: deny, to: { hosts: [a.test] }, http: { methods: [POST] } }";
    let difference = diff(&rules(""), &rules(deny));
    assert!(difference.allows_more(), "{difference}");
    let [undecided] = difference.undecided.as_slice() else {
        panic!("{difference}")
    };
    assert!(undecided.why.contains("not compared"));
    assert_eq!(
        undecided.rules.len(),
        22 + usize::from(undecided.rules.len() > 22)
    );
}

const CREDENTIAL: &str =
    "credentials: [{ name: hub, source: { env: A }, attach: [{ header: X, format: \"{}\" }] }]\n";

#[test]
fn a_credential_is_given_only_by_who_had_it() {
    let without = format!("{CREDENTIAL}{{ id: api, action: allow, to: {{ hosts: [a.test] }} }}");
    let with = format!(
        "{CREDENTIAL}{{ id: api, action: allow, to: {{ hosts: [a.test] }}, credential: hub }}"
    );
    let difference = diff(&without, &with);
    let changed = only(&difference, &difference.changed);
    assert_eq!(changed[0].aspects, [Aspect::Credential]);
    assert_eq!(changed[0].new.credential.as_ref().unwrap().as_str(), "hub");
    assert!(difference.allows_more());
    counterexample(policy(&[&with]).within(&policy(&[&without])));
    assert!(policy(&[&without]).within(&policy(&[&with])).is_proven());
    // The same name for something else.
    let other = with.replace("env: A", "env: B");
    let difference = diff(&with, &other);
    assert!(difference.allows_more());
    assert_eq!(
        only(&difference, &difference.changed)[0].aspects,
        [Aspect::Credential]
    );
}

#[test]
fn asking_is_between_denying_and_allowing() {
    let rule = |action: &str| format!("{{ id: r, action: {action}, to: {{ hosts: [a.test] }} }}");
    let difference = diff(&rule("ask"), &rule("allow"));
    let changed = only(&difference, &difference.changed);
    assert_eq!(changed[0].aspects, [Aspect::Asking]);
    assert_eq!(
        (changed[0].old.verdict, changed[0].new.verdict),
        (Verdict::Ask, Verdict::Allow)
    );
    assert!(difference.allows_more());
    assert!(!diff(&rule("allow"), &rule("ask")).allows_more());
    let difference = diff("", &rule("ask"));
    assert_eq!(only(&difference, &difference.allowed).len(), 1);
    assert!(
        policy(&[&rule("ask")])
            .within(&policy(&[&rule("allow")]))
            .is_proven()
    );
}

#[test]
fn limits_are_kept_or_loosened() {
    let rule = |id: &str, limits: &str| {
        format!("{{ id: {id}, action: allow, to: {{ hosts: [a.test] }}{limits} }}")
    };
    let limits = |text: &str| format!(", limits: {{ {text} }}");
    for (old, new, loosens) in [
        (rule("r", ""), rule("r", &limits("rate: 5/s")), false),
        (rule("r", &limits("rate: 5/s")), rule("r", ""), true),
        (
            rule("r", &limits("rate: 5/s")),
            rule("r", &limits("rate: 6/s")),
            true,
        ),
        (
            rule("r", &limits("rate: 5/s")),
            rule("r", &limits("rate: 5/min")),
            false,
        ),
        // Another rule counts other requests.
        (
            rule("r", &limits("rate: 5/s")),
            rule("q", &limits("rate: 5/s")),
            true,
        ),
        (
            rule("r", &limits("request_body: 5")),
            rule("q", &limits("request_body: 4")),
            false,
        ),
        (
            rule("r", &limits("request_body: 5")),
            rule("q", &limits("duration: 1s")),
            true,
        ),
    ] {
        let difference = diff(&old, &new);
        let changed = only(&difference, &difference.changed);
        assert_eq!(changed.len(), 1, "{difference}");
        assert_eq!(changed[0].aspects, [Aspect::Limits]);
        assert_eq!(difference.allows_more(), loosens, "{old} {new}");
    }
    assert!(
        diff(
            &rule("r", &limits("duration: 1s")),
            &rule("q", &limits("duration: 1s"))
        )
        .is_empty()
    );
}

#[test]
fn a_policy_that_observes_lets_everything_through() {
    let rule = "{ id: r, action: allow, to: { hosts: [a.test] } }";
    let observing = format!("mode: observe\n{rule}");
    let difference = diff(rule, &observing);
    assert!(difference.allows_more());
    assert!(difference.allowed.iter().all(|change| change.new.observed));
    let there = shown(&difference.allowed).join("\n");
    assert!(there.contains("any other host"), "{there}");
    assert!(!there.contains("tcp to"), "{there}");
    assert!(!diff(&observing, rule).allows_more());
}

#[test]
fn budgets_are_kept_or_loosened() {
    let budget =
        |text: &str| format!("budgets: [{{ name: daily, per: sandbox, window: 24h, {text} }}]\n");
    let difference = diff(&budget("requests: 10"), &budget("requests: 20"));
    assert!(difference.allows_more() && !difference.is_empty());
    assert_eq!(difference.beside[0].what, "budget daily");
    assert!(
        !diff(
            &budget("requests: 10"),
            &budget("requests: 5, egress: 1MiB")
        )
        .allows_more()
    );
    assert!(!diff("", &budget("requests: 10")).allows_more());
    let within = policy(&[""]).within(&policy(&[&budget("requests: 10")]));
    assert!(!within.is_proven(), "{within}");
    let difference = diff("", "sandboxes: { labels: { team: a } }\n");
    assert!(!difference.is_empty() && !difference.allows_more());
}
