//! One compiled rule: what it matches, and on what a request fails it.
//!
//! Deciding and explaining use the same list of checks, so that an explanation can't differ from
//! what was decided.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use crate::content::{Content, Needs};
use crate::destination_set::DestinationSet;
use crate::document::Action;
use crate::glob::{PathGlob, PathPatterns};
use crate::host_pattern::HostPattern;
use crate::limits::{AskTerms, Limits};
use crate::{CanonicalRequest, CredentialName, Destination, Protocol, RuleRef, Source};

/// A rule, ready to match.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) reference: Arc<RuleRef>,
    pub(crate) action: Action,
    pub(crate) protocols: Protocols,
    pub(crate) hosts: Vec<HostPattern>,
    pub(crate) ips: Vec<IpNet>,
    /// Hosts and networks once more where there are too many to be asked one by one.
    pub(crate) many: Option<Box<DestinationSet>>,
    /// In order, each once. Unconstrained when `None`.
    pub(crate) ports: Option<Vec<u16>>,
    pub(crate) private: bool,
    /// Unconstrained when `None`.
    pub(crate) methods: Option<Vec<String>>,
    /// Unconstrained when `None`.
    pub(crate) paths: Option<PathPatterns>,
    pub(crate) encoded_slash_is_data: bool,
    /// Whether the rule opens WebSockets.
    pub(crate) websocket: bool,
    /// Matchers on query, headers and body.
    pub(crate) content: Option<Box<Content>>,
    pub(crate) limits: Option<Arc<Limits>>,
    pub(crate) credential: Option<CredentialName>,
    /// For an ask rule.
    pub(crate) ask: Option<AskTerms>,
    pub(crate) message: Option<Arc<str>>,
    /// The file that it is written in.
    pub(crate) source: Arc<Source>,
    /// Where its id is written.
    pub(crate) span: Range<usize>,
    /// Its place among the rules of its layer: those of included files come first.
    pub(crate) order: u32,
}

/// A set of protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protocols(u8);

impl Protocols {
    pub(crate) const ALL: Self = Self(0b1_1111);
    pub(crate) const HTTP: Self = Self::of(Protocol::Https).or(Self::of(Protocol::Http));
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn of(protocol: Protocol) -> Self {
        Self(match protocol {
            Protocol::Https => 0b0_0001,
            Protocol::Http => 0b0_0010,
            Protocol::Tcp => 0b0_0100,
            Protocol::Udp => 0b0_1000,
            Protocol::Tls => 0b1_0000,
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
        Protocol::ALL
            .into_iter()
            .filter(move |protocol| self.has(*protocol))
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
    /// The rule doesn't open WebSockets.
    WebSocket,
    /// A query parameter is not what the rule wants.
    Query,
    /// A header field is not what the rule wants.
    Header,
    /// The rule is for other media types.
    ContentType,
    /// The body is larger than the rule takes.
    BodySize,
    /// No such call of the gRPC service.
    Grpc,
    /// No such Git operation.
    Git,
    /// No such GraphQL operation.
    Graphql,
    /// No such call of an MCP tool.
    Mcp,
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
            Self::WebSocket => "websocket",
            Self::Query => "query",
            Self::Header => "header",
            Self::ContentType => "content type",
            Self::BodySize => "body size",
            Self::Grpc => "grpc",
            Self::Git => "git",
            Self::Graphql => "graphql",
            Self::Mcp => "mcp",
        })
    }
}

type Check = (Mismatch, fn(&Rule, &CanonicalRequest) -> bool);

/// Cheap ones first. Encoded slashes and content come after these.
const CHECKS: [Check; 6] = [
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
    (Mismatch::WebSocket, |rule, request| {
        rule.is_deny() || rule.websocket || !request.is_websocket()
    }),
];

/// Hosts and networks of a rule from which on looking one up is faster than asking each.
const MANY: usize = 16;

impl Rule {
    /// For the field of that name.
    pub(crate) fn many(hosts: &[HostPattern], ips: &[IpNet]) -> Option<Box<DestinationSet>> {
        let are_many = hosts.len() + ips.len() > MANY;
        are_many.then(|| Box::new(DestinationSet::new(hosts, ips)))
    }

    /// Whether the rule matches, apart from encoded slashes.
    pub(crate) fn matches(&self, request: &CanonicalRequest) -> bool {
        self.could_match(request) && self.content_mismatch(request).is_none()
    }

    /// As [`Self::matches`], apart from headers, query and body.
    pub(crate) fn could_match(&self, request: &CanonicalRequest) -> bool {
        CHECKS.iter().all(|(_, holds)| holds(self, request))
    }

    fn content_mismatch(&self, request: &CanonicalRequest) -> Option<Mismatch> {
        let content = self.content.as_ref()?;
        content.mismatch(request, self.is_deny())
    }

    /// Whether the rule matches requests with this path's encoded slashes, if it has any. A deny
    /// rule always does: it must not be avoided by an escape.
    pub(crate) fn accepts_slashes(&self, request: &CanonicalRequest) -> bool {
        self.is_deny() || self.encoded_slash_is_data || !request.has_encoded_slash()
    }

    /// The first check that fails.
    pub(crate) fn first_mismatch(&self, request: &CanonicalRequest) -> Option<Mismatch> {
        CHECKS
            .iter()
            .find(|(_, holds)| !holds(self, request))
            .map(|(what, _)| *what)
            .or_else(|| (!self.accepts_slashes(request)).then_some(Mismatch::EncodedSlash))
            .or_else(|| self.content_mismatch(request))
    }

    /// How many kinds of matchers fail; all of content counts as one.
    pub(crate) fn lacks(&self, request: &CanonicalRequest) -> usize {
        let failed = CHECKS.iter().filter(|(_, holds)| !holds(self, request));
        let slash = usize::from(!self.accepts_slashes(request));
        let content = usize::from(self.content_mismatch(request).is_some());
        failed.count() + slash + content
    }

    /// Everything that the request fails on; empty exactly when the rule matches.
    pub(crate) fn mismatches(&self, request: &CanonicalRequest) -> Vec<Mismatch> {
        let failed = CHECKS
            .iter()
            .filter(|(_, holds)| !holds(self, request))
            .map(|(what, _)| *what);
        let slash = (!self.accepts_slashes(request)).then_some(Mismatch::EncodedSlash);
        let content = self.content.iter();
        let content = content.flat_map(|content| content.mismatches(request, self.is_deny()));
        failed.chain(slash).chain(content).collect()
    }

    /// What its content matchers have to see of a request that they may match.
    pub(crate) fn needs(&self) -> Needs {
        self.content
            .as_ref()
            .map_or(Needs::NOTHING, |content| content.needs())
    }

    pub(crate) fn is_deny(&self) -> bool {
        self.action == Action::Deny
    }

    /// What the path patterns cost, in elements.
    pub(crate) fn pattern_cost(&self) -> usize {
        let paths = self.paths.iter();
        paths
            .flat_map(|paths| paths.all())
            .map(PathGlob::cost)
            .sum()
    }

    /// False for a rule with an empty list, which matches nothing.
    pub(crate) fn can_match(&self) -> bool {
        let methods = self
            .methods
            .as_ref()
            .is_none_or(|methods| !methods.is_empty());
        let paths = self.paths.as_ref().is_none_or(|paths| !paths.is_empty());
        let ports = self.ports.as_ref().is_none_or(|ports| !ports.is_empty());
        methods && paths && ports && !(self.hosts.is_empty() && self.ips.is_empty())
    }

    /// Whether the rule looks into HTTP requests.
    pub(crate) const fn has_http_matchers(&self) -> bool {
        self.methods.is_some() || self.paths.is_some() || self.content.is_some()
    }

    pub(crate) fn is_any(&self) -> bool {
        self.hosts.contains(&HostPattern::Any)
    }

    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports
            .as_ref()
            .is_none_or(|ports| ports.binary_search(&port).is_ok())
    }

    /// Whether every name of the pattern is matched.
    pub(crate) fn covers_host(&self, host: &HostPattern) -> bool {
        match &self.many {
            Some(many) => many.covers_host(host),
            None => self.hosts.iter().any(|wide| wide.covers(host)),
        }
    }

    /// Whether every address of the network is matched.
    pub(crate) fn covers_network(&self, network: &IpNet) -> bool {
        match &self.many {
            Some(many) => many.covers_network(network),
            None => self.is_any() || self.ips.iter().any(|wide| wide.contains(network)),
        }
    }

    pub(crate) fn has_destination(&self, destination: &Destination) -> bool {
        if let Some(many) = &self.many {
            return many.contains(destination);
        }
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
