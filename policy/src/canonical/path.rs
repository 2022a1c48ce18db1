//! The canonical path: escapes decoded once where RFC 3986 calls them equal, dot segments resolved.
//!
//! Nothing else is collapsed, guessed or repaired. What an upstream could read as leaving the path
//! that was judged (backslash, matrix parameters behind dots, dots behind an encoded slash) is
//! refused.

use crate::{Reason, Reject};

/// A canonical path with what rules need to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanonicalPath {
    text: String,
    encoded_slash: bool,
    /// The path as more lenient upstreams read it, where that differs. Bytes, because an escape may
    /// be any byte. Only deny rules look at these.
    readings: Vec<Vec<u8>>,
}

impl CanonicalPath {
    /// Canonicalises an absolute path without query.
    pub(crate) fn parse(raw: &str) -> Result<Self, Reject> {
        if !raw.starts_with('/') {
            return Err(bad_path("the path doesn't start with `/`"));
        }
        let escaped = canonical_escapes(raw)?;
        let segments = resolve_dots(&escaped)?;
        let mut text = String::with_capacity(escaped.len());
        for segment in segments {
            text.push('/');
            text.push_str(segment);
        }
        let encoded_slash = text.contains(ENCODED_SLASH);
        let readings = readings(&text);
        Ok(Self {
            text,
            encoded_slash,
            readings,
        })
    }

    /// The target `*` of OPTIONS: no path pattern matches it.
    pub(crate) fn asterisk() -> Self {
        Self {
            text: "*".to_owned(),
            encoded_slash: false,
            readings: Vec::new(),
        }
    }

    /// The path of a flow without requests: no path pattern matches it.
    pub(crate) const fn none() -> Self {
        Self {
            text: String::new(),
            encoded_slash: false,
            readings: Vec::new(),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) const fn has_encoded_slash(&self) -> bool {
        self.encoded_slash
    }

    /// See the field.
    pub(crate) fn readings(&self) -> impl Iterator<Item = &[u8]> {
        self.readings.iter().map(Vec::as_slice)
    }
}

const ENCODED_SLASH: &str = "%2F";

fn bad_path(detail: impl Into<String>) -> Reject {
    Reject::new(Reason::BadPath, detail)
}

/// Decodes escapes of unreserved characters (RFC 3986, section 6.2.2.2), once, and writes the
/// others in upper case (section 6.2.2.1). Both spellings of an escape must get one verdict.
pub(crate) fn canonical_escapes(raw: &str) -> Result<String, Reject> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let value = rest
                    .next()
                    .zip(rest.next())
                    .and_then(|(high, low)| hex(high, low));
                push_escape(
                    &mut out,
                    value.ok_or_else(|| bad_path("a `%` without two hex digits"))?,
                )?;
            }
            b'\\' => return Err(bad_path("a backslash, which some servers read as `/`")),
            b'#' => return Err(bad_path("a fragment (`#`), which is never sent")),
            // Not in a URL's path by any standard, and HTTP libraries refuse them.
            b'<' | b'>' | b'`' => {
                return Err(bad_path(format!(
                    "`{}`, which must be escaped",
                    char::from(byte)
                )));
            }
            0x21..=0x7e => out.push(char::from(byte)),
            _ => {
                return Err(bad_path(format!(
                    "the byte 0x{byte:02x}, which must be escaped"
                )));
            }
        }
    }
    Ok(out)
}

fn push_escape(out: &mut String, value: u8) -> Result<(), Reject> {
    match value {
        b'\\' => Err(bad_path(
            "an encoded backslash, which some servers read as `/`",
        )),
        0..=0x1f | 0x7f => Err(bad_path(format!("the encoded control byte 0x{value:02x}"))),
        _ if is_unreserved(value) => {
            out.push(char::from(value));
            Ok(())
        }
        _ => {
            out.push_str(&format!("%{value:02X}"));
            Ok(())
        }
    }
}

/// RFC 3986, section 2.3.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// RFC 3986, section 5.2.4, except that leaving the root is refused.
fn resolve_dots(path: &str) -> Result<Vec<&str>, Reject> {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_dots = false;
    for segment in path.split('/').skip(1) {
        ends_in_dots = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => {
                let parent = kept.pop().ok_or_else(|| bad_path("`..` leaves the root"))?;
                if is_bare_parameters(parent) {
                    return Err(bad_path("`..` after a segment that is only `;parameters`"));
                }
            }
            _ if hides_dots(segment) => {
                return Err(bad_path(
                    "a dot segment behind `;parameters` or an encoded slash",
                ));
            }
            _ => kept.push(segment),
        }
    }
    if ends_in_dots {
        kept.push("");
    }
    Ok(kept)
}

/// Servers that drop matrix parameters, or split at encoded slashes, would see a dot segment.
fn hides_dots(segment: &str) -> bool {
    segment
        .split(ENCODED_SLASH)
        .any(|piece| matches!(without_parameters(piece), "." | ".."))
}

/// Servers that drop matrix parameters and merge slashes would let `..` remove one more segment.
fn is_bare_parameters(segment: &str) -> bool {
    !segment.is_empty() && without_parameters(segment).is_empty()
}

fn without_parameters(segment: &str) -> &str {
    let end = segment
        .find(';')
        .into_iter()
        .chain(segment.find("%3B"))
        .min();
    end.and_then(|end| segment.get(..end)).unwrap_or(segment)
}

/// Escapes decoded until none is left; and that without matrix parameters, repeated slashes and a
/// slash at the end. Each is what some server makes of the path.
fn readings(text: &str) -> Vec<Vec<u8>> {
    let mut decoded = text.as_bytes().to_vec();
    while let Some(next) = decode(&decoded) {
        decoded = next;
    }
    let mut simple = Vec::with_capacity(decoded.len());
    for segment in decoded.split(|byte| *byte == b'/') {
        let name = segment
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        if !name.is_empty() {
            simple.push(b'/');
            simple.extend_from_slice(name);
        }
    }
    if simple.is_empty() {
        simple.push(b'/');
    }
    let mut readings = vec![decoded, simple];
    readings.dedup();
    readings.retain(|reading| reading != text.as_bytes());
    readings
}

/// Decodes every well-formed escape once; `None` when there is none. The result is shorter.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, after @ ..] => hex(*high, *low).map(|value| (value, after)),
            _ => None,
        };
        let (byte, after) = escaped.unwrap_or((*first, tail));
        out.push(byte);
        rest = after;
    }
    (out.len() < text.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(raw: &str) -> Result<String, String> {
        CanonicalPath::parse(raw)
            .map(|path| path.text)
            .map_err(|reject| {
                assert_eq!(reject.reason, Reason::BadPath);
                reject.detail
            })
    }

    #[test]
    fn b023_dot_segments_are_judged_canonical() {
        for raw in [
            "/public/../secret",
            "/public/%2e%2e/secret",
            "/public/%2E./secret",
            "/public/.%2e/secret",
        ] {
            assert_eq!(canonical(raw).unwrap(), "/secret", "{raw}");
        }
        assert_eq!(canonical("//public//../secret").unwrap(), "//public/secret");
        assert_eq!(canonical("/./public/x").unwrap(), "/public/x");
        assert_eq!(canonical("/public//x").unwrap(), "/public//x");
        assert_eq!(canonical("/a/b/..").unwrap(), "/a/");
        assert_eq!(canonical("/a/.").unwrap(), "/a/");
        assert_eq!(canonical("/a/..").unwrap(), "/");
        assert_eq!(canonical("/").unwrap(), "/");
        assert_eq!(canonical("/...").unwrap(), "/...");
    }

    #[test]
    fn c05_underflow_is_rejected() {
        for raw in [
            "/..",
            "/../public/x",
            "/a/../..",
            "/%2e%2e/x",
            "/a/./../../b",
        ] {
            assert_eq!(canonical(raw).unwrap_err(), "`..` leaves the root", "{raw}");
        }
    }

    #[test]
    fn c05_residual_dot_segments_are_rejected() {
        for raw in [
            "/public/..;x/secret",
            "/public/..%3bx/secret",
            "/public/.;/secret",
            "/public/..;",
            "/public/%2f..%2fsecret",
            "/public%2f..%2fsecret",
            "/public/x%2F.%2Fy",
            "/a%2f..;p%2fb",
        ] {
            assert_eq!(
                canonical(raw).unwrap_err(),
                "a dot segment behind `;parameters` or an encoded slash",
                "{raw}"
            );
        }
        assert_eq!(
            canonical("/public/;/../secret").unwrap_err(),
            "`..` after a segment that is only `;parameters`"
        );
        assert_eq!(canonical("/public/a;v=1/x").unwrap(), "/public/a;v=1/x");
    }

    #[test]
    fn c05_backslashes_control_bytes_and_broken_escapes_are_rejected() {
        for raw in [
            "/public\\..\\secret",
            "/public/%5c..%5csecret",
            "/a%00",
            "/a%0d%0ab",
            "/a%7f",
            "/a%1b",
            "/a\0",
            "/a b",
            "/a\tb",
            "/ü",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%+1",
            "/a%é",
            "/a<b",
            "/a>b",
            "/a`b",
            "/a#b",
        ] {
            assert!(canonical(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn escapes_are_decoded_once_and_only_where_unreserved() {
        assert_eq!(canonical("/%41%7e%2d%5F").unwrap(), "/A~-_");
        assert_eq!(canonical("/%3a%c3%bc").unwrap(), "/%3A%C3%BC");
        assert_eq!(canonical("/%252e%252e/x").unwrap(), "/%252e%252e/x");
        assert_eq!(canonical("/@scope%2fpkg").unwrap(), "/@scope%2Fpkg");
    }

    #[test]
    fn readings_are_what_lenient_upstreams_make_of_the_path() {
        let readings = |raw: &str| -> Vec<String> {
            let path = CanonicalPath::parse(raw).unwrap();
            path.readings()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
                .collect()
        };
        assert_eq!(readings("/plain/path"), [] as [&str; 0]);
        assert_eq!(readings("/v1/m%3agenerate%2fx"), ["/v1/m:generate/x"]);
        assert_eq!(readings("/%2561dmin"), ["/admin"]);
        assert_eq!(readings("//a;v=1//b/"), ["/a/b"]);
        assert_eq!(readings("/a%3bv/b"), ["/a;v/b", "/a/b"]);
        assert_eq!(readings("//"), ["/"]);
        assert!(CanonicalPath::parse("/a%2fb").unwrap().has_encoded_slash());
    }

    /// The specification as slowly as it reads: repeat until nothing changes.
    mod oracle {
        pub(super) fn canonical(raw: &str) -> Option<String> {
            if !raw.starts_with('/')
                || !raw
                    .chars()
                    .all(|c| c.is_ascii_graphic() && !"\\#<>`".contains(c))
            {
                return None;
            }
            let mut path = escapes(raw)?;
            for hidden in path.split('/').flat_map(|segment| segment.split("%2F")) {
                let bare = hidden.replace("%3B", ";");
                if let Some((".." | ".", _)) = bare.split_once(';') {
                    return None;
                }
            }
            for segment in path.split('/').filter(|segment| segment.contains("%2F")) {
                if segment
                    .split("%2F")
                    .any(|piece| piece == "." || piece == "..")
                {
                    return None;
                }
            }
            loop {
                if let Some(at) = path.find("/./") {
                    path.replace_range(at..at + 2, "");
                } else if path.ends_with("/.") {
                    path.pop();
                } else if let Some(at) = path
                    .find("/../")
                    .or_else(|| path.ends_with("/..").then(|| path.len() - 3))
                {
                    let parent = path[..at].rfind('/')?;
                    let name = path[parent + 1..at].replace("%3B", ";");
                    if name.starts_with(';') {
                        return None;
                    }
                    path.replace_range(parent..at + 3, "");
                    if parent == path.len() {
                        path.push('/');
                    }
                } else {
                    return Some(path);
                }
            }
        }

        fn escapes(raw: &str) -> Option<String> {
            let mut pieces = raw.split('%');
            let mut out = pieces.next()?.to_owned();
            for piece in pieces {
                let digits = piece
                    .get(..2)
                    .filter(|d| d.chars().all(|c| c.is_ascii_hexdigit()))?;
                let value = u8::from_str_radix(digits, 16).ok()?;
                let c = char::from(value);
                if value < 0x20 || value == 0x7f || c == '\\' {
                    return None;
                }
                if c.is_ascii_alphanumeric() || "-._~".contains(c) {
                    out.push(c);
                } else {
                    out.push('%');
                    out.push_str(&digits.to_ascii_uppercase());
                }
                out.push_str(&piece[2..]);
            }
            Some(out)
        }
    }

    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/", "/", "/", ".", "..", "%2e", "%2E", "%2f", "%2F", "%5c", "\\", ";", "%3b", "a",
            "b", "x=1", "%25", "%00", "%", "%4", "%41", "#", "?", " ", "~", "%c3%bc", "//", "/../",
            "/./", "%7F", "<",
        ]);
        prop::collection::vec(piece, 0..14).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn agrees_with_the_slow_oracle(raw in hostile()) {
            prop_assert_eq!(canonical(&raw).ok(), oracle::canonical(&raw));
        }

        #[test]
        fn is_idempotent_and_leaves_nothing_to_resolve(raw in hostile()) {
            if let Ok(path) = canonical(&raw) {
                prop_assert_eq!(canonical(&path), Ok(path.clone()));
                prop_assert!(path.starts_with('/'));
                prop_assert!(path.bytes().all(|b| (0x21..0x7f).contains(&b) && b != b'\\' && b != b'#'));
                let decoded = decode(path.as_bytes()).unwrap_or_else(|| path.clone().into_bytes());
                let decoded = String::from_utf8_lossy(&decoded).into_owned();
                prop_assert!(!decoded.contains(|c: char| c == '\\' || c.is_ascii_control()));
                for segment in decoded.split('/') {
                    prop_assert!(!matches!(segment.split(';').next(), Some("." | "..")));
                }
            }
        }

        #[test]
        fn any_text_is_read_without_panic(raw in "\\PC*") {
            let _ = canonical(&raw);
        }
    }
}
