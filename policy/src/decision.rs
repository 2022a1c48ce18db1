//! What a policy answers. None of these values can be made outside of this crate: a [`Permit`] in
//! a function's arguments is proof that a decision allowed the request.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Authority, CredentialName, Protocol, Reason};

/// Allow or deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Let through.
    Allow,
    /// Refuse.
    Deny,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
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
}

impl Decision {
    pub(crate) const fn allow(rule: Arc<RuleRef>, permit: Permit) -> Self {
        Self {
            reason: Reason::Allowed,
            rule: Some(rule),
            message: None,
            permit: Some(permit),
        }
    }

    pub(crate) const fn deny(reason: Reason, rule: Option<Arc<RuleRef>>) -> Self {
        Self {
            reason,
            rule,
            message: None,
            permit: None,
        }
    }

    pub(crate) fn with_message(self, message: Option<Arc<str>>) -> Self {
        Self { message, ..self }
    }

    /// Allow exactly when there is a permit.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        if self.permit.is_some() {
            Verdict::Allow
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

    /// The policy author's own words for the guest, from the deny rule.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The proof of an allow.
    #[must_use]
    pub const fn permit(&self) -> Option<&Permit> {
        self.permit.as_ref()
    }
}

/// Proof that a decision allowed a request to this authority. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Permit {
    protocol: Protocol,
    authority: Authority,
    allows_private: bool,
    credential: Option<CredentialName>,
}

impl Permit {
    pub(crate) const fn new(
        protocol: Protocol,
        authority: Authority,
        allows_private: bool,
        credential: Option<CredentialName>,
    ) -> Self {
        Self {
            protocol,
            authority,
            allows_private,
            credential,
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

    /// The credential to attach.
    #[must_use]
    pub const fn credential(&self) -> Option<&CredentialName> {
        self.credential.as_ref()
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
    pub(crate) reason: Reason,
    pub(crate) rule: Option<Arc<RuleRef>>,
}

impl Admission {
    /// Whether any protocol could be allowed.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.https || self.http || self.tcp
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
