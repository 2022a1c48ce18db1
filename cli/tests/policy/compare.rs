use crate::desk::Desk;

const NARROW: &str = "\
version: 1
rules:
  - { id: r, action: allow, to: { hosts: [a.test] }, http: { methods: [GET], paths: [\"/x/*\"] } }
";
const WIDE: &str = "\
version: 1
rules:
  - { id: r, action: allow, to: { hosts: [a.test] }, http: { methods: [GET], paths: [\"/x/**\"] } }
";

#[test]
fn diff_tells_wider_from_narrower_by_its_exit_code() {
    let desk = Desk::with(&[
        ("narrow.yaml", NARROW),
        ("wide.yaml", WIDE),
        ("bad.yaml", "x: 1\n"),
    ]);
    let code = |old, new| desk.policy(&["diff", old, new]).code;
    assert_eq!(code("narrow.yaml", "wide.yaml"), 3);
    assert_eq!(code("wide.yaml", "narrow.yaml"), 1);
    assert_eq!(code("wide.yaml", "wide.yaml"), 0);
    assert_eq!(code("wide.yaml", "bad.yaml"), 2);
    let wider = desk.policy(&["diff", "narrow.yaml", "wide.yaml"]);
    assert!(wider.out.contains("https://a.test/x/"), "{}", wider.out);
    assert_eq!(
        desk.policy(&["diff", "--json", "narrow.yaml", "wide.yaml"])
            .json()
            .len(),
        1
    );
}

#[test]
fn within_proves_or_shows_a_request() {
    let desk = Desk::with(&[
        ("narrow.yaml", NARROW),
        ("wide.yaml", WIDE),
        ("bad.yaml", "x: 1\n"),
    ]);
    let within = |file, baseline| desk.policy(&["within", file, baseline]);
    assert_eq!(within("narrow.yaml", "wide.yaml").code, 0);
    let beyond = within("wide.yaml", "narrow.yaml");
    assert_eq!(beyond.code, 1);
    assert!(beyond.out.contains("https://a.test/x/"), "{}", beyond.out);
    assert_eq!(within("bad.yaml", "wide.yaml").code, 2);
}
