//! Matchers that look inside of requests: whatever the body, a decision is made, is the same each
//! time, and no allow rule takes what the deny rule of the same matcher doesn't.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use outgate_policy::{CanonicalRequest, Policy, RequestUrl, Source, Verdict};

/// Every matcher as an allow rule of one host and as a deny rule of another.
const MATCHERS: [&str; 8] = [
    "git: { repos: [\"a/*\"], operations: [push], refs: [\"refs/heads/**\"] }",
    "git: { operations: [fetch] }",
    "grpc: { service: a.B, methods: [\"C*\"] }",
    "graphql: { operations: [query, \"mutation.add*\"] }",
    "mcp: { tools: [\"read_*\"] }",
    "content_types: [application/json, \"text/*\"]",
    "headers: { x-a: [\"b*\"], x-c: absent }",
    "query: { q: [\"1*\"], token: absent }",
];

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let mut text = String::from("version: 1\nrules:\n");
    for (at, matcher) in MATCHERS.iter().enumerate() {
        text.push_str(&format!(
            "  - {{ id: allow{at}, action: allow, to: {{ hosts: [allow{at}.test] }}, http: {{ {matcher} }} }}\n  \
             - {{ id: open{at}, action: allow, to: {{ hosts: [deny{at}.test] }} }}\n  \
             - {{ id: deny{at}, action: deny, to: {{ hosts: [deny{at}.test] }}, http: {{ {matcher} }} }}\n"
        ));
    }
    Policy::load(&[Source::new("fuzz.yaml", text)]).unwrap_or_else(|errors| panic!("{errors}"))
});

const METHODS: [&str; 4] = ["POST", "GET", "DELETE", "PUT"];
const TYPES: [&str; 8] = [
    "application/json",
    "application/x-git-receive-pack-request",
    "application/x-git-upload-pack-request",
    "application/grpc",
    "application/graphql",
    "text/plain; charset=utf-8",
    "application/json; charset=\"utf-8\"",
    "",
];
const TARGETS: [&str; 8] = [
    "/a/b.git/git-receive-pack",
    "/a/b/info/refs?service=git-upload-pack",
    "/a.B/C",
    "/graphql",
    "/mcp?q=1",
    "/graphql?query=%7Ba%7D",
    "/a/b//git-receive-pack",
    "/x;y?token=1&q=1",
];

fuzz_target!(|data: &[u8]| {
    let [choice, flags, body @ ..] = data else {
        return;
    };
    let pick = usize::from(*choice);
    let method = METHODS[pick % METHODS.len()];
    let target = TARGETS[pick / 4 % TARGETS.len()];
    let media = TYPES[usize::from(*flags) % TYPES.len()];
    let mut fields: Vec<(&str, &[u8])> = vec![("x-a", b"bcd")];
    if !media.is_empty() {
        fields.push(("content-type", media.as_bytes()));
    }
    if flags & 0x40 != 0 {
        fields.push(("content-encoding", b"gzip"));
    }
    let complete = flags & 0x80 == 0;
    for (at, matcher) in MATCHERS.iter().enumerate() {
        let ask = |side: &str| {
            let url = RequestUrl::parse(&format!("https://{side}{at}.test{target}"));
            let url = url.unwrap_or_else(|reject| panic!("{reject}"));
            let request = CanonicalRequest::whole(Some(method), &url, &fields, body.to_vec());
            let request = request.unwrap_or_else(|reject| panic!("{reject}"));
            let request = request.with_body(body.to_vec(), complete);
            let verdict = POLICY.decide(&request).verdict();
            assert_eq!(verdict, POLICY.decide(&request).verdict());
            verdict
        };
        // `mcp` and `git` with refs mean less in a deny rule: messages that call no tool, fetches.
        if ask("allow") == Verdict::Allow && !matches!(at, 0 | 4) {
            assert_eq!(ask("deny"), Verdict::Deny, "{matcher}");
        }
    }
});
