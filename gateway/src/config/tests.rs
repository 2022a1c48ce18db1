//! What is refused, where, and in which words.

use std::path::Path;

use super::*;
use crate::listener::MAX_CONNECTIONS;

const GOOD: &str = r#"version: 1
admin: { socket: /run/outgate/admin.sock }
audit: { dir: audit, durability: fsync }
ca: { dir: /var/lib/outgate/ca }
upstream:
  dns: ["9.9.9.9:53"]
  roots: [corporate.pem]
proxies:
  - name: shared
    listen: 127.0.0.1:3128
  - name: build
    listen: unix:/run/outgate/build.sock
    mode: "0660"
    sandbox: build
    max_connections: 64
sandboxes:
  - id: ci
    labels: { team: infra }
    policies: [policies/ci.yaml, preset:github-read]
    token: { env: CI_TOKEN }
  - id: build
    tier: container
"#;

fn parse(text: &str) -> Result<GatewayFile, ConfigError> {
    GatewayFile::parse("gateway.yaml", text, Path::new("/etc/outgate"))
}

/// The file with `from` replaced, and what is said of it.
fn refused(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn a_whole_file_is_understood() {
    let file = parse(GOOD).unwrap();
    assert_eq!(
        file.admin.as_deref(),
        Some(Path::new("/run/outgate/admin.sock"))
    );
    assert_eq!(
        file.audit_dir.as_deref(),
        Some(Path::new("/etc/outgate/audit"))
    );
    assert_eq!(file.durability, Durability::Fsync);
    assert_eq!(file.roots, [Path::new("/etc/outgate/corporate.pem")]);
    let (at, shared) = &file.proxies[0];
    assert_eq!(at.to_string(), "127.0.0.1:3128");
    assert_eq!(
        (shared.sandbox.as_deref(), shared.max_connections),
        (None, MAX_CONNECTIONS)
    );
    let (at, build) = &file.proxies[1];
    let path = PathBuf::from("/run/outgate/build.sock");
    assert_eq!(*at, ListenAt::Unix { path, mode: 0o660 });
    assert_eq!(
        (build.sandbox.as_deref(), build.max_connections),
        (Some("build"), 64)
    );
    let ci = &file.sandboxes[0];
    assert_eq!(
        ci.policies,
        [
            Path::new("/etc/outgate/policies/ci.yaml"),
            Path::new("preset:github-read")
        ]
    );
    assert_eq!(
        (ci.tier.as_str(), &ci.token),
        ("external", &Some(Token::Environment("CI_TOKEN".into())))
    );
    assert_eq!(
        (file.sandboxes[1].tier.as_str(), &file.sandboxes[1].token),
        ("container", &None)
    );
}

#[test]
fn b011_an_unknown_key_is_an_error_with_its_line() {
    let expected = "\
gateway.yaml:9:5: error: `nane` is no key here
9 |   - nane: shared
  |     ^
  help: the keys here are `name`, `listen`, `mode`, `sandbox`, `max_connections`";
    assert_eq!(refused("name: shared", "nane: shared"), expected);
    for (from, to) in [
        ("audit: {", "audits: {"),
        ("durability: fsync", "durabilty: fsync"),
        ("socket: /run", "sock: /run"),
        ("dns: [", "dsn: ["),
        ("id: ci", "id: ci\n    token_sha256: x"),
        ("token: { env: CI_TOKEN }", "token: { envs: CI_TOKEN }"),
    ] {
        assert!(refused(from, to).contains("error: `"), "{to}");
    }
}

#[test]
fn values_that_mean_nothing_are_errors_with_help() {
    for (from, to, message) in [
        (
            "version: 1",
            "version: 2",
            "this is version 2 of the language",
        ),
        (
            "127.0.0.1:3128",
            "localhost:3128",
            "`localhost:3128` is no place to listen",
        ),
        ("127.0.0.1:3128", "3128", "`3128` is no place to listen"),
        (
            "9.9.9.9:53",
            "9.9.9.9",
            "`9.9.9.9` is no address of a name server",
        ),
        (
            "mode: \"0660\"",
            "mode: \"0999\"",
            "`0999` are no permission bits",
        ),
        (
            "unix:/run/outgate/build.sock",
            "127.0.0.1:3129",
            "`mode:` is for unix sockets",
        ),
        (
            "max_connections: 64",
            "max_connections: 0",
            "`0` is no number of connections",
        ),
        (
            "sandbox: build",
            "sandbox: built",
            "there is no sandbox `built`",
        ),
        ("id: build", "id: ci", "`ci` is there twice"),
        ("name: build", "name: shared", "`shared` is there twice"),
        (
            "    token: { env: CI_TOKEN }\n",
            "",
            "nobody could use `shared`: no sandbox has a token",
        ),
        (
            "env: CI_TOKEN",
            "sha256: hunter2",
            "this is no SHA-256 of a token",
        ),
        (
            "durability: fsync",
            "durability: none",
            "`none` is not understood here",
        ),
        ("id: build", "id: [build]", ""),
        ("version: 1\n", "", "`version:` is missing"),
        ("ca: {", "audit: {}\nca: {", "`audit` is there twice"),
    ] {
        let said = refused(from, to);
        assert!(said.contains(&format!("error: {message}")), "{to}: {said}");
        assert!(message.is_empty() || said.contains("\n  help: "), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn everything_wrong_is_said_at_once_and_in_order() {
    let text = GOOD
        .replace("sandbox: build", "sandbox: x")
        .replace("9.9.9.9:53", "y");
    let error = parse(&text).unwrap_err();
    let lines: Vec<_> = error.problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [6, 14]);
}

#[test]
fn what_hides_meaning_is_refused() {
    for text in [
        "version: 1\nadmin: &a { socket: x }\nproxies: *a\n",
        "version: 1\nadmin: { socket: x }\n---\nversion: 1\n",
        "",
        "[]",
        "version: 1\n",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}
