//! What the words of the language mean: asks, observing, includes, selection, limits and the matchers
//! on query and headers, seen from outside of the crate.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use outgate_policy::{CanonicalRequest, Mismatch, Policy, Reason, Source, Verdict};

fn policy(layers: &[&str]) -> Policy {
    let sources: Vec<Source> = layers
        .iter()
        .enumerate()
        .map(|(at, rest)| Source::new(format!("layer{at}.yaml"), format!("version: 1\n{rest}")))
        .collect();
    Policy::load(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

/// One rule `r` for a.test with these keys.
fn one(action: &str, keys: &str) -> String {
    format!("rules:\n  - {{ id: r, action: {action}, to: {{ hosts: [a.test] }}{keys} }}\n")
}

fn request(line: &str) -> CanonicalRequest {
    CanonicalRequest::from_line(line).unwrap()
}

fn verdict(policy: &Policy, line: &str) -> (Verdict, Reason) {
    let decision = policy.decide(&request(line));
    (decision.verdict(), decision.reason())
}

const ALLOWED: (Verdict, Reason) = (Verdict::Allow, Reason::Allowed);
const DEFAULT: (Verdict, Reason) = (Verdict::Deny, Reason::DefaultDeny);
const RULE: (Verdict, Reason) = (Verdict::Deny, Reason::RuleDeny);
const ASKED: (Verdict, Reason) = (Verdict::Ask, Reason::ApprovalRequired);

#[test]
fn an_ask_goes_before_an_allow_and_after_a_deny() {
    let policy = policy(&["
rules:
  - { id: all, action: allow, to: { hosts: [a.test] } }
  - { id: push, action: ask, to: { hosts: [a.test, b.test] }, http: { methods: [POST] }, ask: { timeout: 30s, reuse: session }, message: Ask first. }
  - { id: never, action: deny, to: { hosts: [a.test] }, http: { paths: [/never/**] } }
"]);
    assert_eq!(verdict(&policy, "GET https://a.test/"), ALLOWED);
    assert_eq!(verdict(&policy, "POST https://a.test/"), ASKED);
    assert_eq!(verdict(&policy, "POST https://b.test/"), ASKED);
    assert_eq!(verdict(&policy, "POST https://a.test/never/x"), RULE);
    let asked = policy.decide(&request("POST https://a.test/"));
    let terms = asked.ask_terms().unwrap();
    assert_eq!((terms.timeout.as_secs(), terms.session), (30, true));
    assert_eq!(asked.message(), Some("Ask first."));
    assert!(asked.permit().is_none(), "nobody has said yes");
}

#[test]
fn an_ask_of_any_layer_is_asked_and_a_deny_of_any_layer_denies() {
    let ask = one("ask", "");
    let allow = one("allow", "");
    let deny = one("deny", "");
    let line = "GET https://a.test/";
    assert_eq!(verdict(&policy(&[&ask, &allow]), line), ASKED);
    assert_eq!(verdict(&policy(&[&allow, &ask]), line), ASKED);
    assert_eq!(verdict(&policy(&[&ask, &deny]), line), RULE);
    assert_eq!(verdict(&policy(&[&ask, ""]), line), DEFAULT);
}

#[test]
fn observing_lets_requests_through_without_a_credential_and_says_what_it_would_do() {
    let observed = policy(&["
mode: observe
rules:
  - { id: get, action: allow, to: { hosts: [a.test] }, http: { methods: [GET] }, credential: c }
  - { id: secret, action: deny, to: { hosts: [a.test] }, http: { paths: [/secret] } }
  - { id: slow, action: ask, to: { hosts: [b.test] } }
credentials:
  - { name: c, source: { env: C }, attach: [{ header: Authorization, format: \"{}\" }] }
"]);
    let ask = |line: &str| observed.decide(&request(line));
    let good = ask("GET https://a.test/");
    assert!(good.would_deny().is_none());
    assert!(good.permit().unwrap().credential().is_some());
    for (line, reason, rule) in [
        ("POST https://a.test/", Reason::DefaultDeny, None),
        (
            "GET https://a.test/secret",
            Reason::RuleDeny,
            Some("secret"),
        ),
        (
            "GET https://b.test/",
            Reason::ApprovalRequired,
            Some("slow"),
        ),
        ("GET http://elsewhere.test/", Reason::DefaultDeny, None),
    ] {
        let decision = ask(line);
        assert_eq!(decision.verdict(), Verdict::Allow, "{line}");
        let would = decision.would_deny().unwrap();
        assert_eq!(
            (would.reason, would.rule.as_ref().map(|rule| &*rule.id)),
            (reason, rule),
            "{line}"
        );
        assert!(decision.permit().unwrap().credential().is_none(), "{line}");
        assert!(!decision.permit().unwrap().allows_private(), "{line}");
        let admission = observed.admits(request(line).destination(), request(line).port());
        assert!(admission.https && admission.http, "{line}");
    }
    // What nobody reads can't be observed; what no rule opens stays closed.
    assert_eq!(verdict(&observed, "tcp://a.test:22").0, Verdict::Deny);
    assert!(
        !observed
            .admits(request("tcp://a.test:22").destination(), 22)
            .tcp
    );
    assert_eq!(
        verdict(&observed, "GET http://169.254.169.254/").1,
        Reason::MetadataAddress
    );
    assert_eq!(
        verdict(&observed, "GET http://10.0.0.1/").1,
        Reason::PrivateAddress
    );
    // An enforcing layer goes on to enforce.
    let both = policy(&[&one("allow", ""), "mode: observe\n"]);
    assert_eq!(verdict(&both, "GET https://a.test/"), ALLOWED);
    assert_eq!(verdict(&both, "GET https://b.test/"), DEFAULT);
}

#[test]
fn query_parameters_are_matched_by_every_value() {
    let rule = one(
        "allow",
        ", http: { query: { q: [a, \"b*\"], token: absent } }",
    );
    let policy = policy(&[&rule]);
    for (query, allowed) in [
        ("q=a", true),
        ("q=bcd&x=1", true),
        ("q=%61", true),
        ("q=a&q=b", true),
        ("", false),
        ("q=c", false),
        ("q=a&q=c", false),
        ("Q=a", false),
        ("q=a&token=", false),
        ("q=a&TOKEN=1", false),
        ("q=a&token[]=1", false),
        ("q=a&x=1;token=1", false),
        ("q=a&%74oken=1", false),
    ] {
        let line = format!("GET https://a.test/?{query}");
        assert_eq!(
            verdict(&policy, &line).0 == Verdict::Allow,
            allowed,
            "{query}"
        );
    }
    let near = policy.decide(&request("GET https://a.test/?q=c"));
    assert_eq!(near.closest().unwrap().failed, Mismatch::Query);
}

#[test]
fn a_deny_rule_sees_a_parameter_however_it_is_written() {
    let policy = policy(&["
rules:
  - { id: all, action: allow, to: { hosts: [a.test] } }
  - { id: nope, action: deny, to: { hosts: [a.test] }, http: { query: { admin: [\"1\"] } } }
"]);
    for query in [
        "admin=1",
        "admin=0&admin=1",
        "ADMIN=1",
        "admin[]=1",
        "x;admin=1",
        "%61dmin=%31",
    ] {
        assert_eq!(
            verdict(&policy, &format!("GET https://a.test/?{query}")),
            RULE,
            "{query}"
        );
    }
    assert_eq!(verdict(&policy, "GET https://a.test/?admin=0"), ALLOWED);
}

#[test]
fn headers_are_matched_and_what_was_not_read_is_not_allowed() {
    let rule = one(
        "allow",
        ", http: { headers: { X-Api: [\"v1*\"], x-debug: absent } }",
    );
    let allow = policy(&[&rule]);
    let ask = |policy: &Policy, fields: &[(&str, &[u8])]| {
        let request = request("GET https://a.test/");
        policy
            .decide(&request.with_headers(fields.iter().copied()))
            .verdict()
            == Verdict::Allow
    };
    assert!(ask(&allow, &[("x-api", b"v1.2")]));
    assert!(ask(&allow, &[("X-API", b" v1 ")]));
    assert!(!ask(&allow, &[]));
    assert!(!ask(&allow, &[("x-api", b"v2")]));
    assert!(!ask(&allow, &[("x-api", b"v1"), ("x-api", b"v2")]));
    assert!(!ask(&allow, &[("x-api", b"v1"), ("X-Debug", b"")]));
    let parts = outgate_policy::RequestUrl::parse("https://a.test/").unwrap();
    let unread = CanonicalRequest::new(outgate_policy::RequestParts {
        protocol: parts.protocol,
        authority: &parts.authority,
        method: "GET",
        target: &parts.target,
        body_len: None,
    })
    .unwrap();
    assert!(allow.needs(&unread).headers);
    assert_eq!(allow.decide(&unread).verdict(), Verdict::Deny);
    let deny = policy(&["
rules:
  - { id: all, action: allow, to: { hosts: [a.test] } }
  - { id: nope, action: deny, to: { hosts: [a.test] }, http: { headers: { x-evil: [\"*\"] } } }
"]);
    assert_eq!(deny.decide(&unread).reason(), Reason::RuleDeny);
    assert!(ask(&deny, &[("x-good", b"1")]));
    assert!(!ask(&deny, &[("X-Evil", b"")]));
    let elsewhere = request("GET https://b.test/");
    assert!(allow.needs(&elsewhere).is_nothing(), "no rule looks at it");
}

#[test]
fn a_rule_without_websocket_lets_none_through() {
    let policy = policy(&["
rules:
  - { id: plain, action: allow, to: { hosts: [a.test] } }
  - { id: socket, action: allow, to: { hosts: [b.test] }, http: { websocket: allow } }
"]);
    let socket = |host: &str| request(&format!("GET https://{host}/")).asking_for_websocket();
    assert_eq!(policy.decide(&socket("a.test")).verdict(), Verdict::Deny);
    assert_eq!(
        policy.decide(&socket("a.test")).closest().unwrap().failed,
        Mismatch::WebSocket
    );
    assert!(
        policy
            .decide(&socket("b.test"))
            .permit()
            .unwrap()
            .allows_websocket()
    );
    assert_eq!(verdict(&policy, "GET https://b.test/"), ALLOWED);
}

#[test]
fn passthrough_and_udp_are_flows_of_their_own() {
    let policy = policy(&["
rules:
  - { id: pinned, action: allow, tls: passthrough, to: { hosts: [a.test] } }
  - { id: time, action: allow, protocol: udp, to: { hosts: [b.test], ports: [123] } }
"]);
    assert_eq!(verdict(&policy, "tls://a.test"), ALLOWED);
    assert_eq!(verdict(&policy, "tls://a.test:8443"), DEFAULT);
    assert_eq!(
        verdict(&policy, "GET https://a.test/").1,
        Reason::ProtocolNotAllowed
    );
    assert_eq!(verdict(&policy, "udp://b.test:123"), ALLOWED);
    assert_eq!(
        verdict(&policy, "tcp://b.test:123").1,
        Reason::ProtocolNotAllowed
    );
    let admission = policy.admits(request("tls://a.test").destination(), 443);
    assert!(admission.tls && !admission.https && admission.any());
}

#[test]
fn limits_of_every_layer_hold() {
    let policy = policy(&[
        &one("allow", ", limits: { request_body: 2MiB, rate: 100/min }"),
        &one("allow", ", http: { max_body: 1MiB }"),
    ]);
    let permit = policy.decide(&request("GET https://a.test/"));
    let permit = permit.permit().unwrap();
    assert_eq!(permit.max_request_body(), Some(1024 * 1024));
    let rates: Vec<_> = permit
        .limits()
        .filter_map(|(rule, limits)| Some((rule.layer, limits.rate?.count)))
        .collect();
    assert_eq!(rates, [(0, 100)]);
}

fn with_files(root: &str, files: &[(&str, &str)]) -> Result<Policy, String> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let source = Source::assemble("main.yaml", format!("version: 1\n{root}"), |name| {
        let text = files.get(name).ok_or("no such file")?;
        Ok(format!("version: 1\n{text}"))
    });
    source
        .and_then(|source| Policy::load(&[source]))
        .map_err(|errors| errors.render())
}

#[test]
fn b011_b013_included_rules_count_and_keep_their_origin() {
    let root = "include: [preset:docs, ./org/base.yaml]\nrules:\n  - { id: own, action: allow, to: { hosts: [own.test] }, credential: c }\n";
    let docs = "rules:\n  - { id: docs, action: allow, to: { hosts: [docs.test] } }\n";
    let base = "include: [../shared.yaml]\nrules:\n  - { id: nope, action: deny, to: { hosts: [own.test] }, http: { paths: [/x] } }\n";
    let shared = "credentials:\n  - { name: c, source: { env: C }, attach: [{ header: A, format: \"{}\" }] }\n";
    let policy = with_files(
        root,
        &[
            ("preset:docs", docs),
            ("org/base.yaml", base),
            ("shared.yaml", shared),
        ],
    )
    .unwrap();
    assert_eq!(verdict(&policy, "GET https://docs.test/"), ALLOWED);
    assert_eq!(verdict(&policy, "GET https://own.test/"), ALLOWED);
    assert_eq!(verdict(&policy, "GET https://own.test/x"), RULE);
    let origins: Vec<String> = policy.rules().map(ToString::to_string).collect();
    assert_eq!(
        origins,
        [
            "docs (preset:docs:3)",
            "nope (org/base.yaml:4)",
            "own (main.yaml:4)"
        ]
    );
    let decision = policy.decide(&request("GET https://own.test/x"));
    assert_eq!(&*decision.rule().unwrap().file, "org/base.yaml");
    assert_ne!(
        policy.revision(),
        with_files(
            root,
            &[
                ("preset:docs", docs),
                ("org/base.yaml", base),
                ("shared.yaml", &format!("{shared}#"))
            ]
        )
        .unwrap()
        .revision()
    );
}

#[test]
fn includes_that_cannot_be_kept_are_refused_with_their_place() {
    let cycle = with_files(
        "include: [./a.yaml]\n",
        &[
            ("a.yaml", "include: [./b.yaml]\n"),
            ("b.yaml", "include: [./a.yaml]\n"),
        ],
    )
    .unwrap_err();
    let expected = "\
b.yaml:2:11: error[include_cycle]: `a.yaml` includes itself
2 | include: [./a.yaml]
  |           ^^^^^^^^
  a.yaml:2:11: by way of this
2 | include: [./b.yaml]
  |           ^^^^^^^^
  help: move what both need into a file of its own
";
    assert_eq!(cycle, expected);
    let itself = with_files("include: [./main.yaml]\n", &[]).unwrap_err();
    assert!(
        itself.contains("main.yaml:2:11: error[include_cycle]"),
        "{itself}"
    );
    let unread = Policy::load(&[Source::new(
        "main.yaml",
        "version: 1\ninclude: [./a.yaml]\n",
    )]);
    assert!(
        unread
            .unwrap_err()
            .render()
            .contains("error[include_missing]")
    );
    let one = one("allow", "");
    let twice =
        with_files(&format!("include: [./a.yaml]\n{one}"), &[("a.yaml", &one)]).unwrap_err();
    assert!(
        twice.contains("main.yaml:4:11: error[duplicate_id]")
            && twice.contains("a.yaml:3:11: it is here first"),
        "{twice}"
    );
    let observing =
        with_files("include: [./a.yaml]\n", &[("a.yaml", "mode: observe\n")]).unwrap_err();
    assert!(observing.contains("error[include_mode]"), "{observing}");
    let broken = with_files(
        "include: [./a.yaml]\n",
        &[("a.yaml", "rules: [{ id: x, action: alow, to: {} }]\n")],
    )
    .unwrap_err();
    assert!(
        broken.contains("a.yaml:2:26: error[wrong_type]"),
        "{broken}"
    );
    for reference in ["a.yaml", "preset:", "preset:A", "https://x/y.yaml"] {
        let errors = with_files(&format!("include: [\"{reference}\"]\n"), &[]).unwrap_err();
        assert!(errors.contains("error[bad_include]"), "{errors}");
    }
}

#[test]
fn a_policy_selects_sandboxes_by_labels() {
    let policy = policy(&["sandboxes: { labels: { team: payments, tier: dev } }\n"]);
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    assert!(policy.has_selection());
    assert!(policy.selects(&labels(&[
        ("team", "payments"),
        ("tier", "dev"),
        ("x", "y")
    ])));
    assert!(!policy.selects(&labels(&[("team", "payments")])));
    assert!(!policy.selects(&labels(&[("team", "Payments"), ("tier", "dev")])));
    assert!(!policy.selects(&labels(&[])));
}

#[test]
fn tests_of_a_file_speak_of_headers_bodies_asks_and_sandboxes() {
    let policy = policy(&["
sandboxes: { labels: { team: a } }
rules:
  - { id: r, action: allow, to: { hosts: [a.test] }, http: { headers: { x-v: [\"1\"] }, max_body: 4 } }
  - { id: q, action: ask, to: { hosts: [b.test] } }
tests:
  - { name: with header, request: { url: \"https://a.test/\", headers: { X-V: \"1\" } }, expect: allow, rule: r }
  - { name: without, request: \"GET https://a.test/\", expect: deny, reason: default_deny }
  - { name: twice, request: { url: \"https://a.test/\", headers: { x-v: [\"1\", \"2\"] } }, expect: deny }
  - { name: large, request: { method: POST, url: \"https://a.test/\", headers: { x-v: \"1\" }, body: hello }, expect: deny }
  - { name: small, request: { method: POST, url: \"https://a.test/\", headers: { x-v: \"1\" }, body: hell }, expect: allow }
  - { name: asked, request: \"GET https://b.test/\", expect: ask, rule: q }
  - { name: other team, request: { url: \"https://b.test/\", sandbox: { labels: { team: b } } }, expect: deny, reason: no_policy }
"]);
    let outcomes = policy.run_tests();
    assert_eq!(outcomes.len(), 7);
    for outcome in outcomes {
        assert!(
            outcome.passed(),
            "{}: {:?}",
            outcome.name,
            outcome.differences
        );
    }
    let cases = Source::new(
        "cases.yaml",
        "tests:\n  - { name: c, request: \"GET https://b.test/\", expect: allow }\n",
    );
    let outcome = policy.run_cases(&cases).unwrap().remove(0);
    assert_eq!(
        outcome.differences[0].to_string(),
        "verdict: expected `allow`, got `ask`"
    );
    assert_eq!((&*outcome.file, outcome.line), ("cases.yaml", 2));
    assert!(
        policy
            .run_cases(&Source::new("c", "rules: []\n"))
            .unwrap_err()
            .render()
            .contains("unknown_key")
    );
}

#[test]
fn b027_requests_that_nobody_reads_cannot_be_limited_to_methods() {
    for keys in [
        "tls: passthrough, http: { methods: [GET, HEAD] }",
        "tls: passthrough, http: { paths: [/x] }",
        "tls: passthrough, credential: c",
        "protocol: tcp, http: { methods: [GET] }",
        "protocol: udp, http: { headers: {} }",
    ] {
        let text = format!(
            "version: 1\nrules:\n  - {{ id: r, action: allow, to: {{ hosts: [a.test], ports: [443] }}, {keys} }}\n\
             credentials:\n  - {{ name: c, source: {{ env: C }}, attach: [{{ header: A, format: \"{{}}\" }}] }}\n"
        );
        let errors = Policy::load(&[Source::new("p.yaml", text.as_str())]).unwrap_err();
        let codes: Vec<_> = errors.iter().map(|found| found.code).collect();
        let expected = if keys.contains("credential") {
            "credential_needs_https"
        } else {
            "matchers_need_http"
        };
        assert_eq!(codes, [expected], "{text}");
    }
    // Nor by a second rule that passes the same place through unread.
    let both = "version: 1\nrules:\n  - { id: read, action: allow, to: { hosts: [a.test] }, http: { methods: [GET] } }\n  \
                - { id: all, action: allow, tls: passthrough, to: { hosts: [\"*.test\"] } }\n";
    let errors = Policy::load(&[Source::new("p.yaml", both)]).unwrap_err();
    assert!(
        errors
            .render()
            .contains("the passthrough rule `all` opens a way around the rule `read`")
    );
}

#[test]
fn b033_a_rule_for_https_opens_no_datagrams() {
    let policy = policy(&[&one("allow", "")]);
    let admission = policy.admits(request("udp://a.test:443").destination(), 443);
    assert!(admission.https && !admission.udp && !admission.tcp && !admission.tls);
    assert_eq!(
        verdict(&policy, "udp://a.test:443").1,
        Reason::ProtocolNotAllowed
    );
}
