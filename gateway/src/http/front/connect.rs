//! The head of a CONNECT request (RFC 9110 section 9.3.6), judged like every other head.
//!
//! Only a proxy listener reads these. The target stays bytes until somebody who may connect asks for
//! it, so that a refusal of it can be put on a sandbox's record.

use outgate_policy::{Authority, Reason, Reject};

use super::head::{
    Fields, Framing, Lines, MAX_HEADERS, Minor, bad, header_line, split_request_line,
};

/// What a CONNECT request says, after its form was found to be good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct ConnectHead {
    target: Vec<u8>,
    host: Option<String>,
    /// The value of the one `Proxy-Authorization`.
    pub(in crate::http) credentials: Option<Vec<u8>>,
    /// The values of `Accept`.
    pub(in crate::http) accepts: Vec<Vec<u8>>,
}

/// Whether a head is for this reader. Methods are case-sensitive.
pub(in crate::http) fn is_connect(head: &[u8]) -> bool {
    head.starts_with(b"CONNECT ")
}

/// Judges a whole head: request line, header lines and the empty line.
///
/// # Errors
/// The first thing found that a strict reader may not accept.
pub(in crate::http) fn parse(head: &[u8]) -> Result<ConnectHead, Reject> {
    let body = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or_else(|| bad("the head has no request line"))?;
    let mut lines = Lines(Some(body));
    let (_, target, minor) = split_request_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    let mut parsed = ConnectHead::default();
    for (count, line) in lines.enumerate() {
        if count >= MAX_HEADERS {
            return Err(bad(format!("more than {MAX_HEADERS} header lines")));
        }
        let (name, value) = header_line(line)?;
        fields.note(name, value)?;
        if name.eq_ignore_ascii_case("accept") {
            parsed.accepts.push(value.to_vec());
        } else if name.eq_ignore_ascii_case("proxy-authorization")
            && parsed.credentials.replace(value.to_vec()).is_some()
        {
            return Err(bad("`Proxy-Authorization` is there twice"));
        }
    }
    if fields.framing(minor)? != Framing::Length(0) {
        return Err(bad("CONNECT with content"));
    }
    parsed.host = fields.host.map(str::to_owned);
    if parsed.host.is_none() && minor == Minor::One {
        return Err(Reject::new(Reason::BadHost, "there is no Host field"));
    }
    parsed.target = target.to_vec();
    Ok(parsed)
}

impl ConnectHead {
    /// The target, escaped, for people and records.
    pub(in crate::http) fn target(&self) -> String {
        self.target.escape_ascii().to_string()
    }

    /// Where the tunnel should lead. `Host` adds nothing, and so may not say anything else.
    ///
    /// # Errors
    /// [`Reason::BadHost`] for a target that is not `host:port` in canonical form,
    /// [`Reason::AuthorityMismatch`] for another `Host`.
    pub(in crate::http) fn authority(&self) -> Result<Authority, Reject> {
        let text = std::str::from_utf8(&self.target).map_err(|_| {
            let detail = format!("`{}` is no host", self.target());
            Reject::new(Reason::BadHost, detail)
        })?;
        let authority = Authority::parse(text, None)?;
        if let Some(host) = &self.host
            && Authority::parse(host, authority.port)? != authority
        {
            let detail = format!("`Host: {host}` in a CONNECT to {authority}");
            return Err(Reject::new(Reason::AuthorityMismatch, detail));
        }
        Ok(authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(head: &str) -> Reason {
        match parse(head.as_bytes()).and_then(|head| head.authority().map(drop)) {
            Ok(()) => Reason::Allowed,
            Err(reject) => reject.reason,
        }
    }

    fn to(target: &str) -> Reason {
        reason(&format!("CONNECT {target} HTTP/1.0\r\n\r\n"))
    }

    #[test]
    fn a_connect_head_gives_target_credentials_and_what_is_accepted() {
        let head = "CONNECT A.test.:443 HTTP/1.1\r\nHost: a.test:443\r\nproxy-authorization: Basic eA==\r\n\
            Proxy-Connection: Keep-Alive\r\nAccept: application/json\r\nContent-Length: 0\r\n\r\n";
        let head = parse(head.as_bytes()).unwrap();
        assert_eq!(head.authority().unwrap().to_string(), "a.test:443");
        assert_eq!(head.target(), "A.test.:443");
        assert_eq!(head.credentials.unwrap(), b"Basic eA==");
        assert_eq!(head.accepts, [b"application/json"]);
    }

    #[test]
    fn c03_b005_targets_are_canonical() {
        for good in ["a.test:443", "A.TEST.:1", "10.9.8.7:443", "[::1]:65535"] {
            assert_eq!(to(good), Reason::Allowed, "{good}");
        }
        for bad in [
            "a.test",
            "a.test:",
            "a.test:0",
            "a.test:65536",
            "a.test:443:443",
            ":443",
            "[::1]",
            "::1:443",
            "user@a.test:443",
            "a.test:443/",
            "https://a.test:443",
            "0x7f.1:443",
            "2130706433:443",
            "evil.test\0.a.test:443",
            "evil.test%00.a.test:443",
            "evil.test\t.a.test:443",
            "evil.test\x7f.a.test:443",
            "a..test:443",
            "a.test..:443",
            ".a.test:443",
            "ａ.test:443",
            "a。test:443",
        ] {
            assert_eq!(to(bad), Reason::BadHost, "{bad:?}");
        }
        let not_text = parse(b"CONNECT a\xff.test:443 HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(not_text.target(), "a\\xff.test:443");
        assert_eq!(not_text.authority().unwrap_err().reason, Reason::BadHost);
    }

    #[test]
    fn c06_a_host_says_the_same_or_is_refused() {
        let with = |host: &str| reason(&format!("CONNECT a.test:8443 HTTP/1.1\r\n{host}\r\n"));
        assert_eq!(with("Host: a.test:8443\r\n"), Reason::Allowed);
        assert_eq!(with("Host: A.test\r\n"), Reason::Allowed);
        assert_eq!(with("Host: a.test:443\r\n"), Reason::AuthorityMismatch);
        assert_eq!(with("Host: evil.test:8443\r\n"), Reason::AuthorityMismatch);
        assert_eq!(with("Host: a.test\r\nHost: a.test\r\n"), Reason::BadRequest);
        assert_eq!(with(""), Reason::BadHost);
    }

    #[test]
    fn c07_what_could_be_read_in_two_ways_is_refused() {
        for fields in [
            "Content-Length: 5\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Proxy-Authorization: Basic eA==\r\nproxy-authorization: Basic eQ==\r\n",
            " Proxy-Authorization: Basic eA==\r\n",
            "Proxy-Authorization : Basic eA==\r\n",
            "Proxy-Authorization: Basic\0eA==\r\n",
        ] {
            let head = format!("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
            assert_eq!(reason(&head), Reason::BadRequest, "{fields:?}");
        }
        assert_eq!(
            reason("CONNECT  a.test:443 HTTP/1.0\r\n\r\n"),
            Reason::BadRequest
        );
        assert_eq!(
            reason("CONNECT a.test:443 HTTP/2.0\r\n\r\n"),
            Reason::BadRequest
        );
        assert!(!is_connect(b"connect a.test:443 HTTP/1.1"));
    }
}
