//! What a policy answers. None of these values can be made outside of this crate: a [`Permit`] in
//! a function's arguments is proof that a decision allowed the request.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::{AskTerms, Limits};
use crate::rule::Mismatch;
use crate::{Authority, CanonicalRequest, CredentialName, Protocol, Reason};

/// Allow, deny or ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Let through.
    Allow,
    /// Refuse.
    Deny,
    /// Let a person decide; until one does, refuse.
    Ask,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        })
    }
}

/// Which rule decided, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuleRef {
    /// The rule's id.
    pub id: Arc<str>,
    /// Name of the source that it comes from.
    pub file: Arc<str>,
    /// Line of the rule's id, from 1.
    pub line: u32,
    /// Position of the source among the layers, from 0.
    pub layer: u32,
}

impl fmt::Display for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.id, self.file, self.line)
    }
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Decision {
    reason: Reason,
    rule: Option<Arc<RuleRef>>,
    message: Option<Arc<str>>,
    permit: Option<Permit>,
    ask: Option<AskTerms>,
    closest: Option<Closest>,
    observed: Option<WouldDeny>,
}

impl Decision {
    pub(crate) fn allow(
        rule: Option<Arc<RuleRef>>,
        permit: Permit,
        observed: Option<WouldDeny>,
    ) -> Self {
        Self {
            permit: Some(permit),
            observed,
            ..Self::deny(Reason::Allowed, rule)
        }
    }

    pub(crate) const fn deny(reason: Reason, rule: Option<Arc<RuleRef>>) -> Self {
        Self {
            reason,
            rule,
            message: None,
            permit: None,
            ask: None,
            closest: None,
            observed: None,
        }
    }

    pub(crate) fn ask(rule: Arc<RuleRef>, terms: Option<AskTerms>) -> Self {
        Self {
            ask: terms,
            ..Self::deny(Reason::ApprovalRequired, Some(rule))
        }
    }

    pub(crate) fn with_message(self, message: Option<Arc<str>>) -> Self {
        Self { message, ..self }
    }

    pub(crate) fn with_closest(self, closest: Option<Closest>) -> Self {
        Self { closest, ..self }
    }

    /// Allow exactly when there is a permit.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        if self.permit.is_some() {
            Verdict::Allow
        } else if self.ask.is_some() {
            Verdict::Ask
        } else {
            Verdict::Deny
        }
    }

    /// Why.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The rule that decided; none for a default deny.
    #[must_use]
    pub fn rule(&self) -> Option<&RuleRef> {
        self.rule.as_deref()
    }

    /// The policy author's own words for the guest, from the rule.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The proof of an allow.
    #[must_use]
    pub const fn permit(&self) -> Option<&Permit> {
        self.permit.as_ref()
    }

    /// How a person is asked, when one is.
    #[must_use]
    pub const fn ask_terms(&self) -> Option<&AskTerms> {
        self.ask.as_ref()
    }

    /// For a default deny, the rule that lacks the least, and what it lacks first.
    #[must_use]
    pub const fn closest(&self) -> Option<&Closest> {
        self.closest.as_ref()
    }

    /// Of an allow: why a layer that only observes would have refused.
    #[must_use]
    pub const fn would_deny(&self) -> Option<&WouldDeny> {
        self.observed.as_ref()
    }
}

/// A rule that nearly allowed a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Closest {
    /// The rule.
    pub rule: Arc<RuleRef>,
    /// The first of its matchers that failed.
    pub failed: Mismatch,
}

impl fmt::Display for Closest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which fails on {}", self.rule, self.failed)
    }
}

/// What a policy in `mode: observe` would have done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WouldDeny {
    /// Why.
    pub reason: Reason,
    /// The rule that would have decided.
    pub rule: Option<Arc<RuleRef>>,
}

impl From<&Decision> for WouldDeny {
    fn from(refusal: &Decision) -> Self {
        Self {
            reason: refusal.reason,
            rule: refusal.rule.clone(),
        }
    }
}

/// Proof that a decision allowed a request to this authority. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Permit {
    protocol: Protocol,
    authority: Authority,
    allows_private: bool,
    websocket: bool,
    credential: Option<CredentialName>,
    limits: PermitLimits,
}

impl Permit {
    pub(crate) fn new(
        request: &CanonicalRequest,
        allows_private: bool,
        credential: Option<CredentialName>,
        limits: PermitLimits,
    ) -> Self {
        Self {
            protocol: request.protocol(),
            authority: request.authority().clone(),
            allows_private,
            websocket: request.is_websocket(),
            credential,
            limits,
        }
    }

    /// The protocol that was allowed.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The only authority that may be dialled on this permit.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Whether a private address may be dialled ([`crate::AddressClass::Private`]).
    #[must_use]
    pub const fn allows_private(&self) -> bool {
        self.allows_private
    }

    /// Whether the request may become a WebSocket.
    #[must_use]
    pub const fn allows_websocket(&self) -> bool {
        self.websocket
    }

    /// The credential to attach.
    #[must_use]
    pub const fn credential(&self) -> Option<&CredentialName> {
        self.credential.as_ref()
    }

    /// The limits to keep, each with the rule that sets them: all of them hold.
    pub fn limits(&self) -> impl Iterator<Item = (&RuleRef, &Limits)> {
        self.limits.iter()
    }

    /// The most bytes that the body of the request may have.
    #[must_use]
    pub fn max_request_body(&self) -> Option<u64> {
        let limits = self.limits();
        limits.filter_map(|(_, limits)| limits.request_body).min()
    }
}

type RuleLimits = (Arc<RuleRef>, Arc<Limits>);

/// Limits of the rules that allowed, at most one a layer. One of them needs no memory of its own.
#[derive(Clone, Debug)]
pub(crate) struct PermitLimits {
    first: Option<RuleLimits>,
    rest: Vec<RuleLimits>,
}

impl PermitLimits {
    pub(crate) const fn new() -> Self {
        Self {
            first: None,
            rest: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, rule: &Arc<RuleRef>, limits: &Arc<Limits>) {
        let entry = (Arc::clone(rule), Arc::clone(limits));
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.rest.push(entry);
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&RuleRef, &Limits)> {
        let all = self.first.iter().chain(&self.rest);
        all.map(|(rule, limits)| (rule.as_ref(), limits.as_ref()))
    }
}

/// Phase one: which protocols some rule could still allow to a destination and port, before a byte
/// is read. Refuse the connection when there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Intercepted TLS.
    pub https: bool,
    /// Clear-text HTTP.
    pub http: bool,
    /// A raw byte stream.
    pub tcp: bool,
    /// Datagrams.
    pub udp: bool,
    /// TLS that is passed through.
    pub tls: bool,
    pub(crate) reason: Reason,
    pub(crate) rule: Option<Arc<RuleRef>>,
}

impl Admission {
    /// Whether any protocol could be allowed.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.https || self.http || self.tcp || self.udp || self.tls
    }

    /// Why nothing is admitted; [`Reason::Allowed`] when something is.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The deny rule that closes the destination, if one does.
    #[must_use]
    pub fn rule(&self) -> Option<&RuleRef> {
        self.rule.as_deref()
    }
}
