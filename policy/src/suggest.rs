//! The narrowest rule that allows a request, as text that the loader accepts.

mod collect;
mod paths;
mod seen;

pub use self::collect::{LeftOut, SuggestedRule, Suggester, Suggestions};
pub use self::seen::{Seen, Sighting};

use crate::canonical::CanonicalRequest;
use crate::yaml_text::quoted;
use crate::{AddressClass, Authority, Destination, Protocol};

/// A rule that allows exactly this request, as YAML for the list `rules:`. A request that no rule
/// can open gets a comment that says so.
#[must_use]
pub fn suggested_rule(request: &CanonicalRequest) -> String {
    if let Some(why) = never(request) {
        return format!("# {why}\n");
    }
    let mut out = head(
        &id(request.authority()),
        request.protocol(),
        request.authority(),
    );
    let http = http(request);
    if !http.is_empty() {
        out.push_str(&format!("  http: {{ {} }}\n", http.join(", ")));
    }
    out
}

/// A rule up to its `http:`.
fn head(id: &str, protocol: Protocol, to: &Authority) -> String {
    let mut out = format!("- id: {id}\n  action: allow\n");
    match protocol {
        Protocol::Https => {}
        Protocol::Tls => out.push_str("  tls: passthrough\n"),
        protocol => out.push_str(&format!("  protocol: {protocol}\n")),
    }
    out.push_str(&format!("  to: {{ {} }}\n", destination(protocol, to)));
    out
}

fn never(request: &CanonicalRequest) -> Option<&'static str> {
    match request.destination() {
        Destination::Ip(address) if AddressClass::of(*address) == AddressClass::Metadata => {
            Some("no rule can open a cloud metadata service")
        }
        Destination::Name(name) if name.as_str() == "any" => {
            Some("the name `any` alone can't be written in a rule: there it means every host")
        }
        _ => None,
    }
}

/// Longest part of an id that is taken from the destination.
const MAX_STEM: usize = 48;

fn id(authority: &Authority) -> String {
    let text = authority.destination.to_string();
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') {
            c
        } else {
            '-'
        }
    };
    let stem: String = text.chars().map(plain).take(MAX_STEM).collect();
    format!("allow-{}-{}", stem.trim_matches('-'), authority.port)
}

fn destination(protocol: Protocol, to: &Authority) -> String {
    let mut parts = match &to.destination {
        Destination::Name(name) => vec![format!("hosts: [\"{name}\"]")],
        Destination::Ip(address) => vec![format!("ips: [\"{address}\"]")],
    };
    if protocol.default_port() != Some(to.port) {
        parts.push(format!("ports: [{}]", to.port));
    }
    if matches!(to.destination, Destination::Ip(address) if AddressClass::of(address) == AddressClass::Private)
    {
        parts.push("private: true".to_owned());
    }
    parts.join(", ")
}

fn http(request: &CanonicalRequest) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(method) = nameable(request.method()) {
        parts.push(format!("methods: [\"{method}\"]"));
    }
    if request.path().starts_with('/') && request.path().len() < MAX_PATH {
        parts.push(format!("paths: [{}]", quoted(&glob(request.path()))));
        if request.has_encoded_slash() {
            parts.push("encoded_slash: data".to_owned());
        }
    } else if request.has_encoded_slash() {
        parts.push("encoded_slash: data".to_owned());
    }
    parts
}

/// Longer paths are left unconstrained: escaping could make the pattern longer than the loader takes.
const MAX_PATH: usize = 300;

/// A rule names methods in upper case only; another spelling is left unconstrained.
fn nameable(method: &str) -> Option<&str> {
    let is_upper = !method.bytes().any(|byte| byte.is_ascii_lowercase());
    (!method.is_empty() && is_upper).then_some(method)
}

/// The path as a glob that matches only itself.
fn glob(path: &str) -> String {
    let escape = |c: char| match c {
        '*' | '?' | '[' | ']' | '{' | '}' => format!("[{c}]"),
        c => c.to_string(),
    };
    path.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, Source, Verdict};
    use proptest::prelude::*;

    fn accepted(request: &CanonicalRequest) -> Result<Policy, String> {
        let rules: String = suggested_rule(request)
            .lines()
            .map(|line| format!("  {line}\n"))
            .collect();
        let text = format!("version: 1\nrules:\n{rules}");
        Policy::load(&[Source::new("suggested.yaml", text)]).map_err(|errors| errors.render())
    }

    fn assert_allows(line: &str) {
        let request = CanonicalRequest::from_line(line).unwrap();
        let policy = accepted(&request).unwrap_or_else(|errors| panic!("{line}\n{errors}"));
        assert_eq!(
            policy.decide(&request).verdict(),
            Verdict::Allow,
            "{line}\n{}",
            suggested_rule(&request)
        );
    }

    #[test]
    fn b003_the_loader_accepts_what_a_denial_suggests() {
        for line in [
            "GET https://a.test/",
            "GET http://toolsrv:8080/",
            "POST https://a.test:8443/v1/x?y=1",
            "tcp://db.test:5432",
            "GET https://10.9.8.7/",
            "GET https://[::1]:8443/",
            "tcp://[2606:4700::1]:22",
            "OPTIONS https://a.test/x",
            "GET https://a.test/@scope%2fpkg",
            "GET https://a.test/x*[a]{b}?q",
            "GET https://a.test/a\"b'c",
            "patch https://a.test/",
            "GET https://xn--mnchen-3ya.test/",
            "GET https://no/",
            "GET https://a.test/a]b",
            "GET https://true/x",
            "M-SEARCH https://a.test/",
            "GET https://a.test/%7B%2A%7d",
            "GET https://_x_.test/",
        ] {
            assert_allows(line);
        }
        assert_allows(&format!(
            "GET https://{}.test/",
            ["a".repeat(60), "b".repeat(60), "c".repeat(60)].join(".")
        ));
        assert_allows(&format!("GET https://a.test/{}", "x".repeat(2000)));
        let authority = Authority::parse("a.test", 443).unwrap();
        let parts = crate::RequestParts {
            protocol: Protocol::Https,
            authority: &authority,
            method: "OPTIONS",
            target: "*",
            body_len: None,
        };
        let request = CanonicalRequest::new(parts).unwrap();
        assert_eq!(
            accepted(&request).unwrap().decide(&request).verdict(),
            Verdict::Allow
        );
    }

    #[test]
    fn what_no_rule_can_open_gets_a_comment() {
        for line in [
            "GET https://any/",
            "GET http://169.254.169.254/",
            "GET http://[fd00:ec2::254]/",
        ] {
            let request = CanonicalRequest::from_line(line).unwrap();
            assert!(suggested_rule(&request).starts_with("# "), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_path_round_trips(path in "[!-~]{0,40}") {
            let line = format!("GET https://a.test/{path}");
            if let Ok(request) = CanonicalRequest::from_line(&line) {
                let policy = accepted(&request).map_err(TestCaseError::fail)?;
                prop_assert_eq!(policy.decide(&request).verdict(), Verdict::Allow, "{}", suggested_rule(&request));
            }
        }
    }
}
