//! What can be recorded: one typed event, whose field names are the product's promise to auditors.
//!
//! There is no field for a query value, a header value or a body. Text that a guest or an upstream
//! chose is bounded here, so that nobody can make a record too large to write by talking a lot.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use outgate_policy::{Closest, Protocol, Reason, RuleRef, Verdict, WouldDeny};
use serde::{Serialize, Serializer};

use super::record::RecordId;

/// Query names kept of one request: more than any API has, few enough for one line.
const MAX_QUERY_NAMES: usize = 64;
/// Bytes kept of one query name.
const MAX_QUERY_NAME_BYTES: usize = 128;
/// Bytes kept of a host: beyond every canonical name, so only refused text is ever cut.
const MAX_HOST_BYTES: usize = 512;
/// Bytes kept of a method: beyond every registered one.
const MAX_METHOD_BYTES: usize = 64;
/// Bytes kept of a detail: an error with its sources fits, a page of an upstream's doesn't.
const MAX_DETAIL_BYTES: usize = 2048;
/// Stands where text was cut.
const CUT: &str = "…";

/// One thing that happened. All fields but `id` and `kind` are left out of the line when empty.
///
/// Built by struct update: `Event { status: Some(200), ..Event::new(EventKind::Response) }`.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Names this record everywhere: in the denial that the guest sees, in later records.
    pub id: RecordId,
    /// What happened.
    pub kind: EventKind,
    /// The [`Request`](EventKind::Request) record that this one belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RecordId>,
    /// The [`Flow`](EventKind::Flow) record that this one belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<RecordId>,
    /// Whose traffic it was; none for the gateway's own events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Arc<SandboxRef>>,
    /// The way in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Ingress>,
    /// `allow`, `deny` or `ask`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why: one of the product's stable reason codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleRef>,
    /// For a denial by default, the rule that lacked the least, and what it lacked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closest: Option<Closest>,
    /// Of an allow: why a policy in `mode: observe` would have refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<WouldDeny>,
    /// SHA-256 of the policy sources that decided, hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_revision: Option<String>,
    /// `https`, `http`, `tcp` or `udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The destination as it was judged: a canonical name or an address. For a refusal before
    /// parsing, the text that was refused, cut at 512 bytes.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "cut_text::<MAX_HOST_BYTES, _>"
    )]
    pub host: Option<String>,
    /// The destination's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The resolved address that was dialled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// The request method, cut at 64 bytes.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "cut_text::<MAX_METHOD_BYTES, _>"
    )]
    pub method: Option<String>,
    /// The canonical path as it was judged, before any credential was attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Names in the query; values can't be recorded.
    #[serde(skip_serializing_if = "QueryNames::is_empty")]
    pub query_names: QueryNames,
    /// HTTP version between guest and gateway, as in `HTTP/1.1`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "http_version"
    )]
    pub http_version: Option<http::Version>,
    /// HTTP version between gateway and upstream.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "http_version"
    )]
    pub upstream_http_version: Option<http::Version>,
    /// The status that the guest got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Body or stream bytes from the guest to the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// Body or stream bytes from the upstream to the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_received: Option<u64>,
    /// Where the time went, in whole microseconds.
    #[serde(rename = "timings_us", skip_serializing_if = "Timings::is_empty")]
    pub timings: Timings,
    /// The credential that was attached, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialUse>,
    /// SHA-256 of the certificate that the upstream showed, hex of its DER.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_cert_sha256: Option<String>,
    /// How many events this record stands for, where the kind coalesces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// A sentence for people; not stable, never a secret, cut at 2048 bytes.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "cut_text::<MAX_DETAIL_BYTES, _>"
    )]
    pub detail: Option<String>,
}

impl Event {
    /// An event with a fresh id and nothing else said yet.
    #[must_use]
    pub fn new(kind: EventKind) -> Self {
        Self {
            id: RecordId::new(),
            kind,
            request: None,
            flow: None,
            sandbox: None,
            ingress: None,
            verdict: None,
            reason: None,
            rule: None,
            closest: None,
            would_deny: None,
            policy_revision: None,
            protocol: None,
            host: None,
            port: None,
            peer: None,
            method: None,
            path: None,
            query_names: QueryNames::default(),
            http_version: None,
            upstream_http_version: None,
            status: None,
            bytes_sent: None,
            bytes_received: None,
            timings: Timings::default(),
            credential: None,
            upstream_cert_sha256: None,
            count: None,
            detail: None,
        }
    }
}

/// What happened. The names are stable; new ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// Something looks like an attack and was not refused; `count` and `detail` say what.
    Alarm,
    /// A listener turned clients away that belong to no sandbox it knows; `count` says how many
    /// since the last such record.
    ClientRefused,
    /// A credential was attached to a request.
    CredentialUse,
    /// A name query was answered or refused.
    Dns,
    /// The link dropped packets; `count` says how many since the last such record.
    Drop,
    /// A TCP or UDP flow was opened or refused.
    Flow,
    /// A TCP or UDP flow ended.
    FlowClose,
    /// The gateway opened the log and is about to serve.
    GatewayStart,
    /// The gateway stopped in order.
    GatewayStop,
    /// A policy was put in force for a sandbox, or one was turned down.
    PolicyLoad,
    /// The log was opened after a crash and a torn tail was cut off; `count` is its bytes.
    Recovery,
    /// Something was refused before it could become a canonical request.
    Reject,
    /// A request was decided.
    Request,
    /// A request ended; `request` names it.
    Response,
    /// A sandbox was put behind the gateway.
    SandboxRegister,
    /// A sandbox was taken from the gateway.
    SandboxRelease,
    /// The log could be written again after a failure; `count` events were refused meanwhile, and
    /// with them whatever they stood for.
    WriteFailure,
}

impl EventKind {
    /// Every kind, in the order of the names.
    pub const ALL: [Self; 17] = [
        Self::Alarm,
        Self::ClientRefused,
        Self::CredentialUse,
        Self::Dns,
        Self::Drop,
        Self::Flow,
        Self::FlowClose,
        Self::GatewayStart,
        Self::GatewayStop,
        Self::PolicyLoad,
        Self::Recovery,
        Self::Reject,
        Self::Request,
        Self::Response,
        Self::SandboxRegister,
        Self::SandboxRelease,
        Self::WriteFailure,
    ];

    /// The name in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alarm => "alarm",
            Self::ClientRefused => "client_refused",
            Self::CredentialUse => "credential_use",
            Self::Dns => "dns",
            Self::Drop => "drop",
            Self::Flow => "flow",
            Self::FlowClose => "flow_close",
            Self::GatewayStart => "gateway_start",
            Self::GatewayStop => "gateway_stop",
            Self::PolicyLoad => "policy_load",
            Self::Recovery => "recovery",
            Self::Reject => "reject",
            Self::Request => "request",
            Self::Response => "response",
            Self::SandboxRegister => "sandbox_register",
            Self::SandboxRelease => "sandbox_release",
            Self::WriteFailure => "write_failure",
        }
    }
}

impl std::fmt::Display for EventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no kind of event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no kind of audit record; `docs/audit.md` lists them")]
pub struct UnknownKind {
    name: String,
}

impl FromStr for EventKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| UnknownKind {
                name: name.to_owned(),
            })
    }
}

/// The way by which traffic reached the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ingress {
    /// A sandbox's link.
    Link,
    /// `CONNECT`, or an absolute URL in a request to a proxy listener.
    ExplicitProxy,
    /// SOCKS5.
    Socks5,
    /// A connection that the operator's network led here.
    Transparent,
}

impl Ingress {
    /// Whether a client says by this way in itself where it wants to go, by name.
    pub(crate) const fn names_destination(self) -> bool {
        matches!(self, Self::ExplicitProxy | Self::Socks5)
    }
}

/// The sandbox as it was registered. Shared by all its events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SandboxRef {
    /// Unique among the sandboxes of one gateway.
    pub id: String,
    /// Labels that the node gave.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Isolation tier that runs it, as in `microvm`.
    pub tier: String,
}

/// A credential by name, never by value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CredentialUse {
    /// Its name in the policy.
    pub name: String,
    /// Where it was attached, as in `header:authorization`.
    pub surface: String,
}

/// How long each step took; none where it did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timings {
    /// The decision.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "micros")]
    pub decide: Option<Duration>,
    /// Name resolution.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "micros")]
    pub dns: Option<Duration>,
    /// The TCP connect.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "micros")]
    pub connect: Option<Duration>,
    /// The TLS handshake with the upstream.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "micros")]
    pub tls: Option<Duration>,
    /// From the request's last header byte to the response's first.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "micros")]
    pub first_byte: Option<Duration>,
    /// From first to last byte.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "micros")]
    pub total: Option<Duration>,
}

impl Timings {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The names in a query, without a way to hold a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct QueryNames(Vec<String>);

impl QueryNames {
    /// Takes the names out of a raw query (`a=1&b=2`), as they were sent and in their order.
    ///
    /// A piece without `=` may be a flag (`?acl`) or a bare token: it is a name only while it looks
    /// like a word, else `…` stands for it. Beyond 64 names, a last `…` says that there were more.
    #[must_use]
    pub fn of(query: &str) -> Self {
        let mut pieces = query.split('&').filter(|piece| !piece.is_empty());
        let mut names: Vec<String> = pieces
            .by_ref()
            .take(MAX_QUERY_NAMES)
            .map(|piece| name_of(piece).into())
            .collect();
        if pieces.next().is_some() {
            names.push(CUT.to_owned());
        }
        Self(names)
    }

    /// The names.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn name_of(piece: &str) -> Cow<'_, str> {
    /// Letters of a flag without a value: S3's `uploads` and the like, shorter than any token.
    const MAX_FLAG_BYTES: usize = 24;
    match piece.split_once('=') {
        Some((name, _value)) => cut(name, MAX_QUERY_NAME_BYTES),
        None if piece.len() <= MAX_FLAG_BYTES
            && piece
                .bytes()
                .all(|b| b.is_ascii_lowercase() || matches!(b, b'-' | b'_')) =>
        {
            piece.into()
        }
        None => CUT.into(),
    }
}

fn cut(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        return text.into();
    }
    let end = text.floor_char_boundary(bytes);
    let kept = text.get(..end).unwrap_or_default();
    format!("{kept}{CUT}").into()
}

fn http_version<S: Serializer>(version: &Option<http::Version>, to: S) -> Result<S::Ok, S::Error> {
    version.map(|version| format!("{version:?}")).serialize(to)
}

fn micros<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    let whole = time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    whole.serialize(to)
}

fn cut_text<const BYTES: usize, S: Serializer>(
    text: &Option<String>,
    to: S,
) -> Result<S::Ok, S::Error> {
    text.as_deref().map(|text| cut(text, BYTES)).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::ascii::event_line;

    fn json(event: &Event) -> String {
        String::from_utf8(event_line(event).unwrap()).unwrap()
    }

    fn id(text: &str) -> RecordId {
        text.parse().unwrap()
    }

    #[test]
    fn an_event_says_only_what_it_knows() {
        let event = Event {
            id: id("01K3AAAAAAAAAAAAAAAAAAAAAA"),
            ..Event::new(EventKind::Dns)
        };
        assert_eq!(
            json(&event),
            r#"{"id":"01K3AAAAAAAAAAAAAAAAAAAAAA","kind":"dns"}"#
        );
    }

    #[test]
    fn b175_every_field_has_its_documented_name_and_form() {
        let rule = Arc::new(RuleRef {
            id: "s".into(),
            file: "q.yaml".into(),
            line: 4,
            layer: 1,
        });
        let event = Event {
            id: id("01K3AAAAAAAAAAAAAAAAAAAAAB"),
            kind: EventKind::Response,
            request: Some(id("01K3AAAAAAAAAAAAAAAAAAAAAA")),
            flow: Some(id("01K3AAAAAAAAAAAAAAAAAAAAA9")),
            sandbox: Some(Arc::new(SandboxRef {
                id: "sb1".to_owned(),
                labels: [("team".to_owned(), "red".to_owned())].into(),
                tier: "microvm".to_owned(),
            })),
            ingress: Some(Ingress::Link),
            verdict: Some(Verdict::Allow),
            reason: Some(Reason::Allowed),
            rule: Some(RuleRef {
                id: "r".into(),
                file: "p.yaml".into(),
                line: 3,
                layer: 0,
            }),
            closest: Some(Closest {
                rule: Arc::clone(&rule),
                failed: outgate_policy::Mismatch::Path,
            }),
            would_deny: Some(WouldDeny {
                reason: Reason::RuleDeny,
                rule: Some(rule),
            }),
            policy_revision: Some("ab".to_owned()),
            protocol: Some(Protocol::Https),
            host: Some("a.test".to_owned()),
            port: Some(443),
            peer: Some("[2001:db8::1]:443".parse().unwrap()),
            method: Some("GET".to_owned()),
            path: Some("/x".to_owned()),
            query_names: QueryNames::of("q=1"),
            http_version: Some(http::Version::HTTP_2),
            upstream_http_version: Some(http::Version::HTTP_11),
            status: Some(200),
            bytes_sent: Some(1),
            bytes_received: Some(2),
            timings: Timings {
                decide: Some(Duration::from_nanos(1999)),
                dns: Some(Duration::from_micros(2)),
                connect: Some(Duration::from_micros(3)),
                tls: Some(Duration::from_micros(4)),
                first_byte: Some(Duration::from_millis(5)),
                total: Some(Duration::from_secs(6)),
            },
            credential: Some(CredentialUse {
                name: "github".to_owned(),
                surface: "header:authorization".to_owned(),
            }),
            upstream_cert_sha256: Some("cd".to_owned()),
            count: Some(3),
            detail: Some("d".to_owned()),
        };
        let expected = concat!(
            r#"{"id":"01K3AAAAAAAAAAAAAAAAAAAAAB","kind":"response","#,
            r#""request":"01K3AAAAAAAAAAAAAAAAAAAAAA","flow":"01K3AAAAAAAAAAAAAAAAAAAAA9","#,
            r#""sandbox":{"id":"sb1","labels":{"team":"red"},"tier":"microvm"},"ingress":"link","#,
            r#""verdict":"allow","reason":"allowed","#,
            r#""rule":{"id":"r","file":"p.yaml","line":3,"layer":0},"#,
            r#""closest":{"rule":{"id":"s","file":"q.yaml","line":4,"layer":1},"failed":"path"},"#,
            r#""would_deny":{"reason":"rule_deny","rule":{"id":"s","file":"q.yaml","line":4,"layer":1}},"#,
            r#""policy_revision":"ab","#,
            r#""protocol":"https","host":"a.test","port":443,"peer":"[2001:db8::1]:443","#,
            r#""method":"GET","path":"/x","query_names":["q"],"http_version":"HTTP/2.0","#,
            r#""upstream_http_version":"HTTP/1.1","status":200,"bytes_sent":1,"bytes_received":2,"#,
            r#""timings_us":{"decide":1,"dns":2,"connect":3,"tls":4,"first_byte":5000,"total":6000000},"#,
            r#""credential":{"name":"github","surface":"header:authorization"},"#,
            r#""upstream_cert_sha256":"cd","count":3,"detail":"d"}"#,
        );
        assert_eq!(json(&event), expected);
    }

    #[test]
    fn the_documentation_lists_every_field_and_kind() {
        let manual = include_str!("../../../docs/audit.md");
        for kind in EventKind::ALL {
            assert!(manual.contains(&format!("`{kind}`")), "{kind}");
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        let unknown = UnknownKind {
            name: "requests".to_owned(),
        };
        assert_eq!("requests".parse::<EventKind>(), Err(unknown));
    }

    #[test]
    fn b174_query_values_are_not_recorded() {
        let names = |query| QueryNames::of(query).0;
        assert_eq!(names("token=S1&b=2&&token=S3"), ["token", "b", "token"]);
        assert_eq!(names("uploads&list-type=2"), ["uploads", "list-type"]);
        assert_eq!(names("sk-live-0123456789abcdef"), [CUT]);
        assert_eq!(names("eyJhbGciOiJIUzI1NiJ9.e30.S1&a=1=2"), [CUT, "a"]);
        assert_eq!(names(""), [""; 0]);
        let long = format!("{}=v", "ü".repeat(100));
        assert_eq!(names(&long), [format!("{}{CUT}", "ü".repeat(64))]);
        let many = names(&"a=1&".repeat(1000));
        assert_eq!(
            (many.len(), many.last().map(String::as_str)),
            (65, Some(CUT))
        );
    }

    #[test]
    fn text_of_any_length_and_kind_fits_a_record() {
        let long = Some("\u{1}".repeat(1 << 20));
        let (host, method, detail) = (long.clone(), long.clone(), long);
        let line = json(&Event {
            host,
            method,
            detail,
            ..Event::new(EventKind::Reject)
        });
        let cut = format!(
            r#""detail":"{}\u2026"}}"#,
            r"\u0001".repeat(MAX_DETAIL_BYTES)
        );
        assert!(line.ends_with(&cut));
    }
}
