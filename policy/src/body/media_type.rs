//! Media types: the `Content-Type` of a request (RFC 9110, section 8.3.1) and a rule's patterns.
//!
//! Matching is by essence, `type/subtype` in lower case; parameters are read for being well formed
//! and for the character set only.

use std::fmt;

use super::{PatternError, Unclear, shown};
use crate::canonical::is_token;

/// Optional white space of HTTP.
const OWS: [char; 2] = [' ', '\t'];

/// A well-formed media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediaType {
    /// Lower case.
    essence: String,
    has_parameters: bool,
    /// Lower case.
    charset: Option<String>,
}

impl MediaType {
    /// Reads all values of `Content-Type`; `None` without any.
    pub(super) fn of<'h>(
        values: impl IntoIterator<Item = &'h [u8]>,
    ) -> Result<Option<Self>, Unclear> {
        let mut values = values.into_iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(Unclear::new(
                "the request has several `Content-Type` fields",
            ));
        }
        let read = std::str::from_utf8(value).ok().and_then(Self::parse);
        let malformed = || Unclear::new(format!("`{}` is no media type", shown(value)));
        read.ok_or_else(malformed).map(Some)
    }

    fn parse(value: &str) -> Option<Self> {
        let value = value.trim_matches(OWS);
        let end = value.find(';').unwrap_or(value.len());
        let (essence, mut rest) = value.split_at_checked(end)?;
        let essence = essence.trim_end_matches(OWS).to_ascii_lowercase();
        let (kind, subtype) = essence.split_once('/')?;
        if !is_restricted_name(kind) || !is_restricted_name(subtype) {
            return None;
        }
        let mut read = Self {
            essence,
            has_parameters: false,
            charset: None,
        };
        while let Some(after) = rest.strip_prefix(';') {
            rest = after.trim_start_matches(OWS);
            // The grammar has room for an empty parameter, as in a `;` at the end.
            if !rest.is_empty() && !rest.starts_with(';') {
                rest = read.parameter(rest)?.trim_start_matches(OWS);
            }
        }
        rest.is_empty().then_some(read)
    }

    /// Reads one parameter and returns what follows.
    fn parameter<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        self.has_parameters = true;
        let (name, rest) = text.split_once('=')?;
        if !is_token(name) {
            return None;
        }
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find([';', ' ', '\t']).unwrap_or(rest.len());
                let (value, rest) = rest.split_at_checked(end)?;
                (is_token(value).then(|| value.to_owned())?, rest)
            }
        };
        if name.eq_ignore_ascii_case("charset")
            && self.charset.replace(value.to_ascii_lowercase()).is_some()
        {
            return None;
        }
        Some(rest)
    }

    /// `type/subtype` in lower case.
    pub(crate) fn essence(&self) -> &str {
        &self.essence
    }

    /// Whether anything but the essence is said.
    pub(super) const fn has_parameters(&self) -> bool {
        self.has_parameters
    }

    /// Whether text of this type is UTF-8: it says so or says nothing.
    pub(super) fn is_utf8(&self) -> bool {
        self.charset
            .as_deref()
            .is_none_or(|charset| charset == "utf-8")
    }
}

/// The rest of a quoted string and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text.chars();
    loop {
        let c = match rest.next()? {
            '"' => return Some((value, rest.as_str())),
            '\\' => rest.next()?,
            c => c,
        };
        if c != '\t' && !matches!(c, ' '..='~') {
            return None;
        }
        value.push(c);
    }
}

/// RFC 6838, section 4.2, in lower case: what a type or subtype may be called. A token could be
/// `*`, which servers would not agree on.
fn is_restricted_name(name: &str) -> bool {
    let may_follow =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$&-^_.+".contains(&b);
    name.len() <= 127
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.bytes().all(may_follow)
}

/// One entry of a rule's `content_types:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MediaTypePattern {
    /// `application/json`: this type.
    Exact(String),
    /// `text/*`: every subtype. Holds the part with the slash.
    Kind(String),
    /// `application/*+json`: every subtype with this structured suffix (RFC 6839). Holds the part
    /// with the slash, and the suffix with its plus sign.
    Suffix(String, String),
}

impl MediaTypePattern {
    /// Reads an entry.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        if text.contains(';') {
            let essence = text.split(';').next().unwrap_or_default().trim();
            return Err(PatternError::new(
                format!("`{}` has parameters, which are never compared", shown(text)),
                format!("write `{}`", essence.escape_debug()),
            ));
        }
        let Some((kind, subtype)) = text.split_once('/') else {
            return Err(PatternError::new(
                format!("`{}` is no media type", shown(text)),
                "write a type and a subtype, as in `application/json` or `text/*`",
            ));
        };
        if text != text.to_ascii_lowercase() {
            return Err(PatternError::new(
                format!("`{}` is not the canonical spelling", shown(text)),
                format!("write `{}`", text.to_ascii_lowercase().escape_debug()),
            ));
        }
        if kind == "*" {
            return Err(PatternError::new(
                format!("`{}` spans all types", shown(text)),
                "leave the content types out to take every request; a list takes only requests \
                 that have a content type",
            ));
        }
        let front = format!("{kind}/");
        let pattern = match subtype.strip_prefix('*') {
            None => Self::Exact(text.to_owned()),
            Some("") => Self::Kind(front),
            Some(suffix) => Self::Suffix(front, suffix.to_owned()),
        };
        let well_formed = is_restricted_name(kind)
            && match &pattern {
                Self::Exact(_) => is_restricted_name(subtype),
                Self::Kind(_) => true,
                Self::Suffix(_, suffix) => suffix
                    .strip_prefix('+')
                    .is_some_and(|name| is_restricted_name(name) && !name.contains('+')),
            };
        if !well_formed {
            return Err(PatternError::new(
                format!("`{}` is no pattern for media types", shown(text)),
                "a `*` is the whole subtype, as in `text/*`, or stands before a suffix, as in \
                 `application/*+json`",
            ));
        }
        Ok(pattern)
    }

    /// Whether the type is one of these.
    pub(crate) fn matches(&self, media_type: &MediaType) -> bool {
        let essence = media_type.essence();
        match self {
            Self::Exact(exact) => essence == exact,
            Self::Kind(front) => essence.starts_with(front),
            Self::Suffix(front, suffix) => essence.starts_with(front) && essence.ends_with(suffix),
        }
    }
}

impl fmt::Display for MediaTypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(exact) => f.write_str(exact),
            Self::Kind(front) => write!(f, "{front}*"),
            Self::Suffix(front, suffix) => write!(f, "{front}*{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(value: &str) -> Option<MediaType> {
        MediaType::of([value.as_bytes()]).ok().flatten()
    }

    #[test]
    fn the_essence_is_lower_case_without_parameters() {
        for (value, essence) in [
            ("application/json", "application/json"),
            ("Application/JSON", "application/json"),
            (" text/plain ", "text/plain"),
            ("text/plain;charset=utf-8", "text/plain"),
            ("text/plain ; charset=\"UTF-8\"", "text/plain"),
            ("text/plain;", "text/plain"),
            ("text/plain; ;a=b;", "text/plain"),
            (
                "multipart/form-data; boundary=\"a;b\\\"c, d\"",
                "multipart/form-data",
            ),
            ("application/vnd.api+json", "application/vnd.api+json"),
        ] {
            assert_eq!(read(value).unwrap().essence(), essence, "{value}");
        }
        assert_eq!(MediaType::of([]), Ok(None));
    }

    #[test]
    fn only_utf8_is_text_to_the_matchers() {
        for (value, utf8) in [
            ("a/b", true),
            ("a/b;x=y", true),
            ("a/b;charset=UTF-8", true),
            ("a/b;Charset=\"u\\tf-8\"", true),
            ("a/b;charset=utf8", false),
            ("a/b;charset=utf-16le", false),
            ("a/b;charset=utf-7", false),
            ("a/b;charset=\"\"", false),
        ] {
            assert_eq!(read(value).unwrap().is_utf8(), utf8, "{value}");
        }
        assert!(!read("a/b; ;").unwrap().has_parameters());
        assert!(read("a/b;x=y").unwrap().has_parameters());
    }

    #[test]
    fn several_or_malformed_values_are_unclear() {
        for value in [
            "",
            "json",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "*/*",
            "text/*",
            "a /b",
            "a/ b",
            "a/b c",
            "a/b, c/d",
            "a/b;charset",
            "a/b;=x",
            "a/b;a =b",
            "a/b;a= b",
            "a/b;a=b c",
            "a/b;a=\"b",
            "a/b;a=\"b\"c",
            "a/b;a=\"b\\",
            "a/b;a=\"\u{e9}\"",
            "a/b;a=\"\n\"",
            "a/b;a='b c'",
            "a/b;charset=utf-8;charset=utf-16",
            "a/b;charset=utf-8;CHARSET=utf-8",
            "\u{a0}a/b",
            "a/b\0",
            "ä/b",
        ] {
            assert_eq!(read(value), None, "{value:?}");
        }
        assert!(MediaType::of([&b"a/\xff"[..]]).is_err());
        assert!(MediaType::of([&b"a/b"[..], b"a/b"]).is_err());
        assert_eq!(
            MediaType::of([&b"a\n"[..]]),
            Err(Unclear::new("`a\\n` is no media type"))
        );
        assert_eq!(read(&format!("a/{}", "b".repeat(128))), None);
    }

    #[test]
    fn patterns_match_by_essence() {
        for (pattern, value, expected) in [
            ("application/json", "application/json; charset=utf-8", true),
            ("application/json", "Application/Json", true),
            ("application/json", "application/json5", false),
            ("text/*", "text/csv", true),
            ("text/*", "textual/csv", false),
            ("application/*+json", "application/vnd.api+json", true),
            ("application/*+json", "application/a+b+json", true),
            ("application/*+json", "application/json", false),
            ("application/*+json", "application/a+json5", false),
            ("application/*+json", "text/a+json", false),
        ] {
            let parsed = MediaTypePattern::parse(pattern).unwrap();
            assert_eq!(parsed.to_string(), pattern);
            assert_eq!(
                parsed.matches(&read(value).unwrap()),
                expected,
                "{pattern} {value}"
            );
        }
    }

    #[test]
    fn patterns_that_mislead_are_refused_with_help() {
        for (pattern, help) in [
            ("*/*", "leave the content types out"),
            ("*/json", "leave the content types out"),
            ("*", "write a type and a subtype"),
            ("json", "write a type and a subtype"),
            ("Application/JSON", "write `application/json`"),
            (
                "application/json; charset=utf-8",
                "write `application/json`",
            ),
            ("text/pl*", "a `*` is the whole subtype"),
            ("te*/plain", "a `*` is the whole subtype"),
            ("text/*json", "a `*` is the whole subtype"),
            ("text/*+", "a `*` is the whole subtype"),
            ("text/*+a+b", "a `*` is the whole subtype"),
            ("text/**", "a `*` is the whole subtype"),
            ("text/", "a `*` is the whole subtype"),
            ("text/ plain", "a `*` is the whole subtype"),
            ("text/a/b", "a `*` is the whole subtype"),
        ] {
            let error = MediaTypePattern::parse(pattern).unwrap_err();
            let found = error.help.unwrap();
            assert!(found.starts_with(help), "{pattern}: {found}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(value: Vec<u8>, text in "[a-z/*+;= \"\\\\]{0,24}") {
            let _ = MediaType::of([value.as_slice()]);
            let _ = MediaTypePattern::parse(&text);
            if let Some(media_type) = read(&text) {
                let exact = MediaTypePattern::parse(media_type.essence()).unwrap();
                prop_assert!(exact.matches(&media_type));
            }
        }
    }
}
