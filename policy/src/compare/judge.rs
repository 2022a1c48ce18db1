//! What each side makes of one request, as `decide.rs` would: a deny wins in any layer, every layer
//! has to agree, a rule with a credential speaks first. A test holds both against each other.

use super::view::RuleView;
use crate::document::Action;
use crate::{Reason, Verdict};

/// A rule by layer and by its place among those that are in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) layer: usize,
    pub(super) at: usize,
}

/// A rule in question.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'v, 'a> {
    pub(super) slot: Slot,
    pub(super) view: &'v RuleView<'a>,
}

/// The rules of one policy that are in question, layer by layer, each in the order of the file.
#[derive(Clone)]
pub(super) struct Side<'v, 'a> {
    pub(super) layers: Vec<Stratum<'v, 'a>>,
}

#[derive(Clone)]
pub(super) struct Stratum<'v, 'a> {
    pub(super) observes: bool,
    pub(super) rules: Vec<Candidate<'v, 'a>>,
}

impl<'v, 'a> Side<'v, 'a> {
    /// The same with fewer rules.
    pub(super) fn only(&self, keep: impl Fn(&RuleView<'a>) -> bool) -> Self {
        let layers = self.layers.iter().map(|stratum| Stratum {
            observes: stratum.observes,
            rules: stratum
                .rules
                .iter()
                .filter(|candidate| keep(candidate.view))
                .copied()
                .collect(),
        });
        Self {
            layers: layers.collect(),
        }
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &Candidate<'v, 'a>> {
        self.layers.iter().flat_map(|stratum| &stratum.rules)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&'v RuleView<'a>> {
        let stratum = self.layers.get(slot.layer)?;
        let mut rules = stratum.rules.iter();
        Some(rules.find(|candidate| candidate.slot == slot)?.view)
    }

    pub(super) fn slots(&self) -> Vec<Slot> {
        self.rules().map(|candidate| candidate.slot).collect()
    }

    /// Whether both sides decide everything alike because their rules are alike.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self
                .layers
                .iter()
                .zip(&other.layers)
                .all(|(one, two)| one.is_like(two))
    }

    /// Whether any request could come through.
    pub(super) fn is_open(&self, is_http: bool) -> bool {
        !self.layers.is_empty()
            && self.layers.iter().all(|stratum| {
                let mut rules = stratum.rules.iter();
                (stratum.observes && is_http) || rules.any(|rule| !rule.view.is_deny())
            })
    }

    /// Whether this side only has layers more than the other, and none of them attaches or asks: it
    /// can't allow what the other doesn't.
    pub(super) fn only_narrows(&self, other: &Self) -> bool {
        let mut wanted = other.layers.iter().peekable();
        for stratum in &self.layers {
            if wanted.next_if(|next| next.is_like(stratum)).is_some() {
                continue;
            }
            let speaks = |candidate: &Candidate<'_, '_>| {
                let view = candidate.view;
                view.credential.is_some() || view.rule.action == Action::Ask
            };
            if stratum.rules.iter().any(speaks) {
                return false;
            }
        }
        !other.layers.is_empty() && wanted.next().is_none()
    }
}

impl Stratum<'_, '_> {
    fn is_like(&self, other: &Self) -> bool {
        self.observes == other.observes
            && self.rules.len() == other.rules.len()
            && self
                .rules
                .iter()
                .zip(&other.rules)
                .all(|(one, two)| one.view.shape == two.view.shape)
    }
}

/// What isn't known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Free {
    /// Whether matchers that aren't compared hold.
    Content(u32),
    /// Whether some deny pattern of these matches a reading of a path with `%25`.
    DenySet(u32),
}

/// What is known of a request that rules of the right destination, port, protocol and method see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'f> {
    pub(super) is_http: bool,
    /// Path patterns that match, in order.
    pub(super) matched: &'f [u32],
    pub(super) has_slash: bool,
    pub(super) websocket: bool,
    /// What isn't known, and what it is taken for.
    pub(super) free: &'f [(Free, bool)],
}

impl Facts<'_> {
    fn is(&self, free: Free) -> bool {
        self.free.contains(&(free, true))
    }

    /// Whether a pattern of the rule is known to match.
    pub(super) fn match_path(&self, view: &RuleView<'_>) -> bool {
        let is_matched = |path: &u32| self.matched.binary_search(path).is_ok();
        view.paths
            .as_ref()
            .is_none_or(|paths| paths.iter().any(is_matched))
    }

    /// Whether the rule matches, apart from encoded slashes.
    pub(super) fn match_rule(&self, view: &RuleView<'_>) -> bool {
        let by_reading = view.deny_set.is_some_and(|set| self.is(Free::DenySet(set)));
        (by_reading || self.match_path(view))
            && (view.is_deny() || view.rule.websocket || !self.websocket)
            && view
                .content
                .is_none_or(|content| self.is(Free::Content(content)))
    }
}

/// What a policy says before the address is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Refused(Refusal),
    Agreed {
        speaker: Option<Slot>,
        credential: Option<u32>,
        ask: Option<Slot>,
        /// The rules whose limits all hold.
        limits: Vec<Slot>,
        opens_private: bool,
        observed: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) rule: Option<Slot>,
}

/// What a policy says in the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Deny(Refusal),
    Pass(Pass),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pass {
    /// The rule whose person is asked.
    pub(super) ask: Option<Slot>,
    pub(super) speaker: Option<Slot>,
    pub(super) credential: Option<u32>,
    pub(super) limits: Vec<Slot>,
    /// Let through by a layer that only observes.
    pub(super) observed: bool,
}

impl Outcome {
    pub(super) const fn verdict(&self) -> Verdict {
        match self {
            Self::Deny(_) => Verdict::Deny,
            Self::Pass(Pass { ask: Some(_), .. }) => Verdict::Ask,
            Self::Pass(Pass { ask: None, .. }) => Verdict::Allow,
        }
    }

    /// The rule that decided.
    pub(super) fn rule(&self) -> Option<Slot> {
        match self {
            Self::Deny(refusal) => refusal.rule,
            Self::Pass(pass) => pass.ask.or(pass.speaker),
        }
    }
}

impl Standing {
    /// The last check: an address may be closed whatever the rules say.
    pub(super) fn at(self, is_private: bool) -> Outcome {
        match self {
            Self::Refused(refusal) => Outcome::Deny(refusal),
            Self::Agreed {
                speaker,
                opens_private: false,
                ..
            } if is_private => Outcome::Deny(Refusal {
                reason: Reason::PrivateAddress,
                rule: speaker,
            }),
            Self::Agreed {
                speaker,
                credential,
                ask,
                limits,
                observed,
                ..
            } => Outcome::Pass(Pass {
                ask,
                speaker,
                credential: credential.filter(|_| !observed || ask.is_some()),
                limits,
                observed,
            }),
        }
    }
}

/// Judges a request.
pub(super) fn judge(side: &Side<'_, '_>, facts: &Facts<'_>) -> Standing {
    let mut refusal = None;
    let mut speaker: Option<Candidate<'_, '_>> = None;
    let mut ask = None;
    let mut limits = Vec::new();
    let mut opens_private = true;
    let mut observed = false;
    if side.layers.is_empty() {
        refusal = Some(Refusal {
            reason: Reason::NoPolicy,
            rule: None,
        });
    }
    for stratum in &side.layers {
        let found = Found::among(stratum, facts);
        let observes = stratum.observes && facts.is_http;
        match found.refusal() {
            Some(_) if observes => {
                opens_private &= found.private;
                observed = true;
            }
            Some(deny) if deny.reason == Reason::RuleDeny => return Standing::Refused(deny),
            Some(deny) => {
                refusal.get_or_insert(deny);
            }
            None => {
                opens_private &= found.private;
                if let Some(rule) = found.speaker() {
                    if rule.view.rule.limits.is_some() {
                        limits.push(rule.slot);
                    }
                    let keeps = |outer: &Candidate<'_, '_>| {
                        outer.view.credential.is_some() && rule.view.credential.is_none()
                    };
                    speaker = Some(speaker.filter(keeps).unwrap_or(rule));
                }
                match found.ask {
                    Some(_) if observes => observed = true,
                    Some(rule) => ask = Some(rule.slot),
                    None => {}
                }
            }
        }
    }
    match refusal {
        Some(refusal) => Standing::Refused(refusal),
        None => Standing::Agreed {
            speaker: speaker.map(|rule| rule.slot),
            credential: speaker.and_then(|rule| rule.view.credential),
            ask,
            limits,
            opens_private,
            observed,
        },
    }
}

/// What one layer says.
#[derive(Default)]
struct Found<'v, 'a> {
    deny: Option<Candidate<'v, 'a>>,
    ask: Option<Candidate<'v, 'a>>,
    allow: Option<Candidate<'v, 'a>>,
    slash: Option<Candidate<'v, 'a>>,
    private: bool,
}

impl<'v, 'a> Found<'v, 'a> {
    fn among(stratum: &Stratum<'v, 'a>, facts: &Facts<'_>) -> Self {
        let mut found = Self::default();
        for candidate in &stratum.rules {
            if !facts.match_rule(candidate.view) {
                continue;
            }
            let rule = candidate.view.rule;
            if facts.has_slash && !rule.encoded_slash_is_data && !rule.is_deny() {
                found.slash.get_or_insert(*candidate);
                continue;
            }
            match rule.action {
                Action::Deny => {
                    found.deny.get_or_insert(*candidate);
                }
                Action::Ask => prefer(&mut found.ask, *candidate),
                Action::Allow => prefer(&mut found.allow, *candidate),
            }
            found.private |= rule.private;
        }
        found
    }

    fn refusal(&self) -> Option<Refusal> {
        if let Some(rule) = self.deny {
            return Some(Refusal {
                reason: Reason::RuleDeny,
                rule: Some(rule.slot),
            });
        }
        if self.ask.is_some() || self.allow.is_some() {
            return None;
        }
        let reason = match self.slash {
            Some(_) => Reason::EncodedSlash,
            None => Reason::DefaultDeny,
        };
        Some(Refusal {
            reason,
            rule: self.slash.map(|rule| rule.slot),
        })
    }

    fn speaker(&self) -> Option<Candidate<'v, 'a>> {
        let both = [self.ask, self.allow];
        let mut rules = both.into_iter().flatten();
        let with_credential = |rule: &Candidate<'_, '_>| rule.view.credential.is_some();
        rules.clone().find(with_credential).or_else(|| rules.next())
    }
}

/// The first one in the file, and one with a credential before one without.
fn prefer<'v, 'a>(slot: &mut Option<Candidate<'v, 'a>>, candidate: Candidate<'v, 'a>) {
    let is_better = slot
        .is_none_or(|kept| kept.view.credential.is_none() && candidate.view.credential.is_some());
    if is_better {
        *slot = Some(candidate);
    }
}
