use crate::desk::Desk;

const BASE: &str =
    "version: 1\nname: base\nrules:\n  - { id: all, action: allow, to: { hosts: [any] } }\n";
const POLICY: &str = "\
version: 1
rules:
  - { id: read, action: allow, to: { hosts: [a.test] }, http: { paths: [\"/x/**\"] }, credential: c }
  - { id: \"no\", action: deny, to: { ips: [10.0.0.0/8] }, message: \"no way\" }
credentials:
  - { name: c, source: { env: C }, expose: { env: E }, attach: [{ header: A, format: \"Bearer {}\" }] }
tests:
  - { name: t, request: \"GET https://a.test/x/y\", expect: allow }
";

#[test]
fn the_effective_policy_has_the_place_of_every_rule() {
    let desk = Desk::with(&[("base.yaml", BASE), ("p.yaml", POLICY)]);
    let run = desk.policy(&["show", "base.yaml", "--layer", "p.yaml"]);
    let (shown, revision) = run.out.rsplit_once("# revision: ").unwrap();
    assert_eq!(
        shown,
        "\
# layer 0 of 2; all of them must allow
version: 1
name: \"base\"
rules:
  - id: all # base.yaml:4
    action: allow
    protocol: https
    to: { hosts: [\"any\"], ports: [443] }
---
# layer 1 of 2; all of them must allow
version: 1
rules:
  - id: read # p.yaml:3
    action: allow
    protocol: https
    to: { hosts: [\"a.test\"], ports: [443] }
    http: { paths: [\"/x/**\"] }
    credential: c
  - id: \"no\" # p.yaml:4
    action: deny
    to: { ips: [\"10.0.0.0/8\"] }
    message: \"no way\"
credentials:
  - name: c
    source: { env: \"C\" }
    expose: { env: \"E\", shape: \"outgate_{32}\" }
    attach: [{ header: \"a\", format: \"Bearer {}\" }]
# total: 2 layers, 3 rules (2 allow, 1 deny), 1 credential, 1 test
"
    );
    assert_eq!((run.code, revision.trim_end().len()), (0, 64));
}

#[test]
fn json_has_the_same_and_a_shown_layer_is_a_policy() {
    let desk = Desk::with(&[("p.yaml", POLICY)]);
    let json = desk.policy(&["show", "--json", "p.yaml"]).json();
    let rule = &json[0]["layers"][0]["rules"][1];
    assert_eq!(
        (rule["id"].as_str(), rule["line"].as_u64()),
        (Some("no"), Some(4))
    );
    let shown = desk.policy(&["show", "p.yaml"]);
    let again = desk.policy_reading(&shown.out, &["explain", "-", "GET https://a.test/x/y"]);
    assert_eq!(again.code, 0, "{}", again.err);
    let broken = desk.policy_reading("rules: 1\n", &["show", "-"]);
    assert_eq!(broken.code, 2);
    assert!(
        broken.err.contains("<stdin>:1:8: error[wrong_type]"),
        "{}",
        broken.err
    );
}
