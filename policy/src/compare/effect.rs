//! What it means that two outcomes differ, and whether the new one gives more.

use super::judge::{Outcome, Pass, Side, Slot};
use crate::{Limits, Rate, Verdict};

/// How two outcomes of one request differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Effect {
    pub(super) old: Outcome,
    pub(super) new: Outcome,
    pub(super) kind: Kind,
    /// Whether the new outcome gives something that the old one doesn't.
    pub(super) widens: bool,
    /// What differs apart from letting through or not.
    pub(super) aspects: Vec<Aspect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The new policy lets through, or asks about, what the old one denies.
    Allowed,
    /// The other way round.
    Denied,
    /// Both do, on other terms.
    Changed,
}

/// Terms on which a request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Aspect {
    /// One policy asks a person and the other allows.
    Asking,
    /// How a person is asked.
    AskTerms,
    /// The credential that is attached.
    Credential,
    /// The limits that are kept.
    Limits,
    /// One of them lets through only because it observes.
    Observing,
}

impl Effect {
    /// `None` where both outcomes give the same.
    pub(super) fn between(
        old: (&Side<'_, '_>, Outcome),
        new: (&Side<'_, '_>, Outcome),
    ) -> Option<Self> {
        let ((old_side, old), (new_side, new)) = (old, new);
        let (kind, widens, aspects) = match (&old, &new) {
            (Outcome::Deny(_), Outcome::Deny(_)) => return None,
            (Outcome::Deny(_), Outcome::Pass(_)) => (Kind::Allowed, true, Vec::new()),
            (Outcome::Pass(_), Outcome::Deny(_)) => (Kind::Denied, false, Vec::new()),
            (Outcome::Pass(before), Outcome::Pass(after)) => {
                let mut terms = Terms::default();
                terms.compare((old_side, before), (new_side, after));
                terms.asking(old.verdict(), new.verdict());
                if terms.aspects.is_empty() {
                    return None;
                }
                (Kind::Changed, terms.widens, terms.aspects)
            }
        };
        Some(Self {
            old,
            new,
            kind,
            widens,
            aspects,
        })
    }

    /// Whether both are differences of one sort, whichever rules make them.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind && self.widens == other.widens && self.aspects == other.aspects
    }
}

#[derive(Default)]
struct Terms {
    aspects: Vec<Aspect>,
    widens: bool,
}

impl Terms {
    fn note(&mut self, aspect: Aspect, widens: bool) {
        self.aspects.push(aspect);
        self.widens |= widens;
    }

    fn asking(&mut self, old: Verdict, new: Verdict) {
        if old != new {
            self.note(Aspect::Asking, new == Verdict::Allow);
        }
    }

    fn compare(&mut self, old: (&Side<'_, '_>, &Pass), new: (&Side<'_, '_>, &Pass)) {
        let ((old_side, old), (new_side, new)) = (old, new);
        if old.credential != new.credential {
            self.note(Aspect::Credential, new.credential.is_some());
        }
        if old.observed != new.observed {
            self.note(Aspect::Observing, false);
        }
        let terms = |side: &Side<'_, '_>, ask: Option<Slot>| {
            ask.and_then(|slot| side.get(slot))
                .and_then(|view| view.rule.ask)
        };
        let asks = (terms(old_side, old.ask), terms(new_side, new.ask));
        if let (Some(before), Some(after)) = asks
            && before != after
        {
            let more_time = after.timeout > before.timeout;
            self.note(
                Aspect::AskTerms,
                more_time || (after.session && !before.session),
            );
        }
        let (before, after) = (limits(old_side, &old.limits), limits(new_side, &new.limits));
        let loosens = !are_kept(&before, &after);
        if loosens || !are_kept(&after, &before) {
            self.note(Aspect::Limits, loosens);
        }
    }
}

/// Limits with the id of the rule that counts.
pub(super) type Counted<'a> = (&'a str, &'a Limits);

pub(super) fn limits<'a>(side: &Side<'_, 'a>, slots: &[Slot]) -> Vec<Counted<'a>> {
    let views = slots.iter().filter_map(|slot| side.get(*slot));
    views
        .filter_map(|view| {
            let rule = view.rule;
            Some((rule.reference.id.as_ref(), rule.limits.as_deref()?))
        })
        .collect()
}

/// Whether whoever keeps to `inner` keeps to `outer`. Rates and numbers of connections are counted
/// rule by rule, so only a rule of the same name is known to count the same requests.
fn are_kept(outer: &[Counted<'_>], inner: &[Counted<'_>]) -> bool {
    let at_most = |of: fn(&Limits) -> Option<u128>| {
        let least = |all: &[Counted<'_>]| all.iter().filter_map(|(_, limits)| of(limits)).min();
        match (least(outer), least(inner)) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(outer), Some(inner)) => inner <= outer,
        }
    };
    let counted = outer.iter().all(|(id, wanted)| {
        let same = || inner.iter().filter(|(own, _)| own == id);
        let rate = wanted
            .rate
            .is_none_or(|rate| same().any(|(_, own)| own.rate.is_some_and(|own| keeps(own, rate))));
        let concurrency = wanted.concurrency.is_none_or(|most| {
            same().any(|(_, own)| own.concurrency.is_some_and(|own| own <= most))
        });
        rate && concurrency
    });
    counted
        && at_most(|limits| limits.request_body.map(u128::from))
        && at_most(|limits| limits.response_body.map(u128::from))
        && at_most(|limits| limits.duration.map(|duration| duration.as_nanos()))
}

/// Not more in not less time.
fn keeps(inner: Rate, outer: Rate) -> bool {
    inner.count <= outer.count && inner.per >= outer.per
}
