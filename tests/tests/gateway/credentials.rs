//! Credentials: added after the decision, seen by the upstream alone, and worthless in the guest.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use outgate_tests::harness::{SECRET, World, eventually};
use outgate_tests::lab::{hex, pattern, pattern_sha256};

const WITH_CREDENTIAL: &str = r#"
rules:
  - id: api
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET, POST, PUT], paths: ["/v1/**", "/redirect"] }
    credential: api
  - id: open
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET], paths: ["/open/**"] }
  - id: other
    action: allow
    to: { hosts: [b.test], private: true }
  - id: plain
    action: allow
    protocol: http
    to: { hosts: [a.test], private: true }
credentials:
  - name: api
    source: { env: LAB_SECRET }
    expose: { env: API_TOKEN, shape: "ghp_{36}" }
    attach: [{ header: Authorization, format: "Bearer {}" }]
"#;

fn placeholder(world: &World) -> String {
    world.registration().granted.env["API_TOKEN"].clone()
}

#[track_caller]
fn secret_is_nowhere_near_the_guest(world: &World) {
    let encoded = BASE64_STANDARD.encode(SECRET);
    for (what, text) in [
        ("gateway's output", world.home.output()),
        (
            "audit log",
            world
                .audit()
                .records()
                .iter()
                .map(|r| r.0.to_string())
                .collect(),
        ),
        ("grant", format!("{:?}", world.registration().granted)),
    ] {
        assert!(
            !text.contains(SECRET) && !text.contains(&encoded),
            "the secret is in the {what}"
        );
    }
}

#[test]
fn only_the_upstream_sees_the_secret() {
    let world = World::new(WITH_CREDENTIAL);
    let held = placeholder(&world);
    assert!(
        held.starts_with("ghp_") && held.len() == 40,
        "shaped like the real one: {held}"
    );
    let environment = world.guest().program("env").run().succeeded().text();
    assert!(environment.contains(&format!("API_TOKEN={held}")) && !environment.contains(SECRET));

    for version in ["--http1.1", "--http2"] {
        world.lab.journal.clear();
        let url = "https://a.test/v1/x";
        let sent = format!("Authorization: Bearer {held}");
        world
            .guest()
            .curl(url, [version, "-H", &sent])
            .expect_status(200);
        world.guest().curl(url, [version]).expect_status(200);
        for received in world.lab.journal.all() {
            assert_eq!(
                received.header("authorization"),
                [format!("Bearer {SECRET}")]
            );
        }
    }
    let record = world
        .audit()
        .wait_for("the use", |r| r.text("credential.name") == "api");
    assert!(!record.0.to_string().contains(SECRET));
    secret_is_nowhere_near_the_guest(&world);
}

#[test]
fn b139_an_attached_header_replaces_whatever_the_guest_sent() {
    let world = World::new(WITH_CREDENTIAL);
    let url = "https://a.test/v1/x";
    let sent = [
        "--http1.1",
        "-H",
        "Authorization: Bearer MINE",
        "-H",
        "authorization: Basic eA==",
    ];
    world.guest().curl(url, sent).expect_status(200);
    assert_eq!(
        world.lab.journal.all()[0].header("authorization"),
        [format!("Bearer {SECRET}")]
    );
}

#[test]
fn b137_the_rule_that_allows_decides_about_the_credential() {
    let world = World::new(WITH_CREDENTIAL);
    world
        .guest()
        .curl("https://a.test/open/x", [""; 0])
        .expect_status(200);
    assert_eq!(world.lab.journal.all()[0].header("authorization"), [""; 0]);
}

#[test]
fn b141_b130_a_placeholder_never_leaves_to_a_host_it_does_not_belong_to() {
    let world = World::new(WITH_CREDENTIAL);
    let held = placeholder(&world);
    let basic = BASE64_STANDARD.encode(format!("user:{held}"));
    let escaped: String = held.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let b = "https://b.test/x";
    for options in [
        vec!["-H".to_owned(), format!("Authorization: Bearer {held}")],
        vec!["-H".to_owned(), format!("Authorization: Basic {basic}")],
        vec!["-H".to_owned(), format!("X-Anything: prefix-{held}-suffix")],
        vec!["-H".to_owned(), format!("Cookie: token={held}")],
        vec!["-H".to_owned(), format!("X-Escaped: {escaped}")],
    ] {
        let denied = world.guest().curl(b, &options);
        let id = denied.expect_denied(403, "placeholder_out_of_scope");
        assert_eq!(world.audit().decision(&id).text("host"), "b.test");
    }
    for path in [
        format!("/x?token={held}"),
        format!("/{held}"),
        format!("/x?t={escaped}"),
    ] {
        let denied = world
            .guest()
            .curl(&format!("https://b.test{path}"), [""; 0]);
        denied.expect_denied(403, "placeholder_out_of_scope");
    }
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn c13_a_placeholder_never_leaves_in_the_clear() {
    let world = World::new(WITH_CREDENTIAL);
    let sent = format!("Authorization: Bearer {}", placeholder(&world));
    let url = "http://a.test/v1/x";
    let denied = world.guest().curl(url, ["-H", &sent]);
    denied.expect_denied(403, "placeholder_out_of_scope");
    assert_eq!(world.lab.journal.all(), []);
    // Without it the request is an ordinary one, and carries no secret either.
    world.guest().curl(url, [""; 0]).expect_status(200);
    assert_eq!(world.lab.journal.all()[0].header("authorization"), [""; 0]);
}

#[test]
fn c09_each_hop_is_judged_and_injected_anew() {
    let world = World::new(WITH_CREDENTIAL);
    let sent = format!("Authorization: Bearer {}", placeholder(&world));
    let hop = "https://a.test/redirect?to=%2Fv1%2Fnext";
    world
        .guest()
        .curl(hop, ["--location", "-H", &sent])
        .expect_status(200);
    let last = world.lab.journal.all().pop().expect("the second hop");
    assert_eq!(
        (last.target.as_str(), last.header("authorization")),
        ("/v1/next", vec![&*format!("Bearer {SECRET}")])
    );

    world.lab.journal.clear();
    let away = "https://b.test/x".replace(':', "%3A").replace('/', "%2F");
    let hop = &format!("https://a.test/redirect?to={away}");
    let carried = world.guest().curl(hop, ["--location-trusted", "-H", &sent]);
    carried.expect_denied(403, "placeholder_out_of_scope");
    assert_eq!(
        world.lab.journal.all().len(),
        1,
        "only the first hop arrived"
    );
}

#[test]
fn b087_bodies_pass_byte_for_byte_beside_a_credential() {
    let world = World::new(WITH_CREDENTIAL);
    let body: Vec<u8> = pattern(1_000_000).flatten().collect();
    let url = "https://a.test/v1/binary";
    for version in ["--http1.1", "--http2"] {
        world.lab.journal.clear();
        world
            .guest()
            .curl_with_input(url, [version, "--data-binary", "@-"], body.clone())
            .expect_status(200);
        let received = eventually("the whole body", || {
            world
                .lab
                .journal
                .all()
                .pop()
                .filter(|received| received.complete)
        });
        assert_eq!(received.body_length, 1_000_000);
        assert_eq!(received.body_sha256, pattern_sha256(1_000_000));
        assert_eq!(
            received.header("authorization"),
            [format!("Bearer {SECRET}")]
        );
    }
}

#[test]
fn c15_a_credential_that_cannot_be_fetched_stops_the_request() {
    let world = World::new(&WITH_CREDENTIAL.replace("LAB_SECRET", "LAB_SECRET_THAT_IS_NOT_SET"));
    let reply = world.guest().curl("https://a.test/v1/x", [""; 0]);
    let id = reply.expect_denied(503, "credential_unavailable");
    assert_eq!(world.audit().decision(&id).text("host"), "a.test");
    assert_eq!(world.lab.journal.all(), []);
    // Rules without it are not touched.
    world
        .guest()
        .curl("https://a.test/open/x", [""; 0])
        .expect_status(200);
}

#[test]
fn a_credential_from_a_file_follows_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "first-value-of-the-file\n").expect("writable");
    let source = format!("source: {{ file: \"{}\" }}", file.display());
    let world = World::new(&WITH_CREDENTIAL.replace("source: { env: LAB_SECRET }", &source));
    let url = "https://a.test/v1/x";
    world.guest().curl(url, [""; 0]).expect_status(200);
    assert_eq!(
        world.lab.journal.all()[0].header("authorization"),
        ["Bearer first-value-of-the-file"]
    );

    let fresh = folder.path().join("fresh");
    std::fs::write(&fresh, "second-value-of-the-file").expect("writable");
    std::fs::rename(&fresh, &file).expect("renamed");
    eventually("the new value is used", || {
        world.lab.journal.clear();
        world.guest().curl(url, [""; 0]).expect_status(200);
        let received = world.lab.journal.all().pop()?;
        (received.header("authorization") == ["Bearer second-value-of-the-file"]).then_some(())
    });
}

#[test]
fn b174_the_audit_log_keeps_no_values() {
    let world = World::new(WITH_CREDENTIAL);
    let url = "https://a.test/v1/x?token=query-value-7f3a&page=2";
    let sent = [
        "-H",
        "Cookie: session=cookie-value-91c2",
        "-H",
        "Referer: https://x.test/?t=referer-value-55d0",
    ];
    world.guest().curl(url, sent).expect_status(200);
    let request = world
        .audit()
        .wait_for("the request", |r| r.text("kind") == "request");
    assert_eq!(
        request.value("query_names"),
        &serde_json::json!(["token", "page"])
    );
    world
        .audit()
        .wait_for("the response", |r| r.text("kind") == "response");
    let log: String = world
        .audit()
        .records()
        .iter()
        .map(|r| r.0.to_string())
        .collect();
    for value in [
        "query-value-7f3a",
        "cookie-value-91c2",
        "referer-value-55d0",
        SECRET,
    ] {
        assert!(!log.contains(value), "`{value}` is in the audit log");
    }
    assert!(!log.contains(&hex(SECRET.as_bytes())));
}
