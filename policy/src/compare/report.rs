//! What a comparison says, as values and as text.

use std::fmt;

use serde::Serialize;

use super::effect::Aspect;
use super::extent::Extent;
use crate::effective::limits_text;
use crate::{CredentialName, Limits, Protocol, Reason, RuleRef, Verdict};

/// How two policies differ. [`fmt::Display`] is the plain-text form.
///
/// Exact over destinations, ports, protocols, methods and paths. What depends on matchers beyond
/// these is in `depends`; what could not be found out is in `undecided`. Two policies without any
/// entry decide every request alike.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// What the new policy lets through, or asks about, and the old one denies.
    pub allowed: Vec<Change>,
    /// What the new policy denies and the old one doesn't.
    pub denied: Vec<Change>,
    /// What both let through or ask about, on other terms.
    pub changed: Vec<Change>,
    /// What differs only for some headers, queries or bodies.
    pub depends: Vec<Change>,
    /// Where it isn't known whether anything differs.
    pub undecided: Vec<Undecided>,
    /// What differs beside the rules.
    pub beside: Vec<Beside>,
}

impl Difference {
    /// Whether the policies are the same in all that they decide.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes().next().is_none() && self.undecided.is_empty() && self.beside.is_empty()
    }

    /// Whether the new policy gives something that the old one doesn't, or may.
    #[must_use]
    pub fn allows_more(&self) -> bool {
        self.changes().any(|change| change.widens)
            || self.undecided.iter().any(|undecided| undecided.widens)
            || self.beside.iter().any(|beside| beside.widens)
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        let sure = self.allowed.iter().chain(&self.denied).chain(&self.changed);
        sure.chain(&self.depends)
    }
}

/// Requests that two policies decide differently in one way.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Which requests these are.
    pub region: Region,
    /// One of them: `METHOD URL`, or `tcp://host:port`, as `outgate policy explain` reads it.
    pub request: String,
    /// What else is so of the request, which its line can't say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<String>,
    /// What the old policy says to it.
    pub old: Answer,
    /// What the new policy says to it.
    pub new: Answer,
    /// Whether the new policy gives something that the old one doesn't.
    pub widens: bool,
    /// For a request that both let through: what is other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aspects: Vec<Aspect>,
    /// The matchers that it depends on whether there is a difference, with their rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opaque: Option<String>,
}

/// A set of requests, for people. The paths are what the rules say, which may be more than differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Region {
    /// The protocol.
    pub protocol: Protocol,
    /// Names, wildcards (`*.` and a name: whatever no rule names itself), networks.
    pub hosts: Vec<String>,
    /// The ports.
    pub ports: Extent<u16>,
    /// The methods, of HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Extent<String>>,
    /// Path patterns; every path when there is none.
    pub paths: Vec<String>,
    /// Path patterns that these requests don't match.
    pub except: Vec<String>,
}

/// What a policy says to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Answer {
    /// Allow, deny or ask.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleRef>,
    /// The credential that is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialName>,
    /// The limits to keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limits>,
    /// Whether a layer that only observes would have refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
}

/// Requests of which it isn't known whether they are decided alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Undecided {
    /// Which requests, for people.
    pub region: String,
    /// Why that is so, and what to do.
    pub why: String,
    /// The rules that make it so.
    pub rules: Vec<RuleRef>,
    /// Whether the new policy may give more; else it may only deny more.
    pub widens: bool,
}

/// A difference beside the rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Beside {
    /// What: a budget, or for which sandboxes a policy is.
    pub what: String,
    /// As the old policy has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// As the new policy has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// Whether the new one gives more.
    pub widens: bool,
}

/// Whether a policy stays within another. Only [`Within::Proven`] is a yes.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Within {
    /// No request gets more.
    Proven,
    /// This request does.
    Counterexample {
        /// The request; `old` is the baseline.
        change: Box<Change>,
    },
    /// It may or may not.
    Undecided {
        /// Where, and why.
        undecided: Vec<Undecided>,
        /// Requests that may get more, and on what that depends.
        depends: Vec<Change>,
        /// What it gives more beside the rules.
        beside: Vec<Beside>,
    },
}

impl Within {
    /// Whether it is proven.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        matches!(self, Self::Proven)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("the policies decide every request alike\n");
        }
        for (mark, word, changes) in [
            ('+', "allowed", &self.allowed),
            ('-', "denied", &self.denied),
            ('~', "changed", &self.changed),
            ('?', "depends", &self.depends),
        ] {
            for change in changes {
                write!(f, "{mark} {word}: {change}")?;
            }
        }
        self.undecided
            .iter()
            .try_for_each(|undecided| undecided.fmt(f))?;
        self.beside.iter().try_for_each(|beside| beside.fmt(f))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.region)?;
        write!(f, "    request: {}", self.request)?;
        for given in &self.given {
            write!(f, ", {given}")?;
        }
        writeln!(f)?;
        let limits = self.aspects.contains(&Aspect::Limits);
        writeln!(f, "    old: {}", self.old.shown(limits))?;
        writeln!(f, "    new: {}", self.new.shown(limits))?;
        if let Some(opaque) = &self.opaque {
            writeln!(f, "    depends on {opaque}")?;
        }
        Ok(())
    }
}

/// Hosts that are listed before the others are only counted.
const LISTED: usize = 8;

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(methods) = self.methods.as_ref().filter(|methods| !methods.is_all()) {
            write!(f, "{methods} over ")?;
        }
        write!(f, "{} to ", self.protocol)?;
        let listed = self.hosts.iter().take(LISTED).map(String::as_str);
        f.write_str(&listed.collect::<Vec<_>>().join(", "))?;
        if let Some(more) = self
            .hosts
            .len()
            .checked_sub(LISTED)
            .filter(|more| *more > 0)
        {
            write!(f, " and {more} more")?;
        }
        let default = self.protocol.default_port().map(|port| vec![port]);
        match &self.ports {
            Extent::Only(ports) if Some(ports) == default.as_ref() => {}
            ports if ports.is_all() => f.write_str(", any port")?,
            ports => write!(f, ", port {ports}")?,
        }
        for (word, patterns) in [("path", &self.paths), ("but not", &self.except)] {
            if !patterns.is_empty() {
                write!(f, ", {word} {}", patterns.join(" or "))?;
            }
        }
        Ok(())
    }
}

impl Answer {
    fn shown(&self, with_limits: bool) -> String {
        let mut text = self.verdict.to_string();
        match &self.rule {
            Some(rule) => text.push_str(&format!(" by {rule}")),
            None if self.reason != Reason::Allowed => {
                text.push_str(&format!(", {}", self.reason));
            }
            None => {}
        }
        let tells_more = !matches!(
            self.reason,
            Reason::Allowed | Reason::RuleDeny | Reason::ApprovalRequired
        );
        if self.rule.is_some() && tells_more {
            text.push_str(&format!(", {}", self.reason));
        }
        if let Some(credential) = &self.credential {
            text.push_str(&format!(", credential {credential}"));
        }
        if self.observed {
            text.push_str(", only observed");
        }
        if with_limits {
            let limits: Vec<String> = self.limits.iter().map(limits_text).collect();
            let limits = limits.join(" and ");
            let limits = if limits.is_empty() { "none" } else { &limits };
            text.push_str(&format!(", limits {limits}"));
        }
        text
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(!self.limits.is_empty()))
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "? undecided: {}", self.region)?;
        writeln!(f, "    {}", self.why)?;
        for rule in &self.rules {
            writeln!(f, "    rule {rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.widens { '+' } else { '-' };
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        writeln!(f, "{mark} {}", self.what)?;
        writeln!(f, "    old: {}", shown(&self.old))?;
        writeln!(f, "    new: {}", shown(&self.new))
    }
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven => f.write_str("within: no request gets more\n"),
            Self::Counterexample { change } => write!(f, "not within: {change}"),
            Self::Undecided {
                undecided,
                depends,
                beside,
            } => {
                f.write_str("not proven\n")?;
                for change in depends {
                    write!(f, "? depends: {change}")?;
                }
                undecided
                    .iter()
                    .try_for_each(|undecided| undecided.fmt(f))?;
                beside.iter().try_for_each(|beside| beside.fmt(f))
            }
        }
    }
}
