//! The attempts of the demo's guest, what must become of each, and whether it did.

use serde::Deserialize;
use serde_json::Value;

/// What must happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// The upstream answers.
    Allowed,
    /// The gateway answers by HTTP, with this reason, and the upstream sees nothing.
    Denied(&'static str),
    /// No HTTP answer; the audit log has a record of this kind with this reason.
    Refused {
        kind: &'static str,
        reason: &'static str,
    },
}

/// One attempt, in the order of the guest's script.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) expected: Expected,
}

const fn attempt(id: &'static str, title: &'static str, expected: Expected) -> Attempt {
    Attempt {
        id,
        title,
        expected,
    }
}

pub(super) const ATTEMPTS: [Attempt; 15] = [
    attempt("get", "curl: GET /v1/hello on a.test", Expected::Allowed),
    attempt("get-python", "python3: the same", Expected::Allowed),
    attempt("clone", "git: clone from b.test", Expected::Allowed),
    attempt(
        "post",
        "same path with POST",
        Expected::Denied("default_deny"),
    ),
    attempt("path", "another path", Expected::Denied("default_deny")),
    attempt(
        "dot-segments",
        "/v1/../admin",
        Expected::Denied("default_deny"),
    ),
    attempt(
        "fronting",
        "Host: evil.test inside a.test's TLS",
        Expected::Denied("authority_mismatch"),
    ),
    attempt(
        "other-host",
        "another host",
        Expected::Refused {
            kind: "dns",
            reason: "dns_name_denied",
        },
    ),
    attempt(
        "other-use",
        "a.test's credential sent to b.test",
        Expected::Denied("placeholder_out_of_scope"),
    ),
    attempt(
        "plain",
        "plain http to a.test",
        Expected::Refused {
            kind: "flow",
            reason: "default_deny",
        },
    ),
    attempt(
        "raw-ip",
        "a raw IP",
        Expected::Refused {
            kind: "flow",
            reason: "default_deny",
        },
    ),
    attempt(
        "dns",
        "data in a DNS query",
        Expected::Refused {
            kind: "dns",
            reason: "dns_name_denied",
        },
    ),
    attempt(
        "udp-443",
        "UDP 443 (QUIC)",
        Expected::Refused {
            kind: "drop",
            reason: "quic",
        },
    ),
    attempt(
        "tcp-5432",
        "TCP port 5432 of a.test",
        Expected::Refused {
            kind: "flow",
            reason: "default_deny",
        },
    ),
    attempt("events", "server-sent events", Expected::Allowed),
];

/// What the guest saw of one attempt.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Seen {
    pub(super) attempt: String,
    /// The HTTP status, where there was an answer.
    pub(super) status: Option<u16>,
    /// The reason that the gateway gave.
    pub(super) reason: Option<String>,
    /// Words of the client.
    pub(super) outcome: Option<String>,
    /// Something got through that no HTTP status tells of.
    #[serde(default)]
    pub(super) open: bool,
}

impl Attempt {
    /// What the guest saw, in a few words.
    pub(super) fn happened(seen: Option<&Seen>) -> String {
        let Some(seen) = seen else {
            return "not reported".to_owned();
        };
        match (seen.status, &seen.outcome) {
            (Some(status), _) => status.to_string(),
            // curl's messages go on with numbers that differ each time.
            (None, Some(outcome)) => {
                let line = outcome.lines().last().unwrap_or_default();
                line.split(" after ").next().unwrap_or_default().to_owned()
            }
            (None, None) => "no answer".to_owned(),
        }
    }

    /// The reason: from the answer itself, else from the audit log.
    pub(super) fn reason(&self, seen: Option<&Seen>, audit: &[Value]) -> String {
        if let Some(reason) = seen.and_then(|seen| seen.reason.clone()) {
            return reason;
        }
        let Expected::Refused { kind, reason } = self.expected else {
            return String::new();
        };
        let recorded = |record: &Value| record["kind"] == kind && why(record) == reason;
        if audit.iter().any(recorded) {
            reason.to_owned()
        } else {
            "not in the audit log".to_owned()
        }
    }

    /// Requests of this attempt that an upstream received.
    pub(super) fn received<'a>(&self, requests: &'a [Value]) -> Vec<&'a Value> {
        requests
            .iter()
            .filter(|request| header(request, "x-attempt") == Some(self.id))
            .collect()
    }

    /// Whether everything is as it must be.
    pub(super) fn held(&self, seen: Option<&Seen>, audit: &[Value], requests: &[Value]) -> bool {
        let Some(seen) = seen else { return false };
        let received = self.received(requests);
        match self.expected {
            Expected::Allowed => seen.status == Some(200) && !received.is_empty(),
            Expected::Denied(reason) => {
                seen.reason.as_deref() == Some(reason) && received.is_empty()
            }
            Expected::Refused { reason, .. } => {
                let refused = seen.status.is_none() && !seen.open;
                refused && self.reason(Some(seen), audit) == reason && received.is_empty()
            }
        }
    }
}

/// Why something did not pass: a reason, or for what the link drops by itself, which kind it was.
pub(super) fn why(record: &Value) -> &str {
    let reason = record["reason"].as_str();
    reason
        .or_else(|| record["detail"].as_str())
        .unwrap_or_default()
}

/// A header of a recorded request.
pub(super) fn header<'a>(request: &'a Value, name: &str) -> Option<&'a str> {
    let pairs = request["headers"].as_array()?;
    let named = |pair: &&Value| {
        pair[0]
            .as_str()
            .is_some_and(|n| n.eq_ignore_ascii_case(name))
    };
    pairs.iter().find(named)?[1].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(status: Option<u16>, reason: Option<&str>) -> Seen {
        let reason = reason.map(str::to_owned);
        Seen {
            attempt: "post".into(),
            status,
            reason,
            outcome: None,
            open: false,
        }
    }

    #[test]
    fn a_denial_that_reached_the_upstream_does_not_hold() {
        let post = ATTEMPTS
            .iter()
            .find(|attempt| attempt.id == "post")
            .expect("listed");
        let denied = seen(Some(403), Some("default_deny"));
        assert!(post.held(Some(&denied), &[], &[]));
        let leaked = json!({ "headers": [["X-Attempt", "post"]] });
        assert!(!post.held(Some(&denied), &[], &[leaked]));
        assert!(!post.held(Some(&seen(Some(200), None)), &[], &[]));
        assert!(!post.held(None, &[], &[]));
    }

    #[test]
    fn a_refusal_needs_its_audit_record() {
        let raw = ATTEMPTS
            .iter()
            .find(|attempt| attempt.id == "raw-ip")
            .expect("listed");
        let refused = seen(None, None);
        assert!(!raw.held(Some(&refused), &[], &[]));
        let record = json!({ "kind": "flow", "reason": "default_deny" });
        assert!(raw.held(Some(&refused), &[record], &[]));
    }
}
