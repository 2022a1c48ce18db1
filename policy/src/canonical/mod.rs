//! The one canonical request: what is judged, forwarded, signed for and recorded.
//!
//! A value of [`CanonicalRequest`] is proof that the request has exactly one reading. Whatever has
//! none, or two, becomes a [`Reject`] and never reaches a rule.

mod fields;
mod path;
mod query;
mod url;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::fields::Headers;
pub(crate) use self::path::{CanonicalPath, canonical_escapes};
pub use self::query::QueryPairs;
pub use self::url::RequestUrl;

use crate::body::BodyPrefix;
use crate::{Authority, Destination, Protocol, Reason};

/// Bytes of a request target. Servers commonly stop at 8 KiB; presigned links come near to that.
pub const MAX_TARGET: usize = 32 * 1024;
/// Bytes of a method. The longest registered one (UPDATEREDIRECTREF) has 17.
const MAX_METHOD: usize = 32;

/// A request that has no single reading, or that no rule may open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Reject {
    /// The stable code.
    pub reason: Reason,
    /// What is wrong, for the audit log and for the person; input is escaped.
    pub detail: String,
}

impl Reject {
    /// A reject with its detail.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }
}

/// A request as received, after framing and before any judgement.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    /// `Https` or `Http`.
    pub protocol: Protocol,
    /// The authority that connection, SNI and `Host` agreed on.
    pub authority: &'a Authority,
    /// As received.
    pub method: &'a str,
    /// Origin-form (`/path?query`), or `*` for OPTIONS.
    pub target: &'a str,
    /// Bytes of the body where the framing declares them.
    pub body_len: Option<u64>,
}

/// A request in canonical form.
#[derive(Clone, PartialEq, Eq)]
pub struct CanonicalRequest {
    protocol: Protocol,
    authority: Authority,
    method: String,
    path: CanonicalPath,
    target: String,
    body_len: Option<u64>,
    websocket: bool,
    /// Only where a rule has to see them: [`crate::Policy::needs`].
    headers: Option<Headers>,
    body: Option<Body>,
}

impl CanonicalRequest {
    /// Canonicalises an HTTP request.
    ///
    /// # Errors
    /// [`Reason::BadPath`] for a path without safe canonical form, [`Reason::TraceDenied`] and
    /// [`Reason::ConnectDenied`] for those methods, [`Reason::BadRequest`] for anything else.
    pub fn new(parts: RequestParts<'_>) -> Result<Self, Reject> {
        if !parts.protocol.is_http() {
            let detail = format!("a `{}` flow has no requests", parts.protocol);
            return Err(Reject::new(Reason::BadRequest, detail));
        }
        check_method(parts.method)?;
        if parts.target.len() > MAX_TARGET {
            let detail = format!("the request target is longer than {MAX_TARGET} bytes");
            return Err(Reject::new(Reason::BadRequest, detail));
        }
        let path = match (parts.method, parts.target) {
            ("OPTIONS", "*") => CanonicalPath::asterisk(),
            (_, target) => CanonicalPath::parse(split_query(target).0)?,
        };
        if let Some(query) = split_query(parts.target).1 {
            query::check(query)?;
        }
        Ok(Self {
            protocol: parts.protocol,
            authority: parts.authority.clone(),
            method: parts.method.to_owned(),
            path,
            target: parts.target.to_owned(),
            body_len: parts.body_len,
            websocket: false,
            headers: None,
            body: None,
        })
    }

    /// A flow whose requests nobody reads: method, path and query are empty. Whatever is spoken in
    /// it, `Https` and `Http` included, that is `Tcp`.
    #[must_use]
    pub fn tunnel(protocol: Protocol, authority: Authority) -> Self {
        Self {
            protocol: if protocol.is_http() {
                Protocol::Tcp
            } else {
                protocol
            },
            authority,
            method: String::new(),
            path: CanonicalPath::none(),
            target: String::new(),
            body_len: None,
            websocket: false,
            headers: None,
            body: None,
        }
    }

    /// Says that the request asks for a WebSocket: only rules that open these allow it.
    #[must_use]
    pub fn asking_for_websocket(self) -> Self {
        Self {
            websocket: true,
            ..self
        }
    }

    /// Gives the header fields, in order, for the rules that look at them. Without them such a rule
    /// allows nothing and denies everything that it could match.
    #[must_use]
    pub fn with_headers<'a>(self, fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        Self {
            headers: Some(Headers::new(fields)),
            ..self
        }
    }

    /// Gives the first bytes of the body for the rules that look at it; `complete` when there are no
    /// more. As with [`Self::with_headers`], a rule that misses it errs on the safe side.
    #[must_use]
    pub fn with_body(self, prefix: Vec<u8>, complete: bool) -> Self {
        Self {
            body: Some(Body {
                bytes: prefix,
                complete,
            }),
            ..self
        }
    }

    /// The protocol that was spoken.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Destination and port.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Name or address.
    #[must_use]
    pub const fn destination(&self) -> &Destination {
        &self.authority.destination
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.authority.port
    }

    /// The method, case-sensitive (RFC 9110, section 9.1); empty for a tunnel.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The canonical path, `*`, or empty for a tunnel.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// The path as received, for the record.
    #[must_use]
    pub fn raw_path(&self) -> &str {
        split_query(&self.target).0
    }

    /// The query as received, without the question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        split_query(&self.target).1
    }

    /// Decoded names and values of the query, in order.
    #[must_use]
    pub fn query_pairs(&self) -> QueryPairs<'_> {
        QueryPairs::new(self.query())
    }

    /// Names of the query, in order, for the record; values may be secrets.
    pub fn query_names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.query_pairs().map(|(name, _)| name)
    }

    /// Bytes of the body where declared.
    #[must_use]
    pub const fn body_len(&self) -> Option<u64> {
        self.body_len
    }

    /// Whether a path segment has an encoded slash, which only rules that opted in accept.
    #[must_use]
    pub const fn has_encoded_slash(&self) -> bool {
        self.path.has_encoded_slash()
    }

    /// Canonical path and raw query: the only thing that is ever sent upstream. Empty for a tunnel;
    /// else a request target that HTTP libraries accept.
    #[must_use]
    pub fn forward_target(&self) -> String {
        match self.query() {
            Some(query) => format!("{}?{query}", self.path()),
            None => self.path().to_owned(),
        }
    }

    /// The request as a URL for people: a default port is left out, query values are hidden.
    #[must_use]
    pub fn url(&self) -> String {
        let mut url = format!("{}://{}", self.protocol, self.authority.destination);
        if self.protocol.default_port() != Some(self.port()) {
            url.push_str(&format!(":{}", self.port()));
        }
        if self.path() != "*" {
            url.push_str(self.path());
        }
        if let Some(query) = self.query() {
            url.push('?');
            url.push_str(&query::hide_values(query));
        }
        url
    }

    /// Whether the request asks for a WebSocket.
    #[must_use]
    pub const fn is_websocket(&self) -> bool {
        self.websocket
    }

    /// The header fields, where they were given.
    pub(crate) const fn headers(&self) -> Option<&Headers> {
        self.headers.as_ref()
    }

    /// The body, where it was given. A request that declares to have none has an empty one.
    pub(crate) fn body(&self) -> Option<BodyPrefix<'_>> {
        match &self.body {
            Some(body) => Some(BodyPrefix {
                bytes: &body.bytes,
                complete: body.complete,
            }),
            None if self.body_len == Some(0) => Some(BodyPrefix {
                bytes: &[],
                complete: true,
            }),
            None => None,
        }
    }

    pub(crate) const fn canonical_path(&self) -> &CanonicalPath {
        &self.path
    }
}

/// The first bytes of a body.
#[derive(Clone, PartialEq, Eq)]
struct Body {
    bytes: Vec<u8>,
    complete: bool,
}

/// `METHOD URL` with hidden query values: fit for logs.
impl fmt::Display for CanonicalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.method.is_empty() {
            return f.write_str(&self.url());
        }
        write!(f, "{} {}", self.method, self.url())
    }
}

/// As [`fmt::Display`]: a derived form would print query values.
impl fmt::Debug for CanonicalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CanonicalRequest({self})")
    }
}

fn split_query(target: &str) -> (&str, Option<&str>) {
    target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)))
}

/// A token of RFC 9110, section 5.6.2.
pub(crate) fn is_token(text: &str) -> bool {
    let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(tchar)
}

pub(crate) fn check_method(method: &str) -> Result<(), Reject> {
    if !is_token(method) || method.len() > MAX_METHOD {
        let detail = format!("`{}` is no method", method.escape_default());
        return Err(Reject::new(Reason::BadRequest, detail));
    }
    // Some servers fold the case of a method, so these two are refused in any case.
    if method.eq_ignore_ascii_case("TRACE") || method.eq_ignore_ascii_case("TRACK") {
        return Err(Reject::new(
            Reason::TraceDenied,
            format!("`{method}` is never passed on"),
        ));
    }
    if method.eq_ignore_ascii_case("CONNECT") {
        return Err(Reject::new(
            Reason::ConnectDenied,
            "`CONNECT` is never passed on",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str) -> Result<CanonicalRequest, Reject> {
        let authority = Authority::parse("a.test", 443).unwrap();
        let parts = RequestParts {
            protocol: Protocol::Https,
            authority: &authority,
            method,
            target,
            body_len: None,
        };
        CanonicalRequest::new(parts)
    }

    #[test]
    fn b051_the_query_is_kept_byte_for_byte() {
        let request = request("GET", "/a/./b?x=%2e%2E/../&&y").unwrap();
        assert_eq!(request.forward_target(), "/a/b?x=%2e%2E/../&&y");
        assert_eq!((request.path(), request.raw_path()), ("/a/b", "/a/./b"));
        assert_eq!(request.query(), Some("x=%2e%2E/../&&y"));
    }

    #[test]
    fn url_hides_query_values_and_keeps_names() {
        let request = request("GET", "/r?access_token=s3cr3t&flag&=x").unwrap();
        assert_eq!(request.url(), "https://a.test/r?access_token=…&flag&=…");
        assert!(!format!("{request:?}").contains("s3cr3t"));
        assert_eq!(
            request.query_names().collect::<Vec<_>>(),
            ["access_token", "flag", ""]
        );
    }

    #[test]
    fn trace_and_connect_are_rejected_in_any_case() {
        assert_eq!(
            request("TRACE", "/").unwrap_err().reason,
            Reason::TraceDenied
        );
        assert_eq!(
            request("track", "/").unwrap_err().reason,
            Reason::TraceDenied
        );
        assert_eq!(
            request("Connect", "/").unwrap_err().reason,
            Reason::ConnectDenied
        );
    }

    #[test]
    fn methods_are_tokens() {
        for method in ["", "GE T", "GET\r", "G\0T", "GÉT", &"A".repeat(33)] {
            assert_eq!(
                request(method, "/").unwrap_err().reason,
                Reason::BadRequest,
                "{method:?}"
            );
        }
        assert_eq!(request("PROPFIND", "/").unwrap().method(), "PROPFIND");
    }

    #[test]
    fn the_asterisk_is_for_options_only() {
        assert_eq!(request("OPTIONS", "*").unwrap().forward_target(), "*");
        assert_eq!(request("OPTIONS", "*").unwrap().url(), "https://a.test");
        assert_eq!(request("GET", "*").unwrap_err().reason, Reason::BadPath);
        assert_eq!(
            request("OPTIONS", "*?x").unwrap_err().reason,
            Reason::BadPath
        );
    }

    #[test]
    fn c06_other_target_forms_are_rejected() {
        for target in ["", "public/x", "http://a.test/", "a.test:443", "?x"] {
            assert_eq!(
                request("GET", target).unwrap_err().reason,
                Reason::BadPath,
                "{target}"
            );
        }
        let long = format!("/{}", "a".repeat(MAX_TARGET));
        assert_eq!(
            request("GET", &long).unwrap_err().reason,
            Reason::BadRequest
        );
    }

    #[test]
    fn c05_fragments_and_bytes_that_break_lines_are_rejected_in_the_query_too() {
        for target in [
            "/x#y",
            "/x?y#z",
            "/x?y z",
            "/x?y\r\nz",
            "/x?y\0",
            "/x?ü",
            "/x?<y>",
            "/x?\"y\"",
        ] {
            assert!(request("GET", target).is_err(), "{target:?}");
        }
    }

    #[test]
    fn a_tunnel_has_neither_method_nor_path() {
        let authority = Authority::parse("db.test:5432", None).unwrap();
        let tunnel = CanonicalRequest::tunnel(Protocol::Tcp, authority);
        assert_eq!(tunnel.to_string(), "tcp://db.test:5432");
        assert_eq!(
            (tunnel.method(), tunnel.path(), tunnel.query()),
            ("", "", None)
        );
    }
}
