//! Why a request got its verdict: the deciding rule, and what every near miss failed on.

use std::fmt;

use serde::Serialize;

use crate::policy::Policy;
use crate::rule::{Mismatch, Rule};
use crate::suggest::suggested_rule;
use crate::{CanonicalRequest, CredentialName, Reason, RuleRef, Verdict};

/// A decision with what led to it. [`fmt::Display`] is the plain-text form.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Method and URL, query values hidden.
    pub request: String,
    /// Allow or deny.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The rule that decided.
    pub rule: Option<RuleRef>,
    /// The credential that is attached.
    pub credential: Option<CredentialName>,
    /// The deny rule's message.
    pub message: Option<String>,
    /// The rules of every layer that speak of the destination, in the order of the files.
    pub considered: Vec<Considered>,
    /// A rule that would allow the request, as YAML for the list `rules:`, after a default deny.
    pub suggestion: Option<String>,
}

/// A rule that speaks of the request's destination.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Considered {
    /// The rule.
    pub rule: RuleRef,
    /// What it does when it matches.
    pub action: Verdict,
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
        let rules = self.layers.iter().flat_map(|layer| &layer.rules);
        let near = rules.filter(|rule| rule.has_destination(request.destination()));
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
            considered: near.map(|rule| Considered::of(rule, request)).collect(),
            suggestion: (decision.reason() == Reason::DefaultDeny).then(|| suggested_rule(request)),
        }
    }
}

impl Considered {
    fn of(rule: &Rule, request: &CanonicalRequest) -> Self {
        let failed = rule.mismatches(request);
        Self {
            rule: rule.reference.as_ref().clone(),
            action: if rule.is_deny() {
                Verdict::Deny
            } else {
                Verdict::Allow
            },
            wanted: failed
                .iter()
                .map(|mismatch| wanted(rule, *mismatch))
                .collect(),
            failed,
        }
    }
}

fn wanted(rule: &Rule, mismatch: Mismatch) -> String {
    let list = |items: Vec<String>| {
        if items.is_empty() {
            "nothing".to_owned()
        } else {
            items.join(", ")
        }
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
                .cloned()
                .collect(),
        ),
        Mismatch::EncodedSlash => "`encoded_slash: data`".to_owned(),
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
        if self.considered.is_empty() {
            writeln!(f, "  no rule speaks of this destination")?;
        }
        for considered in &self.considered {
            considered.fmt(f)?;
        }
        if self.verdict == Verdict::Deny {
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
