//! The one list of reason codes of the product.
//!
//! A guest, the audit log, `policy explain` and the documentation all speak in these codes. A code
//! never changes its meaning and is never reused. It says nothing of internals: no address, no
//! secret, no file name.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares the enum, its codes and its texts in one table, so that none can be forgotten.
macro_rules! reasons {
    ($($variant:ident $code:literal $status:literal $explanation:literal $fix:literal;)+) => {
        /// Why a request was let through, refused or not even judged.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum Reason {
            $(#[doc = $explanation] $variant,)+
        }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The stable code, in snake case.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// The HTTP status that a guest sees; 200 for [`Reason::Allowed`] means "the upstream's".
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// One sentence for people: what happened. Safe to show to a guest.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$variant => $explanation,)+ }
            }

            /// One sentence for people: what to change. Safe to show to a guest.
            #[must_use]
            pub const fn how_to_fix(self) -> &'static str {
                match self { $(Self::$variant => $fix,)+ }
            }
        }
    };
}

reasons! {
    Allowed "allowed" 200
        "An allow rule of every layer matches and no deny rule does."
        "Nothing to fix.";
    DefaultDeny "default_deny" 403
        "No allow rule matches this request, and what is not allowed is denied."
        "Add an allow rule for this destination, method and path; `outgate policy explain` shows the near misses.";
    RuleDeny "rule_deny" 403
        "A deny rule matches this request; a deny rule wins over every allow rule."
        "Narrow the deny rule if this request should pass.";
    ApprovalRequired "approval_required" 403
        "A rule lets a person decide on this request, and nobody has allowed it."
        "Ask whoever answers approvals, and send the request again.";
    RequestTooLarge "request_too_large" 413
        "The body of the request is larger than the rule takes."
        "Send a smaller body, or raise `max_body` or `limits: { request_body }` of the rule.";
    NoPolicy "no_policy" 403
        "No policy selects this sandbox, so it reaches nothing."
        "Start the sandbox with a policy file.";
    ProtocolNotAllowed "protocol_not_allowed" 403
        "The destination is allowed, but not for the protocol that was spoken to it."
        "Speak the protocol of the rule, or add a rule with this `protocol:`.";
    PrivateAddress "private_address" 403
        "The destination is a private, local or otherwise special address, and the rule doesn't open those."
        "Add `private: true` to the rule's `to:` if this destination is meant to be internal.";
    MetadataAddress "metadata_address" 403
        "The destination is a cloud metadata service, which no rule can open."
        "There is no rule for this; give the sandbox what it needs through a credential.";
    GatewayAddress "gateway_address" 403
        "The destination is an address of the gateway itself, which no rule can open."
        "There is no rule for this; the gateway isn't reachable from a sandbox.";
    EncodedSlash "encoded_slash" 400
        "The path has an encoded slash (`%2F`), and no matching rule accepts it as data."
        "Send a plain `/`, or add `encoded_slash: data` to the rule's `http:`.";
    BadHost "bad_host" 400
        "The host is not a name or an address in canonical form."
        "Send a plain DNS name, a dotted quad, or an IPv6 address in brackets.";
    BadPath "bad_path" 400
        "The path has no safe canonical form."
        "Send a path without backslashes, control bytes, broken escapes, or dot segments that leave the root.";
    BadRequest "bad_request" 400
        "The request is malformed or ambiguous."
        "Send a request that follows RFC 9110 and RFC 9112 to the letter.";
    TraceDenied "trace_denied" 403
        "TRACE echoes headers, credentials included, and is always denied."
        "There is no rule for this; use another method.";
    ConnectDenied "connect_denied" 403
        "CONNECT inside a connection would open an unjudged tunnel and is always denied."
        "Connect to the destination directly.";
    AuthorityMismatch "authority_mismatch" 421
        "The request names a different host or port than the connection it came on."
        "Open a connection of its own for each host.";
    SniMissing "sni_missing" 421
        "The TLS client named no server, so no name rule can apply."
        "Let the client send SNI, or allow the address under `ips:`.";
    SniMismatch "sni_mismatch" 421
        "The TLS server name differs from the destination of the connection."
        "Use one name for the connection and for TLS.";
    NotTls "not_tls" 400
        "The destination is allowed for TLS only, and the client spoke something else."
        "Use https, or add a rule with `protocol: http` or `protocol: tcp`.";
    TlsClient "tls_client" 400
        "The TLS handshake with the client failed; often it doesn't trust the sandbox's certificate authority."
        "Point the client at the system's certificate store.";
    ConnectionIdle "connection_idle" 408
        "The client sent no complete request in time."
        "Send the request without long pauses.";
    ProxyAuthRequired "proxy_auth_required" 407
        "The connection presented no credential of a sandbox that the listener serves."
        "Send the sandbox's id and token to the proxy as user and password.";
    UpgradeDenied "upgrade_denied" 403
        "The request asks for another protocol that no rule allows."
        "Use plain HTTP requests for this destination.";
    PlaceholderOutOfScope "placeholder_out_of_scope" 403
        "The request carries the placeholder of a credential that does not belong to this destination."
        "Send the credential only where its rule allows; it is attached by the gateway.";
    CredentialUnavailable "credential_unavailable" 503
        "The credential of the rule could not be fetched, so the request was not sent."
        "Check the credential's `source:` on the gateway's side.";
    UpstreamUnreachable "upstream_unreachable" 502
        "No connection to the destination could be made."
        "Check that the destination is up and reachable from the gateway.";
    UpstreamTimeout "upstream_timeout" 504
        "The destination did not answer in time."
        "Try again, or check the destination.";
    UpstreamTls "upstream_tls" 502
        "The destination's TLS certificate or handshake was not acceptable."
        "Check the destination's certificate and the gateway's trusted roots.";
    UpstreamProtocol "upstream_protocol" 502
        "The destination broke the protocol."
        "Check the destination's answers.";
    UpstreamClosed "upstream_closed" 502
        "The destination closed the connection before the answer was complete."
        "Try again, or check the destination.";
    DnsFailure "dns_failure" 502
        "The name of the destination could not be resolved."
        "Check the name and the gateway's resolver.";
    NextHopFailed "next_hop_failed" 502
        "The organisation's own proxy did not let the connection through."
        "Ask the operator of the gateway to look at its log and at the proxy.";
    NameNotFound "name_not_found" 502
        "The name of the destination does not exist."
        "Check the spelling of the name.";
    DnsNameDenied "dns_name_denied" 403
        "No rule can match this name, so it was not resolved."
        "Add an allow rule for this host.";
    DnsTypeDenied "dns_type_denied" 403
        "Only address queries are answered; this record type could carry data out."
        "Ask for A records only.";
    LimitExceeded "limit_exceeded" 429
        "A limit of the sandbox was reached."
        "Use fewer connections, streams, names or bytes at a time.";
    UdpDenied "udp_denied" 403
        "UDP other than DNS to the gateway is denied."
        "Use TCP; clients fall back from QUIC by themselves.";
    Ipv6Denied "ipv6_denied" 403
        "The sandbox's link carries IPv4 only."
        "Connect by name or by IPv4 address.";
    AuditUnavailable "audit_unavailable" 503
        "The decision could not be recorded, so nothing was sent."
        "Free space for the audit log or repair it.";
    SandboxReleased "sandbox_released" 503
        "The sandbox was released while the request was under way."
        "Start a new sandbox.";
    Internal "internal" 500
        "The gateway failed; nothing was sent that was not judged."
        "Read the gateway's log.";
}

impl Reason {
    /// The reason with this code, if there is one.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == code)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_equal_their_serialised_form() {
        let mut seen = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            assert!(seen.insert(reason.as_str()), "{reason} twice");
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(Reason::from_code(reason.as_str()), Some(*reason));
        }
    }

    #[test]
    fn every_refusal_has_an_error_status_and_texts_that_are_sentences() {
        for reason in Reason::ALL {
            let status = reason.http_status();
            assert_eq!(*reason == Reason::Allowed, status == 200);
            assert!(status == 200 || (400..600).contains(&status));
            assert!(reason.explanation().ends_with('.') && reason.how_to_fix().ends_with('.'));
        }
    }
}
