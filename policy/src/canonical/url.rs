//! An absolute URL read strictly into protocol, authority and target.
//!
//! For absolute-form requests, policy tests and `explain`. There is no base URL, no repair, no
//! userinfo and no fragment.

use crate::{Authority, Protocol, Reason, Reject};

/// `scheme://authority/target`, split and checked; the target is still raw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestUrl {
    /// From the scheme: `https`, `http`, `tcp`, `udp` or `tls`.
    pub protocol: Protocol,
    /// The port is the scheme's default where the URL names none.
    pub authority: Authority,
    /// `/path?query`; `/` where the URL has no path; empty for the others.
    pub target: String,
}

impl RequestUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Reason::BadRequest`] for another scheme or a flow without requests that has a path, [`Reason::BadHost`]
    /// for a bad authority. The target is checked by [`crate::CanonicalRequest::new`].
    pub fn parse(text: &str) -> Result<Self, Reject> {
        let bad_request = |detail: String| Reject::new(Reason::BadRequest, detail);
        let shown = text.escape_default();
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| bad_request(format!("`{shown}` is no absolute URL")))?;
        let protocol = Protocol::ALL
            .into_iter()
            .find(|protocol| scheme.eq_ignore_ascii_case(protocol.as_str()))
            .ok_or_else(|| {
                bad_request(format!("`{shown}` is no https, http, tcp, udp or tls URL"))
            })?;
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let authority = Authority::parse(authority, protocol.default_port())?;
        if protocol.is_http() {
            let target = if target.starts_with('/') {
                target.to_owned()
            } else {
                format!("/{target}")
            };
            return Ok(Self {
                protocol,
                authority,
                target,
            });
        }
        if !target.is_empty() {
            return Err(bad_request(format!(
                "`{shown}` has a path, which a {protocol} flow has not"
            )));
        }
        Ok(Self {
            protocol,
            authority,
            target: String::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Result<(String, String), Reason> {
        RequestUrl::parse(text)
            .map(|url| (format!("{} {}", url.protocol, url.authority), url.target))
            .map_err(|reject| reject.reason)
    }

    fn ok(authority: &str, target: &str) -> Result<(String, String), Reason> {
        Ok((authority.to_owned(), target.to_owned()))
    }

    #[test]
    fn splits_scheme_authority_and_target() {
        assert_eq!(
            parts("https://A.test/x?y=1"),
            ok("https a.test:443", "/x?y=1")
        );
        assert_eq!(parts("HTTP://a.test"), ok("http a.test:80", "/"));
        assert_eq!(parts("https://a.test?x"), ok("https a.test:443", "/?x"));
        assert_eq!(parts("tcp://[::1]:22"), ok("tcp [::1]:22", ""));
        assert_eq!(
            parts("https://a.test/http://b.test/"),
            ok("https a.test:443", "/http://b.test/")
        );
    }

    #[test]
    fn b051_c06_refuses_userinfo_and_other_schemes() {
        assert_eq!(parts("https://user@a.test/"), Err(Reason::BadHost));
        assert_eq!(
            parts("https://a.test\\@evil.test/").map(|(a, _)| a),
            ok("https a.test:443", "").map(|(a, _)| a)
        );
        for text in [
            "ftp://a.test/",
            "gopher:x",
            "//a.test/",
            "/x",
            "",
            "a.test",
            "quic://a.test:53",
        ] {
            assert_eq!(parts(text), Err(Reason::BadRequest), "{text}");
        }
        for text in [
            "tcp://a.test",
            "https:///x",
            "https://",
            "http://0x7f.1/",
            "https://a.test:443:443/",
        ] {
            assert_eq!(parts(text), Err(Reason::BadHost), "{text}");
        }
        assert_eq!(parts("tcp://a.test:1/x"), Err(Reason::BadRequest));
    }
}
