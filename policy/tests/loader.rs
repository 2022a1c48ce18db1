//! What the loader says of files that are wrong: whole messages, several at once, and nothing loaded.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use outgate_policy::{Policy, Reason, Source, schema};

fn load(text: &str) -> Result<Policy, String> {
    Policy::load(&[Source::new("p.yaml", text)]).map_err(|errors| errors.render())
}

fn errors(text: &str) -> String {
    match load(text) {
        Ok(_) => panic!("loads:\n{text}"),
        Err(errors) => errors,
    }
}

/// `code` of each finding, in order.
fn codes(text: &str) -> Vec<String> {
    match Policy::load(&[Source::new("p.yaml", text)]) {
        Ok(_) => vec!["loads".to_owned()],
        Err(errors) => errors.iter().map(|found| found.code.to_owned()).collect(),
    }
}

/// One rule, with the given keys beside id and action.
fn rule(keys: &str) -> String {
    format!("version: 1\nrules:\n  - {{ id: r, action: allow, {keys} }}\n")
}

#[test]
fn several_errors_are_reported_at_once_with_place_and_suggestion() {
    let text = "\
version: 1
nmae: x
rules:
  - id: one
    acton: allow
    to: { hosts: [EXAMPLE.com., 10.9.8.7, \"*.github.io\"] }
    http: { methods: [get], paths: [repos/**] }
  - id: one
    action: allow
    to: { hosts: [b.test] }
    credential: github
";
    let expected = "\
p.yaml:2:1: error[unknown_key]: unknown key `nmae` in a policy
2 | nmae: x
  | ^^^^
  help: did you mean `name`?

p.yaml:4:5: error[missing_key]: a rule needs the key `action`
4 |   - id: one
  |     ^^

p.yaml:5:5: error[unknown_key]: unknown key `acton` in a rule
5 |     acton: allow
  |     ^^^^^
  help: did you mean `action`?

p.yaml:11:17: error[unknown_credential]: the credential `github` is not declared in this file
11 |     credential: github
   |                 ^^^^^^
  help: declare it under `credentials:`
";
    assert_eq!(errors(text), expected);

    let expected = "\
p.yaml:6:19: error[non_canonical_host]: `EXAMPLE.com.` is not the canonical spelling
6 |     to: { hosts: [EXAMPLE.com., 10.9.8.7, \"*.github.io\"] }
  |                   ^^^^^^^^^^^^
  help: write `example.com`

p.yaml:6:33: error[ip_as_host]: `10.9.8.7` is an address, not a host
6 |     to: { hosts: [EXAMPLE.com., 10.9.8.7, \"*.github.io\"] }
  |                                 ^^^^^^^^
  help: write it under `ips:`, as in `ips: [\"10.9.8.7\"]`

p.yaml:6:43: error[public_suffix]: `*.github.io` spans the public suffix `github.io`, below which anybody can register names
6 |     to: { hosts: [EXAMPLE.com., 10.9.8.7, \"*.github.io\"] }
  |                                           ^^^^^^^^^^^^^
  help: name the hosts that you need, or add `allow_public_suffix: true` to the rule

p.yaml:7:23: error[bad_method]: `get` would never match: methods are upper case
7 |     http: { methods: [get], paths: [repos/**] }
  |                       ^^^
  help: write `GET`

p.yaml:7:37: error[bad_path]: the path pattern `repos/**` doesn't start with `/`
7 |     http: { methods: [get], paths: [repos/**] }
  |                                     ^^^^^^^^
  help: write `/repos/**`

p.yaml:8:9: error[duplicate_id]: the rule id `one` is given twice
8 |   - id: one
  |         ^^^
  p.yaml:4:9: it is here first
4 |   - id: one
  |         ^^^
";
    let text = text
        .replace("nmae", "name")
        .replace("acton", "action")
        .replace("    credential: github\n", "");
    assert_eq!(errors(&text), expected);
}

/// The places of a policy that need more than a decision, for a gateway that can do nothing more.
fn demanded(text: &str) -> Vec<String> {
    let policy = load(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let Err(missing) = policy.require(&[]) else {
        return Vec::new();
    };
    assert_eq!(policy.require(&policy.features()), Ok(()), "{text}");
    let quoted = |message: &str| message.split('`').nth(1).unwrap_or_default().to_owned();
    missing
        .iter()
        .map(|found| {
            assert_eq!(found.code, "not_enforced");
            quoted(&found.message)
        })
        .collect()
}

#[test]
fn b035_what_a_gateway_does_not_enforce_is_refused_by_name() {
    let in_rule = [
        ("limits: { rate: 100/min }", "rate"),
        ("limits: { concurrency: 2 }", "concurrency"),
        ("limits: { request_body: 1MiB }", "request_body"),
        ("limits: { response_body: 1MiB }", "response_body"),
        ("limits: { duration: 30s }", "duration"),
        ("tls: passthrough", "tls: passthrough"),
        ("http: { websocket: allow }", "websocket: allow"),
        ("http: { max_body: 1KiB }", "request_body"),
        ("http: { headers: { x-a: [b] } }", "headers"),
        ("http: { content_types: [text/plain] }", "headers"),
        ("http: { graphql: { operations: [query] } }", "body"),
        ("http: { mcp: { tools: [x] } }", "body"),
        ("http: { git: { refs: [refs/heads/x] } }", "body"),
    ];
    for (keys, feature) in in_rule {
        let text = rule(&format!("to: {{hosts: [a.test]}}, {keys}"));
        assert_eq!(demanded(&text), [feature], "{text}");
    }
    let others = [
        ("version: 1\nmode: observe\n", "mode: observe"),
        (
            "version: 1\nbudgets: [{ name: b, per: sandbox, window: 24h, usd: 25 }]\n",
            "budgets",
        ),
        (
            "version: 1\nrules: [{ id: r, action: ask, to: { hosts: [a.test] } }]\n",
            "action: ask",
        ),
        (
            "version: 1\nrules: [{ id: r, action: allow, protocol: udp, to: { hosts: [a.test], ports: [53] } }]\n",
            "protocol: udp",
        ),
        (
            "version: 1\ncredentials:\n  - { name: c, source: { vault: { mount: kv, path: a/b, field: token } }, attach: [{ header: A, format: \"{}\" }] }\n",
            "vault",
        ),
    ];
    for (text, feature) in others {
        assert_eq!(demanded(text), [feature], "{text}");
    }
    assert!(demanded(&rule("to: {hosts: [a.test]}, http: { query: { a: [b] } }")).is_empty());
}

#[test]
fn b035_words_that_no_version_enforces_yet_are_refused_by_name() {
    let texts = [
        "version: 1\nextends: x\n".to_owned(),
        rule("to: {hosts: [a.test]}, schedule: x"),
        rule("to: {hosts: [a.test]}, http: { cookies: {} }"),
        "version: 1\ncredentials:\n  - { name: c, source: { exec: x }, attach: [{ header: A, format: \"{}\" }] }\n".to_owned(),
    ];
    for text in texts {
        assert_eq!(codes(&text), ["not_enforced"], "{text}");
        assert!(errors(&text).contains("is not enforced by this version, so the file is refused"));
    }
}

#[test]
fn rules_that_cannot_be_kept_are_refused() {
    for (keys, code) in [
        ("to: {hosts: [a.test]}, protocol: tcp", "missing_ports"),
        (
            "to: {hosts: [a.test], ports: [1]}, protocol: tcp, http: {methods: [GET]}",
            "matchers_need_http",
        ),
        (
            "to: {hosts: [a.test], ports: [1]}, protocol: tcp, http: {}",
            "matchers_need_http",
        ),
        (
            "to: {hosts: [a.test]}, protocol: http, credential: c",
            "unknown_credential",
        ),
        ("to: {hosts: [a.test]}, message: x", "useless_key"),
        ("to: {}", "no_destination"),
        ("to: {ports: [443]}", "no_destination"),
        (
            "to: {hosts: [a.test]}, http: {paths: [\"/a%2Fb\"]}",
            "bad_path",
        ),
        (
            "to: {hosts: [a.test]}, http: {methods: [TRACE]}",
            "bad_method",
        ),
        (
            "to: {hosts: [a.test]}, http: {methods: [\"*\"]}",
            "bad_method",
        ),
        ("to: {ips: [169.254.169.254]}", "metadata_address"),
        ("to: {ips: [10.0.0.1/8]}", "non_canonical_ip"),
        ("to: {ips: [\"::ffff:10.0.0.1\"]}", "non_canonical_ip"),
        ("to: {ips: [\"::ffff:10.0.0.0/104\"]}", "non_canonical_ip"),
        ("to: {ips: [\"2001:DB8::1\"]}", "non_canonical_ip"),
        ("to: {ips: [a.test]}", "bad_ip"),
        ("to: {ips: [010.0.0.1]}", "bad_ip"),
        ("to: {hosts: [\"*.com\"]}", "public_suffix"),
    ] {
        assert!(
            codes(&rule(keys)).iter().any(|found| found == code),
            "{keys}: {:?}",
            codes(&rule(keys))
        );
    }
    assert_eq!(
        codes(&rule("to: {hosts: [\"*.com\"]}, allow_public_suffix: true")),
        ["loads"]
    );
    let deny = |keys: &str| rule(keys).replace("action: allow", "action: deny");
    for keys in [
        "to: {hosts: [a.test], private: true}",
        "to: {hosts: [a.test]}, http: {encoded_slash: data}",
        "to: {hosts: [a.test]}, credential: c",
    ] {
        assert_eq!(
            codes(&deny(keys)).first().map(String::as_str),
            Some("useless_key"),
            "{keys}"
        );
    }
    assert_eq!(codes(&deny("to: {hosts: [\"*.com\", any]}")), ["loads"]);
    assert_eq!(
        codes(&deny("to: {hosts: [a.test]}, http: {paths: [\"/a%2Fb\"]}")),
        ["loads"]
    );
}

#[test]
fn b026_a_raw_tunnel_beside_judged_requests_is_refused() {
    let pair = |other: &str| {
        format!(
            "version: 1\nrules:\n  - {{ id: raw, action: allow, protocol: tcp, to: {{ hosts: [\"*.test\"], ports: [443, 5432] }} }}\n  - {{ id: other, {other} }}\n"
        )
    };
    assert_eq!(
        codes(&pair(
            "action: allow, to: {hosts: [a.test]}, http: {paths: [\"/v1/**\"]}"
        )),
        ["tcp_bypass"]
    );
    assert_eq!(
        codes(&pair(
            "action: allow, to: {hosts: [any]}, http: {methods: [GET]}"
        )),
        ["tcp_bypass"]
    );
    assert_eq!(
        codes(&pair(
            "action: allow, to: {hosts: [a.test], ports: [8443]}, http: {methods: [GET]}"
        )),
        ["loads"]
    );
    assert_eq!(
        codes(&pair(
            "action: allow, to: {hosts: [a.example]}, http: {methods: [GET]}"
        )),
        ["loads"]
    );
    assert_eq!(
        codes(&pair("action: allow, to: {hosts: [a.test]}")),
        ["loads"]
    );
}

#[test]
fn credentials_are_checked() {
    let credential = |keys: &str| format!("version: 1\ncredentials:\n  - {{ name: c, {keys} }}\n");
    let attach = "attach: [{header: A, format: \"{}\"}]";
    for (keys, code) in [
        (format!("source: {{}}, {attach}"), "bad_source"),
        (
            format!("source: {{env: A, file: /x}}, {attach}"),
            "bad_source",
        ),
        (
            format!("source: {{file: secrets/x}}, {attach}"),
            "bad_source",
        ),
        (format!("source: {{env: $A}}, {attach}"), "bad_env"),
        (format!("source: {{env: 1A}}, {attach}"), "bad_env"),
        ("source: {env: A}, attach: []".to_owned(), "empty_attach"),
        ("source: {env: A}".to_owned(), "missing_key"),
        (
            "source: {env: A}, attach: [{header: Host, format: \"{}\"}]".to_owned(),
            "bad_header",
        ),
        (
            "source: {env: A}, attach: [{header: \"A b\", format: \"{}\"}]".to_owned(),
            "bad_header",
        ),
        (
            "source: {env: A}, attach: [{header: A, format: Bearer}]".to_owned(),
            "bad_format",
        ),
        (
            "source: {env: A}, attach: [{header: A, format: \"{}{}\"}]".to_owned(),
            "bad_format",
        ),
        (
            "source: {env: A}, attach: [{header: A, format: \"{}\\n\"}]".to_owned(),
            "bad_format",
        ),
        (
            format!("source: {{env: A}}, {attach}, expose: {{env: \"B C\"}}"),
            "bad_env",
        ),
        (
            format!("source: {{env: A}}, {attach}, expose: {{env: B, shape: ghp_}}"),
            "bad_shape",
        ),
        (
            format!("source: {{env: A}}, {attach}, expose: {{env: B, shape: \"{{4}}\"}}"),
            "bad_shape",
        ),
    ] {
        assert_eq!(codes(&credential(&keys)), [code], "{keys}");
    }
    let twice = format!(
        "version: 1\ncredentials:\n  - {{ name: c, source: {{env: A}}, {attach}, expose: {{env: X}} }}\n  - {{ name: c, source: {{env: B}}, {attach}, expose: {{env: X}} }}\n"
    );
    assert_eq!(codes(&twice), ["duplicate_id", "duplicate_env"]);
    let http = format!(
        "version: 1\nrules:\n  - {{ id: r, action: allow, protocol: http, to: {{hosts: [a.test]}}, credential: c }}\ncredentials:\n  - {{ name: c, source: {{env: A}}, {attach} }}\n"
    );
    assert_eq!(codes(&http), ["credential_needs_https"]);
    for hosts in ["any", "\"*.com\""] {
        let text = http
            .replace("protocol: http, ", "")
            .replace("a.test", hosts)
            .replace("credential: c", "credential: c, allow_public_suffix: true");
        assert_eq!(codes(&text), ["credential_everywhere"], "{text}");
    }
}

#[test]
fn layers_may_share_rule_ids_but_not_the_name_of_another_credential() {
    let layer = |name: &str, var: &str| {
        Source::new(
            name,
            format!(
                "version: 1\nrules:\n  - {{ id: r, action: allow, to: {{hosts: [a.test]}}, credential: c }}\ncredentials:\n  - {{ name: c, source: {{env: {var}}}, attach: [{{header: A, format: \"{{}}\"}}] }}\n"
            ),
        )
    };
    assert!(Policy::load(&[layer("a.yaml", "A"), layer("b.yaml", "A")]).is_ok());
    let errors = Policy::load(&[layer("a.yaml", "A"), layer("b.yaml", "B")]).unwrap_err();
    assert_eq!(
        errors.iter().map(|found| found.code).collect::<Vec<_>>(),
        ["credential_conflict"]
    );
}

#[test]
fn a_clerk_who_mistypes_is_told_where() {
    let ports = |ports: &str| rule(&format!("to: {{hosts: [a.test], ports: {ports}}}"));
    for wrong in [
        "[0]",
        "[65536]",
        "[-1]",
        "[\"443\"]",
        "[0443]",
        "[0x1bb]",
        "[443.0]",
        "[1_000]",
        "[8000-8100]",
        "443",
        "[http]",
        "[~]",
        "{a: 1}",
        "[[443]]",
        "[+443]",
        "[4e2]",
    ] {
        assert_eq!(codes(&ports(wrong)), ["wrong_type"], "{wrong}");
    }
    let private = |value: &str| rule(&format!("to: {{hosts: [a.test], private: {value}}}"));
    for wrong in [
        "yes", "no", "on", "True", "TRUE", "1", "\"true\"", "~", "[true]", "y",
    ] {
        assert_eq!(codes(&private(wrong)), ["wrong_type"], "{wrong}");
    }
    let id =
        |value: &str| rule("to: {hosts: [a.test]}").replace("id: r,", &format!("id: {value},"));
    for wrong in [
        "~", "null", "yes", "No", "12", "1.5", "0x1f", "", "[a]", "{a: b}", "1e3", ".inf", "off",
    ] {
        assert_eq!(codes(&id(wrong)), ["wrong_type"], "{wrong}");
    }
    assert_eq!(
        codes("version: 1\nname: \"a\\e[31m\"\n"),
        ["control_character"]
    );
    for wrong in ["\"\"", "a b", "\"a\\nb\"", "ä", "a/b"] {
        assert_eq!(codes(&id(wrong)), ["bad_name"], "{wrong}");
    }
    for (text, code) in [
        ("", "empty_file"),
        ("# only a comment\n", "empty_file"),
        ("~\n", "wrong_type"),
        ("- a\n", "wrong_type"),
        ("text\n", "wrong_type"),
        ("name: x\n", "missing_key"),
        ("version: 2\n", "unknown_version"),
        ("version: \"1\"\n", "unknown_version"),
        ("version: 1.0\n", "unknown_version"),
        ("version: ~\n", "unknown_version"),
        ("version: 1\nversion: 1\n", "duplicate_key"),
        ("version: 1\nrules:\n", "wrong_type"),
        ("version: 1\nrules: ~\n", "wrong_type"),
        ("version: 1\nrules: {id: a}\n", "wrong_type"),
        ("version: 1\nrules:\n\t- id: a\n", "yaml_syntax"),
        ("version: 1\nrules: &r []\n", "yaml_anchor"),
        ("version: 1\nrules: !!seq []\n", "yaml_tag"),
        ("version: 1\n<<: {name: x}\n", "unknown_key"),
        ("version: 1\n---\nversion: 1\n", "yaml_documents"),
        ("version: 1\n? [a]\n: b\n", "wrong_type"),
        ("version: 1\nname: 'x\n", "yaml_syntax"),
        ("version: 1\nallow: [a.test]\n", "unknown_key"),
        ("version: 1\nRules: []\n", "unknown_key"),
        ("version: 1\n\"rules\u{200b}\": []\n", "unknown_key"),
    ] {
        assert_eq!(codes(text), [code], "{text:?}");
    }
    assert!(errors(&private("yes")).contains("help: write `true`, without quotes"));
    assert!(
        errors(&ports("[8000-8100]"))
            .contains("help: write each port of its own, as in `[8000, 8001]`")
    );
    let tab = errors("version: 1\nrules:\n\t- id: a\n");
    assert!(
        tab.contains("p.yaml:3:2: error[yaml_syntax]") && tab.contains("indent with spaces"),
        "{tab}"
    );
    assert!(
        errors(&rule("to: {hosts: [*.a.test]}"))
            .contains("help: a wildcard must be in quotes: \"*.a.test\"")
    );
    assert!(errors(&rule("hosts: [a.test]")).contains("help: it belongs under `to:`"));
    assert!(
        errors(&rule("to: {hosts: a.test}")).contains("help: write it in brackets: `[a.test]`")
    );
}

#[test]
fn harmless_spellings_load() {
    for text in [
        "\u{feff}version: 1\r\nrules:\r\n  - id: r\r\n    action: allow\r\n    to: { hosts: [a.test] }\r\n",
        "---\nversion: 1\n...\n",
        "version: 1\nmode: enforce\n",
        "version: 1\nrules:\n- id: \"12\"\n  action: allow\n  to:\n    hosts:\n    - a.test\n",
        "{\"version\": 1, \"rules\": [{\"id\": \"r\", \"action\": \"deny\", \"to\": {\"hosts\": [\"any\"]}}]}",
        "version: 1\ndescription: |\n  yes: no\n  - ~\n",
    ] {
        assert_eq!(codes(text), ["loads"], "{text:?}");
    }
}

#[test]
fn the_schema_has_the_keys_that_the_loader_reads() {
    // The loader lists the keys it knows when it meets one that it doesn't know.
    let schema = schema();
    let keys_of = |name: &str| -> Vec<String> {
        let object = if name == "Policy" {
            &schema
        } else {
            &schema["$defs"][name]
        };
        assert_eq!(object["additionalProperties"], false, "{name}");
        object["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let known = |text: &str| -> Vec<String> {
        let rendered = errors(text);
        let (_, list) = rendered
            .split_once(" are: ")
            .unwrap_or_else(|| panic!("{rendered}"));
        let mut keys: Vec<String> = list
            .lines()
            .next()
            .unwrap()
            .split(", ")
            .map(str::to_owned)
            .collect();
        keys.sort();
        keys
    };
    for (name, text) in [
        ("Policy", "version: 1\nqqqqqqq: 1\n".to_owned()),
        ("Rule", rule("to: {hosts: [a.test]}, qqqqqqq: 1")),
        ("To", rule("to: {hosts: [a.test], qqqqqqq: 1}")),
        ("Http", rule("to: {hosts: [a.test]}, http: {qqqqqqq: 1}")),
        ("Credential", "version: 1\ncredentials:\n  - { name: c, source: {env: A}, attach: [{header: A, format: \"{}\"}], qqqqqqq: 1 }\n".to_owned()),
        ("Expose", "version: 1\ncredentials:\n  - { name: c, source: {env: A}, attach: [{header: A, format: \"{}\"}], expose: {env: B, qqqqqqq: 1} }\n".to_owned()),
        ("Header", "version: 1\ncredentials:\n  - { name: c, source: {env: A}, attach: [{header: A, format: \"{}\", qqqqqqq: 1}] }\n".to_owned()),
        ("Test", "version: 1\ntests:\n  - { name: t, request: \"GET https://a.test\", expect: deny, qqqqqqq: 1 }\n".to_owned()),
        ("Ask", rule("to: {hosts: [a.test]}, ask: {qqqqqqq: 1}")),
        ("Limits", rule("to: {hosts: [a.test]}, limits: {qqqqqqq: 1}")),
        ("Grpc", rule("to: {hosts: [a.test]}, http: {grpc: {service: a.B, qqqqqqq: 1}}")),
        ("Git", rule("to: {hosts: [a.test]}, http: {git: {qqqqqqq: 1}}")),
        ("Graphql", rule("to: {hosts: [a.test]}, http: {graphql: {operations: [], qqqqqqq: 1}}")),
        ("Mcp", rule("to: {hosts: [a.test]}, http: {mcp: {tools: [], qqqqqqq: 1}}")),
        ("Sandboxes", "version: 1\nsandboxes: { labels: {a: b}, qqqqqqq: 1 }\n".to_owned()),
        ("Budget", "version: 1\nbudgets:\n  - { name: b, per: sandbox, window: 1h, usd: 1, qqqqqqq: 1 }\n".to_owned()),
        ("Vault", "version: 1\ncredentials:\n  - { name: c, source: {vault: {mount: a, path: b, field: c, qqqqqqq: 1}}, attach: [{header: A, format: \"{}\"}] }\n".to_owned()),
        ("TestRequestParts", "version: 1\ntests:\n  - { name: t, request: {url: \"https://a.test\", qqqqqqq: 1}, expect: deny }\n".to_owned()),
    ] {
        let mut advertised = keys_of(name);
        advertised.sort();
        assert_eq!(advertised, known(&text), "{name}");
    }
}

#[test]
fn tests_in_the_file_report_every_difference() {
    let text = "\
version: 1
rules:
  - { id: r, action: allow, to: { hosts: [a.test], ports: [443, 8443] } }
tests:
  - { name: holds, request: \"GET https://a.test/x\", expect: allow, rule: r, reason: allowed }
  - { name: differs, request: \"GET https://b.test/x\", expect: allow, rule: r, credential: c, reason: allowed }
  - { name: rejected, request: { url: \"https://a.test/..\" }, expect: reject, reason: bad_path }
  - { name: tunnel, request: { url: \"https://a.test\", protocol: tcp }, expect: deny, reason: protocol_not_allowed }
  - { name: names, request: { url: \"https://a.test\", sni: b.test }, expect: reject, reason: sni_mismatch }
  - { name: ports, request: { url: \"https://a.test:8443\", connect: \"a.test:443\" }, expect: reject, reason: authority_mismatch }
  - { name: same, request: { method: POST, url: \"https://a.test\", connect: \"A.test\", sni: a.test. }, expect: allow }
  - { name: trace, request: \"TRACE https://a.test/\", expect: reject, reason: trace_denied }
  - { name: nonsense, request: \"GET a.test\", expect: reject, reason: bad_request }
";
    let outcomes = load(text).unwrap().run_tests();
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|outcome| !outcome.passed())
        .collect();
    assert_eq!(
        failed
            .iter()
            .map(|outcome| outcome.name.as_str())
            .collect::<Vec<_>>(),
        ["differs"]
    );
    let differs = failed.first().unwrap();
    assert_eq!((differs.line, differs.file.as_ref()), (6, "p.yaml"));
    assert_eq!(
        differs
            .differences
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [
            "verdict: expected `allow`, got `deny`",
            "reason: expected `allowed`, got `default_deny`",
            "rule: expected `r`, got none",
            "credential: expected `c`, got none",
        ]
    );
    let explanation = differs.explanation.as_ref().unwrap();
    assert_eq!(explanation.reason, Reason::DefaultDeny);
    assert!(explanation.considered.is_empty());
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.passed() == outcome.explanation.is_none())
    );
    assert_eq!(
        codes(
            "version: 1\ntests:\n  - { name: t, request: \"GET https://a.test\", expect: deny, reason: default_denied }\n"
        ),
        ["bad_reason"]
    );
}

#[test]
fn a_file_of_tests_is_run_against_a_policy_in_another_file() {
    let policy =
        load("version: 1\nrules:\n  - { id: r, action: allow, to: { hosts: [a.test] } }\n")
            .unwrap();
    let run = |text: &str| policy.run_cases(&Source::new("cases.yaml", text));
    let outcomes = run("\
tests:
  - { name: holds, request: \"GET https://a.test/x\", expect: allow, rule: r }
  - { name: near, request: \"GET https://a.test:8443/x\", expect: allow }
  - { name: never, request: \"GET https://a.test/..\", expect: deny }
")
    .unwrap();
    let [holds, near, never] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert!(holds.passed() && !near.passed() && !never.passed());
    assert_eq!((near.file.as_ref(), near.line), ("cases.yaml", 3));
    let considered = &near.explanation.as_ref().unwrap().considered;
    assert_eq!(
        considered
            .iter()
            .map(ToString::to_string)
            .collect::<String>(),
        "  allow rule r (p.yaml:3): fails on port (wants 443)\n"
    );
    assert_eq!(never.detail.as_deref(), Some("`..` leaves the root"));
    let codes = |text: &str| -> Vec<&'static str> {
        run(text)
            .unwrap_err()
            .iter()
            .map(|found| found.code)
            .collect()
    };
    assert_eq!(codes(""), ["empty_file"]);
    assert_eq!(codes("version: 1\n"), ["missing_key"]);
    assert_eq!(
        codes("version: 2\nrules: []\ntests: []\n"),
        ["unknown_version", "unknown_key"]
    );
    assert_eq!(
        codes(
            "tests: [{ name: t, request: \"GET https://a.test\", expect: deny, reason: default_denied }]\n"
        ),
        ["bad_reason"]
    );
    assert_eq!(run("version: 1\ntests: []\n"), Ok(Vec::new()));
}

#[test]
fn lints_point_at_what_probably_is_a_mistake() {
    let lints = |rules: &str| -> Vec<&'static str> {
        load(&format!("version: 1\nrules:\n{rules}"))
            .unwrap()
            .lints()
            .iter()
            .map(|lint| lint.code)
            .collect()
    };
    let allow = |keys: &str| lints(&format!("  - {{ id: r, action: allow, {keys} }}\n"));
    assert_eq!(allow("to: {hosts: [any]}"), ["any_host"]);
    assert_eq!(allow("to: {ips: [0.0.0.0/0]}"), ["any_host"]);
    assert_eq!(
        allow("to: {hosts: [\"*.com\"]}, allow_public_suffix: true"),
        ["broad_wildcard"]
    );
    assert_eq!(allow("to: {hosts: [\"*.internal\"]}"), ["broad_wildcard"]);
    assert_eq!(allow("to: {hosts: [localhost]}"), ["localhost_rule"]);
    assert_eq!(allow("to: {ips: [10.0.0.0/8]}"), ["private_closed"]);
    assert_eq!(
        allow("to: {hosts: [a.test]}, http: {methods: [PSOT]}"),
        ["unusual_method"]
    );
    assert_eq!(
        allow("to: {hosts: [a.test]}, http: {paths: [\"/x?y=*\"]}"),
        ["query_in_path"]
    );
    assert_eq!(
        allow("to: {hosts: [a.test]}, http: {methods: [GET], paths: [\"/**\"]}"),
        [] as [&str; 0]
    );
    assert_eq!(
        lints("  - { id: d, action: deny, to: {ips: [10.0.0.0/8]} }\n"),
        ["deny_by_address"]
    );
    assert_eq!(
        lints(
            "  - { id: a, action: allow, to: {hosts: [\"*.a.test\"]} }\n  - { id: b, action: allow, to: {hosts: [x.a.test]}, http: {methods: [GET]} }\n"
        ),
        ["redundant_rule"]
    );
    assert_eq!(
        lints(
            "  - { id: a, action: allow, to: {hosts: [\"*.a.test\"]} }\n  - { id: b, action: allow, to: {hosts: [a.test]} }\n"
        ),
        [] as [&str; 0]
    );
    let unused = load("version: 1\ncredentials:\n  - { name: c, source: {env: A}, attach: [{header: A, format: \"{}\"}] }\n").unwrap();
    assert_eq!(
        unused
            .lints()
            .iter()
            .map(|lint| lint.code)
            .collect::<Vec<_>>(),
        ["no_rules", "unused_credential"]
    );
}
