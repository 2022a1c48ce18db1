//! What a request asks for, read from its content: git, gRPC, GraphQL and MCP.
//!
//! Each reader is a pure function over a canonical request and a bounded prefix of its body. It
//! returns a fact, or [`Unclear`] when the request has no single reading; never a verdict. An allow
//! rule needs a clear yes, a deny rule also matches what is unclear. So whatever two servers could
//! read in two ways must be unclear here, and leniency is a hole.
//!
//! `Ok(None)` is a clear no: the request isn't of the reader's protocol.

mod git;
mod graphql;
mod grpc;
mod json;
mod mcp;
mod media_type;
mod parameter;
mod wildcard;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::git::{GitKind, GitOperation, GitRequest, git_request, updated_refs};
pub(crate) use self::graphql::{OperationPattern, graphql_request};
pub(crate) use self::grpc::{Carrier, grpc_call};
pub(crate) use self::mcp::{Mcp, mcp_message};
pub(crate) use self::media_type::{MediaType, MediaTypePattern};

use self::json::Json;
use crate::glob::GlobError;

/// What is known of a body: its first bytes, and whether these are all of it.
#[derive(Clone, Copy)]
pub(crate) struct BodyPrefix<'a> {
    /// The first bytes of the body, as received.
    pub(crate) bytes: &'a [u8],
    /// Whether nothing follows.
    pub(crate) complete: bool,
}

/// Never the bytes: they may be secrets.
impl fmt::Debug for BodyPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyPrefix")
            .field("len", &self.bytes.len())
            .field("complete", &self.complete)
            .finish()
    }
}

/// Why a request has no single reading for a matcher: words for the audit log, input escaped and
/// cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclear(Cow<'static, str>);

impl Unclear {
    fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a pattern of the policy file and what to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PatternError {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl From<PatternError> for GlobError {
    fn from(error: PatternError) -> Self {
        Self {
            message: error.message,
            help: error.help,
        }
    }
}

impl PatternError {
    fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: Some(help.into()),
        }
    }
}

/// The content of a request: its body, and what its header fields say of it. Read once, asked by
/// every rule.
#[derive(Clone, Debug)]
pub(crate) struct Content<'a> {
    media_type: Result<Option<MediaType>, Unclear>,
    coding: Result<(), Unclear>,
    body: BodyPrefix<'a>,
}

impl<'a> Content<'a> {
    /// `types` and `encodings` are all values of `Content-Type` and `Content-Encoding`.
    pub(crate) fn new<'h>(
        types: impl IntoIterator<Item = &'h [u8]>,
        encodings: impl IntoIterator<Item = &'h [u8]>,
        body: BodyPrefix<'a>,
    ) -> Self {
        Self {
            media_type: MediaType::of(types),
            coding: identity(encodings),
            body,
        }
    }

    /// The media type; `None` without a `Content-Type`.
    pub(crate) fn media_type(&self) -> Result<Option<&MediaType>, Unclear> {
        match &self.media_type {
            Ok(media_type) => Ok(media_type.as_ref()),
            Err(unclear) => Err(unclear.clone()),
        }
    }

    /// Whether there surely is no body.
    fn is_empty(&self) -> bool {
        self.body.complete && self.body.bytes.is_empty()
    }

    /// The first bytes, if no content coding hides them.
    fn prefix(&self) -> Result<BodyPrefix<'a>, Unclear> {
        self.coding.clone().map(|()| self.body)
    }

    /// All bytes, if no content coding hides them.
    fn whole(&self) -> Result<&'a [u8], Unclear> {
        let body = self.prefix()?;
        if !body.complete {
            let why = format!(
                "the body is longer than the {} bytes that are read of it",
                body.bytes.len()
            );
            return Err(Unclear::new(why));
        }
        Ok(body.bytes)
    }

    /// The body as strict JSON. What its media type is has to be asked before.
    fn json(&self) -> Result<Json<'a>, Unclear> {
        json::parse(self.whole()?)
    }
}

/// `Ok` when the content is as it looks: no content coding but `identity`. Decoding would have to
/// agree with the upstream on every odd stream, so a coded body isn't looked into.
fn identity<'h>(encodings: impl IntoIterator<Item = &'h [u8]>) -> Result<(), Unclear> {
    for value in encodings {
        if !value.trim_ascii().eq_ignore_ascii_case(b"identity") {
            let why = format!("the body is coded as `{}`", shown(value));
            return Err(Unclear::new(why));
        }
    }
    Ok(())
}

/// Input for a sentence: escaped, and cut before the sentence gets unreadable.
fn shown(input: impl AsRef<[u8]>) -> String {
    /// Bytes.
    const SHOWN: usize = 64;
    let input = input.as_ref();
    match input.get(..SHOWN) {
        Some(start) if input.len() > SHOWN => format!("{}…", start.escape_ascii()),
        _ => input.escape_ascii().to_string(),
    }
}

/// Requests and contents for the tests of the readers.
#[cfg(test)]
mod fixture {
    use super::{BodyPrefix, Content};
    use crate::{Authority, CanonicalRequest, Protocol, RequestParts};

    pub(super) fn request(method: &str, target: &str) -> CanonicalRequest {
        let authority = Authority::parse("a.test", 443).unwrap();
        CanonicalRequest::new(RequestParts {
            protocol: Protocol::Https,
            authority: &authority,
            method,
            target,
            body_len: None,
        })
        .unwrap()
    }

    /// A whole body with its type; no header for an empty one.
    pub(super) fn content<'a>(media_type: &str, body: &'a [u8]) -> Content<'a> {
        let types = (!media_type.is_empty()).then_some(media_type.as_bytes());
        Content::new(
            types,
            [],
            BodyPrefix {
                bytes: body,
                complete: true,
            },
        )
    }

    pub(super) fn coded<'a>(media_type: &str, encoding: &str, body: &'a [u8]) -> Content<'a> {
        Content::new(
            [media_type.as_bytes()],
            [encoding.as_bytes()],
            BodyPrefix {
                bytes: body,
                complete: true,
            },
        )
    }

    pub(super) fn cut_off<'a>(media_type: &str, body: &'a [u8]) -> Content<'a> {
        Content::new(
            [media_type.as_bytes()],
            [],
            BodyPrefix {
                bytes: body,
                complete: false,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identity_is_no_coding() {
        let values = |values: &[&str]| identity(values.iter().map(|value| value.as_bytes()));
        for plain in [&[][..], &["identity"], &["Identity "]] {
            assert_eq!(values(plain), Ok(()), "{plain:?}");
        }
        for hidden in [
            &["gzip"][..],
            &["identity", "br"],
            &["identity, gzip"],
            &["identity;q=1"],
            &[""],
            &[","],
        ] {
            assert!(values(hidden).is_err(), "{hidden:?}");
        }
    }

    #[test]
    fn a_coded_or_longer_body_is_never_read() {
        let coded = fixture::coded("application/json", "gzip", b"{}");
        assert_eq!(
            coded.json(),
            Err(Unclear::new("the body is coded as `gzip`"))
        );
        let cut = fixture::cut_off("application/json", b"{}");
        let why = "the body is longer than the 2 bytes that are read of it";
        assert_eq!(cut.json(), Err(Unclear::new(why)));
    }

    #[test]
    fn input_in_a_sentence_is_escaped_and_cut() {
        assert_eq!(shown("a\n\u{e9}"), "a\\n\\xc3\\xa9");
        let long = shown("x".repeat(65));
        assert_eq!(long, format!("{}…", "x".repeat(64)));
        assert_eq!(shown("x".repeat(64)), "x".repeat(64));
    }

    #[test]
    fn debug_forms_hide_the_body() {
        let content = fixture::content("text/plain", b"secret");
        assert!(!format!("{content:?}").contains("115"), "{content:?}");
        assert!(!format!("{content:?}").contains("secret"), "{content:?}");
    }
}
