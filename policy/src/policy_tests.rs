//! The `tests:` of a policy file, or of a file beside it: requests with the verdict they must get.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::compile::{self, Lines};
use crate::document::{Expectation, RequestMap, RequestSpec, TestSpec};
use crate::policy::Policy;
use crate::{
    Authority, CanonicalRequest, Diagnostics, Explanation, Host, Protocol, Reason, Reject,
    RequestParts, RequestUrl, Source, Verdict,
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
    /// The verdict that was expected: `allow`, `deny`, `ask` or `reject`.
    pub expected: &'static str,
    /// The verdict that was given.
    pub actual: &'static str,
    /// The reason that was given.
    pub reason: Reason,
    /// What came out otherwise than expected; empty when the test holds.
    pub differences: Vec<TestDifference>,
    /// What led to the verdict, near misses included, where a test fails on a request that was
    /// decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Box<Explanation>>,
    /// What is wrong with the request, where a test fails on one that never was canonical.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl TestOutcome {
    /// Whether the test holds.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

/// One thing that a test expected and didn't get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TestDifference {
    /// The key of the test: `verdict` (of `expect`), `reason`, `rule` or `credential`.
    pub field: &'static str,
    /// What the test says.
    pub expected: String,
    /// What came out; nothing where there is no rule or credential.
    pub actual: Option<String>,
}

/// One sentence.
impl fmt::Display for TestDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected `{}`, got ", self.field, self.expected)?;
        match &self.actual {
            Some(actual) => write!(f, "`{actual}`"),
            None => f.write_str("none"),
        }
    }
}

impl Policy {
    /// Runs the tests of every layer against the effective policy, in the order of the files.
    #[must_use]
    pub fn run_tests(&self) -> Vec<TestOutcome> {
        let layers = self.layers.iter();
        layers
            .flat_map(|layer| self.run_all(&layer.source, &layer.tests))
            .collect()
    }

    /// Runs the tests of a file that holds nothing else: the list `tests:` as in a policy, and
    /// `version: 1` if it likes.
    ///
    /// # Errors
    /// Everything that is wrong in the file; no test is run then.
    pub fn run_cases(&self, cases: &Source) -> Result<Vec<TestOutcome>, Diagnostics> {
        let tests = compile::cases(cases)?;
        Ok(self.run_all(cases, &tests))
    }

    fn run_all(&self, source: &Source, tests: &[TestSpec]) -> Vec<TestOutcome> {
        let lines = Lines::of(&source.text);
        let file: Arc<str> = source.name.as_str().into();
        let tests = tests.iter();
        tests
            .map(|test| self.run_test(test, &file, &lines))
            .collect()
    }

    fn run_test(&self, test: &TestSpec, file: &Arc<str>, lines: &Lines) -> TestOutcome {
        let request = canonical(&test.request);
        let answer = match &request {
            Ok(_) if !self.is_for(&test.request) => Answer::unselected(),
            Ok(request) => Answer::decided(self, request),
            Err(reject) => Answer::rejected(reject),
        };
        let mut differences = Vec::new();
        let mut compare = |field: &'static str, expected: Option<&str>, actual: Option<&str>| {
            if let Some(expected) = expected.filter(|expected| Some(*expected) != actual) {
                differences.push(TestDifference {
                    field,
                    expected: expected.to_owned(),
                    actual: actual.map(str::to_owned),
                });
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
        let failed = !differences.is_empty();
        let (explanation, detail) = match request {
            Ok(request) if failed => (Some(Box::new(self.explain(&request))), None),
            Err(reject) if failed => (None, Some(reject.detail)),
            Ok(_) | Err(_) => (None, None),
        };
        TestOutcome {
            name: test.name.value.clone(),
            file: Arc::clone(file),
            line: lines.at(test.name.span.start) as usize,
            request: shown(&test.request),
            expected,
            actual: answer.verdict,
            reason: answer.reason,
            differences,
            explanation,
            detail,
        }
    }

    /// Whether the policy is for the sandbox that a test names, if it names one.
    fn is_for(&self, request: &RequestSpec) -> bool {
        match request {
            RequestSpec::Map(RequestMap {
                sandbox: Some(labels),
                ..
            }) => self.selects(labels),
            _ => true,
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
                Verdict::Ask => word(Expectation::Ask),
            },
            reason: decision.reason(),
            rule: decision.rule().map(|rule| Arc::clone(&rule.id)),
            credential: credential.map(ToString::to_string),
        }
    }

    /// The sandbox has another policy, or none.
    const fn unselected() -> Self {
        Self {
            verdict: word(Expectation::Deny),
            reason: Reason::NoPolicy,
            rule: None,
            credential: None,
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
        Expectation::Ask => "ask",
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

/// A request of one line has no headers and no body.
fn from_url(method: Option<&str>, url: &RequestUrl) -> Result<CanonicalRequest, Reject> {
    if !url.protocol.is_http() {
        return request_of(method, url, None);
    }
    let request = request_of(method, url, Some(0))?;
    Ok(request.with_headers([]).with_body(Vec::new(), true))
}

fn request_of(
    method: Option<&str>,
    url: &RequestUrl,
    body_len: Option<u64>,
) -> Result<CanonicalRequest, Reject> {
    match (url.protocol.is_http(), method) {
        (true, method) => CanonicalRequest::new(RequestParts {
            protocol: url.protocol,
            authority: &url.authority,
            method: method.unwrap_or("GET"),
            target: &url.target,
            body_len,
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

impl RequestUrl {
    /// What the gateway does with the names that a connection carries besides the URL: the TLS
    /// server name and the `host:port` of the connection. All that are there are equal.
    ///
    /// # Errors
    /// [`Reason::BadHost`], [`Reason::AuthorityMismatch`] or [`Reason::SniMismatch`].
    pub fn check_names(&self, sni: Option<&str>, connect: Option<&str>) -> Result<(), Reject> {
        if let Some(connect) = connect
            && Authority::parse(connect, self.protocol.default_port())? != self.authority
        {
            let detail = format!(
                "connected to `{}`, asked for `{}`",
                connect.escape_default(),
                self.authority
            );
            return Err(Reject::new(Reason::AuthorityMismatch, detail));
        }
        if let Some(sni) = sni {
            let sni = Host::parse(sni)
                .map_err(|error| Reject::new(Reason::BadHost, error.to_string()))?;
            if self.protocol == Protocol::Https && self.authority.destination.name() != Some(&sni) {
                let detail = format!("SNI `{sni}`, asked for `{}`", self.authority);
                return Err(Reject::new(Reason::SniMismatch, detail));
            }
        }
        Ok(())
    }
}

fn from_map(map: &RequestMap) -> Result<CanonicalRequest, Reject> {
    let mut url = RequestUrl::parse(&map.url)?;
    if let Some(protocol) = map.protocol {
        url.protocol = protocol;
    }
    url.check_names(map.sni.as_deref(), map.connect.as_deref())?;
    let method = map.method.as_deref();
    if !url.protocol.is_http() {
        return Ok(CanonicalRequest::tunnel(url.protocol, url.authority));
    }
    let headers = map.headers.iter().flatten();
    let fields = headers.flat_map(|(name, values)| {
        let values = values.iter();
        values.map(move |value| (name.as_str(), value.as_bytes()))
    });
    let fields: Vec<(&str, &[u8])> = fields.collect();
    let body = map.body.as_deref().unwrap_or_default().as_bytes();
    CanonicalRequest::whole(method, &url, &fields, body.to_vec())
}

impl CanonicalRequest {
    /// A request with all its header fields and its whole body, as tests and people write it. The
    /// method is GET unless given.
    ///
    /// # Errors
    /// As [`CanonicalRequest::new`].
    pub fn whole(
        method: Option<&str>,
        url: &RequestUrl,
        fields: &[(&str, &[u8])],
        body: Vec<u8>,
    ) -> Result<Self, Reject> {
        let request = request_of(method, url, Some(body.len() as u64))?;
        let upgrades = |(name, value): &(&str, &[u8])| {
            name.eq_ignore_ascii_case("upgrade") && value.eq_ignore_ascii_case(b"websocket")
        };
        let request = if fields.iter().any(upgrades) {
            request.asking_for_websocket()
        } else {
            request
        };
        let fields = fields.iter().copied();
        Ok(request.with_headers(fields).with_body(body, true))
    }
}
