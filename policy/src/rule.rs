//! One compiled rule: what it matches, and on what a request fails it.
//!
//! Deciding and explaining use the same list of checks, so that an explanation can't differ from
//! what was decided.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use crate::document::Action;
use crate::host_pattern::HostPattern;
use crate::path_pattern::PathPatterns;
use crate::{CanonicalRequest, CredentialName, Destination, Protocol, RuleRef};

/// A rule, ready to match.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) reference: Arc<RuleRef>,
    pub(crate) action: Action,
    pub(crate) protocols: Protocols,
    pub(crate) hosts: Vec<HostPattern>,
    pub(crate) ips: Vec<IpNet>,
    /// Unconstrained when `None`.
    pub(crate) ports: Option<Vec<u16>>,
    pub(crate) private: bool,
    /// Unconstrained when `None`.
    pub(crate) methods: Option<Vec<String>>,
    /// Unconstrained when `None`.
    pub(crate) paths: Option<PathPatterns>,
    pub(crate) encoded_slash_is_data: bool,
    pub(crate) credential: Option<CredentialName>,
    pub(crate) message: Option<Arc<str>>,
    /// Where its id is written.
    pub(crate) span: Range<usize>,
}

/// A set of protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protocols(u8);

impl Protocols {
    pub(crate) const ALL: Self = Self(0b1111);
    pub(crate) const HTTP: Self = Self::of(Protocol::Https).or(Self::of(Protocol::Http));
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn of(protocol: Protocol) -> Self {
        Self(match protocol {
            Protocol::Https => 0b0001,
            Protocol::Http => 0b0010,
            Protocol::Tcp => 0b0100,
            Protocol::Udp => 0b1000,
        })
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn has(self, protocol: Protocol) -> bool {
        self.0 & Self::of(protocol).0 != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The protocols of the set.
    pub(crate) fn iter(self) -> impl Iterator<Item = Protocol> {
        let all = [
            Protocol::Https,
            Protocol::Http,
            Protocol::Tcp,
            Protocol::Udp,
        ];
        all.into_iter().filter(move |protocol| self.has(*protocol))
    }
}

/// On what a request fails a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mismatch {
    /// The rule is for other hosts or addresses.
    Destination,
    /// The rule is for other ports.
    Port,
    /// The rule is for another protocol.
    Protocol,
    /// The rule is for other methods.
    Method,
    /// No path pattern of the rule matches.
    Path,
    /// The path has an encoded slash, and the rule doesn't take that as data.
    EncodedSlash,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Destination => "destination",
            Self::Port => "port",
            Self::Protocol => "protocol",
            Self::Method => "method",
            Self::Path => "path",
            Self::EncodedSlash => "encoded slash",
        })
    }
}

type Check = (Mismatch, fn(&Rule, &CanonicalRequest) -> bool);

/// Cheap ones first.
const CHECKS: [Check; 5] = [
    (Mismatch::Port, |rule, request| {
        rule.has_port(request.port())
    }),
    (Mismatch::Protocol, |rule, request| {
        rule.protocols.has(request.protocol())
    }),
    (Mismatch::Method, |rule, request| rule.has_method(request)),
    (Mismatch::Destination, |rule, request| {
        rule.has_destination(request.destination())
    }),
    (Mismatch::Path, |rule, request| rule.has_path(request)),
];

impl Rule {
    /// Whether the rule matches, apart from encoded slashes.
    pub(crate) fn matches(&self, request: &CanonicalRequest) -> bool {
        CHECKS.iter().all(|(_, holds)| holds(self, request))
    }

    /// Whether the rule matches requests with this path's encoded slashes, if it has any. A deny
    /// rule always does: it must not be avoided by an escape.
    pub(crate) fn accepts_slashes(&self, request: &CanonicalRequest) -> bool {
        self.is_deny() || self.encoded_slash_is_data || !request.has_encoded_slash()
    }

    /// Everything that the request fails on; empty exactly when the rule matches.
    pub(crate) fn mismatches(&self, request: &CanonicalRequest) -> Vec<Mismatch> {
        let failed = CHECKS
            .iter()
            .filter(|(_, holds)| !holds(self, request))
            .map(|(what, _)| *what);
        let slash = (!self.accepts_slashes(request)).then_some(Mismatch::EncodedSlash);
        failed.chain(slash).collect()
    }

    pub(crate) fn is_deny(&self) -> bool {
        self.action == Action::Deny
    }

    /// False for a rule with an empty list, which matches nothing.
    pub(crate) fn can_match(&self) -> bool {
        let methods = self
            .methods
            .as_ref()
            .is_none_or(|methods| !methods.is_empty());
        let paths = self
            .paths
            .as_ref()
            .is_none_or(|paths| !paths.texts().is_empty());
        let ports = self.ports.as_ref().is_none_or(|ports| !ports.is_empty());
        methods && paths && ports && !(self.hosts.is_empty() && self.ips.is_empty())
    }

    /// Whether the rule looks into HTTP requests.
    pub(crate) const fn has_http_matchers(&self) -> bool {
        self.methods.is_some() || self.paths.is_some()
    }

    pub(crate) fn is_any(&self) -> bool {
        self.hosts.contains(&HostPattern::Any)
    }

    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports
            .as_ref()
            .is_none_or(|ports| ports.contains(&port))
    }

    pub(crate) fn has_destination(&self, destination: &Destination) -> bool {
        match destination {
            Destination::Name(name) => self.hosts.iter().any(|pattern| pattern.matches(name)),
            Destination::Ip(address) => {
                self.is_any() || self.ips.iter().any(|network| network.contains(address))
            }
        }
    }

    /// Methods are case-sensitive (RFC 9110), and some servers forget that: a deny rule doesn't.
    fn has_method(&self, request: &CanonicalRequest) -> bool {
        let same = |one: &String| {
            one == request.method()
                || (self.is_deny() && one.eq_ignore_ascii_case(request.method()))
        };
        self.methods
            .as_ref()
            .is_none_or(|methods| methods.iter().any(same))
    }

    fn has_path(&self, request: &CanonicalRequest) -> bool {
        let path = request.canonical_path();
        self.paths.as_ref().is_none_or(|patterns| {
            if self.is_deny() {
                patterns.matches_any_reading(path)
            } else {
                patterns.matches(path)
            }
        })
    }
}
