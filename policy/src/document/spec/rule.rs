//! Rules: action, protocol, destination and what limits them.

use std::ops::Range;
use std::time::Duration;

use schemars::JsonSchema;

use super::{At, HttpSpec};
use crate::Protocol;

/// What a rule does with a request that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Let it through, unless a deny rule matches.
    Allow,
    /// Refuse it, whatever other rules say.
    Deny,
    /// Let a person decide, even where an allow rule matches too.
    Ask,
}

/// One rule.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Rule", deny_unknown_fields)]
pub(crate) struct RuleSpec {
    /// Unique name: letters, digits, `.`, `_` and `-`.
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$"))]
    pub(crate) id: At<String>,
    /// What happens to a request that matches.
    pub(crate) action: At<Action>,
    /// For an allow or ask rule https unless given; a deny rule without it denies every protocol.
    #[schemars(with = "Option<RuleProtocol>")]
    pub(crate) protocol: Option<At<Protocol>>,
    /// What the gateway does with TLS; for https rules.
    pub(crate) tls: Option<At<TlsHandling>>,
    /// Destinations.
    pub(crate) to: ToSpec,
    /// Matchers on HTTP requests; what is absent is unconstrained, an empty list matches nothing.
    pub(crate) http: Option<HttpSpec>,
    /// Name of the credential to attach; for allow and ask rules over https.
    pub(crate) credential: Option<At<String>>,
    /// How a person is asked; for ask rules.
    pub(crate) ask: Option<AskSpec>,
    /// What the requests of the rule may use; for allow and ask rules.
    pub(crate) limits: Option<LimitsSpec>,
    /// What a denied guest is told; for deny and ask rules.
    pub(crate) message: Option<At<String>>,
    /// Accept wildcards over a public suffix such as `*.github.io`.
    #[schemars(default)]
    pub(crate) allow_public_suffix: bool,
}

/// The protocols that a rule may name.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(
    dead_code,
    reason = "the schema of `Protocol` without tls, which is written `tls: passthrough`"
)]
pub(crate) enum RuleProtocol {
    /// HTTP over TLS, intercepted.
    Https,
    /// HTTP in clear text.
    Http,
    /// Bytes, passed on unread.
    Tcp,
    /// Datagrams, passed on unread.
    Udp,
}

/// What the gateway does with the TLS of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum TlsHandling {
    /// Ends it, so that requests are judged one by one.
    Intercept,
    /// Passes it on undecrypted after checking the server name: no `http` matchers, no credential.
    Passthrough,
}

/// Destinations: any of `hosts` or `ips`, at any of `ports`.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "To", deny_unknown_fields)]
pub(crate) struct ToSpec {
    /// Names (`api.example.com`), wildcards (`*.example.com`: any depth, not the apex), or `any`.
    pub(crate) hosts: Option<Vec<At<String>>>,
    /// Addresses and networks (`10.0.0.0/8`) for requests that name an address, not a host.
    pub(crate) ips: Option<Vec<At<String>>>,
    /// For an allow rule 443 for https and 80 for http unless given; a deny rule without it denies
    /// every port.
    #[schemars(with = "Option<Vec<PortNumber>>")]
    pub(crate) ports: Option<Vec<At<u16>>>,
    /// Let the destination be a private, local or otherwise special address.
    #[schemars(default)]
    pub(crate) private: bool,
    /// Where to point when there is no destination.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
    /// Where `private` is written.
    #[schemars(skip)]
    pub(crate) private_span: Option<Range<usize>>,
}

/// A port.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
#[expect(dead_code, reason = "the schema of a port")]
pub(crate) struct PortNumber(#[schemars(range(min = 1, max = 65535))] u16);

/// How a person is asked.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Ask", deny_unknown_fields)]
pub(crate) struct AskSpec {
    /// How long the request waits; then it is denied. Ten seconds to one hour, two minutes unless given.
    #[schemars(with = "Option<super::at::DurationText>")]
    pub(crate) timeout: Option<At<Duration>>,
    /// How long an answer holds for equal requests; `once` unless given.
    pub(crate) reuse: Option<At<AskReuse>>,
}

/// How long an answer to an ask holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum AskReuse {
    /// For the one request.
    Once,
    /// As long as the sandbox lives.
    Session,
}

/// What the requests that a rule lets through may use, per sandbox.
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "Limits", deny_unknown_fields)]
pub(crate) struct LimitsSpec {
    /// Requests per time, as in `100/min`; `s`, `min`, `h` or `day`.
    #[schemars(with = "Option<super::at::RateText>")]
    pub(crate) rate: Option<At<RateSpec>>,
    /// Requests at the same time.
    #[schemars(with = "Option<super::at::Count>")]
    pub(crate) concurrency: Option<At<u64>>,
    /// Bytes of a request body, as in `10MiB`.
    #[schemars(with = "Option<super::at::SizeText>")]
    pub(crate) request_body: Option<At<u64>>,
    /// Bytes of a response body.
    #[schemars(with = "Option<super::at::SizeText>")]
    pub(crate) response_body: Option<At<u64>>,
    /// Longest time of an exchange or tunnel, as in `30s`.
    #[schemars(with = "Option<super::at::DurationText>")]
    pub(crate) duration: Option<At<Duration>>,
    /// Where `limits` is written.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
}

/// So many in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateSpec {
    pub(crate) count: u64,
    pub(crate) per: Duration,
}
