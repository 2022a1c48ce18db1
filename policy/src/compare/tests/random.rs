//! Random policies and random requests: what the comparison says is held against what both policies
//! decide.

use proptest::prelude::*;

use super::file;
use crate::{
    CanonicalRequest, Change, CredentialName, Decision, Policy, Protocol, RequestParts, RequestUrl,
    Source, Verdict, Within,
};

const CREDENTIALS: &str = "credentials: [{ name: one, source: { env: A }, attach: [{ header: X-One, format: \"{}\" }] }, { name: two, source: { env: B }, attach: [{ header: X-Two, format: \"{}\" }] }]";

fn choose(items: &[&'static str]) -> impl Strategy<Value = &'static str> + use<> {
    prop::sample::select(items.to_vec())
}

fn glob() -> impl Strategy<Value = String> {
    let piece = choose(&[
        "/a", "/b", "/*", "/**", "/", "{,/**}", "?", "*", ";", "%2F", "%3A", ":", "[ab]", "%25",
        "a", "{a,b}", "1",
    ]);
    prop::collection::vec(piece, 1..5).prop_map(|pieces| {
        let text = pieces.concat();
        if text.starts_with('/') {
            text
        } else {
            format!("/{text}")
        }
    })
}

/// The keys of a rule.
fn rule() -> impl Strategy<Value = String> {
    let to = choose(&[
        "hosts: [a.test]",
        "hosts: [a.test]",
        "hosts: [\"*.test\"]",
        "hosts: [any]",
        "hosts: [b.test, \"*.a.test\"]",
        "ips: [10.0.0.0/8, 1.0.0.0/8]",
        "ips: [1.1.1.1, 10.1.0.0/16, \"2606:4700::/32\"]",
        "hosts: [a.test, any], ports: [443, 8443]",
        "hosts: [a.test], ports: [80]",
    ]);
    let action = choose(&["allow", "allow", "allow", "deny", "deny", "ask"]);
    let private = choose(&["", "", ", private: true"]);
    let protocol = choose(&["", "", "", ", protocol: http", ", protocol: tcp"]);
    let methods = choose(&[
        "",
        "",
        "methods: [GET]",
        "methods: [GET, POST]",
        "methods: [OPTIONS]",
    ]);
    let paths = prop::option::weighted(0.7, prop::collection::vec(glob(), 1..3));
    let more = choose(&[
        "",
        "",
        "",
        "encoded_slash: data",
        "encoded_slash: data",
        "websocket: allow",
        "headers: { X-A: [\"1\"] }",
        "query: { q: [\"1\"] }",
    ]);
    let rest = choose(&[
        "",
        "",
        "",
        "",
        ", credential: one",
        ", credential: two",
        ", limits: { request_body: 5 }",
        ", limits: { rate: 5/s }",
    ]);
    (action, to, private, protocol, methods, paths, more, rest).prop_map(
        |(action, to, private, protocol, methods, paths, more, rest)| {
            let is_deny = action == "deny";
            let paths = paths.map(|paths| {
                let quoted: Vec<String> = paths.iter().map(|path| format!("\"{path}\"")).collect();
                format!("paths: [{}]", quoted.join(", "))
            });
            let more = if is_deny && !more.starts_with("headers") {
                ""
            } else {
                more
            };
            let parts: Vec<&str> = [methods, paths.as_deref().unwrap_or_default(), more]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect();
            let is_tcp = protocol.ends_with("tcp");
            let http = if parts.is_empty() || is_tcp {
                String::new()
            } else {
                format!(", http: {{ {} }}", parts.join(", "))
            };
            let private = if is_deny { "" } else { private };
            let rest = if is_deny
                || to.contains("any") && rest.contains("credential")
                || !protocol.is_empty()
            {
                ""
            } else {
                rest
            };
            let ports = if is_tcp && !to.contains("ports") {
                ", ports: [443]"
            } else {
                ""
            };
            format!("action: {action}, to: {{ {to}{ports}{private} }}{protocol}{http}{rest}")
        },
    )
}

fn layer() -> impl Strategy<Value = String> {
    let mode = choose(&["", "", "", "", "mode: observe\n"]);
    (mode, prop::collection::vec(rule(), 0..5)).prop_map(|(mode, rules)| {
        let rules: String = rules
            .iter()
            .enumerate()
            .map(|(at, keys)| format!("{{ id: r{at}, {keys} }}\n"))
            .collect();
        format!("{mode}{CREDENTIALS}\n{rules}")
    })
}

/// Two policies that have much in common: rules of the first, changed, left out and added.
fn policies() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    let layers = prop::collection::vec(layer(), 1..3);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), rule(), 0..4_u8), 0..3);
    (layers, edits, 0..8_u8, layer()).prop_map(|(old, edits, shape, other)| {
        let mut new = old.clone();
        if let Some(first) = new.first_mut() {
            let mut lines: Vec<String> = first.lines().map(str::to_owned).collect();
            for (at, rule, kind) in edits {
                let rules: Vec<usize> = (0..lines.len())
                    .filter(|at| lines[*at].starts_with('{'))
                    .collect();
                let line = format!("{{ id: e{}, {rule} }}", lines.len());
                match (rules.is_empty(), kind) {
                    (false, 0) => drop(lines.remove(rules[at.index(rules.len())])),
                    (false, 1) => lines[rules[at.index(rules.len())]] = line,
                    _ => lines.push(line),
                }
            }
            *first = lines.join("\n");
        }
        match shape {
            0 => new.push(other),
            1 => drop(new.pop()),
            2 => new = vec![other],
            _ => {}
        }
        (old, new)
    })
}

fn load(layers: &[String]) -> Option<Policy> {
    let sources = layers.iter().map(|text| Source::new("p.yaml", file(text)));
    Policy::load(&sources.collect::<Vec<_>>()).ok()
}

fn requests() -> impl Strategy<Value = CanonicalRequest> {
    let method = choose(&["GET", "GET", "POST", "get", "DELETE", "OPTIONS"]);
    let place = choose(&[
        "https://a.test",
        "https://a.test",
        "https://a.test",
        "https://b.test",
        "https://x.a.test",
        "https://other.example",
        "http://a.test",
        "https://a.test:8443",
        "http://a.test:443",
        "https://1.1.1.1",
        "https://1.2.3.4",
        "https://10.1.2.3",
        "https://10.9.9.9",
        "https://[2606:4700::1]",
        "tcp://a.test:443",
        "tcp://1.1.1.1:443",
        "udp://a.test:443",
        "tls://a.test:443",
        "http://a.test:80",
        "https://8.8.8.8",
    ]);
    let piece = choose(&[
        "/a", "/b", "/x", "/", "a", "1", ";a", "%2F", "%3A", ":", "%252F", "%2561", "%253A", "%25",
        "//", "b", "%3B",
    ]);
    let path = prop::collection::vec(piece, 0..5);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let request = (method, place, path, flags);
    request.prop_filter_map(
        "no request",
        |(method, place, path, (header, query, socket, star))| {
            if !place.starts_with("http") {
                return CanonicalRequest::from_line(place).ok();
            }
            let url = RequestUrl::parse(place).ok()?;
            let path = path.concat();
            let slash = if path.starts_with('/') { "" } else { "/" };
            let query = if query { "?q=1" } else { "" };
            let target = format!("{slash}{path}{query}");
            let parts = RequestParts {
                protocol: url.protocol,
                authority: &url.authority,
                method,
                target: if method == "OPTIONS" && star {
                    "*"
                } else {
                    &target
                },
                body_len: Some(0),
            };
            let request = CanonicalRequest::new(parts).ok()?;
            let fields: &[(&str, &[u8])] = if header { &[("x-a", b"1")] } else { &[] };
            let request = request
                .with_headers(fields.iter().copied())
                .with_body(Vec::new(), true);
            Some(if socket {
                request.asking_for_websocket()
            } else {
                request
            })
        },
    )
}

/// What matters of a decision; a name may resolve to a private address.
#[derive(Debug, PartialEq)]
struct Given {
    rank: u8,
    /// Not known of an ask.
    private_rank: Option<u8>,
    credential: Option<CredentialName>,
    body: u64,
    observed: bool,
}

fn given(decision: &Decision, request: &CanonicalRequest) -> Given {
    let rank = match decision.verdict() {
        Verdict::Deny => 0,
        Verdict::Ask => 1,
        Verdict::Allow => 2,
    };
    let permit = decision.permit();
    let closed = permit.is_some_and(|permit| !permit.allows_private());
    let is_name = request.destination().name().is_some();
    Given {
        rank,
        private_rank: (rank != 1 || !is_name).then_some(if closed && is_name { 0 } else { rank }),
        credential: permit.and_then(|permit| permit.credential().cloned()),
        body: permit
            .and_then(|permit| permit.max_request_body())
            .unwrap_or(u64::MAX),
        observed: decision.would_deny().is_some(),
    }
}

fn gives_more(old: &Given, new: &Given) -> bool {
    new.rank > old.rank
        || matches!((old.private_rank, new.private_rank), (Some(old), Some(new)) if new > old)
        || (new.rank == 2
            && old.rank == 2
            && (new.body > old.body
                || new.credential.is_some() && new.credential != old.credential))
}

/// The request of a change as it is given, and its line as `explain` reads it.
fn example(change: &Change) -> CanonicalRequest {
    let line = CanonicalRequest::from_line(&change.request).unwrap();
    if change
        .given
        .iter()
        .any(|given| given.contains("target `*`"))
    {
        let parts = RequestParts {
            protocol: line.protocol(),
            authority: line.authority(),
            method: "OPTIONS",
            target: "*",
            body_len: Some(0),
        };
        let request = CanonicalRequest::new(parts).unwrap();
        let request = request.with_headers([]).with_body(Vec::new(), true);
        return as_given(request, change);
    }
    as_given(line, change)
}

/// What a sample says beside its line.
fn as_given(line: CanonicalRequest, change: &Change) -> CanonicalRequest {
    if change.given.iter().any(|given| given.contains("websocket")) {
        return line.asking_for_websocket();
    }
    line
}

fn check_change(old: &Policy, new: &Policy, change: &Change, list: &str) {
    let request = example(change);
    let before = given(&old.decide(&request), &request);
    let after = given(&new.decide(&request), &request);
    let is_private = change.given.iter().any(|given| given.contains("private"));
    let rank = |verdict| match verdict {
        Verdict::Deny => 0,
        Verdict::Ask => 1,
        Verdict::Allow => 2,
    };
    let ranks = if is_private {
        (
            before
                .private_rank
                .unwrap_or_else(|| rank(change.old.verdict)),
            after
                .private_rank
                .unwrap_or_else(|| rank(change.new.verdict)),
        )
    } else {
        (before.rank, after.rank)
    };
    let holds = match list {
        "allowed" => ranks.0 == 0 && ranks.1 > 0,
        "denied" => ranks.0 > 0 && ranks.1 == 0,
        _ => ranks.0 > 0 && ranks.1 > 0,
    };
    assert!(holds, "{list}: {change}");
    assert_eq!(
        (rank(change.old.verdict), rank(change.new.verdict)),
        ranks,
        "{change}"
    );
    if !is_private && change.old.verdict == Verdict::Deny {
        let decision = old.decide(&request);
        assert_eq!(change.old.reason, decision.reason(), "{change}");
        assert_eq!(change.old.rule.as_ref(), decision.rule(), "{change}");
    }
    if change.new.verdict == Verdict::Allow {
        let decision = new.decide(&request);
        assert_eq!(change.new.rule.as_ref(), decision.rule(), "{change}");
        assert_eq!(change.new.credential, after.credential, "{change}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_said_is_what_is_decided((old, new) in policies(), requests in prop::collection::vec(requests(), 48)) {
        let (Some(before), Some(after)) = (load(&old), load(&new)) else { return Ok(()) };
        let difference = before.diff(&after);
        let within = after.within(&before);
        for (list, changes) in [("allowed", &difference.allowed), ("denied", &difference.denied), ("changed", &difference.changed)] {
            for change in changes {
                check_change(&before, &after, change, list);
            }
        }
        for undecided in &difference.undecided {
            prop_assert!(undecided.why.contains("%25"), "{}", undecided);
        }
        if let Within::Counterexample { change } = &within {
            prop_assert!(change.widens);
            let list = if change.old.verdict == Verdict::Deny { "allowed" } else { "changed" };
            check_change(&before, &after, change, list);
        }
        // Both answers come from the same walk.
        prop_assert_eq!(within.is_proven(), !difference.allows_more(), "{}\n{}", within, difference);
        for request in requests {
            let one = given(&before.decide(&request), &request);
            let other = given(&after.decide(&request), &request);
            if one != other {
                prop_assert!(!difference.is_empty(), "{}: {:?} {:?}", request, one, other);
            }
            if gives_more(&one, &other) {
                prop_assert!(!within.is_proven(), "{}: {:?} {:?}", request, one, other);
                prop_assert!(difference.allows_more(), "{}", request);
            }
            if one.rank == 0 && other.rank > 0 {
                let may = !difference.allowed.is_empty() || !difference.depends.is_empty() || !difference.undecided.is_empty();
                prop_assert!(may, "{}: {}", request, difference);
            }
            if one.rank > 0 && other.rank == 0 {
                let may = !difference.denied.is_empty() || !difference.depends.is_empty() || !difference.undecided.is_empty();
                prop_assert!(may, "{}: {}", request, difference);
            }
        }
    }

    #[test]
    fn a_policy_is_within_itself_and_within_each_of_its_layers(layers in prop::collection::vec(layer(), 1..3)) {
        let Some(whole) = load(&layers) else { return Ok(()) };
        prop_assert!(whole.diff(&whole).is_empty());
        prop_assert!(whole.within(&whole).is_proven());
        let shown: Vec<String> = whole.effective().layers.iter().map(ToString::to_string).collect();
        let sources: Vec<Source> = shown.iter().map(|text| Source::new("p.yaml", text)).collect();
        let again = Policy::load(&sources).unwrap();
        let difference = whole.diff(&again);
        prop_assert!(difference.is_empty(), "{}", difference);
        for request in ["GET https://a.test/", "tcp://a.test:443"] {
            let request = CanonicalRequest::from_line(request).unwrap();
            prop_assert!(request.protocol() == Protocol::Tcp || request.protocol() == Protocol::Https);
            prop_assert_eq!(whole.decide(&request).verdict(), again.decide(&request).verdict());
        }
    }
}
