//! Audit logs as what a policy can be asked about again: requests, tunnels, connections and names.
//!
//! Records are read one by one, whatever the size of the logs, and believed no further than they
//! read. A record that makes no request is counted and named, never passed over.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use outgate_gateway::audit::{self, AuditError, EventKind, StoredRecord};
use outgate_policy::{
    Authority, CanonicalRequest, Destination, Host, Protocol, Reason, RequestParts, Verdict,
};
use serde::Serialize;

use crate::exit::{Code, Failure};
use crate::output::printable;
use crate::places;

/// Unusable records that are named; the others are counted.
const MAX_NAMED: usize = 10;

#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// Folders of audit logs [default: that of the newest run]
    #[arg(value_name = "AUDIT")]
    logs: Vec<PathBuf>,
    /// Prove first that no record was changed, removed or slipped in
    #[arg(long)]
    verify: bool,
}

/// What was read.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tally {
    /// Logs.
    pub(super) logs: usize,
    /// Whether their chains were verified.
    pub(super) verified: bool,
    /// Records of all kinds.
    pub(super) records: u64,
    /// Those that should be about a request and make none.
    pub(super) unusable: u64,
    /// Some of them, and why.
    pub(super) unusable_records: Vec<String>,
}

/// What a record is about, as far as a policy is concerned.
#[derive(Debug)]
pub(super) enum Asked {
    /// A request or a tunnel that was decided.
    Request(Box<Decided>),
    /// A connection that was refused before anything was read.
    Connection { to: Authority, reason: Reason },
    /// A name that was not resolved; `host` where it is canonical.
    Name { name: String, host: Option<Host> },
    /// Something that was refused before it became a request.
    Reject { reason: Reason },
    /// Nothing that a policy decides.
    Other,
}

/// A recorded decision.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) request: CanonicalRequest,
    /// What the policy said. The gateway may have refused what the policy allowed: then `reason`
    /// says why.
    pub(super) policy_verdict: Verdict,
    pub(super) verdict: Verdict,
    /// Why a policy in `mode: observe` would have refused what it let through.
    pub(super) would_deny: Option<Reason>,
    pub(super) reason: Reason,
    pub(super) rule: Option<String>,
    pub(super) credential: Option<String>,
}

impl LogArgs {
    /// Calls `visit` with every record of every log and what it is about.
    ///
    /// # Errors
    /// A [`Failure`] with [`Code::Usage`] for a log that can't be read, or whose chain is broken
    /// where it is to be verified.
    pub(super) fn each(
        &self,
        mut visit: impl FnMut(&StoredRecord, Asked),
    ) -> Result<Tally, Failure> {
        let newest = [places::latest_audit_dir()];
        let logs = if self.logs.is_empty() {
            newest.as_slice()
        } else {
            &self.logs
        };
        let mut tally = Tally {
            logs: logs.len(),
            verified: self.verify,
            ..Tally::default()
        };
        let unreadable = |error: AuditError| Failure::new(Code::Usage, error);
        for dir in logs {
            if self.verify
                && let Some(fault) = audit::verify(dir, None).map_err(unreadable)?.fault
            {
                let dir = printable(&dir.display().to_string());
                let message = format!("the audit log in `{dir}` is broken: {fault}");
                return Err(Failure::new(Code::Usage, message));
            }
            for item in audit::read(dir).map_err(unreadable)? {
                tally.records += 1;
                match item {
                    Ok(record) => match asked(&record) {
                        Ok(asked) => visit(&record, asked),
                        Err(why) => tally.unusable(&record, &why),
                    },
                    Err(error @ AuditError::NotARecord { .. }) => {
                        tally.name_unusable(&error.to_string());
                    }
                    Err(error) => return Err(unreadable(error)),
                }
            }
        }
        Ok(tally)
    }
}

impl Tally {
    fn unusable(&mut self, record: &StoredRecord, why: &str) {
        let id = record.text("id").unwrap_or("without an id");
        let seq = record.number("seq").unwrap_or_default();
        self.name_unusable(&format!("record {seq} ({id}): {why}"));
    }

    fn name_unusable(&mut self, what: &str) {
        self.unusable += 1;
        if self.unusable_records.len() < MAX_NAMED {
            self.unusable_records.push(printable(what));
        }
    }

    /// Lines for people on what to think of the answer.
    pub(super) fn caveats(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.unusable > 0 {
            lines.push(format!("{} records make no request:", self.unusable));
            let named = self.unusable_records.iter();
            lines.extend(named.map(|record| format!("  {record}")));
            let more = self.unusable - self.unusable_records.len() as u64;
            if more > 0 {
                lines.push(format!("  and {more} more"));
            }
        }
        if !self.verified {
            lines.push("the chain of the records was not verified; --verify does that".to_owned());
        }
        lines
    }
}

fn asked(record: &StoredRecord) -> Result<Asked, String> {
    let kind = record.text("kind").and_then(|kind| kind.parse().ok());
    let is_denied = record.text("verdict") == Some("deny");
    match kind {
        Some(EventKind::Request) => decided(record, http_request(record)?),
        Some(EventKind::Flow) if record.text("protocol").is_some() => {
            let to = authority(record)?;
            let protocol = match record.text("protocol") {
                Some("udp") => Protocol::Udp,
                Some("tls") => Protocol::Tls,
                _ => Protocol::Tcp,
            };
            decided(record, CanonicalRequest::tunnel(protocol, to))
        }
        Some(EventKind::Flow) if is_denied => Ok(Asked::Connection {
            to: authority(record)?,
            reason: reason(record)?,
        }),
        Some(EventKind::Dns) if is_denied => {
            let name = record.text("host").ok_or("it names no host")?;
            Ok(Asked::Name {
                name: name.to_owned(),
                host: Host::parse(name).ok(),
            })
        }
        Some(EventKind::Reject) => Ok(Asked::Reject {
            reason: reason(record)?,
        }),
        _ => Ok(Asked::Other),
    }
}

fn decided(record: &StoredRecord, request: CanonicalRequest) -> Result<Asked, String> {
    let reason = reason(record)?;
    let verdict = match record.text("verdict") {
        Some("allow") => Verdict::Allow,
        Some("deny") => Verdict::Deny,
        Some("ask") => Verdict::Ask,
        other => return Err(format!("its verdict is `{}`", other.unwrap_or("missing"))),
    };
    let policy_verdict = match verdict {
        Verdict::Deny if !is_of_policy(reason) => Verdict::Allow,
        said => said,
    };
    let would_deny = record.text("would_deny.reason").and_then(Reason::from_code);
    Ok(Asked::Request(Box::new(Decided {
        request,
        policy_verdict,
        verdict,
        would_deny,
        reason,
        rule: record.text("rule.id").map(str::to_owned),
        credential: record.text("credential.name").map(str::to_owned),
    })))
}

/// Whether a policy gives this reason; the others are the gateway's own, after an allow.
const fn is_of_policy(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DefaultDeny
            | Reason::RuleDeny
            | Reason::NoPolicy
            | Reason::ProtocolNotAllowed
            | Reason::PrivateAddress
            | Reason::MetadataAddress
            | Reason::GatewayAddress
            | Reason::EncodedSlash
            | Reason::ApprovalRequired
    )
}

fn reason(record: &StoredRecord) -> Result<Reason, String> {
    let code = record.text("reason").ok_or("it has no reason")?;
    Reason::from_code(code).ok_or_else(|| format!("its reason `{code}` is unknown here"))
}

/// The request without its query, whose values no record has.
fn http_request(record: &StoredRecord) -> Result<CanonicalRequest, String> {
    let protocol = match record.text("protocol") {
        Some("https") => Protocol::Https,
        Some("http") => Protocol::Http,
        other => return Err(format!("its protocol is `{}`", other.unwrap_or("missing"))),
    };
    let path = record.text("path").ok_or("it has no path")?;
    let request = CanonicalRequest::new(RequestParts {
        protocol,
        authority: &authority(record)?,
        method: record.text("method").ok_or("it has no method")?,
        target: path,
        body_len: None,
    });
    let request = request.map_err(|reject| reject.to_string())?;
    if request.path() != path {
        return Err("its path is not canonical".to_owned());
    }
    Ok(request)
}

fn authority(record: &StoredRecord) -> Result<Authority, String> {
    let host = record.text("host").ok_or("it names no host")?;
    let port = record
        .number("port")
        .and_then(|port| u16::try_from(port).ok());
    let destination = match host.parse::<IpAddr>() {
        Ok(address) => Destination::from(address),
        Err(_) => Destination::parse(host).map_err(|reject| reject.to_string())?,
    };
    Ok(Authority {
        destination,
        port: port.filter(|port| *port != 0).ok_or("it has no port")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(fields: &str) -> Result<Asked, String> {
        let line = format!("{{\"seq\":1,\"id\":\"x\",{fields}}}");
        asked(&StoredRecord::parse(line.as_bytes()).unwrap())
    }

    fn request(fields: &str) -> Decided {
        match about(&format!(
            "\"kind\":\"request\",\"protocol\":\"https\",{fields}"
        )) {
            Ok(Asked::Request(decided)) => *decided,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_rebuilt_as_it_was_judged() {
        let decided = request(
            r#""host":"[2001:db8::1]","port":8443,"method":"GET","path":"/@x%2Fy","query_names":["q"],"verdict":"allow","reason":"allowed","rule":{"id":"r"},"credential":{"name":"c"}"#,
        );
        assert_eq!(
            decided.request.to_string(),
            "GET https://[2001:db8::1]:8443/@x%2Fy"
        );
        assert_eq!(
            (decided.rule.as_deref(), decided.credential.as_deref()),
            (Some("r"), Some("c"))
        );
        let star = request(
            r#""host":"a.test","port":443,"method":"OPTIONS","path":"*","verdict":"deny","reason":"default_deny""#,
        );
        assert_eq!(star.request.path(), "*");
    }

    #[test]
    fn what_the_gateway_refused_the_policy_had_allowed() {
        let verdicts = |reason: &str| {
            let decided = request(&format!(
                r#""host":"a.test","port":443,"method":"GET","path":"/","verdict":"deny","reason":"{reason}""#
            ));
            (decided.policy_verdict, decided.verdict)
        };
        assert_eq!(verdicts("limit_exceeded"), (Verdict::Allow, Verdict::Deny));
        assert_eq!(verdicts("rule_deny"), (Verdict::Deny, Verdict::Deny));
    }

    #[test]
    fn flows_and_names_are_told_apart() {
        let place = r#""host":"10.0.0.1","port":22"#;
        let flow = |rest: &str| about(&format!("\"kind\":\"flow\",{place},{rest}"));
        assert!(matches!(
            flow(r#""protocol":"tcp","verdict":"allow","reason":"allowed""#),
            Ok(Asked::Request(decided)) if decided.request.to_string() == "tcp://10.0.0.1:22"
        ));
        assert!(matches!(
            flow(r#""verdict":"deny","reason":"default_deny""#),
            Ok(Asked::Connection {
                reason: Reason::DefaultDeny,
                ..
            })
        ));
        assert!(matches!(
            about(r#""kind":"dns","host":"a..test","verdict":"deny","reason":"dns_name_denied""#),
            Ok(Asked::Name { host: None, .. })
        ));
        assert!(matches!(
            about(r#""kind":"dns","host":"a.test","verdict":"allow","reason":"allowed""#),
            Ok(Asked::Other)
        ));
        assert!(matches!(
            about(r#""kind":"from_the_future""#),
            Ok(Asked::Other)
        ));
    }

    #[test]
    fn what_makes_no_request_says_why() {
        let why = |fields: &str| {
            about(&format!(
                "\"kind\":\"request\",\"protocol\":\"https\",{fields}"
            ))
            .unwrap_err()
        };
        for (fields, expected) in [
            (
                r#""host":"a.test","port":443,"method":"GET""#,
                "it has no path",
            ),
            (
                r#""host":"a.test","port":0,"method":"GET","path":"/""#,
                "it has no port",
            ),
            (
                r#""host":"a.test","port":65536,"method":"GET","path":"/""#,
                "it has no port",
            ),
            (
                r#""host":"a.test","port":443,"method":"GET","path":"/a/../b""#,
                "its path is not canonical",
            ),
            (
                r#""host":"a.test","port":443,"method":"GET","path":"/a?b""#,
                "its path is not canonical",
            ),
            (
                r#""host":"a.test","port":443,"method":"G T","path":"/""#,
                "bad_request: `G T` is no method",
            ),
            (
                r#""host":"a.test","port":443,"method":"GET","path":"/","verdict":"perhaps","reason":"allowed""#,
                "its verdict is `perhaps`",
            ),
            (
                r#""host":"a.test","port":443,"method":"GET","path":"/","verdict":"deny","reason":"why""#,
                "its reason `why` is unknown here",
            ),
        ] {
            assert_eq!(why(fields), expected, "{fields}");
        }
    }
}
