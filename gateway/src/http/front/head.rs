//! One HTTP/1 request head, judged byte by byte (RFC 9112) before any lenient parser sees it.
//!
//! Two readers that disagree about one head are two different requests. So everything RFC 9112 lets
//! a recipient repair is refused here: line folding, bare CR or LF, white space around names, every
//! framing but one plain `Content-Length` or exactly `Transfer-Encoding: chunked`. It judges the
//! form of a head only; what may leave is for the policy.

use outgate_policy::{Reason, Reject};

use super::Role;

/// Longest head, request line and empty line included, in bytes: what large cookies and signed
/// tokens need, and the longest target `http::Uri` can hold.
pub(in crate::http) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header lines in a head. The HTTP/1 server behind the front is given the same number.
pub(in crate::http) const MAX_HEADERS: usize = 128;
/// Bytes of a guest's text that go into a detail; the rest of an offending line adds nothing.
const MAX_QUOTED_BYTES: usize = 80;

/// What a head says, after it was found to be well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct Head {
    pub(in crate::http) method: String,
    /// The request target as it was sent.
    pub(in crate::http) target: String,
    /// The value of the one `Host` field.
    pub(in crate::http) host: String,
    pub(in crate::http) framing: Framing,
}

impl Head {
    /// Whether the server behind the front read the same request.
    pub(in crate::http) fn is_read_as<B>(&self, request: &::http::Request<B>) -> bool {
        let hosts = request.headers().get_all(::http::header::HOST);
        request.method().as_str() == self.method
            && hosts.iter().eq([self.host.as_str()])
            && self.target.ends_with(
                request
                    .uri()
                    .path_and_query()
                    .map_or("", |path| path.as_str()),
            )
    }
}

/// How the end of a request body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Framing {
    /// Bytes of content; 0 where no field speaks of a body (RFC 9112 section 6.3).
    Length(u64),
    Chunked,
}

/// Looks for the end of the head in `input`, of which the first `*seen` bytes were looked at
/// before. Answers its length, or `None` when more is needed.
///
/// # Errors
/// A line end that is not CRLF, or a head over [`MAX_HEAD_BYTES`].
pub(in crate::http) fn find_end(input: &[u8], seen: &mut usize) -> Result<Option<usize>, Reject> {
    for at in *seen..input.len() {
        let before = at.checked_sub(1).map(|i| input[i]);
        match input[at] {
            b'\n' if before != Some(b'\r') => return Err(bad("a line ends in a bare LF")),
            b'\n' if input[..at - 1].ends_with(b"\r\n") || at == 1 => return Ok(Some(at + 1)),
            byte if byte != b'\n' && before == Some(b'\r') => return Err(bad("a bare CR")),
            _ => {}
        }
        if at + 1 >= MAX_HEAD_BYTES {
            return Err(bad(format!(
                "the head is longer than {MAX_HEAD_BYTES} bytes"
            )));
        }
    }
    *seen = input.len();
    Ok(None)
}

/// Judges a whole head: request line, header lines and the empty line.
///
/// # Errors
/// The first thing found that a strict reader may not accept.
pub(in crate::http) fn parse(head: &[u8], role: Role) -> Result<Head, Reject> {
    let body = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or_else(|| bad("the head has no request line"))?;
    let mut lines = Lines(Some(body));
    let (method, target, minor) = request_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for (count, line) in lines.enumerate() {
        if count >= MAX_HEADERS {
            return Err(bad(format!("more than {MAX_HEADERS} header lines")));
        }
        let (name, value) = header_line(line)?;
        fields.note(name, value)?;
    }
    let framing = fields.framing(minor)?;
    let host = fields
        .host
        .ok_or_else(|| bad_host("there is no Host field"))?;
    check_target(method, target, role)?;
    Ok(Head {
        method: method.to_owned(),
        target: target.to_owned(),
        host: host.to_owned(),
        framing,
    })
}

/// Splits a header or trailer line into name and value, with the white space around the value
/// removed.
///
/// # Errors
/// No colon, a name that is not a token, folding, or a control byte in the value.
pub(super) fn header_line(line: &[u8]) -> Result<(&str, &[u8]), Reject> {
    if line.first().is_some_and(|byte| is_blank(*byte)) {
        return Err(bad("a header line begins with white space"));
    }
    let colon = line
        .iter()
        .position(|byte| *byte == b':')
        .ok_or_else(|| bad(format!("a header line without a colon: `{}`", quoted(line))))?;
    let name = token(&line[..colon])
        .ok_or_else(|| bad(format!("`{}` is no header name", quoted(&line[..colon]))))?;
    let value = &line[colon + 1..];
    if value
        .iter()
        .any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f)
    {
        return Err(bad(format!("a control byte in the value of `{name}`")));
    }
    Ok((name, trim(value)))
}

/// The fields that decide where a request goes and where it ends.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) host: Option<&'a str>,
    length: Option<u64>,
    chunked: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn note(&mut self, name: &str, value: &'a [u8]) -> Result<(), Reject> {
        let repeated = match name.to_ascii_lowercase().as_str() {
            "host" => self.host.replace(host(value)?).is_some(),
            "content-length" => self.length.replace(content_length(value)?).is_some(),
            "transfer-encoding" if value != b"chunked" => {
                return Err(bad(format!(
                    "`Transfer-Encoding: {}`: only `chunked` is understood",
                    quoted(value)
                )));
            }
            "transfer-encoding" => std::mem::replace(&mut self.chunked, true),
            // Servers behind CGI-like interfaces read `_` and `-` as the same byte.
            "content_length" | "transfer_encoding" => {
                return Err(bad(format!("`{name}` can be taken for a framing field")));
            }
            _ => false,
        };
        if repeated {
            return Err(bad(format!("`{name}` is there twice")));
        }
        Ok(())
    }

    pub(super) fn framing(&self, minor: Minor) -> Result<Framing, Reject> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(bad("both Content-Length and Transfer-Encoding")),
            (true, None) if minor == Minor::Zero => Err(bad("Transfer-Encoding in HTTP/1.0")),
            (true, None) => Ok(Framing::Chunked),
            (false, length) => Ok(Framing::Length(length.unwrap_or(0))),
        }
    }
}

/// The minor version of HTTP/1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Minor {
    Zero,
    One,
}

fn request_line(line: &[u8]) -> Result<(&str, &str, Minor), Reject> {
    let (method, target, minor) = split_request_line(line)?;
    let target = std::str::from_utf8(target)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()))
        .ok_or_else(|| malformed(line))?;
    Ok((method, target, minor))
}

/// Method, target and version; the target is not judged.
pub(super) fn split_request_line(line: &[u8]) -> Result<(&str, &[u8], Minor), Reject> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed(line));
    };
    let minor = match version {
        b"HTTP/1.1" => Minor::One,
        b"HTTP/1.0" => Minor::Zero,
        _ => return Err(malformed(line)),
    };
    let method = token(method).ok_or_else(|| malformed(line))?;
    Ok((method, target, minor))
}

fn malformed(line: &[u8]) -> Reject {
    bad(format!("`{}` is no HTTP/1 request line", quoted(line)))
}

/// The four forms of RFC 9112 section 3.2, as far as the server behind the front reads them the
/// same way.
fn check_target(method: &str, target: &str, role: Role) -> Result<(), Reject> {
    if method == "CONNECT" {
        return Err(Reject::new(
            Reason::ConnectDenied,
            "CONNECT, as HTTP/1 authority-form",
        ));
    }
    let absolute = absolute_path(target, role)?;
    if role == Role::Proxy && absolute.is_none() {
        return Err(bad(
            "a proxy is asked by an absolute URL, as in `GET http://host/path`, or by CONNECT",
        ));
    }
    let path = absolute.unwrap_or(target);
    let is_absolute = absolute.is_some();
    let known_form = path.starts_with('/')
        || (is_absolute && (path.is_empty() || path.starts_with('?')))
        || (path == "*" && method == "OPTIONS");
    let read_alike = target.parse::<::http::Uri>().is_ok_and(|uri| {
        let seen = uri
            .path_and_query()
            .map_or("", ::http::uri::PathAndQuery::as_str);
        seen == path || (is_absolute && seen.strip_prefix('/') == Some(path))
    });
    if !known_form || !read_alike {
        let target = quoted(target.as_bytes());
        return Err(Reject::new(
            Reason::BadPath,
            format!("`{target}` is no request target"),
        ));
    }
    Ok(())
}

/// What follows the authority of an absolute-form target; `None` for the other forms.
fn absolute_path(target: &str, role: Role) -> Result<Option<&str>, Reject> {
    // A URL in the query of an origin-form target is data.
    let Some((scheme, rest)) = target
        .split_once("://")
        .filter(|_| !target.starts_with('/'))
    else {
        return Ok(None);
    };
    let known: &[&str] = match role {
        Role::Origin => &["http", "https"],
        Role::Proxy => &["http", "https", "ws", "wss"],
    };
    if !known.iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(bad(format!(
            "`{}` is no scheme for a request",
            quoted(scheme.as_bytes())
        )));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.is_empty() || authority.contains('@') {
        return Err(bad_host(
            "the authority in the target is empty or names a user",
        ));
    }
    Ok(Some(path))
}

fn host(value: &[u8]) -> Result<&str, Reject> {
    std::str::from_utf8(value)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()))
        .filter(|text| !text.contains([',', '@', '/', '\\', '?', '#', '%']))
        .ok_or_else(|| bad_host(format!("`{}` is no Host", quoted(value))))
}

/// Digits and nothing else: no sign, list, leading zero or white space that another reader could
/// see as another number.
fn content_length(value: &[u8]) -> Result<u64, Reject> {
    let plain =
        value.iter().all(u8::is_ascii_digit) && (value.len() == 1 || !value.starts_with(b"0"));
    std::str::from_utf8(value)
        .ok()
        .filter(|_| plain)
        .and_then(|text| text.parse().ok())
        // The largest lengths mean "unknown" to the server behind the front.
        .filter(|length| *length < u64::MAX - 2)
        .ok_or_else(|| bad(format!("`Content-Length: {}`", quoted(value))))
}

/// The lines of a head whose CRLFs [`find_end`] has checked.
pub(super) struct Lines<'a>(pub(super) Option<&'a [u8]>);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0?;
        match rest.windows(2).position(|pair| pair == b"\r\n") {
            Some(at) => {
                self.0 = Some(&rest[at + 2..]);
                Some(&rest[..at])
            }
            None => self.0.take(),
        }
    }
}

/// White space before a value is optional and harmless; behind it, it is how one reader's
/// `chunked` is hidden from another, so it stays and the field's own check refuses it.
fn trim(value: &[u8]) -> &[u8] {
    let start = value
        .iter()
        .position(|byte| !is_blank(*byte))
        .unwrap_or(value.len());
    &value[start..]
}

fn token(bytes: &[u8]) -> Option<&str> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if bytes.is_empty() || !bytes.iter().all(is_token) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// A guest's bytes as text that is safe in a log line.
fn quoted(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(MAX_QUOTED_BYTES)]
        .escape_ascii()
        .to_string()
}

pub(in crate::http) fn bad(detail: impl Into<String>) -> Reject {
    Reject::new(Reason::BadRequest, detail)
}

fn bad_host(detail: impl Into<String>) -> Reject {
    Reject::new(Reason::BadHost, detail)
}
