use std::fs::File;

use serde_json::{Value, json};

use crate::desk::Desk;

const GOOD: &str = "version: 1\nrules:\n  - { id: r, action: allow, to: { hosts: [a.test] } }\n";
const WARNS: &str = "version: 1\nrules:\n  - { id: wide, action: allow, to: { hosts: [any] } }\n";
const BAD: &str = "\
version: 1
rules:
  - { id: one, action: allow, to: { hosts: [a.test] } }
  - { id: one, action: deny, to: { hosts: [b.test] } }
";

#[test]
fn every_file_is_checked_and_one_does_not_hide_the_others() {
    let desk = Desk::with(&[
        ("good.yaml", GOOD),
        ("warns.yaml", WARNS),
        ("bad.yaml", BAD),
    ]);
    desk.write("latin.yaml", b"version: 1\nname: caf\xe9\n");
    std::fs::create_dir(desk.path().join("folder")).unwrap();
    let run = desk.policy(&[
        "check",
        "none.yaml",
        "folder",
        "latin.yaml",
        "bad.yaml",
        "warns.yaml",
        "good.yaml",
    ]);
    run.assert(
        2,
        "\
none.yaml: error[file_missing]: `none.yaml` does not exist; check the spelling of the path

none.yaml: does not load, 1 error, 0 warnings
folder: error[file_is_folder]: `folder` is a folder; name the files in it

folder: does not load, 1 error, 0 warnings
latin.yaml: error[file_not_utf8]: `latin.yaml` is no UTF-8: line 2, column 10 has the byte 0xe9; save it as UTF-8

latin.yaml: does not load, 1 error, 0 warnings
bad.yaml:4:11: error[duplicate_id]: the rule id `one` is given twice
4 |   - { id: one, action: deny, to: { hosts: [b.test] } }
  |           ^^^
  bad.yaml:3:11: it is here first
3 |   - { id: one, action: allow, to: { hosts: [a.test] } }
  |           ^^^

bad.yaml: does not load, 1 error, 0 warnings
warns.yaml:3:11: warning[any_host]: the rule `wide` allows any host
3 |   - { id: wide, action: allow, to: { hosts: [any] } }
  |           ^^^^
  help: name the hosts that are needed; data can leave to every place that is allowed

warns.yaml: ok, 1 rule, 1 warning
good.yaml: ok, 1 rule, 0 warnings
",
    );
}

#[test]
fn warnings_fail_only_where_they_are_denied() {
    let desk = Desk::with(&[
        ("good.yaml", GOOD),
        ("warns.yaml", WARNS),
        ("bad.yaml", BAD),
    ]);
    assert_eq!(desk.policy(&["check", "warns.yaml"]).code, 0);
    assert_eq!(
        desk.policy(&["check", "--deny-warnings", "warns.yaml", "good.yaml"])
            .code,
        1
    );
    assert_eq!(
        desk.policy(&["check", "--deny-warnings", "good.yaml"]).code,
        0
    );
    assert_eq!(
        desk.policy(&["check", "--deny-warnings", "bad.yaml", "warns.yaml"])
            .code,
        2
    );
}

#[test]
fn standard_input_is_a_file_once() {
    let desk = Desk::new();
    desk.policy_reading(GOOD, &["check", "-"])
        .assert(0, "<stdin>: ok, 1 rule, 0 warnings\n");
    let twice = desk.policy_reading(GOOD, &["check", "-", "-"]);
    assert_eq!(twice.code, 2);
    assert!(
        twice
            .out
            .contains("`<stdin>` was read already: `-` can be named once"),
        "{}",
        twice.out
    );
}

#[test]
fn a_huge_file_is_refused_before_it_is_read() {
    let desk = Desk::new();
    let file = File::create(desk.path().join("huge.yaml")).unwrap();
    file.set_len(1 << 40).unwrap();
    let run = desk.policy(&["check", "huge.yaml"]);
    assert_eq!(run.code, 2);
    assert!(run.out.contains("is larger than 16 MiB"), "{}", run.out);
}

#[test]
fn json_is_one_finding_a_line() {
    let desk = Desk::with(&[("bad.yaml", BAD), ("good.yaml", GOOD)]);
    let run = desk.policy(&["check", "--json", "bad.yaml", "none.yaml", "good.yaml"]);
    assert_eq!(
        run.json(),
        [
            json!({
                "severity": "error", "code": "duplicate_id", "file": "bad.yaml",
                "line": 4, "column": 11, "end_line": 4, "end_column": 14,
                "message": "the rule id `one` is given twice", "help": null,
                "labels": [{
                    "file": "bad.yaml", "line": 3, "column": 11, "end_line": 3, "end_column": 14,
                    "text": "it is here first",
                }],
            }),
            json!({
                "severity": "error", "code": "file_missing", "file": "none.yaml",
                "message": "`none.yaml` does not exist; check the spelling of the path",
                "help": null, "labels": [],
            }),
        ]
    );
    assert_eq!(run.code, 2);
    let same = desk.policy(&[
        "check",
        "--format",
        "json",
        "bad.yaml",
        "none.yaml",
        "good.yaml",
    ]);
    assert_eq!(same, run);
}

/// What a consumer of SARIF 2.1.0 relies on: the required properties, references that resolve, URIs
/// that are URIs, regions that are regions.
fn assert_is_sarif(log: &Value) -> &Vec<Value> {
    assert_eq!(log["version"], "2.1.0");
    assert!(
        log["$schema"]
            .as_str()
            .unwrap()
            .ends_with("sarif-schema-2.1.0.json")
    );
    let [run] = log["runs"].as_array().unwrap().as_slice() else {
        unreachable!("one run")
    };
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "outgate");
    assert!(
        driver["informationUri"]
            .as_str()
            .unwrap()
            .starts_with("https://")
    );
    assert_eq!(run["columnKind"], "unicodeCodePoints");
    let rules = driver["rules"].as_array().unwrap();
    let ids: Vec<&str> = rules
        .iter()
        .map(|rule| rule["id"].as_str().unwrap())
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "each rule once: {ids:?}");
    for rule in rules {
        for text in ["help", "shortDescription"] {
            assert!(!rule[text]["text"].as_str().unwrap().is_empty());
        }
    }
    let results = run["results"].as_array().unwrap();
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(result["ruleId"], ids[index]);
        assert!(["error", "warning"].contains(&result["level"].as_str().unwrap()));
        let text = result["message"]["text"].as_str().unwrap();
        assert!(!text.is_empty() && !text.contains("]("));
        assert_eq!(result["locations"].as_array().unwrap().len(), 1);
        let related = result["relatedLocations"].as_array();
        for location in result["locations"]
            .as_array()
            .into_iter()
            .chain(related)
            .flatten()
        {
            assert_is_location(&location["physicalLocation"]);
        }
    }
    results
}

fn assert_is_location(location: &Value) {
    let uri = location["artifactLocation"]["uri"].as_str().unwrap();
    let path = uri.strip_prefix("file://").unwrap_or(uri);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/%".contains(&b);
    assert!(!path.is_empty() && path.bytes().all(plain), "{uri}");
    assert!(
        !path.split('/').any(|segment| matches!(segment, "." | "..")),
        "{uri}"
    );
    let Some(region) = location["region"].as_object() else {
        return;
    };
    let at = |key: &str| region[key].as_u64().unwrap();
    let start = (at("startLine"), at("startColumn"));
    let end = (at("endLine"), at("endColumn"));
    assert!(start.0 >= 1 && start.1 >= 1 && end >= start, "{region:?}");
}

#[test]
fn sarif_has_rules_places_and_related_places() {
    let hosts = "version: 1\nrules:\n  - { id: r, action: allow, to: { hosts: [\"*.com\", \"😀 {0} [x](https://e.test)\", \"http://a.test\"] } }\n";
    let desk = Desk::with(&[
        ("bad.yaml", BAD),
        ("warns.yaml", WARNS),
        ("a b#{é}.yaml", hosts),
    ]);
    desk.write("latin.yaml", b"name: \xe9\n");
    let run = desk.policy(&[
        "check",
        "--format",
        "sarif",
        "bad.yaml",
        "./x/../warns.yaml",
        "a b#{é}.yaml",
        "latin.yaml",
        "none.yaml",
    ]);
    assert_eq!((run.code, run.err.as_str()), (2, ""));
    let log: Value = serde_json::from_str(&run.out).unwrap();
    let results = assert_is_sarif(&log);
    let shape: Vec<_> = results
        .iter()
        .map(|result| {
            let location = &result["locations"][0]["physicalLocation"];
            let region = &location["region"];
            (
                result["ruleId"].as_str().unwrap(),
                result["level"].as_str().unwrap(),
                location["artifactLocation"]["uri"].as_str().unwrap(),
                region["startColumn"].as_u64(),
                region["endColumn"].as_u64(),
            )
        })
        .collect();
    let odd = "a%20b%23%7B%C3%A9%7D.yaml";
    assert_eq!(
        shape,
        [
            ("duplicate_id", "error", "bad.yaml", Some(11), Some(14)),
            ("file_missing", "error", "warns.yaml", None, None),
            ("public_suffix", "error", odd, Some(43), Some(50)),
            // One code point, though two UTF-16 units and four bytes: the next one is not shifted.
            ("bad_host", "error", odd, Some(52), Some(79)),
            ("bad_host", "error", odd, Some(81), Some(96)),
            ("file_not_utf8", "error", "latin.yaml", Some(7), Some(7)),
            ("file_missing", "error", "none.yaml", None, None),
        ]
    );
    assert_eq!(
        results[0]["relatedLocations"],
        json!([{
            "physicalLocation": {
                "artifactLocation": { "uri": "bad.yaml" },
                "region": { "startLine": 3, "startColumn": 11, "endLine": 3, "endColumn": 14 },
            },
            "message": { "text": "it is here first" },
        }])
    );
    let nothing = desk.policy(&["check", "--format", "sarif", "-"]);
    assert!(assert_is_sarif(&serde_json::from_str(&nothing.out).unwrap()).len() == 1);
}

#[test]
fn junit_has_a_suite_a_file_and_is_well_formed_whatever_the_names() {
    let odd = "a<&\">\u{1b}[31m\u{202e}\n.yaml";
    let desk = Desk::with(&[("bad.yaml", BAD), (odd, WARNS), ("good.yaml", GOOD)]);
    let args = ["check", "--format", "junit", "bad.yaml", odd, "good.yaml"];
    let run = desk.policy(&args);
    assert_eq!((run.code, run.err.as_str()), (2, ""));
    assert!(!run.out.contains(['\u{1b}', '\u{202e}']), "{}", run.out);
    let report = quick_junit::Report::deserialize_from_str(&run.out).unwrap();
    let suites: Vec<_> = report
        .test_suites
        .iter()
        .map(|suite| (suite.name.as_str(), suite.tests, suite.failures))
        .collect();
    let shown = "a<&\">\\u{1b}[31m\\u{202e}\\n.yaml";
    assert_eq!(
        suites,
        [("bad.yaml", 1, 1), (shown, 2, 0), ("good.yaml", 1, 0)]
    );
    let cases = report
        .test_suites
        .iter()
        .flat_map(|suite| &suite.test_cases);
    let names: Vec<_> = cases.map(|case| case.name.as_str()).collect();
    assert_eq!(
        names,
        ["duplicate_id at 4:11", "loads", "any_host at 3:11", "loads"]
    );
    let denied = desk.policy(&["check", "--deny-warnings", "--format", "junit", odd]);
    assert_eq!(denied.code, 1);
    let report = quick_junit::Report::deserialize_from_str(&denied.out).unwrap();
    assert_eq!((report.tests, report.failures), (2, 1));
}
