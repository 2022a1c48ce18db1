//! A DNS name in the one canonical form that is matched, resolved, dialled, verified and recorded.
//!
//! Refuses whatever two parsers could read differently: it repairs nothing but letter case and one
//! trailing dot. Converting Unicode names is for policy files only ([`Host::from_unicode`]); on the
//! wire a name is ASCII.

use std::borrow::Borrow;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes of a name without trailing dot (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;
/// Bytes of a label (RFC 1035, section 2.3.4).
const MAX_LABEL: usize = 63;

/// A canonical DNS name: lower case, A-labels, no trailing dot, never an IP address. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Host(Arc<str>);

impl Host {
    /// Reads a name as it is on the wire: upper case and one trailing dot are normalised, and
    /// everything else that is not canonical is refused.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        check(name, text)?;
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Ok(Self(name.to_ascii_lowercase().into()));
        }
        Ok(Self(name.into()))
    }

    /// Reads a name as a person writes it in a policy file: Unicode labels become A-labels
    /// (IDNA, UTS 46 non-transitional).
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn from_unicode(text: &str) -> Result<Self, HostError> {
        if text.is_ascii() {
            return Self::parse(text);
        }
        let ascii = idna::domain_to_ascii_strict(text).map_err(|_| HostError::Idna)?;
        Self::parse(&ascii)
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in Unicode, for people; never for matching.
    #[must_use]
    pub fn to_unicode(&self) -> String {
        idna::domain_to_unicode(&self.0).0
    }
}

/// Why a text is no canonical DNS name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is no text.
    #[error("the host is empty")]
    Empty,
    /// Two dots in a row, or a dot in front.
    #[error("the host has an empty label")]
    EmptyLabel,
    /// A label of over 63 bytes.
    #[error("a label of the host is longer than 63 bytes")]
    LabelTooLong,
    /// Over 253 bytes.
    #[error("the host is longer than 253 bytes")]
    TooLong,
    /// A byte that no host name has.
    #[error("the host has the character `{}`, which is not allowed", .0.escape_default())]
    Character(char),
    /// An IPv4 address where a name belongs.
    #[error("`{0}` is an IP address, not a host name")]
    IpAddress(Ipv4Addr),
    /// `127.1`, `0x7f.1`, `2130706433`: some parsers read these as addresses.
    #[error("the host ends in a number but is no dotted quad of four plain decimal parts")]
    NumericLabel,
    /// An `xn--` label that is no valid A-label, or Unicode that has none.
    #[error("the host is no valid internationalised name")]
    Idna,
}

/// `name` is without trailing dot, `text` as written.
fn check(name: &str, text: &str) -> Result<(), HostError> {
    if name.is_empty() {
        return Err(if text.is_empty() {
            HostError::Empty
        } else {
            HostError::EmptyLabel
        });
    }
    let strange = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if let Some(character) = name.chars().find(strange) {
        return Err(HostError::Character(character));
    }
    if name.len() > MAX_NAME {
        return Err(HostError::TooLong);
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostError::EmptyLabel);
        }
        if label.len() > MAX_LABEL {
            return Err(HostError::LabelTooLong);
        }
    }
    if name.rsplit('.').next().is_some_and(is_numeric) {
        // A trailing dot makes even a proper quad something that resolvers treat differently.
        return Err(match text.parse() {
            Ok(address) => HostError::IpAddress(address),
            Err(_) => HostError::NumericLabel,
        });
    }
    check_a_labels(name)
}

/// What the WHATWG URL standard calls "ends in a number": digits, or `0x` and hex digits.
fn is_numeric(label: &str) -> bool {
    let hex = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    label.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// An `xn--` label must decode, and encode to itself again: else two spellings mean one name.
fn check_a_labels(name: &str) -> Result<(), HostError> {
    let marked = |label: &str| {
        label
            .get(..4)
            .is_some_and(|prefix| prefix.eq_ignore_ascii_case("xn--"))
    };
    if !name.split('.').any(marked) {
        return Ok(());
    }
    let (unicode, decoded) = idna::domain_to_unicode(name);
    decoded.map_err(|_| HostError::Idna)?;
    match idna::domain_to_ascii(&unicode) {
        Ok(again) if again.eq_ignore_ascii_case(name) => Ok(()),
        _ => Err(HostError::Idna),
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.0)
    }
}

impl AsRef<str> for Host {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Lets maps keyed by `Host` be asked with a `&str`: equality, order and hash are those of the text.
impl Borrow<str> for Host {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Host {
    type Error = HostError;

    fn try_from(text: String) -> Result<Self, HostError> {
        Self::parse(&text)
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.0.as_ref().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<String, HostError> {
        Host::parse(text).map(String::from)
    }

    #[test]
    fn case_and_one_trailing_dot_are_normalised() {
        assert_eq!(parsed("A.TEST").unwrap(), "a.test");
        assert_eq!(parsed("a.test.").unwrap(), "a.test");
        assert_eq!(parsed("toolsrv").unwrap(), "toolsrv");
        assert_eq!(
            parsed("_srv.my_host.r3---sn-x.test").unwrap(),
            "_srv.my_host.r3---sn-x.test"
        );
    }

    #[test]
    fn b005_control_bytes_and_percent_are_no_host() {
        for text in ["evil.test\0.a.test", "a\tb.test", "a\r.test", "a\x7f.test"] {
            assert!(
                matches!(parsed(text), Err(HostError::Character(_))),
                "{text:?}"
            );
        }
        assert_eq!(
            parsed("evil.test%00.a.test"),
            Err(HostError::Character('%'))
        );
        assert_eq!(parsed("user@a.test"), Err(HostError::Character('@')));
        assert_eq!(parsed("*.a.test"), Err(HostError::Character('*')));
    }

    #[test]
    fn b018_b030_numeric_spellings_are_refused() {
        for text in [
            "0177.1",
            "0x7f000001",
            "2130706433",
            "127.1",
            "0",
            "2852039166",
            "0xA9FEA9FE",
            "0251.0376.0251.0376",
            "169.254.43518",
            "1.2.3.4.",
            "a.0x",
            "a.1",
            "1.2.3.04",
            "1.2.3.256",
        ] {
            assert_eq!(parsed(text), Err(HostError::NumericLabel), "{text}");
        }
        assert_eq!(
            parsed("10.9.8.7"),
            Err(HostError::IpAddress(Ipv4Addr::new(10, 9, 8, 7)))
        );
        assert_eq!(parsed("1.a").unwrap(), "1.a");
        assert_eq!(parsed("0xg").unwrap(), "0xg");
    }

    #[test]
    fn c03_dots_and_lengths() {
        for text in ["a.test..", ".a.test", "a..test", ".", ".."] {
            assert_eq!(parsed(text), Err(HostError::EmptyLabel), "{text}");
        }
        assert_eq!(parsed(""), Err(HostError::Empty));
        assert!(parsed(&"a".repeat(63)).is_ok());
        assert_eq!(parsed(&"a".repeat(64)), Err(HostError::LabelTooLong));
        let longest = format!(
            "{}.{}",
            ["a".repeat(63), "b".repeat(63), "c".repeat(63)].join("."),
            "d".repeat(61)
        );
        assert_eq!(longest.len(), 253);
        assert!(parsed(&longest).is_ok() && parsed(&format!("{longest}.")).is_ok());
        assert_eq!(parsed(&format!("{longest}d")), Err(HostError::TooLong));
    }

    #[test]
    fn b019_unicode_is_for_policy_files_only() {
        assert_eq!(parsed("münchen.test"), Err(HostError::Character('ü')));
        assert_eq!(parsed("ａ.test"), Err(HostError::Character('ａ')));
        assert_eq!(parsed("a。test"), Err(HostError::Character('。')));
        let host = Host::from_unicode("münchen.test").unwrap();
        assert_eq!(
            (host.as_str(), host.to_unicode().as_str()),
            ("xn--mnchen-3ya.test", "münchen.test")
        );
        assert_eq!(Host::parse("XN--MNCHEN-3YA.test").unwrap(), host);
    }

    #[test]
    fn a_labels_must_round_trip() {
        for text in [
            "_x.xn--mnchen-3ya.test",
            "r3---sn-x.xn--mnchen-3ya.test",
            "-x-.XN--mnchen-3ya.Test",
        ] {
            assert!(parsed(text).is_ok(), "{text}");
        }
        // Each decodes to something that has another, or no, A-label.
        for text in ["xn--abc-.test", "xn--MNCHEN-3YA-.test", "xn--a-\u{20}.test"] {
            assert!(parsed(text).is_err(), "{text}");
        }
        for text in [
            "xn--a.test",
            "xn--.test",
            "xn--a-0ya-",
            "xn--mnchen-3y.test",
            "xn--zz--.test",
        ] {
            assert_eq!(parsed(text), Err(HostError::Idna), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_is_idempotent_and_leaves_only_the_plain_alphabet(text in "[a-zA-Z0-9._%\\\\:@*xnü-]{0,24}|\\PC{0,12}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(&Host::parse(host.as_str()).unwrap(), &host);
                prop_assert!(host.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b)));
                prop_assert!(host.as_str().parse::<std::net::IpAddr>().is_err());
                prop_assert!(!host.as_str().starts_with('.') && !host.as_str().ends_with('.'));
            }
        }
    }
}
