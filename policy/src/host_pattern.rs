//! Which names a rule's `hosts:` speaks of. Matching is by whole labels, never by substring.

use std::fmt;

use crate::{Host, HostError};

/// One entry of `hosts:`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HostPattern {
    /// `any`: every name and every address.
    Any,
    /// A name and nothing below it.
    Exact(Host),
    /// `*.` and a name: everything below it, at any depth, and not the name itself.
    Below(Host),
}

impl HostPattern {
    /// Reads an entry.
    pub(crate) fn parse(text: &str) -> Result<Self, HostPatternError> {
        if text == "any" {
            return Ok(Self::Any);
        }
        let (name, wrap): (&str, fn(Host) -> Self) = match text.strip_prefix("*.") {
            Some(apex) => (apex, Self::Below),
            None => (text, Self::Exact),
        };
        let pattern = match Host::from_unicode(name) {
            Ok(host) => wrap(host),
            Err(error) => return Err(explain(text, name, &error)),
        };
        let unicode = pattern.host().map(Host::to_unicode).unwrap_or_default();
        let canonical = if name.is_ascii() {
            pattern.to_string()
        } else {
            pattern.with_name(&unicode)
        };
        if canonical == text {
            return Ok(pattern);
        }
        Err(HostPatternError::new(
            "non_canonical_host",
            format!("`{text}` is not the canonical spelling"),
        )
        .help(format!("write `{canonical}`")))
    }

    /// The name, or the name that everything is below of.
    pub(crate) const fn host(&self) -> Option<&Host> {
        match self {
            Self::Any => None,
            Self::Exact(host) | Self::Below(host) => Some(host),
        }
    }

    fn with_name(&self, name: &str) -> String {
        match self {
            Self::Below(_) => format!("*.{name}"),
            Self::Any | Self::Exact(_) => name.to_owned(),
        }
    }

    /// The slow and plain definition; [`crate::index`] answers the same from maps.
    pub(crate) fn matches(&self, name: &Host) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(host) => host == name,
            Self::Below(apex) => name
                .as_str()
                .strip_suffix(apex.as_str())
                .is_some_and(|front| front.ends_with('.')),
        }
    }

    /// Whether everything that `other` matches is matched by this one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Any) | (Self::Exact(_), Self::Below(_)) => false,
            (_, Self::Exact(host)) => self.matches(host),
            (Self::Below(mine), Self::Below(apex)) => mine == apex || self.matches(apex),
        }
    }

    /// Whether some name is matched by both. Two patterns overlap only when one covers the other,
    /// which is how overlaps are found without comparing each with each.
    #[cfg(test)]
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The public suffix that a wildcard spans, as in `*.com` or `*.github.io`.
    pub(crate) fn public_suffix(&self) -> Option<&str> {
        let Self::Below(apex) = self else { return None };
        let suffix = psl::suffix(apex.as_str().as_bytes())?;
        (suffix.is_known() && suffix.as_bytes() == apex.as_str().as_bytes())
            .then_some(apex.as_str())
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Exact(host) => host.fmt(f),
            Self::Below(apex) => write!(f, "*.{apex}"),
        }
    }
}

/// What is wrong with an entry of `hosts:` and what to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostPatternError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl HostPatternError {
    const fn new(code: &'static str, message: String) -> Self {
        Self {
            code,
            message,
            help: None,
        }
    }

    fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }
}

/// Turns what the host parser says into what the author of the file most likely has to do.
fn explain(text: &str, name: &str, error: &HostError) -> HostPatternError {
    let shown = text.escape_default();
    let wrong = |code| HostPatternError::new(code, format!("`{shown}` is no host"));
    if name.parse::<std::net::IpAddr>().is_ok()
        || name.parse::<ipnet::IpNet>().is_ok()
        || name.starts_with('[')
    {
        return HostPatternError::new("ip_as_host", format!("`{shown}` is an address, not a host"))
            .help(format!(
                "write it under `ips:`, as in `ips: [\"{}\"]`",
                name.trim_matches(['[', ']'])
            ));
    }
    if matches!(text, "*" | "**" | "*.*" | "*.") {
        return wrong("bad_host").help("write `any` for every host");
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let host = rest.split(['/', ':', '?']).next().unwrap_or(rest);
        return wrong("bad_host").help(format!(
            "write `{host}`; the scheme {scheme} goes under `protocol:`"
        ));
    }
    if let Some((host, _)) = text.split_once('/') {
        return wrong("bad_host").help(format!(
            "write `{host}`; paths go under `http: {{ paths: […] }}`"
        ));
    }
    if let Some((host, port)) = text.split_once(':') {
        return wrong("bad_host").help(format!("write `{host}` and `ports: [{port}]`"));
    }
    if let Some(rest) = text.strip_prefix('.') {
        return wrong("bad_host").help(format!(
            "write `*.{rest}` for everything below it, `{rest}` for the name itself"
        ));
    }
    if text.contains('*') {
        return wrong("bad_host").help(
            "a wildcard is `*.` in front of a name, and matches names of any depth below it",
        );
    }
    HostPatternError::new("bad_host", format!("`{shown}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (&'static str, String) {
        let error = HostPattern::parse(text).unwrap_err();
        (error.code, error.help.unwrap_or_default())
    }

    #[test]
    fn b022_c04_wildcards_match_by_whole_labels() {
        let table = [
            ("*.c.test", "x.c.test", true),
            ("*.c.test", "x.y.c.test", true),
            ("*.c.test", "c.test", false),
            ("*.c.test", "evilc.test", false),
            ("*.c.test", "evil-c.test", false),
            ("*.c.test", "c.test.evil.test", false),
            ("*.c.test", "x.c.test.evil.test", false),
            ("*.c.test", "x.cxtest", false),
            ("c.test", "x.c.test", false),
            ("c.test", "c.test", true),
            ("any", "whatever", true),
            ("trusted.test", "nottrusted.test", false),
            ("*.test", "a.test", true),
            ("*.test", "test", false),
        ];
        for (pattern, name, expected) in table {
            let pattern = HostPattern::parse(pattern).unwrap();
            assert_eq!(
                pattern.matches(&Host::parse(name).unwrap()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn every_wrong_entry_gets_a_suggestion() {
        for (text, code, help) in [
            ("EXAMPLE.com.", "non_canonical_host", "write `example.com`"),
            (
                "*.Example.com",
                "non_canonical_host",
                "write `*.example.com`",
            ),
            ("MÜNCHEN.test", "non_canonical_host", "write `münchen.test`"),
            (
                "10.9.8.7",
                "ip_as_host",
                "write it under `ips:`, as in `ips: [\"10.9.8.7\"]`",
            ),
            (
                "10.0.0.0/8",
                "ip_as_host",
                "write it under `ips:`, as in `ips: [\"10.0.0.0/8\"]`",
            ),
            (
                "[::1]",
                "ip_as_host",
                "write it under `ips:`, as in `ips: [\"::1\"]`",
            ),
            ("*", "bad_host", "write `any` for every host"),
            (
                "https://a.test/x",
                "bad_host",
                "write `a.test`; the scheme https goes under `protocol:`",
            ),
            (
                "a.test/x",
                "bad_host",
                "write `a.test`; paths go under `http: { paths: […] }`",
            ),
            (
                "a.test:8443",
                "bad_host",
                "write `a.test` and `ports: [8443]`",
            ),
            (
                ".trusted.test",
                "bad_host",
                "write `*.trusted.test` for everything below it, `trusted.test` for the name itself",
            ),
            (
                "a.*.test",
                "bad_host",
                "a wildcard is `*.` in front of a name, and matches names of any depth below it",
            ),
            (
                "a*.test",
                "bad_host",
                "a wildcard is `*.` in front of a name, and matches names of any depth below it",
            ),
            ("a b.test", "bad_host", ""),
        ] {
            assert_eq!(refused(text), (code, help.to_owned()), "{text}");
        }
    }

    #[test]
    fn b019_unicode_is_converted() {
        let pattern = HostPattern::parse("*.münchen.test").unwrap();
        assert_eq!(pattern.to_string(), "*.xn--mnchen-3ya.test");
    }

    #[test]
    fn public_suffixes_are_known_private_ones_too() {
        let suffix = |text| {
            HostPattern::parse(text)
                .unwrap()
                .public_suffix()
                .map(str::to_owned)
        };
        for spanned in ["*.com", "*.co.uk", "*.github.io"] {
            assert_eq!(
                suffix(spanned),
                Some(spanned.trim_start_matches("*.").to_owned())
            );
        }
        for inside in [
            "*.example.com",
            "*.example.github.io",
            "github.io",
            "any",
            "*.internal-corp",
        ] {
            assert_eq!(suffix(inside), None, "{inside}");
        }
    }

    #[test]
    fn covering_and_overlap_agree_with_matching() {
        let patterns = [
            "any",
            "test",
            "*.test",
            "c.test",
            "*.c.test",
            "x.c.test",
            "*.x.c.test",
            "d.test",
        ];
        let names = [
            "test",
            "c.test",
            "d.test",
            "x.c.test",
            "y.x.c.test",
            "z.d.test",
        ];
        for a in patterns.map(|text| HostPattern::parse(text).unwrap()) {
            for b in patterns.map(|text| HostPattern::parse(text).unwrap()) {
                for name in names.map(|name| Host::parse(name).unwrap()) {
                    if a.covers(&b) && b.matches(&name) {
                        assert!(a.matches(&name), "{a} {b} {name}");
                    }
                    if a.matches(&name) && b.matches(&name) {
                        assert!(a.overlaps(&b), "{a} {b} {name}");
                    }
                }
            }
        }
    }
}
