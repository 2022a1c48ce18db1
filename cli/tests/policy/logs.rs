use std::sync::Arc;

use outgate_gateway::audit::{
    AuditConfig, AuditLog, CredentialUse, Event, EventKind, QueryNames, SandboxRef,
};
use outgate_policy::{Protocol, Reason, RuleRef, Verdict};
use serde_json::{Value, json};

use crate::desk::{Desk, Run};

const POLICY: &str = "\
version: 1
rules:
  - { id: api, action: allow, to: { hosts: [api.test] }, http: { methods: [GET], paths: [\"/v1/**\"] } }
  - { id: files, action: allow, to: { hosts: [files.test] } }
  - { id: no-secrets, action: deny, to: { hosts: [api.test] }, http: { paths: [\"/v1/secrets\"] } }
";

fn event(kind: EventKind, reason: Reason) -> Event {
    Event {
        sandbox: Some(Arc::new(SandboxRef {
            id: "sb1".to_owned(),
            tier: "microvm".to_owned(),
            ..SandboxRef::default()
        })),
        verdict: Some(if reason == Reason::Allowed {
            Verdict::Allow
        } else {
            Verdict::Deny
        }),
        reason: Some(reason),
        ..Event::new(kind)
    }
}

fn request(method: &str, host: &str, path: &str, reason: Reason) -> Event {
    Event {
        protocol: Some(Protocol::Https),
        host: Some(host.to_owned()),
        port: Some(443),
        method: Some(method.to_owned()),
        path: Some(path.to_owned()),
        query_names: QueryNames::of("token=secret"),
        ..event(EventKind::Request, reason)
    }
}

fn rule(id: &str) -> Option<RuleRef> {
    Some(RuleRef {
        id: id.into(),
        file: "old.yaml".into(),
        line: 3,
        layer: 0,
    })
}

/// A log of several files, written as the gateway does.
fn write(desk: &Desk, name: &str, events: &[Event]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let log = AuditLog::open(AuditConfig {
            segment_bytes: 2000,
            ..AuditConfig::new(desk.path().join(name))
        })
        .unwrap();
        for event in events {
            log.append(event).await.unwrap();
        }
        log.close().await.unwrap();
    });
}

/// What a gateway may have written, in the order of the tests' expectations.
fn mixed(desk: &Desk) {
    let tunnel = Event {
        protocol: Some(Protocol::Tcp),
        host: Some("10.0.0.1".to_owned()),
        port: Some(22),
        ..event(EventKind::Flow, Reason::DefaultDeny)
    };
    let refused = |host: &str, port| Event {
        host: Some(host.to_owned()),
        port: Some(port),
        ..event(EventKind::Flow, Reason::DefaultDeny)
    };
    let name = |host: &str| Event {
        host: Some(host.to_owned()),
        count: Some(3),
        ..event(EventKind::Dns, Reason::DnsNameDenied)
    };
    let kept = request("GET", "api.test", "/v1/a", Reason::Allowed);
    let credential = Some(CredentialUse {
        name: "old".to_owned(),
        surface: "header:a".to_owned(),
    });
    write(
        desk,
        "log",
        &[
            Event::new(EventKind::GatewayStart),
            Event {
                rule: rule("old"),
                ..kept.clone()
            },
            request("POST", "api.test", "/v1/a", Reason::DefaultDeny),
            request("GET", "api.test", "/v1/b", Reason::NoPolicy),
            request("GET", "api.test", "/v1/b", Reason::NoPolicy),
            Event {
                rule: rule("old\u{1b}[2J"),
                ..request("GET", "api.test", "/v2", Reason::Allowed)
            },
            request("GET", "api.test", "/v1/secrets", Reason::RuleDeny),
            Event {
                credential,
                ..request("GET", "files.test", "/", Reason::Allowed)
            },
            request("GET", "files.test", "/full", Reason::LimitExceeded),
            tunnel,
            refused("files.test", 443),
            refused("files.test", 8443),
            name("api.test"),
            name("new.test"),
            event(EventKind::Reject, Reason::BadPath),
            request("GET", "api.test", "/v1/../x", Reason::Allowed),
            Event { host: None, ..kept },
            event(EventKind::Response, Reason::Allowed),
        ],
    );
}

/// Times and ids are of this run; they become `TIME` and `ID`.
fn masked(desk: &Desk, run: &Run) -> String {
    let mut text = run.out.clone();
    for segment in std::fs::read_dir(desk.path().join("log")).unwrap() {
        let lines = std::fs::read_to_string(segment.unwrap().path()).unwrap();
        for record in lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        {
            for (key, mask) in [("time", "TIME"), ("id", "ID")] {
                if let Some(value) = record[key].as_str() {
                    text = text.replace(value, mask);
                }
            }
        }
    }
    text
}

#[test]
fn replay_tells_what_changes_and_counts_what_does_not() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    mixed(&desk);
    let run = desk.policy(&["replay", "p.yaml", "log"]);
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    assert_eq!(
        masked(&desk, &run),
        "\
now allowed:
       2  GET https://api.test:443/v1/b
          deny (no_policy) -> allow by api
          TIME to TIME, as in ID
now reachable:
       1  api.test
          deny (dns_name_denied) -> allow
          TIME to TIME, as in ID
       1  files.test:443
          deny (default_deny) -> allow
          TIME to TIME, as in ID
now denied:
       1  GET https://api.test:443/v2
          allow by old\\u{1b}[2J -> deny (default_deny)
          TIME to TIME, as in ID
now with another credential:
       1  GET https://files.test:443/
          allow with old -> allow by files
          TIME to TIME, as in ID
13 requests in 18 records of 1 log: 7 same, 2 now allowed, 0 now asked about, 2 now reachable, 1 now denied, 1 with another credential, 0 undecidable
1 more never became requests; no policy was asked
2 records make no request:
  record 16 (ID): its path is not canonical
  record 17 (ID): it names no host
the chain of the records was not verified; --verify does that
"
    );
}

#[test]
fn replay_without_a_change_ends_with_0_and_json_has_the_numbers() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    write(
        &desk,
        "log",
        &[request("GET", "api.test", "/v1/a", Reason::Allowed)],
    );
    write(
        &desk,
        "more",
        &[request("GET", "x.test", "/", Reason::DefaultDeny)],
    );
    let run = desk.policy(&["replay", "--json", "--verify", "p.yaml", "log", "more"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert_eq!(
        run.json(),
        [json!({
            "requests": 2, "same": 2, "now_allowed": 0, "now_asked": 0, "now_reachable": 0, "now_denied": 0,
            "other_credential": 0, "undecidable": 0, "rejected": 0, "changes": [], "ungrouped": 0,
            "logs": 2, "verified": true, "records": 2, "unusable": 0, "unusable_records": [],
        })]
    );
    let narrow = desk.policy_reading("version: 1\n", &["replay", "--json", "-", "log"]);
    assert_eq!(narrow.code, 1);
    let change = &narrow.json()[0]["changes"][0];
    assert_eq!(
        (&change["change"], &change["count"]),
        (&json!("now_denied"), &json!(1))
    );
    assert_eq!(
        change["new"],
        json!({ "verdict": "deny", "reason": "default_deny" })
    );
}

#[test]
fn a_log_that_is_not_whole_is_refused_where_that_matters() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    write(
        &desk,
        "log",
        &[request("GET", "api.test", "/v1/a", Reason::Allowed)],
    );
    let segment = desk.path().join("log/audit-000001.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replace("/v1/a", "/v1/z")).unwrap();
    assert_eq!(desk.policy(&["replay", "p.yaml", "log"]).code, 0);
    for args in [
        ["replay", "p.yaml", "log", "--verify"].as_slice(),
        &["suggest", "log", "--verify"],
    ] {
        let run = desk.policy(args);
        assert_eq!((run.code, run.out.as_str()), (2, ""));
        assert!(
            run.err
                .contains("the audit log in `log` is broken: changed"),
            "{}",
            run.err
        );
    }
    let none = desk.policy(&["replay", "p.yaml", "nowhere"]);
    assert_eq!(none.code, 2);
    assert!(none.err.contains("nowhere"), "{}", none.err);
}

#[test]
fn suggest_writes_rules_for_what_was_denied() {
    let desk = Desk::new();
    mixed(&desk);
    let run = desk.policy(&["suggest", "log"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert_eq!(
        masked(&desk, &run),
        "\
# These rules would have allowed 4 denied requests.
# What was asked for is not always what is needed: read each one first.
version: 1
rules:
  # 2 times, TIME to TIME, by sb1
  - id: allow-api.test-443
    action: allow
    to: { hosts: [\"api.test\"] }
    http: { methods: [\"GET\"], paths: [\"/v1/b\"] }
  # once, TIME, by sb1
  - id: allow-api.test-443-2
    action: allow
    to: { hosts: [\"api.test\"] }
    http: { methods: [\"POST\"], paths: [\"/v1/a\"] }
  # once, TIME, by sb1
  - id: allow-10.0.0.1-22
    action: allow
    protocol: tcp
    to: { ips: [\"10.0.0.1\"], ports: [22], private: true }
# Not suggested:
# - new.test: the name was not resolved, so what would be asked there is not known
#   3 times, TIME, by sb1
#     - id: allow-new.test-443
#       action: allow
#       to: { hosts: [\"new.test\"] }
#       http: { methods: [GET, HEAD] }
# - GET https://api.test/v1/secrets: rule_deny: Narrow the deny rule if this request should pass.
#   once, TIME, by sb1
# - GET https://files.test/full: limit_exceeded: Use fewer connections, streams, names or bytes at a time.
#   once, TIME, by sb1
# - bad_path: The path has no safe canonical form. No policy was asked.
#   once, TIME, by sb1
# - files.test port 443: the connection was refused before anything was read
#   once, TIME, by sb1
#     - id: allow-files.test-443
#       action: allow
#       to: { hosts: [\"files.test\"] }
#       http: { methods: [GET, HEAD] }
# - files.test port 8443: the connection was refused before anything was read
#   once, TIME, by sb1
#     - id: allow-files.test-8443
#       action: allow
#       protocol: tcp
#       to: { hosts: [\"files.test\"], ports: [8443] }
# 2 records make no request:
#   record 16 (ID): its path is not canonical
#   record 17 (ID): it names no host
# the chain of the records was not verified; --verify does that
"
    );
    let checked = desk.policy_reading(&run.out, &["check", "-"]);
    assert_eq!(checked.code, 0, "{}", checked.out);
    let again = desk.policy_reading(&run.out, &["replay", "--json", "-", "log"]);
    assert_eq!(again.json()[0]["now_allowed"], 4);
}

#[test]
fn suggest_leaves_to_a_policy_what_it_allows() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    mixed(&desk);
    let run = desk.policy(&["suggest", "log", "--policy", "p.yaml", "--json"]);
    assert_eq!(run.code, 0);
    let answer = &run.json()[0];
    let ids: Vec<_> = answer["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| &rule["id"])
        .collect();
    assert_eq!(ids, ["allow-api.test-443", "allow-10.0.0.1-22"]);
    assert_eq!(answer["rules"][0]["paths"], json!(["/v1/a"]));
    let left_out: Vec<_> = answer["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        left_out,
        [
            "new.test",
            "GET https://api.test/v1/secrets",
            "GET https://files.test/full",
            "bad_path",
            "files.test port 8443",
        ]
    );
    let why = answer["left_out"][1]["why"].as_str().unwrap();
    assert!(why.starts_with("rule_deny by no-secrets: "), "{why}");
    let rare = desk.policy(&["suggest", "log", "--min-count", "2", "--json"]);
    assert_eq!(rare.json()[0]["rules"].as_array().unwrap().len(), 1);
}

#[test]
fn without_a_folder_the_log_of_the_newest_run_is_read() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    write(
        &desk,
        "state/audit/latest",
        &[request("GET", "x.test", "/", Reason::DefaultDeny)],
    );
    let run = desk.policy(&["suggest"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.contains("hosts: [\"x.test\"]"), "{}", run.out);
    assert_eq!(desk.policy(&["replay", "p.yaml"]).code, 0);
}
