//! Why a request got its verdict: the deciding rule, and what every near miss failed on.

use std::fmt;

use serde::Serialize;

use crate::decision::{Closest, WouldDeny};
use crate::document::Action;
use crate::policy::Policy;
use crate::rule::{Mismatch, Rule};
use crate::suggest::suggested_rule;
use crate::{CanonicalRequest, CredentialName, Reason, RuleRef, Verdict};

/// A decision with what led to it. [`fmt::Display`] is the plain-text form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Method and URL, query values hidden.
    pub request: String,
    /// Allow, deny or ask.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The rule that decided.
    pub rule: Option<RuleRef>,
    /// The credential that is attached.
    pub credential: Option<CredentialName>,
    /// The rule's message.
    pub message: Option<String>,
    /// For a default deny, the rule that lacks the least.
    pub closest: Option<Closest>,
    /// Of an allow: why a layer that only observes would have refused.
    pub would_deny: Option<WouldDeny>,
    /// The rules of every layer that speak of the destination, in the order of the files.
    pub considered: Vec<Considered>,
    /// A rule that would allow the request, as YAML for the list `rules:`, after a default deny.
    pub suggestion: Option<String>,
}

/// A rule that speaks of the request's destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Considered {
    /// The rule.
    pub rule: RuleRef,
    /// What it does when it matches.
    pub action: Verdict,
    /// The layer only observes: nothing is refused because of it.
    pub observed: bool,
    /// What the request failed on; empty when the rule matches.
    pub failed: Vec<Mismatch>,
    /// What the rule asks for, for each of `failed`.
    pub wanted: Vec<String>,
}

impl Policy {
    /// Decides and says why.
    #[must_use]
    pub fn explain(&self, request: &CanonicalRequest) -> Explanation {
        let decision = self.decide(request);
        let near = self.layers.iter().flat_map(|layer| {
            let rules = layer.rules.iter();
            let near = rules.filter(|rule| rule.has_destination(request.destination()));
            near.map(|rule| Considered::of(rule, layer.observes, request))
        });
        Explanation {
            request: request.to_string(),
            verdict: decision.verdict(),
            reason: decision.reason(),
            rule: decision.rule().cloned(),
            credential: decision
                .permit()
                .and_then(|permit| permit.credential())
                .cloned(),
            message: decision.message().map(str::to_owned),
            closest: decision.closest().cloned(),
            would_deny: decision.would_deny().cloned(),
            considered: near.collect(),
            suggestion: (decision.reason() == Reason::DefaultDeny).then(|| suggested_rule(request)),
        }
    }
}

impl Considered {
    fn of(rule: &Rule, observed: bool, request: &CanonicalRequest) -> Self {
        let failed = rule.mismatches(request);
        Self {
            rule: rule.reference.as_ref().clone(),
            action: match rule.action {
                Action::Allow => Verdict::Allow,
                Action::Deny => Verdict::Deny,
                Action::Ask => Verdict::Ask,
            },
            observed,
            wanted: failed
                .iter()
                .map(|mismatch| wanted(rule, *mismatch, request))
                .collect(),
            failed,
        }
    }
}

/// Items of a rule's list that an explanation names.
const SHOWN: usize = 20;

fn wanted(rule: &Rule, mismatch: Mismatch, request: &CanonicalRequest) -> String {
    let list = |items: Vec<String>| match items.split_at_checked(SHOWN) {
        Some((shown, rest)) if !rest.is_empty() => {
            format!("{} or {} more", shown.join(", "), rest.len())
        }
        _ if items.is_empty() => "nothing".to_owned(),
        _ => items.join(", "),
    };
    match mismatch {
        Mismatch::Destination => list(rule.hosts.iter().map(ToString::to_string).collect()),
        Mismatch::Port => list(
            rule.ports
                .iter()
                .flatten()
                .map(ToString::to_string)
                .collect(),
        ),
        Mismatch::Protocol => list(
            rule.protocols
                .iter()
                .map(|protocol| protocol.to_string())
                .collect(),
        ),
        Mismatch::Method => list(rule.methods.iter().flatten().cloned().collect()),
        Mismatch::Path => list(
            rule.paths
                .iter()
                .flat_map(|paths| paths.texts())
                .map(str::to_owned)
                .collect(),
        ),
        Mismatch::EncodedSlash => "`encoded_slash: data`".to_owned(),
        Mismatch::WebSocket => "`websocket: allow`".to_owned(),
        content => rule
            .content
            .as_ref()
            .map(|matchers| matchers.wanted(content, request))
            .unwrap_or_default(),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.verdict, self.request)?;
        writeln!(
            f,
            "  reason: {}: {}",
            self.reason,
            self.reason.explanation()
        )?;
        if let Some(rule) = &self.rule {
            writeln!(f, "  rule: {rule}")?;
        }
        if let Some(credential) = &self.credential {
            writeln!(f, "  credential: {credential}")?;
        }
        if let Some(message) = &self.message {
            writeln!(f, "  message: {message}")?;
        }
        if let Some(would_deny) = &self.would_deny {
            let rule = would_deny.rule.as_ref();
            let rule = rule.map_or_else(String::new, |rule| format!(" by {rule}"));
            writeln!(
                f,
                "  observed only: would be denied for {}{rule}",
                would_deny.reason
            )?;
        }
        if let Some(closest) = &self.closest {
            writeln!(f, "  closest: {closest}")?;
        }
        if self.considered.is_empty() {
            writeln!(f, "  no rule speaks of this destination")?;
        }
        for considered in &self.considered {
            considered.fmt(f)?;
        }
        if self.verdict != Verdict::Allow {
            writeln!(f, "  fix: {}", self.reason.how_to_fix())?;
        }
        if let Some(suggestion) = &self.suggestion {
            writeln!(f, "  for example, under `rules:`:")?;
            for line in suggestion.lines() {
                writeln!(f, "    {line}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Considered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {} rule {}: ", self.action, self.rule)?;
        if self.failed.is_empty() {
            return writeln!(f, "matches");
        }
        let parts = self.failed.iter().zip(&self.wanted);
        let parts: Vec<String> = parts
            .map(|(what, wanted)| format!("{what} (wants {wanted})"))
            .collect();
        writeln!(f, "fails on {}", parts.join(", "))
    }
}
