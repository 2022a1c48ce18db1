use serde_json::{Value, json};

use crate::desk::Desk;

const POLICY: &str = "\
version: 1
rules:
  - { id: read, action: allow, to: { hosts: [a.test] }, http: { methods: [GET], paths: [\"/public/**\"] } }
tests:
  - { name: reads, request: \"GET https://a.test/public/x\", expect: allow, rule: read }
  - { name: writes, request: \"POST https://a.test:8443/public/x\", expect: allow, rule: read, reason: allowed }
  - { name: above, request: \"GET https://a.test/..\", expect: deny }
";

#[test]
fn a_failure_is_a_diff_with_what_the_near_misses_failed_on() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    desk.policy(&["test", "p.yaml"]).assert(
        1,
        "\
ok   reads (p.yaml:5)
FAIL writes (p.yaml:6)
     POST https://a.test:8443/public/x
     - verdict: allow
     + verdict: deny
     - reason: allowed
     + reason: default_deny
     - rule: read
     + rule: none
     reason: default_deny: No allow rule matches this request, and what is not allowed is denied.
     allow rule read (p.yaml:3): fails on port (wants 443), method (wants GET)
FAIL above (p.yaml:7)
     GET https://a.test/..
     - verdict: deny
     + verdict: reject
     reason: bad_path (`..` leaves the root)
1 passed, 2 failed
",
    );
}

#[test]
fn files_of_cases_are_put_to_every_policy_and_what_does_not_load_hides_nothing() {
    let empty = "version: 1\nrules: []\n";
    let cases = "tests:\n  - { name: \"a\\n2 passed\\u202e\", request: \"GET https://a.test/public/y\", expect: allow }\n";
    let desk = Desk::with(&[
        (
            "p.yaml",
            &POLICY[..POLICY.find("  - { name: writes").unwrap()],
        ),
        ("empty.yaml", empty),
        ("bad.yaml", "version: 2\n"),
        ("cases.yaml", cases),
        ("no-cases.yaml", "version: 1\n"),
    ]);
    desk.policy(&["test", "p.yaml", "--cases", "cases.yaml"])
        .assert(
            0,
            "\
ok   reads (p.yaml:5)
ok   a\\n2 passed\\u{202e} (cases.yaml:2)
2 passed, 0 failed
",
        );
    desk.policy(&["test", "empty.yaml"])
        .assert(0, "empty.yaml: no tests\n0 passed, 0 failed\n");
    let run = desk.policy(&[
        "test",
        "bad.yaml",
        "empty.yaml",
        "p.yaml",
        "--cases",
        "cases.yaml",
        "--cases",
        "no-cases.yaml",
    ]);
    run.assert(
        2,
        "\
no-cases.yaml:1:1: error[missing_key]: a file of tests needs the key `tests`
1 | version: 1
  | ^^^^^^^

no-cases.yaml: does not load
bad.yaml:1:10: error[unknown_version]: this version of outgate reads version 1 of the policy language only
1 | version: 2
  |          ^
  help: write `version: 1`

bad.yaml: does not load
FAIL a\\n2 passed\\u{202e} (cases.yaml:2)
     GET https://a.test/public/y
     - verdict: allow
     + verdict: deny
     reason: default_deny: No allow rule matches this request, and what is not allowed is denied.
ok   reads (p.yaml:5)
ok   a\\n2 passed\\u{202e} (cases.yaml:2)
2 passed, 1 failed, not loaded: 2 files
",
    );
}

#[test]
fn json_names_the_policy_the_differences_and_what_led_to_them() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    let run = desk.policy(&["test", "--format", "json", "p.yaml"]);
    assert_eq!(run.code, 1);
    let outcomes = run.json();
    assert_eq!(
        outcomes[0],
        json!({
            "policy": "p.yaml", "name": "reads", "file": "p.yaml", "line": 5,
            "request": "GET https://a.test/public/x", "expected": "allow", "actual": "allow",
            "reason": "allowed", "differences": [],
        })
    );
    assert_eq!(
        outcomes[1]["differences"][2],
        json!({ "field": "rule", "expected": "read", "actual": null })
    );
    assert_eq!(
        outcomes[1]["explanation"]["considered"][0]["failed"],
        json!(["port", "method"])
    );
    assert_eq!(outcomes[2]["detail"], "`..` leaves the root");
}

#[test]
fn junit_and_sarif_point_at_the_failing_tests() {
    let hostile = "\
version: 1
tests:
  - { name: \"<![CDATA[x]]>&\\n\\\"\", request: \"GET https://a.test/]]>\", expect: allow }
";
    let desk = Desk::with(&[
        ("p.yaml", POLICY),
        ("h.yaml", hostile),
        ("bad.yaml", "version: 2\n"),
    ]);
    let run = desk.policy(&["test", "--format", "junit", "p.yaml", "h.yaml", "bad.yaml"]);
    assert_eq!((run.code, run.err.as_str()), (2, ""));
    let report = quick_junit::Report::deserialize_from_str(&run.out).unwrap();
    let suites: Vec<_> = report
        .test_suites
        .iter()
        .map(|suite| (suite.name.as_str(), suite.tests, suite.failures))
        .collect();
    assert_eq!(
        suites,
        [("p.yaml", 3, 2), ("h.yaml", 1, 1), ("bad.yaml", 1, 1)]
    );
    let hostile = &report.test_suites[1].test_cases[0];
    assert_eq!(hostile.name.as_str(), "<![CDATA[x]]>&\\n\"");
    assert_eq!(hostile.classname.as_ref().unwrap().as_str(), "h.yaml");
    assert!(run.out.contains("line=\"6\""), "{}", run.out);

    let run = desk.policy(&["test", "--format", "sarif", "p.yaml"]);
    assert_eq!(run.code, 1);
    let log: Value = serde_json::from_str(&run.out).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    let lines: Vec<_> = results
        .iter()
        .map(|result| &result["locations"][0]["physicalLocation"]["region"]["startLine"])
        .collect();
    assert_eq!(lines, [6, 7]);
    assert_eq!(results[0]["ruleId"], "test_failed");
}
