use serde_json::json;

use crate::desk::Desk;

const POLICY: &str = "\
version: 1
rules:
  - { id: read, action: allow, to: { hosts: [a.test] }, http: { methods: [GET, POST] }, credential: c }
  - { id: stop, action: deny, to: { hosts: [a.test] }, http: { paths: [/no] }, message: \"one\\ntwo\\u202e\" }
credentials:
  - { name: c, source: { env: C }, attach: [{ header: A, format: \"{}\" }] }
";

#[test]
fn the_exit_code_is_the_verdict() {
    let desk = Desk::with(&[("p.yaml", POLICY), ("none.yaml", "version: 1\n")]);
    desk.policy(&["explain", "p.yaml", "https://a.test/x?q=secret"])
        .assert(
            0,
            "\
allow: GET https://a.test/x?q=…
  reason: allowed: An allow rule of every layer matches and no deny rule does.
  rule: read (p.yaml:3)
  credential: c
  allow rule read (p.yaml:3): matches
  deny rule stop (p.yaml:4): fails on path (wants /no)
",
        );
    let denied = desk.policy(&["explain", "p.yaml", "GET https://a.test/no"]);
    assert_eq!(denied.code, 1);
    assert!(
        denied.out.contains("  message: one\ntwo\\u{202e}\n"),
        "{}",
        denied.out
    );
    let layered = desk.policy(&[
        "explain",
        "p.yaml",
        "GET https://a.test/x",
        "--layer",
        "none.yaml",
    ]);
    assert_eq!(layered.code, 1);
    desk.policy(&["explain", "p.yaml", "GET https://a.test/..\u{1b}"])
        .assert(
            1,
            "\
reject: GET https://a.test/..\\u{1b}
  reason: bad_path (the byte 0x1b, which must be escaped)
  no rule was asked: this is no canonical request
",
        );
    assert_eq!(
        desk.policy(&["explain", "missing.yaml", "GET https://a.test/"])
            .code,
        2
    );
    let piped = desk.policy_reading(POLICY, &["explain", "-", "GET https://a.test/x"]);
    assert_eq!(piped.code, 0);
}

#[test]
fn what_a_connection_says_has_to_agree() {
    let desk = Desk::with(&[("p.yaml", POLICY), ("body", "\u{0}binary")]);
    let reason = |args: &[&str]| {
        let mut all = vec!["explain", "--json", "p.yaml", "POST https://a.test/x"];
        all.extend(args);
        let run = desk.policy(&all);
        (run.code, run.json()[0]["reason"].clone())
    };
    assert_eq!(
        reason(&["--sni", "A.test.", "--connect", "a.test:443"]),
        (0, json!("allowed"))
    );
    assert_eq!(reason(&["--sni", "b.test"]), (1, json!("sni_mismatch")));
    assert_eq!(
        reason(&["--connect", "a.test:444"]),
        (1, json!("authority_mismatch"))
    );
    assert_eq!(
        reason(&["-H", "Host: a.test:443", "-H", "X-Y:1"]),
        (0, json!("allowed"))
    );
    assert_eq!(
        reason(&["-H", "host: b.test"]),
        (1, json!("authority_mismatch"))
    );
    assert_eq!(reason(&["--body", "@body"]), (0, json!("allowed")));
    assert_eq!(reason(&["--body", "text"]), (0, json!("allowed")));
    let usage = |args: &[&str]| {
        let mut all = vec!["explain", "p.yaml", "GET https://a.test/x"];
        all.extend(args);
        let run = desk.policy(&all);
        assert_eq!((run.code, run.out.as_str()), (2, ""));
        run.err
    };
    assert_eq!(
        usage(&["-H", "no header\u{1b}"]),
        "outgate: `no header\\u{1b}` is no header; write it as `Name: value`\n"
    );
    assert_eq!(
        usage(&["--body", "@none"]),
        "outgate: `none` does not exist; check the spelling of the path\n"
    );
}
