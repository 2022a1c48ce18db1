//! The `tests:` of a policy file: requests with the verdict they must get.

use std::sync::Arc;

use serde::Serialize;

use crate::compile::Layer;
use crate::diagnostic::position;
use crate::document::{Expectation, RequestMap, RequestSpec, TestSpec};
use crate::policy::Policy;
use crate::{
    Authority, CanonicalRequest, Host, Protocol, Reason, Reject, RequestParts, RequestUrl, Verdict,
};

/// What came of one test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TestOutcome {
    /// Its name.
    pub name: String,
    /// Name of the source that it is written in.
    pub file: Arc<str>,
    /// Line of its name, from 1.
    pub line: usize,
    /// The request as written.
    pub request: String,
    /// The verdict that was expected: `allow`, `deny` or `reject`.
    pub expected: &'static str,
    /// The verdict that was given.
    pub actual: &'static str,
    /// The reason that was given.
    pub reason: Reason,
    /// One sentence per difference; empty when the test holds.
    pub differences: Vec<String>,
}

impl TestOutcome {
    /// Whether the test holds.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

impl Policy {
    /// Runs the tests of every layer against the effective policy, in the order of the files.
    #[must_use]
    pub fn run_tests(&self) -> Vec<TestOutcome> {
        let tests = self
            .layers
            .iter()
            .flat_map(|layer| layer.tests.iter().map(move |test| (layer, test)));
        tests
            .map(|(layer, test)| self.run_test(layer, test))
            .collect()
    }

    fn run_test(&self, layer: &Layer, test: &TestSpec) -> TestOutcome {
        let answer = match canonical(&test.request) {
            Ok(request) => Answer::decided(self, &request),
            Err(reject) => Answer::rejected(&reject),
        };
        let mut differences = Vec::new();
        let mut compare = |what: &str, expected: Option<&str>, actual: Option<&str>| {
            if let Some(expected) = expected.filter(|expected| Some(*expected) != actual) {
                let actual =
                    actual.map_or_else(|| "none".to_owned(), |actual| format!("`{actual}`"));
                differences.push(format!("{what}: expected `{expected}`, got {actual}"));
            }
        };
        let text =
            |at: &'_ Option<crate::document::At<String>>| at.as_ref().map(|at| at.value.clone());
        let expected = word(test.expect.value);
        compare("verdict", Some(expected), Some(answer.verdict));
        compare(
            "reason",
            text(&test.reason).as_deref(),
            Some(answer.reason.as_str()),
        );
        compare("rule", text(&test.rule).as_deref(), answer.rule.as_deref());
        compare(
            "credential",
            text(&test.credential).as_deref(),
            answer.credential.as_deref(),
        );
        TestOutcome {
            name: test.name.value.clone(),
            file: layer.source.name.as_str().into(),
            line: position(&layer.source.text, test.name.span.start).0,
            request: shown(&test.request),
            expected,
            actual: answer.verdict,
            reason: answer.reason,
            differences,
        }
    }
}

/// What the policy, or the canonical form before it, said.
struct Answer {
    verdict: &'static str,
    reason: Reason,
    rule: Option<Arc<str>>,
    credential: Option<String>,
}

impl Answer {
    fn decided(policy: &Policy, request: &CanonicalRequest) -> Self {
        let decision = policy.decide(request);
        let credential = decision.permit().and_then(|permit| permit.credential());
        Self {
            verdict: match decision.verdict() {
                Verdict::Allow => word(Expectation::Allow),
                Verdict::Deny => word(Expectation::Deny),
            },
            reason: decision.reason(),
            rule: decision.rule().map(|rule| Arc::clone(&rule.id)),
            credential: credential.map(ToString::to_string),
        }
    }

    const fn rejected(reject: &Reject) -> Self {
        Self {
            verdict: word(Expectation::Reject),
            reason: reject.reason,
            rule: None,
            credential: None,
        }
    }
}

const fn word(expectation: Expectation) -> &'static str {
    match expectation {
        Expectation::Allow => "allow",
        Expectation::Deny => "deny",
        Expectation::Reject => "reject",
    }
}

fn shown(request: &RequestSpec) -> String {
    match request {
        RequestSpec::Line(line) => line.clone(),
        RequestSpec::Map(map) => format!("{} {}", map.method.as_deref().unwrap_or("GET"), map.url),
    }
}

impl CanonicalRequest {
    /// Reads `METHOD URL`, or a URL alone, which is a GET; `tcp://host:port` has no method.
    ///
    /// # Errors
    /// As [`RequestUrl::parse`] and [`CanonicalRequest::new`].
    pub fn from_line(line: &str) -> Result<Self, Reject> {
        let (method, url) = match line.split_once(' ') {
            Some((method, url)) => (Some(method), url),
            None => (None, line),
        };
        from_url(method, &RequestUrl::parse(url)?)
    }
}

fn from_url(method: Option<&str>, url: &RequestUrl) -> Result<CanonicalRequest, Reject> {
    match (url.protocol.is_http(), method) {
        (true, method) => CanonicalRequest::new(RequestParts {
            protocol: url.protocol,
            authority: &url.authority,
            method: method.unwrap_or("GET"),
            target: &url.target,
            body_len: None,
        }),
        (false, None) => Ok(CanonicalRequest::tunnel(
            url.protocol,
            url.authority.clone(),
        )),
        (false, Some(_)) => {
            let detail = format!("a {} flow has no method", url.protocol);
            Err(Reject::new(Reason::BadRequest, detail))
        }
    }
}

fn canonical(request: &RequestSpec) -> Result<CanonicalRequest, Reject> {
    match request {
        RequestSpec::Line(line) => CanonicalRequest::from_line(line),
        RequestSpec::Map(map) => from_map(map),
    }
}

/// What the gateway does with the names that a connection carries: all that are there are equal.
fn from_map(map: &RequestMap) -> Result<CanonicalRequest, Reject> {
    let mut url = RequestUrl::parse(&map.url)?;
    if let Some(protocol) = map.protocol {
        url.protocol = protocol;
    }
    if let Some(connect) = &map.connect
        && Authority::parse(connect, url.protocol.default_port())? != url.authority
    {
        let detail = format!(
            "connected to `{}`, asked for `{}`",
            connect.escape_default(),
            url.authority
        );
        return Err(Reject::new(Reason::AuthorityMismatch, detail));
    }
    if let Some(sni) = &map.sni {
        let sni =
            Host::parse(sni).map_err(|error| Reject::new(Reason::BadHost, error.to_string()))?;
        if url.protocol == Protocol::Https && url.authority.destination.name() != Some(&sni) {
            let detail = format!("SNI `{sni}`, asked for `{}`", url.authority);
            return Err(Reject::new(Reason::SniMismatch, detail));
        }
    }
    if url.protocol == Protocol::Tcp {
        return Ok(CanonicalRequest::tunnel(Protocol::Tcp, url.authority));
    }
    from_url(map.method.as_deref(), &url)
}
