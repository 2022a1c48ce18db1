//! Rules that look inside of requests, judged by real clients: git's pushes by their refs, GraphQL by
//! its fields, MCP by its tools, headers and queries by their values.

use outgate_tests::harness::World;

/// Runs git in the copy of the demo repository, as an author that git accepts.
fn git(world: &World, arguments: &[&str]) -> outgate_tests::guest::Finished {
    let identity = [
        "-c",
        "user.name=Agent",
        "-c",
        "user.email=agent@a.test",
        "-C",
        "copy",
    ];
    world
        .guest()
        .program("git")
        .args(identity)
        .args(arguments.iter().copied())
        .run()
}

#[test]
fn a_push_is_judged_by_every_ref_that_it_changes() {
    let world = World::new(
        r#"
rules:
  - id: own-branches
    action: allow
    to: { hosts: [a.test], private: true }
    http: { git: { repos: ["git/demo"], operations: [fetch, push], refs: ["refs/heads/agent/**"] } }
"#,
    );
    let url = "https://a.test/git/demo.git";
    let clone = world.guest().program("git");
    clone
        .args(["clone", "--quiet", url, "copy"])
        .run()
        .succeeded();
    git(&world, &["commit", "--quiet", "--allow-empty", "-m", "x"]).succeeded();
    git(
        &world,
        &["push", "--quiet", "origin", "HEAD:refs/heads/agent/one"],
    )
    .succeeded();

    let main = git(&world, &["push", "--quiet", "origin", "HEAD:main"]);
    assert!(!main.stderr.is_empty(), "a push to main went through");
    // One ref that isn't allowed spoils the whole push.
    let both = git(
        &world,
        &[
            "push",
            "--quiet",
            "origin",
            "HEAD:refs/heads/agent/two",
            "HEAD:refs/tags/v1",
        ],
    );
    assert!(!both.stderr.is_empty(), "a push with a tag went through");
    git(
        &world,
        &["push", "--quiet", "origin", ":refs/heads/agent/one"],
    )
    .succeeded();

    let refs = git(&world, &["ls-remote", "origin"]).succeeded().text();
    let names: Vec<&str> = refs
        .lines()
        .filter_map(|line| line.split('\t').nth(1))
        .collect();
    assert_eq!(names, ["HEAD", "refs/heads/main"]);
    let denied = world.audit().wait_for("the denied push", |r| {
        r.text("kind") == "request" && r.text("verdict") == "deny"
    });
    assert_eq!(denied.text("closest.failed"), "git");
    assert_eq!(denied.text("path"), "/git/demo.git/git-receive-pack");
}

#[test]
fn a_repository_that_may_be_fetched_may_not_be_pushed_to() {
    let world = World::new(
        r#"
rules:
  - id: fetch
    action: allow
    to: { hosts: [a.test], private: true }
    http: { git: { operations: [fetch] } }
"#,
    );
    let clone = world.guest().program("git");
    let url = "https://a.test/git/demo.git";
    clone
        .args(["clone", "--quiet", url, "copy"])
        .run()
        .succeeded();
    git(&world, &["commit", "--quiet", "--allow-empty", "-m", "x"]).succeeded();
    let push = git(&world, &["push", "--quiet", "origin", "HEAD:new"]);
    assert!(push.stderr.contains("403"), "{}", push.stderr);
    let other = world
        .guest()
        .curl("https://a.test/git/demo.git/HEAD", [""; 0]);
    other.expect_denied(403, "default_deny");
}

#[test]
fn graphql_is_judged_by_its_root_fields_and_arrives_unchanged() {
    let world = World::new(
        r#"
rules:
  - id: read-and-comment
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [POST], paths: [/public/graphql], graphql: { operations: [query, mutation.addComment] } }
"#,
    );
    let ask = |query: &str| {
        let body = serde_json::json!({ "query": query }).to_string();
        let options = [
            "-H",
            "Content-Type: application/json",
            "--data-binary",
            "@-",
        ];
        let reply =
            world
                .guest()
                .curl_with_input("https://a.test/public/graphql", options, body.clone());
        (body, reply)
    };
    for good in [
        "{ viewer { login } }",
        "query Q { a: viewer { login } }",
        "mutation { addComment(body: \"mutation { deleteRepository }\") { id } }",
        "mutation M { x: addComment(body: \"y\") { id } }",
    ] {
        world.lab.journal.clear();
        let (body, reply) = ask(good);
        reply.expect_status(200);
        assert_eq!(world.lab.journal.all()[0].body_text, Some(body));
    }
    world.lab.journal.clear();
    for bad in [
        "mutation { deleteRepository(id: 1) { id } }",
        "mutation { addComment: deleteRepository(id: 1) { id } }",
        "mutation { addComment(body: \"x\") { id } deleteRepository(id: 1) { id } }",
        "mutation { ...F } fragment F on Mutation { deleteRepository(id: 1) { id } }",
        "query addComment { viewer { id } } mutation X { deleteRepository(id: 1) { id } }",
        "subscription { all }",
        "mutation {",
    ] {
        let (_, reply) = ask(bad);
        reply.expect_denied(403, "default_deny");
    }
    assert_eq!(world.lab.journal.all(), [], "a denied operation left");
}

#[test]
fn headers_queries_and_media_types_are_judged() {
    let world = World::new(
        r#"
rules:
  - id: versioned
    action: allow
    to: { hosts: [a.test], private: true }
    http:
      paths: ["/public/**"]
      query: { dry_run: ["true"] }
      headers: { x-api-version: ["2024-*"] }
      content_types: [application/json]
"#,
    );
    let send = |url: &str, version: &str, media: &str| {
        let version = format!("X-Api-Version: {version}");
        let media = format!("Content-Type: {media}");
        let options = ["-H", &version, "-H", &media, "--data-binary", "{}"];
        world.guest().curl(url, options)
    };
    let good = "https://a.test/public/x?dry_run=true";
    send(good, "2024-05", "application/json; charset=utf-8").expect_status(200);
    world.lab.journal.clear();
    for (url, version, media) in [
        ("https://a.test/public/x", "2024-05", "application/json"),
        (
            "https://a.test/public/x?dry_run=false",
            "2024-05",
            "application/json",
        ),
        (
            "https://a.test/public/x?dry_run=true&dry_run=false",
            "2024-05",
            "application/json",
        ),
        (good, "2023-05", "application/json"),
        (good, "2024-05", "text/plain"),
    ] {
        send(url, version, media).expect_denied(403, "default_deny");
    }
    assert_eq!(world.lab.journal.all(), []);
}
