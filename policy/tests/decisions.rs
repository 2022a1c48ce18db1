//! What policies decide: the semantics of the language, layer by layer, and the field cases on
//! matching, seen from outside of the crate.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use outgate_policy::{
    Authority, CanonicalRequest, Destination, Host, Policy, Protocol, Reason, Source, Verdict,
};

fn policy(layers: &[&str]) -> Policy {
    let sources: Vec<Source> = layers
        .iter()
        .enumerate()
        .map(|(at, rules)| Source::new(format!("layer{at}.yaml"), format!("version: 1\n{rules}")))
        .collect();
    Policy::load(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

fn verdict(policy: &Policy, line: &str) -> (Verdict, Reason) {
    let request = CanonicalRequest::from_line(line).unwrap();
    let decision = policy.decide(&request);
    let admission = policy.admits(request.destination(), request.port());
    if decision.verdict() == Verdict::Allow {
        let open = match request.protocol() {
            Protocol::Https => admission.https,
            Protocol::Http => admission.http,
            Protocol::Tcp => admission.tcp,
            Protocol::Udp => admission.udp,
            Protocol::Tls => admission.tls,
        };
        assert!(open, "{line} is allowed and not admitted");
        if let Destination::Name(name) = request.destination() {
            assert!(
                policy.admits_name(name),
                "{line} is allowed and its name not admitted"
            );
        }
    }
    (decision.verdict(), decision.reason())
}

const ALLOWED: (Verdict, Reason) = (Verdict::Allow, Reason::Allowed);
const DEFAULT: (Verdict, Reason) = (Verdict::Deny, Reason::DefaultDeny);
const RULE: (Verdict, Reason) = (Verdict::Deny, Reason::RuleDeny);

const BASE: &str = "
rules:
  - id: public
    action: allow
    to: { hosts: [a.test] }
    http: { methods: [GET], paths: [\"/public/**\"] }
  - { id: below, action: allow, to: { hosts: [\"*.c.test\"] } }
";

#[test]
fn an_allow_rule_matches_host_port_protocol_method_and_path() {
    let policy = policy(&[BASE]);
    assert_eq!(verdict(&policy, "GET https://a.test/public/x"), ALLOWED);
    assert_eq!(
        verdict(&policy, "GET https://A.TEST./public/x?y=/../../secret"),
        ALLOWED
    );
    for line in [
        "GET https://a.test/secret",
        "GET https://a.test/public",
        "GET https://a.test/PUBLIC/x",
        "GET https://a.test//public/x",
        "POST https://a.test/public/x",
        "get https://a.test/public/x",
        "GET https://a.test:8443/public/x",
        "GET https://b.test/public/x",
    ] {
        assert_eq!(verdict(&policy, line), DEFAULT, "{line}");
    }
}

#[test]
fn b001_b034_a_name_rule_never_covers_an_address() {
    let policy = policy(&[BASE]);
    assert_eq!(
        verdict(&policy, "GET https://93.184.216.34/public/x"),
        DEFAULT
    );
    let address: std::net::IpAddr = "93.184.216.34".parse().unwrap();
    let admission = policy.admits(&Destination::from(address), 443);
    assert!(!admission.any());
    assert_eq!(admission.reason(), Reason::DefaultDeny);
}

#[test]
fn b006_c06_plain_http_needs_a_rule_of_its_own() {
    let policy = policy(&[BASE]);
    assert_eq!(verdict(&policy, "GET http://evil.test/?q=token"), DEFAULT);
    assert_eq!(verdict(&policy, "GET http://a.test/public/x"), DEFAULT);
    let other = (Verdict::Deny, Reason::ProtocolNotAllowed);
    assert_eq!(verdict(&policy, "GET http://a.test:443/public/x"), other);
    assert_eq!(verdict(&policy, "tcp://a.test:443"), other);
}

#[test]
fn c12_only_a_name_written_in_full_is_listed() {
    let policy = policy(&[BASE]);
    for (name, listed) in [("a.test", true), ("x.c.test", false), ("evil.test", false)] {
        let host = Host::parse(name).unwrap();
        assert_eq!(policy.lists_name(&host), listed, "{name}");
    }
}

#[test]
fn b007_b010_names_are_admitted_before_resolution_and_exactly() {
    let policy = policy(&[BASE]);
    for (name, admitted) in [
        ("a.test", true),
        ("x.c.test", true),
        ("c.test", false),
        ("nx.test", false),
    ] {
        assert_eq!(
            policy.admits_name(&Host::parse(name).unwrap()),
            admitted,
            "{name}"
        );
        assert_eq!(
            policy.admits(&Destination::parse(name).unwrap(), 443).any(),
            admitted,
            "{name}"
        );
    }
    assert!(
        !policy
            .admits(&Destination::parse("a.test").unwrap(), 22)
            .any()
    );
}

#[test]
fn b009_deny_wins_whatever_the_order() {
    for rules in [
        "rules:\n  - {id: a, action: allow, to: {hosts: [a.test]}}\n  - {id: d, action: deny, to: {hosts: [any]}, message: No.}\n",
        "rules:\n  - {id: d, action: deny, to: {hosts: [any]}, message: No.}\n  - {id: a, action: allow, to: {hosts: [a.test]}}\n",
    ] {
        let policy = policy(&[rules]);
        assert_eq!(verdict(&policy, "GET https://a.test/"), RULE);
        let decision = policy.decide(&CanonicalRequest::from_line("GET https://a.test/").unwrap());
        assert_eq!(decision.rule().unwrap().id.as_ref(), "d");
        assert_eq!(decision.message(), Some("No."));
        assert!(decision.permit().is_none());
        assert!(!policy.admits_name(&Host::parse("a.test").unwrap()));
        let admission = policy.admits(&Destination::parse("a.test").unwrap(), 443);
        assert_eq!(
            (admission.any(), admission.reason()),
            (false, Reason::RuleDeny)
        );
        assert_eq!(admission.rule().unwrap().id.as_ref(), "d");
        let codes: Vec<_> = policy.lints().iter().map(|lint| lint.code).collect();
        assert_eq!(codes, ["unreachable_rule"]);
    }
}

#[test]
fn b015_c15_what_is_left_out_is_denied() {
    for rules in ["", "rules: []\n", "name: empty\n"] {
        let policy = policy(&[rules]);
        assert_eq!(verdict(&policy, "GET https://a.test/"), DEFAULT, "{rules}");
        assert_eq!(policy.lints().first().unwrap().code, "no_rules");
    }
    let none = Policy::none();
    assert_eq!(
        verdict(&none, "GET https://a.test/"),
        (Verdict::Deny, Reason::NoPolicy)
    );
    let admission = none.admits(&Destination::parse("a.test").unwrap(), 443);
    assert_eq!(
        (admission.any(), admission.reason()),
        (false, Reason::NoPolicy)
    );
    assert!(!none.admits_name(&Host::parse("a.test").unwrap()));
    assert!(Policy::load(&[]).is_err());
}

#[test]
fn an_empty_list_matches_nothing() {
    for key in [
        "to: {hosts: []}",
        "to: {hosts: [a.test], ports: []}",
        "to: {hosts: [a.test]}, http: {methods: []}",
        "to: {hosts: [a.test]}, http: {paths: []}",
    ] {
        let policy = policy(&[&format!("rules:\n  - {{id: a, action: allow, {key}}}\n")]);
        assert_eq!(verdict(&policy, "GET https://a.test/"), DEFAULT, "{key}");
        assert!(
            !policy.admits_name(&Host::parse("a.test").unwrap()),
            "{key}"
        );
        assert_eq!(
            policy.lints().first().unwrap().code,
            "matches_nothing",
            "{key}"
        );
    }
}

#[test]
fn b017_c02_special_addresses_need_private_and_metadata_is_closed_always() {
    let rule = |private| {
        format!(
            "rules:\n  - {{id: a, action: allow, protocol: http, to: {{hosts: [any], private: {private}}}}}\n"
        )
    };
    let closed = policy(&[&rule(false)]);
    let open = policy(&[&rule(true)]);
    let private = (Verdict::Deny, Reason::PrivateAddress);
    let metadata = (Verdict::Deny, Reason::MetadataAddress);
    for host in [
        "10.9.0.7",
        "127.0.0.1",
        "[::1]",
        "[64:ff9b::a00:1]",
        "0.0.0.0",
        "198.18.0.1",
    ] {
        assert_eq!(
            verdict(&closed, &format!("GET http://{host}/")),
            private,
            "{host}"
        );
        assert_eq!(
            verdict(&open, &format!("GET http://{host}/")),
            ALLOWED,
            "{host}"
        );
    }
    for host in [
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
    ] {
        for policy in [&closed, &open] {
            assert_eq!(
                verdict(policy, &format!("GET http://{host}/")),
                metadata,
                "{host}"
            );
        }
        let admission = open.admits(&Destination::parse(host).unwrap(), 80);
        assert_eq!(
            (admission.any(), admission.reason()),
            (false, Reason::MetadataAddress)
        );
    }
    assert_eq!(verdict(&closed, "GET http://1.1.1.1/"), ALLOWED);
    let permit = |policy: &Policy| {
        let decision = policy.decide(&CanonicalRequest::from_line("GET http://in.test/").unwrap());
        decision.permit().unwrap().allows_private()
    };
    assert!(permit(&open) && !permit(&closed));
}

#[test]
fn c02_a_denied_address_is_denied_in_every_dress() {
    let policy = policy(&["
rules:
  - { id: lab, action: allow, protocol: http, to: { ips: [10.9.0.0/16], private: true } }
  - { id: not-that, action: deny, to: { ips: [10.9.1.5] } }
"]);
    assert_eq!(verdict(&policy, "GET http://10.9.1.4/"), ALLOWED);
    assert_eq!(verdict(&policy, "GET http://[::ffff:10.9.1.4]/"), ALLOWED);
    assert_eq!(verdict(&policy, "GET http://10.9.1.5/"), RULE);
    assert_eq!(verdict(&policy, "GET http://[::ffff:10.9.1.5]/"), RULE);
    assert_eq!(verdict(&policy, "GET http://10.10.0.1/"), DEFAULT);
}

#[test]
fn b019_unicode_in_the_file_is_the_a_label_on_the_wire() {
    let policy = policy(&[
        "rules:\n  - {id: a, action: allow, to: {hosts: [any]}}\n  - {id: d, action: deny, to: {hosts: [münchen.test]}}\n",
    ]);
    assert_eq!(verdict(&policy, "GET https://xn--mnchen-3ya.test/"), RULE);
    assert_eq!(verdict(&policy, "GET https://XN--MNCHEN-3YA.TEST./"), RULE);
}

#[test]
fn b023_the_canonical_path_is_judged_and_forwarded() {
    let policy = policy(&[BASE]);
    for path in [
        "/public/../secret",
        "/public/%2e%2e/secret",
        "/public/%2E./secret",
        "/public/.%2e/secret",
        "//public//../secret",
    ] {
        assert_eq!(
            verdict(&policy, &format!("GET https://a.test{path}")),
            DEFAULT,
            "{path}"
        );
    }
    let request = CanonicalRequest::from_line("GET https://a.test/x/../public/./y?z").unwrap();
    assert_eq!(policy.decide(&request).verdict(), Verdict::Allow);
    assert_eq!(request.forward_target(), "/public/y?z");
}

#[test]
fn b169_an_encoded_slash_is_data_only_where_the_rule_says_so() {
    let npm = policy(&["
rules:
  - { id: npm, action: allow, to: { hosts: [npm.test] }, http: { paths: [\"/@*\", \"/*\"], encoded_slash: data } }
  - { id: plain, action: allow, to: { hosts: [a.test] } }
"]);
    assert_eq!(verdict(&npm, "GET https://npm.test/@scope%2fpkg"), ALLOWED);
    let request = CanonicalRequest::from_line("GET https://npm.test/@scope%2fpkg").unwrap();
    assert_eq!(request.forward_target(), "/@scope%2Fpkg");
    let refused = policy_reason(&npm, "GET https://a.test/@scope%2fpkg");
    assert_eq!(refused, (Reason::EncodedSlash, Some("plain".to_owned())));
    assert_eq!(Reason::EncodedSlash.http_status(), 400);
}

fn policy_reason(policy: &Policy, line: &str) -> (Reason, Option<String>) {
    let decision = policy.decide(&CanonicalRequest::from_line(line).unwrap());
    (
        decision.reason(),
        decision.rule().map(|rule| rule.id.to_string()),
    )
}

#[test]
fn a_deny_rule_is_not_avoided_by_escapes_ports_or_protocols() {
    let policy = policy(&["
rules:
  - { id: all, action: allow, to: { hosts: [a.test], ports: [443, 8443] }, http: { encoded_slash: data } }
  - { id: clear, action: allow, protocol: http, to: { hosts: [a.test] } }
  - { id: admin, action: deny, to: { hosts: [a.test] }, http: { paths: [\"/admin/**\", \"/m/*:run\", \"/k%3Av/**\", \"/%C3%BC\"] } }
"]);
    assert_eq!(verdict(&policy, "GET https://a.test/x"), ALLOWED);
    for line in [
        "GET https://a.test/admin/x",
        "GET https://a.test/%61dmin/x",
        "GET https://a.test/admin%2fx",
        "GET https://a.test/x/../admin/x",
        "GET https://a.test:8443/admin/x",
        "GET http://a.test/admin/x",
        "POST https://a.test/m/x%3arun",
        "GET https://a.test//admin/x",
        "GET https://a.test/admin;v=1/x",
        "GET https://a.test/%2561dmin/x",
        "GET https://a.test/k:v/x",
        "GET https://a.test/k%3av/x",
        "GET https://a.test/%25C3%25BC",
    ] {
        assert_eq!(verdict(&policy, line), RULE, "{line}");
    }
}

#[test]
fn layers_intersect() {
    let baseline = "rules:\n  - {id: base, action: allow, to: {hosts: [\"*.test\", b.test], private: true}, http: {methods: [GET]}}\n  - {id: never, action: deny, to: {hosts: [c.test]}}\n";
    let own =
        "rules:\n  - {id: own, action: allow, to: {hosts: [a.test, c.test, other.example]}}\n";
    for policy in [policy(&[baseline, own]), policy(&[own, baseline])] {
        assert_eq!(verdict(&policy, "GET https://a.test/"), ALLOWED);
        assert_eq!(verdict(&policy, "POST https://a.test/"), DEFAULT);
        assert_eq!(verdict(&policy, "GET https://b.test/"), DEFAULT);
        assert_eq!(verdict(&policy, "GET https://other.example/"), DEFAULT);
        assert_eq!(verdict(&policy, "GET https://c.test/"), RULE);
        assert!(!policy.admits_name(&Host::parse("other.example").unwrap()));
        let decision = policy.decide(&CanonicalRequest::from_line("GET https://a.test/").unwrap());
        assert!(!decision.permit().unwrap().allows_private());
    }
    let decision = policy(&[baseline, own])
        .decide(&CanonicalRequest::from_line("GET https://a.test/").unwrap());
    let rule = decision.rule().unwrap();
    assert_eq!(
        (rule.id.as_ref(), rule.file.as_ref(), rule.line, rule.layer),
        ("own", "layer1.yaml", 3, 1)
    );
}

const CREDENTIAL: &str = "
credentials:
  - name: hub
    source: { env: HUB_TOKEN }
    expose: { env: GITHUB_TOKEN, shape: \"ghp_{36}\" }
    attach: [{ header: Authorization, format: \"Bearer {}\" }]
";

#[test]
fn a_credential_is_attached_by_the_rule_that_names_it_even_beside_a_broader_one() {
    let policy = policy(&[&format!("
rules:
  - {{ id: broad, action: allow, to: {{ hosts: [\"*.hub.test\"] }} }}
  - {{ id: api, action: allow, to: {{ hosts: [api.hub.test] }}, http: {{ methods: [GET], paths: [\"/repos/**\"] }}, credential: hub }}
{CREDENTIAL}")]);
    let credential = |line: &str| {
        let decision = policy.decide(&CanonicalRequest::from_line(line).unwrap());
        let permit = decision.permit().unwrap();
        (
            decision.rule().unwrap().id.to_string(),
            permit.credential().map(ToString::to_string),
        )
    };
    assert_eq!(
        credential("GET https://api.hub.test/repos/x"),
        ("api".into(), Some("hub".into()))
    );
    assert_eq!(
        credential("POST https://api.hub.test/repos/x"),
        ("broad".into(), None)
    );
    assert_eq!(
        credential("GET https://x.hub.test/repos/x"),
        ("broad".into(), None)
    );
    let spec = policy.credentials().next().unwrap();
    assert_eq!(spec.attach.first().unwrap().around(), ("Bearer ", ""));
    assert_eq!(spec.expose.as_ref().unwrap().shape.to_string(), "ghp_{36}");
}

#[test]
fn a_layer_below_keeps_the_credential_of_the_one_above() {
    let parent = format!(
        "rules:\n  - {{id: p, action: allow, to: {{hosts: [a.test]}}, credential: hub}}\n{CREDENTIAL}"
    );
    let child =
        "rules:\n  - {id: c, action: allow, to: {hosts: [a.test]}, http: {methods: [GET]}}\n";
    let policy = policy(&[&parent, child]);
    let decision = policy.decide(&CanonicalRequest::from_line("GET https://a.test/").unwrap());
    assert_eq!(
        decision.permit().unwrap().credential().unwrap().as_str(),
        "hub"
    );
    assert_eq!(decision.rule().unwrap().id.as_ref(), "p");
}

#[test]
fn tcp_rules_open_exactly_their_ports() {
    let policy = policy(&[
        "rules:\n  - {id: db, action: allow, protocol: tcp, to: {hosts: [db.test], ports: [5432], private: true}}\n",
    ]);
    assert_eq!(verdict(&policy, "tcp://db.test:5432"), ALLOWED);
    assert_eq!(verdict(&policy, "tcp://db.test:5433"), DEFAULT);
    let authority = Authority::parse("db.test:5432", None).unwrap();
    let udp = policy.decide(&CanonicalRequest::tunnel(Protocol::Udp, authority));
    assert_eq!(udp.verdict(), Verdict::Deny);
}

#[test]
fn the_revision_is_the_digest_of_the_text() {
    let text = "version: 1\n";
    let one = Policy::load(&[Source::new("a.yaml", text)]).unwrap();
    // printf 'version: 1\n' | sha256sum
    let digest = "09bfcc6a14b83e2192b8673677725c84883ee9cd0c70e45c9ec09daa8f2b2847";
    assert_eq!(one.revision(), digest);
    assert_eq!(
        one.revision(),
        Policy::load(&[Source::new("b.yaml", text)])
            .unwrap()
            .revision()
    );
    let two = Policy::load(&[Source::new("a.yaml", text), Source::new("a.yaml", text)]).unwrap();
    assert_ne!(one.revision(), two.revision());
}

#[test]
fn an_explanation_names_every_near_miss() {
    let policy = policy(&[BASE]);
    let request =
        CanonicalRequest::from_line("POST https://a.test:8443/secret?token=s3cr3t").unwrap();
    let explanation = policy.explain(&request);
    let expected = "\
deny: POST https://a.test:8443/secret?token=…
  reason: default_deny: No allow rule matches this request, and what is not allowed is denied.
  closest: public (layer0.yaml:4), which fails on port
  allow rule public (layer0.yaml:4): fails on port (wants 443), method (wants GET), path (wants /public/**)
  fix: Add an allow rule for this destination, method and path; `outgate policy explain` shows the near misses.
  for example, under `rules:`:
    - id: allow-a.test-8443
      action: allow
      to: { hosts: [\"a.test\"], ports: [8443] }
      http: { methods: [\"POST\"], paths: [\"/secret\"] }
";
    assert_eq!(explanation.to_string(), expected);
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(
        json["considered"][0]["failed"],
        serde_json::json!(["port", "method", "path"])
    );
}

#[test]
fn a_denied_method_is_denied_in_any_case() {
    let policy = policy(&["
rules:
  - { id: all, action: allow, to: { hosts: [a.test] } }
  - { id: no-delete, action: deny, to: { hosts: [a.test] }, http: { methods: [DELETE] } }
"]);
    assert_eq!(verdict(&policy, "delete https://a.test/x"), RULE);
    assert_eq!(verdict(&policy, "GET https://a.test/x"), ALLOWED);
}

#[test]
fn an_unread_https_flow_is_a_tcp_flow() {
    let policy = policy(&["rules:\n  - {id: a, action: allow, to: {hosts: [a.test]}}\n"]);
    let authority = Authority::parse("a.test", 443).unwrap();
    let unread = CanonicalRequest::tunnel(Protocol::Https, authority);
    assert_eq!(policy.decide(&unread).reason(), Reason::ProtocolNotAllowed);
}

mod random {
    use super::*;
    use outgate_policy::Explanation;
    use proptest::prelude::*;

    fn rule() -> impl Strategy<Value = String> {
        let action = prop::sample::select(vec!["allow", "allow", "deny"]);
        let to = prop::sample::select(vec![
            "hosts: [a.test]",
            "hosts: [\"*.test\"]",
            "hosts: [any]",
            "hosts: [\"*.a.test\", b.test], ports: [443, 8443]",
            "ips: [10.0.0.0/8, 1.1.1.1]",
            "hosts: []",
        ]);
        let keys = prop::sample::select(vec![
            "",
            ", protocol: http",
            ", http: { methods: [GET] }",
            ", http: { paths: [\"/x/**\", \"/y\"] }",
            ", http: { methods: [POST, GET], paths: [\"/**\"] }",
            ", protocol: http, http: { paths: [\"/{x,y}\"] }",
        ]);
        (action, to, keys)
            .prop_map(|(action, to, keys)| format!("action: {action}, to: {{ {to} }}{keys}"))
    }

    fn line() -> impl Strategy<Value = String> {
        let method = prop::sample::select(vec!["GET", "POST", "get"]);
        let place = prop::sample::select(vec![
            "https://a.test",
            "https://b.test",
            "https://x.a.test:8443",
            "http://a.test",
            "https://10.1.2.3",
            "https://1.1.1.1",
            "http://a.test:443",
            "https://other.example",
        ]);
        let path = prop::sample::select(vec![
            "/", "/x", "/x/y", "/y", "/z", "/x%2fy", "//x/y", "/x;a/y",
        ]);
        (method, place, path).prop_map(|(method, place, path)| format!("{method} {place}{path}"))
    }

    fn text(rules: &[String]) -> String {
        let rules: String = rules
            .iter()
            .enumerate()
            .map(|(at, keys)| format!("  - {{ id: r{at}, {keys} }}\n"))
            .collect();
        format!(
            "rules:\n{}",
            if rules.is_empty() { "  []\n" } else { &rules }
        )
    }

    /// The semantics in one sentence: allowed when an allow rule matches and no deny rule does.
    fn by_the_book(explanation: &Explanation) -> bool {
        let matching = |action| {
            explanation
                .considered
                .iter()
                .any(|rule| rule.failed.is_empty() && rule.action == action)
        };
        matching(Verdict::Allow) && !matching(Verdict::Deny)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn decisions_follow_the_book_and_not_the_order(rules in prop::collection::vec(rule(), 0..6), lines in prop::collection::vec(line(), 8)) {
            let forward = policy(&[&text(&rules)]);
            let backward = policy(&[&text(&rules.iter().rev().cloned().collect::<Vec<_>>())]);
            // A policy intersected with itself is the same policy.
            let twice = policy(&[&text(&rules), &text(&rules)]);
            for line in lines {
                let (answer, reason) = verdict(&forward, &line);
                let explanation = forward.explain(&CanonicalRequest::from_line(&line).unwrap());
                let closed = reason == Reason::PrivateAddress;
                prop_assert_eq!(answer == Verdict::Allow, by_the_book(&explanation) && !closed, "{}", line);
                prop_assert_eq!(verdict(&backward, &line).0, answer, "{}", line);
                prop_assert_eq!(verdict(&twice, &line).0, answer, "{}", line);
            }
        }
    }
}
