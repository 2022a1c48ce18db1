//! The answer to a request that is not forwarded: tells a person, or an agent, what to change.
//!
//! One shape for every refusal, as JSON or as text, with the id of its record. It holds the stable
//! reason, the rule's id and the guest's own words; never an address, a file name or a secret.

use std::fmt::Write as _;

use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use outgate_policy::{Closest, Decision, Reason, Reject};
use serde::Serialize;

use crate::audit::RecordId;

use super::body::{ResponseBody, full};

/// Names the record of the decision.
const DECISION: HeaderName = HeaderName::from_static("x-outgate-decision");
/// Seconds after which a limit is worth another try.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Why a request is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) reason: Reason,
    /// The id of the rule that decided.
    pub(super) rule: Option<String>,
    /// The policy author's words, or what was wrong with the request.
    pub(super) message: Option<String>,
}

impl From<Reject> for Denial {
    fn from(reject: Reject) -> Self {
        Self {
            reason: reject.reason,
            rule: None,
            message: Some(reject.detail),
        }
    }
}

impl From<Reason> for Denial {
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            rule: None,
            message: None,
        }
    }
}

impl From<&Decision> for Denial {
    fn from(decision: &Decision) -> Self {
        Self {
            reason: decision.reason(),
            rule: decision.rule().map(|rule| rule.id.to_string()),
            message: decision
                .message()
                .map(str::to_owned)
                .or_else(|| nearly(decision)),
        }
    }
}

/// What would have to be another way for the rule that comes nearest.
fn nearly(decision: &Decision) -> Option<String> {
    let Closest { rule, failed } = decision.closest()?;
    Some(format!(
        "The closest rule is `{}`; it fails on {failed}.",
        rule.id
    ))
}

/// What the answer depends on besides the reason.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    form: Form,
    is_head: bool,
    /// The request for people, as far as it is known.
    pub(super) request: Option<String>,
    /// Nothing more can be read from the connection: its body is still on the way.
    pub(super) must_close: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Grpc,
    Json,
    Text,
}

impl Asker {
    pub(super) fn new(
        method: &Method,
        version: Version,
        headers: &HeaderMap,
        body_ended: bool,
    ) -> Self {
        Self {
            form: Form::wanted(headers),
            is_head: method == Method::HEAD,
            request: None,
            must_close: version != Version::HTTP_2 && !body_ended,
        }
    }

    /// Somebody who asked for a tunnel; `accepts` are the values of `Accept`.
    pub(super) fn of_tunnel(target: &str, accepts: &[Vec<u8>]) -> Self {
        let mut headers = HeaderMap::new();
        for value in accepts {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(ACCEPT, value);
            }
        }
        Self {
            form: Form::wanted(&headers),
            request: Some(format!("CONNECT {target}")),
            ..Self::unknown()
        }
    }

    /// Somebody whose request could not be read.
    pub(super) fn unknown() -> Self {
        Self {
            form: Form::Text,
            is_head: false,
            request: None,
            must_close: true,
        }
    }
}

impl Form {
    /// Text unless JSON is asked for by name: people read a terminal, programs say what they read.
    fn wanted(headers: &HeaderMap) -> Self {
        let starts = |value: Option<&HeaderValue>, with: &str| {
            value.is_some_and(|value| value.as_bytes().starts_with(with.as_bytes()))
        };
        if starts(headers.get(CONTENT_TYPE), "application/grpc") {
            return Self::Grpc;
        }
        let mut accepted = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok());
        if accepted.any(|value| value.to_ascii_lowercase().contains("json")) {
            return Self::Json;
        }
        Self::Text
    }
}

/// The JSON body.
#[derive(Serialize)]
struct Body<'a> {
    reason: Reason,
    pub(super) rule: Option<&'a str>,
    message: Option<&'a str>,
    request: Option<&'a str>,
    how_to_fix: &'static str,
    id: String,
}

impl Denial {
    /// The answer for `asker`; `id` names the record of the decision.
    pub(super) fn response(&self, asker: &Asker, id: RecordId) -> Response<ResponseBody> {
        let mut response = match asker.form {
            Form::Grpc => self.grpc(),
            Form::Json => typed("application/json", self.json(asker, id)),
            Form::Text => typed("text/plain; charset=utf-8", self.text(asker, id)),
        };
        if asker.form != Form::Grpc {
            *response.status_mut() = StatusCode::from_u16(self.reason.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        }
        if asker.is_head {
            *response.body_mut() = full("");
        }
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::try_from(id.to_string()) {
            headers.insert(DECISION, id);
        }
        if self.reason == Reason::LimitExceeded {
            headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if asker.must_close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn json(&self, asker: &Asker, id: RecordId) -> String {
        let body = Body {
            reason: self.reason,
            rule: self.rule.as_deref(),
            message: self.message.as_deref(),
            request: asker.request.as_deref(),
            how_to_fix: self.reason.how_to_fix(),
            id: id.to_string(),
        };
        // Strings and an enum of strings always serialise.
        serde_json::to_string(&body).unwrap_or_default() + "\n"
    }

    fn text(&self, asker: &Asker, id: RecordId) -> String {
        let mut text = format!("outgate refused this request: {}\n\n", self.reason);
        let lines = [
            ("request", asker.request.as_deref()),
            ("why", Some(self.reason.explanation())),
            ("rule", self.rule.as_deref()),
            ("message", self.message.as_deref()),
            ("how to fix", Some(self.reason.how_to_fix())),
            ("decision", Some(&id.to_string())),
        ];
        for (label, value) in lines {
            if let Some(value) = value {
                // Writing to a string can't fail.
                let _ = writeln!(text, "{label}: {value}");
            }
        }
        text
    }

    /// A response of trailers only: what gRPC libraries show to their users.
    fn grpc(&self) -> Response<ResponseBody> {
        let code = match self.reason.http_status() {
            429 => "8",
            502..=504 => "14",
            _ => "7",
        };
        let words = self
            .message
            .as_deref()
            .unwrap_or_else(|| self.reason.explanation());
        let message = percent_encoded(&format!("outgate: {}: {words}", self.reason));
        let mut response = Response::new(full(""));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(code));
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// A response of the gateway's own, with content that fits into memory.
pub(super) fn typed(content_type: &'static str, content: String) -> Response<ResponseBody> {
    let length = content.len();
    let mut response = Response::new(full(content));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(
        http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-store"),
    );
    let now = jiff::fmt::rfc2822::DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&jiff::Timestamp::now());
    if let Some(date) = now.ok().and_then(|date| HeaderValue::try_from(date).ok()) {
        headers.insert(DATE, date);
    }
    response
}

/// As the gRPC protocol wants its messages: visible ASCII but `%`, the rest percent-encoded.
fn percent_encoded(text: &str) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut encoded, byte| {
            if (b' '..=b'~').contains(&byte) && byte != b'%' {
                encoded.push(char::from(byte));
            } else {
                let _ = write!(encoded, "%{byte:02X}");
            }
            encoded
        })
}
