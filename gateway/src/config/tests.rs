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
    protocols: [socks5]
    sandbox: build
    max_connections: 64
  - name: outside
    listen: "[::]:3443"
    tls: { minted: proxy.corp.test }
transparent:
  - name: netns
    listen: 10.200.0.1:3129
    mode: redirect
    sources: { 10.200.0.0/24: build, "10.200.0.7/32": ci }
  - name: led
    listen: "[fd00::1]:3130"
    mode: tproxy
    sandbox: ci
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
    let both = Protocols {
        http: true,
        socks5: true,
    };
    let shared = &file.listeners[0];
    assert_eq!(shared.at.to_string(), "127.0.0.1:3128");
    assert_eq!(shared.who, Who::Proven);
    assert_eq!(shared.kind, ListenerKind::Proxy(both, None));
    assert_eq!(shared.max_connections, MAX_CONNECTIONS);
    let build = &file.listeners[1];
    let path = PathBuf::from("/run/outgate/build.sock");
    assert_eq!(build.at, ListenAt::Unix { path, mode: 0o660 });
    assert_eq!(build.who, Who::Only("build".into()));
    let socks = Protocols {
        http: false,
        ..both
    };
    assert_eq!(build.kind, ListenerKind::Proxy(socks, None));
    assert_eq!(build.max_connections, 64);
    let name = Destination::parse("proxy.corp.test").unwrap();
    let minted = ListenerCertificate::Minted(name);
    assert_eq!(
        file.listeners[2].kind,
        ListenerKind::Proxy(both, Some(minted))
    );
    let netns = &file.listeners[3];
    assert_eq!(netns.kind, ListenerKind::Transparent(Origin::Redirect));
    let sources = [("10.200.0.0/24", "build"), ("10.200.0.7/32", "ci")];
    let sources = sources.map(|(network, id)| (network.parse().unwrap(), id.into()));
    assert_eq!(netns.who, Who::Sources(sources.to_vec()));
    let led = &file.listeners[4];
    assert_eq!(
        led.at,
        ListenAt::Transparent("[fd00::1]:3130".parse().unwrap())
    );
    assert_eq!(led.who, Who::Only("ci".into()));
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
  help: the keys here are `name`, `listen`, `mode`, `protocols`, `tls`, `sandbox`, `max_connections`";
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
            "dns.example",
            "`dns.example` is no name server",
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
            "protocols: [socks5]",
            "protocols: []",
            "a listener that speaks nothing",
        ),
        (
            "protocols: [socks5]",
            "protocols: [socks4]",
            "`socks4` is not understood here",
        ),
        ("proxy.corp.test", "proxy corp", "`proxy corp`: "),
        (
            "10.200.0.0/24: build",
            "10.200.0.1/24: build",
            "`10.200.0.1/24` is no network",
        ),
        (
            "10.200.0.0/24: build",
            "10.200.0.0/24: built",
            "there is no sandbox `built`",
        ),
        (
            "    mode: tproxy\n    sandbox: ci\n",
            "    mode: tproxy\n",
            "it is not said whose connections come to `led`",
        ),
        (
            "    mode: tproxy\n",
            "    mode: nat\n",
            "`nat` is not understood here",
        ),
        (
            "10.200.0.1:3129",
            "unix:x",
            "`unix:x` is no place to listen",
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
    assert_eq!(lines, [6, 15]);
}

#[test]
fn upstreams_can_be_reached_by_encrypted_dns_and_a_next_hop() {
    let text = GOOD
        .replace(
            "dns: [\"9.9.9.9:53\"]",
            "dns: [\"9.9.9.9:53\", \"tls://192.0.2.1#dns.example\"]",
        )
        .replace(
            "  roots:",
            r#"  next_hop:
    proxy: http://proxy.corp.test:3128
    credentials: { file: proxy.secret }
    no_proxy: ["10.0.0.0/8", "*.corp.test"]
  roots:"#,
        );
    let file = parse(&text).unwrap();
    let servers: Vec<_> = file.dns.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["9.9.9.9:53", "tls://192.0.2.1:853#dns.example"]);
    let hop = file.next_hop.unwrap();
    assert_eq!(hop.proxy.to_string(), "http://proxy.corp.test:3128");
    assert_eq!(
        hop.credentials.unwrap().to_string(),
        "the file `/etc/outgate/proxy.secret`"
    );
    assert_eq!((hop.no_proxy.len(), hop.danger_proxy_resolves), (2, false));
    assert_eq!(file.denied_names, DeniedNames::NxDomain);
    let refused = parse(&format!("{text}names: {{ denied: refused }}\n")).unwrap();
    assert_eq!(refused.denied_names, DeniedNames::Refused);
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

/// The keys that may stand where `zzz` does, from what is said of it.
fn keys(text: &str) -> Vec<String> {
    let error = parse(text).unwrap_err();
    let help = error.problems[0].help.clone().unwrap_or_default();
    let quoted = help.split('`').skip(1).step_by(2);
    let keys: Vec<_> = quoted.map(str::to_owned).collect();
    assert!(!keys.is_empty(), "{text}: {error}");
    keys
}

#[test]
fn docs_gateway_md_lists_every_key_and_no_other() {
    let page = include_str!("../../../docs/gateway.md");
    let table = page.split("## The file").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let mut listed: Vec<_> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|line| {
            let cell = line.split(" | ").next().unwrap().trim_end_matches('`');
            cell.split("`, `").map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let mut known = Vec::new();
    for key in keys("zzz: 1") {
        let (begin, path) = match key.as_str() {
            "proxies" | "transparent" | "sandboxes" => ("- ", format!("{key}[].")),
            "version" => {
                known.push(key);
                continue;
            }
            _ => ("", format!("{key}.")),
        };
        for inner in keys(&format!("version: 1\n{key}:\n  {begin}zzz: 1\n")) {
            let place =
                format!("version: 1\n{key}:\n  {begin}name: n\n    {inner}: {{ zzz: 1 }}\n");
            match format!("{key}.{inner}").as_str() {
                "proxies.tls" => {
                    for tls in keys(&place) {
                        if tls != "files" {
                            known.push(format!("{path}tls.{tls}"));
                            continue;
                        }
                        let files = place.replace("{ zzz: 1 }", "{ files: { zzz: 1 } }");
                        known.extend(
                            keys(&files)
                                .iter()
                                .map(|file| format!("{path}tls.files.{file}")),
                        );
                    }
                }
                _ => known.push(format!("{path}{inner}")),
            }
        }
    }
    listed.sort();
    known.sort();
    assert_eq!(listed, known);
}

#[test]
fn the_example_file_loads() {
    let text = include_str!("../../../config/gateway.yaml");
    parse(text).unwrap();
}
