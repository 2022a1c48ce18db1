use proptest::prelude::*;

use super::*;
use crate::{Policy, Reject, RequestParts, Source, Verdict};

fn request(line: &str) -> CanonicalRequest {
    CanonicalRequest::from_line(line).unwrap()
}

fn once(time: &str) -> Sighting<'_> {
    Sighting {
        time,
        sandbox: "sb1",
        count: 1,
    }
}

fn suggested<'a>(lines: impl IntoIterator<Item = &'a str>) -> Suggestions {
    let mut suggester = Suggester::new([]);
    for line in lines {
        suggester.denied(&request(line), once("t1"));
    }
    suggester.finish(1)
}

fn load(suggestions: &Suggestions) -> Result<Policy, String> {
    let text = suggestions.to_string();
    Policy::load(&[Source::new("suggested.yaml", text.as_str())])
        .map_err(|errors| format!("{errors}\n{text}"))
}

#[test]
fn methods_and_paths_of_a_place_become_one_rule_each() {
    let mut suggester = Suggester::new(["allow-a.test-443"]);
    for (at, line) in [
        "GET https://a.test/x",
        "POST https://a.test/y",
        "GET https://a.test/z",
        "HEAD https://a.test/z",
        "HEAD https://a.test/x",
        "GET https://b.test:8443/@s%2fp",
    ]
    .iter()
    .enumerate()
    {
        let time = format!("2026-08-22T12:00:0{at}Z");
        suggester.denied(&request(line), once(&time));
    }
    let mut many = once("2026-08-22T12:00:09Z");
    (many.count, many.sandbox) = (9, "sb2");
    suggester.denied(&request("tcp://db.test:5432"), many);
    suggester.denied(
        &request("GET http://169.254.169.254/x"),
        once("2026-08-22T12:00:00Z"),
    );
    let expected = "\
# These rules would have allowed 15 denied requests.
# What was asked for is not always what is needed: read each one first.
version: 1
rules:
  # 9 times, 2026-08-22T12:00:09Z, by sb2
  - id: allow-db.test-5432
    action: allow
    protocol: tcp
    to: { hosts: [\"db.test\"], ports: [5432] }
  # 4 times, 2026-08-22T12:00:00Z to 2026-08-22T12:00:04Z, by sb1
  - id: allow-a.test-443-2
    action: allow
    to: { hosts: [\"a.test\"] }
    http:
      methods: [\"GET\", \"HEAD\"]
      paths:
        - \"/x\"
        - \"/z\"
  # once, 2026-08-22T12:00:01Z, by sb1
  - id: allow-a.test-443-3
    action: allow
    to: { hosts: [\"a.test\"] }
    http: { methods: [\"POST\"], paths: [\"/y\"] }
  # once, 2026-08-22T12:00:05Z, by sb1
  - id: allow-b.test-8443
    action: allow
    to: { hosts: [\"b.test\"], ports: [8443] }
    http: { methods: [\"GET\"], paths: [\"/@s%2Fp\"], encoded_slash: data }
# Not suggested:
# - GET http://169.254.169.254/x: no rule can open a cloud metadata service
#   once, 2026-08-22T12:00:00Z, by sb1
";
    let suggestions = suggester.finish(1);
    assert_eq!(suggestions.to_string(), expected);
    load(&suggestions).unwrap();
    let json = serde_json::to_value(&suggestions).unwrap();
    assert_eq!(json["rules"][0]["to"], "db.test:5432");
    assert_eq!(json["rules"][1]["count"], 4);
}

#[test]
fn what_is_rare_is_left_out_and_said() {
    let mut suggester = Suggester::new([]);
    for n in 0..3 {
        suggester.denied(&request(&format!("GET https://a.test/{n}")), once("t"));
    }
    suggester.denied(&request("GET https://b.test/x"), once("t"));
    let suggestions = suggester.finish(2);
    assert_eq!(suggestions.rules.len(), 1);
    let [rare] = suggestions.left_out.as_slice() else {
        panic!("{suggestions}")
    };
    assert_eq!(
        (rare.what.as_str(), rare.why.as_str()),
        ("GET https://b.test:443 /x", "seen fewer than 2 times")
    );
}

#[test]
fn raw_bytes_are_no_way_around_a_suggested_rule() {
    let suggestions = suggested([
        "tcp://a.test:443",
        "GET https://a.test/x",
        "tcp://a.test:444",
    ]);
    let to: Vec<_> = suggestions
        .rules
        .iter()
        .map(|rule| format!("{}://{}", rule.protocol, rule.to))
        .collect();
    assert_eq!(to, ["https://a.test:443", "tcp://a.test:444"]);
    assert_eq!(suggestions.left_out.len(), 1);
    load(&suggestions).unwrap();
}

#[test]
fn a_name_that_was_not_resolved_gets_a_hint_unless_a_rule_opens_it() {
    let mut suggester = Suggester::new([]);
    let place = |text| Destination::parse(text).unwrap();
    suggester.denied(&request("GET https://a.test/x"), once("t"));
    for name in ["a.test", "b.test", "any"] {
        suggester.unread(&place(name), None, once("t"));
    }
    suggester.unread(&place("a.test"), Some(443), once("t"));
    suggester.unread(&place("a.test"), Some(22), once("t"));
    suggester.unread(&place("10.1.2.3"), Some(80), once("t"));
    let suggestions = suggester.finish(1);
    let hints: Vec<_> = suggestions
        .left_out
        .iter()
        .map(|one| (one.what.as_str(), one.hint.as_deref()))
        .collect();
    let expected = [
        (
            "a.test port 22",
            Some(
                "- id: allow-a.test-22\n  action: allow\n  protocol: tcp\n  to: { hosts: [\"a.test\"], ports: [22] }\n",
            ),
        ),
        ("any", None),
        (
            "b.test",
            Some(
                "- id: allow-b.test-443\n  action: allow\n  to: { hosts: [\"b.test\"] }\n  http: { methods: [GET, HEAD] }\n",
            ),
        ),
        (
            "10.1.2.3 port 80",
            Some(
                "- id: allow-10.1.2.3-80\n  action: allow\n  protocol: http\n  to: { ips: [\"10.1.2.3\"], private: true }\n  http: { methods: [GET, HEAD] }\n",
            ),
        ),
    ];
    assert_eq!(hints, expected);
    for (_, hint) in expected {
        let lines = hint.unwrap_or_default().lines();
        let rules: String = lines.map(|line| format!("  {line}\n")).collect();
        let text = format!(
            "version: 1\nrules:\n{rules}  - {{ id: x, action: allow, to: {{ hosts: [x] }} }}\n"
        );
        Policy::load(&[Source::new("hint.yaml", text)]).unwrap();
    }
}

#[test]
fn guests_cannot_fill_the_memory_in_silence() {
    let mut suggester = Suggester::new([]);
    for n in 0..MAX_AT_PLACE + 3 {
        suggester.denied(&request(&format!("GET https://a.test/{n}x/y")), once("t"));
    }
    suggester.denied(&request("GET https://a.test/0x/y"), once("t"));
    for n in 0..MAX_LEFT_OUT + 4 {
        suggester.leave_out(&"é".repeat(9999), &n.to_string(), once("t"));
    }
    let suggestions = suggester.finish(1);
    assert_eq!(suggestions.beyond, 7);
    assert!(
        suggestions
            .to_string()
            .ends_with("# 7 more denials are not in here: there were too many different ones\n")
    );
    let [rule] = suggestions.rules.as_slice() else {
        panic!("{:?}", suggestions.rules)
    };
    assert_eq!(rule.paths.as_deref(), Some(["/*/y".to_owned()].as_slice()));
    assert_eq!(rule.seen.count, MAX_AT_PLACE as u64 + 1);
}

/// Paths with few words, and with what is written in a special way.
fn path() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        4 => "[0-9]{1,2}",
        2 => prop::sample::select(vec!["", "a", "b", "user", "@x%2Fy", "x{y}", "*", "\"'", "%41", "a;b", "~,!"])
            .prop_map(str::to_owned),
        1 => "[a-f0-9]{8}",
        1 => "[!-~]{0,6}",
    ];
    prop::collection::vec(segment, 0..5).prop_map(|segments| segments.join("/"))
}

/// Lines with few words, so that requests share places, paths and prefixes.
fn line() -> impl Strategy<Value = String> {
    let host = prop::sample::select(vec![
        "https://a.test",
        "https://a.test",
        "http://a.test:443",
        "https://b.test:8443",
        "https://10.0.0.1",
        "http://[2606:4700::1]",
        "https://any",
        "http://169.254.169.254",
        "https://no",
    ]);
    let method = prop::sample::select(vec![
        "GET", "GET", "POST", "HEAD", "OPTIONS", "patch", "X-Y",
    ]);
    let http =
        (method, host, path()).prop_map(|(method, host, path)| format!("{method} {host}/{path}"));
    prop_oneof![
        9 => http,
        1 => prop::sample::select(vec!["tcp://a.test:443", "tcp://c.test:22", "tcp://10.0.0.1:22"])
            .prop_map(str::to_owned),
    ]
}

fn asterisk() -> Result<CanonicalRequest, Reject> {
    CanonicalRequest::new(RequestParts {
        protocol: Protocol::Https,
        authority: &Authority::parse("a.test", 443)?,
        method: "OPTIONS",
        target: "*",
        body_len: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_rules_load_and_allow_all_that_was_taken(lines in prop::collection::vec(line(), 0..60)) {
        let mut requests: Vec<CanonicalRequest> =
            lines.iter().filter_map(|line| CanonicalRequest::from_line(line).ok()).collect();
        requests.extend(asterisk());
        let mut suggester = Suggester::new(["allow-a.test-443"]);
        for request in &requests {
            suggester.denied(request, once("t"));
        }
        let suggestions = suggester.finish(1);
        let policy = load(&suggestions).map_err(TestCaseError::fail)?;
        let left_out: Vec<&str> = suggestions.left_out.iter().map(|one| one.what.as_str()).collect();
        for request in &requests {
            let is_allowed = policy.decide(request).verdict() == Verdict::Allow;
            let text = request.to_string();
            prop_assert!(is_allowed != left_out.contains(&text.as_str()), "{text}\n{suggestions}");
        }
    }

    #[test]
    fn patterns_for_many_paths_load_and_match_each(paths in prop::collection::vec(path(), 9..80)) {
        let lines: Vec<String> = paths.iter().map(|path| format!("GET https://a.test/{path}")).collect();
        let requests = || lines.iter().filter_map(|line| CanonicalRequest::from_line(line).ok());
        let mut suggester = Suggester::new([]);
        for request in requests() {
            suggester.denied(&request, once("t"));
        }
        let suggestions = suggester.finish(1);
        let policy = load(&suggestions).map_err(TestCaseError::fail)?;
        for request in requests() {
            prop_assert_eq!(policy.decide(&request).verdict(), Verdict::Allow, "{} {}", request, suggestions);
        }
        let counts = suggestions.rules.iter().map(|rule| rule.seen.count);
        prop_assert_eq!(counts.sum::<u64>(), requests().count() as u64);
    }

    #[test]
    fn a_few_requests_open_nothing_else(
        lines in prop::collection::vec(line(), 0..8),
        others in prop::collection::vec(line(), 30),
    ) {
        let requests = |lines: &[String]| -> Vec<CanonicalRequest> {
            lines.iter()
                .filter(|line| !line.starts_with("patch"))
                .filter_map(|line| CanonicalRequest::from_line(line).ok())
                .collect()
        };
        let taken = requests(&lines);
        let policy = load(&suggested(lines.iter().filter(|line| {
            !line.starts_with("patch") && CanonicalRequest::from_line(line).is_ok()
        }).map(String::as_str))).map_err(TestCaseError::fail)?;
        // Queries are not looked at.
        let judged = |request: &CanonicalRequest| {
            (request.protocol(), request.authority().clone(), request.method().to_owned(), request.path().to_owned())
        };
        for other in requests(&others) {
            if policy.decide(&other).verdict() == Verdict::Allow {
                prop_assert!(taken.iter().any(|one| judged(one) == judged(&other)), "{other}");
            }
        }
    }

    #[test]
    fn no_text_leaves_its_comment(what in "(?s).{0,30}", why in "(\r|\n|\u{2028}|- id: x|.){0,9}", time in "(?s).{0,9}") {
        let mut suggester = Suggester::new([]);
        let sighting = Sighting { time: &time, sandbox: &what, count: 2 };
        suggester.leave_out(&what, &why, sighting);
        suggester.denied(&request("GET https://a.test/x"), sighting);
        let suggestions = suggester.finish(1);
        let text = suggestions.to_string();
        prop_assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')));
        prop_assert_eq!(text.lines().filter(|line| !line.trim_start().starts_with('#')).count(), 6);
        prop_assert_eq!(load(&suggestions).map_err(TestCaseError::fail)?.rules().count(), 1);
    }
}
