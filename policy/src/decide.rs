//! Deciding one request: every layer has to allow it, and any of them can deny it.

use std::sync::Arc;

use crate::compile::Layer;
use crate::content::Needs;
use crate::decision::{Closest, PermitLimits, WouldDeny};
use crate::document::Action;
use crate::policy::Policy;
use crate::rule::{Protocols, Rule};
use crate::{AddressClass, CanonicalRequest, Decision, Destination, Permit, Reason};

impl Policy {
    /// Judges one request. Allocates nothing.
    #[must_use]
    pub fn decide(&self, request: &CanonicalRequest) -> Decision {
        if self.layers.is_empty() {
            return Decision::deny(Reason::NoPolicy, None);
        }
        let mut refusal: Option<Decision> = None;
        let mut so_far = Agreement::new();
        for layer in &self.layers {
            let found = Found::among(layer, request);
            // Bytes that nobody reads can't be observed, so they need a rule all the same.
            let observes = layer.observes && request.protocol().is_http();
            match found.refusal(layer, request) {
                Some(deny) if observes => so_far.observe(&found, &deny),
                // What a rule denies is denied, whatever a later layer lacks.
                Some(deny) if deny.reason() == Reason::RuleDeny => return deny,
                Some(deny) => {
                    refusal.get_or_insert(deny);
                }
                None => so_far.agree(&found, observes),
            }
        }
        refusal.unwrap_or_else(|| so_far.into_decision(request))
    }

    /// What [`Self::decide`] has to see of a request beyond its first line: give it that with
    /// [`CanonicalRequest::with_headers`] and [`CanonicalRequest::with_body`]. Nothing for most
    /// policies and requests.
    #[must_use]
    pub fn needs(&self, request: &CanonicalRequest) -> Needs {
        let mut needs = Needs::NOTHING;
        if !self.looks_inside {
            return needs;
        }
        for layer in &self.layers {
            layer.index.visit(request, |position| {
                let rule = layer.rules.get(position);
                if let Some(rule) = rule.filter(|rule| rule.could_match(request)) {
                    needs = needs.and(rule.needs());
                }
            });
        }
        needs
    }
}

/// What one layer says of a request.
#[derive(Default)]
struct Found<'a> {
    deny: Option<&'a Rule>,
    ask: Option<&'a Rule>,
    /// The first rule in the file that matches; a rule with a credential goes before one without,
    /// so that a broad rule doesn't keep a credential from being attached.
    allow: Option<&'a Rule>,
    /// Some matching rule opens private addresses.
    private: bool,
    /// Would match but for an encoded slash.
    slash: Option<&'a Rule>,
}

impl<'a> Found<'a> {
    fn among(layer: &'a Layer, request: &CanonicalRequest) -> Self {
        let mut found = Self::default();
        layer.index.visit(request, |position| {
            if let Some(rule) = layer.rules.get(position)
                && rule.matches(request)
            {
                found.keep(rule, request);
            }
        });
        found
    }

    fn keep(&mut self, rule: &'a Rule, request: &CanonicalRequest) {
        if !rule.accepts_slashes(request) {
            keep_first(&mut self.slash, rule, |_| true);
            return;
        }
        let by_credential = |rule: &Rule| rule.credential.is_none();
        match rule.action {
            Action::Deny => keep_first(&mut self.deny, rule, |_| true),
            Action::Ask => keep_first(&mut self.ask, rule, by_credential),
            Action::Allow => keep_first(&mut self.allow, rule, by_credential),
        }
        self.private |= rule.private;
    }

    /// Why the layer doesn't allow the request, if it doesn't.
    fn refusal(&self, layer: &Layer, request: &CanonicalRequest) -> Option<Decision> {
        if let Some(rule) = self.deny {
            let decision = Decision::deny(Reason::RuleDeny, Some(Arc::clone(&rule.reference)));
            return Some(decision.with_message(rule.message.clone()));
        }
        if self.ask.is_some() || self.allow.is_some() {
            return None;
        }
        if let Some(rule) = self.slash {
            let rule = Some(Arc::clone(&rule.reference));
            return Some(Decision::deny(Reason::EncodedSlash, rule));
        }
        let opened = opened(layer, request);
        let reason = if !opened.is_empty() && !opened.has(request.protocol()) {
            Reason::ProtocolNotAllowed
        } else {
            Reason::DefaultDeny
        };
        Some(Decision::deny(reason, None).with_closest(closest(layer, request)))
    }
}

/// What the layer's rules allow at the request's destination and port.
fn opened(layer: &Layer, request: &CanonicalRequest) -> Protocols {
    let mut opened = Protocols::NONE;
    layer.index.buckets(request.destination(), |bucket| {
        for opening in bucket.openings(request.port()) {
            opened = opened.or(opening.allowed);
        }
    });
    opened
}

/// Rules that are looked at for the closest one; more would make a denial slower than an allow.
const MAX_NEAR: usize = 8;

/// The rule that lacks the least to allow the request, among the first of those that could be for its
/// path, or else of those for its destination.
fn closest(layer: &Layer, request: &CanonicalRequest) -> Option<Closest> {
    let mut near = Near {
        best: None,
        left: MAX_NEAR,
    };
    let rule_at = |position: usize| layer.rules.get(position);
    layer.index.visit(request, |position| {
        near.weigh(rule_at(position), request);
    });
    if near.best.is_none() {
        let to = request.destination();
        layer.index.visit_some(to, MAX_NEAR, |position| {
            near.weigh(rule_at(position), request);
        });
    }
    let (_, rule) = near.best?;
    Some(Closest {
        rule: Arc::clone(&rule.reference),
        failed: rule.first_mismatch(request)?,
    })
}

/// The closest rule so far, by what it lacks and its place in the file.
struct Near<'a> {
    best: Option<((usize, u32), &'a Rule)>,
    left: usize,
}

impl<'a> Near<'a> {
    fn weigh(&mut self, rule: Option<&'a Rule>, request: &CanonicalRequest) {
        let rule = rule.filter(|rule| self.left > 0 && !rule.is_deny());
        let Some(rule) = rule else { return };
        self.left -= 1;
        let key = (rule.lacks(request), rule.order);
        if self.best.is_none_or(|(known, _)| key < known) {
            self.best = Some((key, rule));
        }
    }
}

/// Keeps the rule that comes first in the file; of two kinds, the one for which `later` is false.
fn keep_first<'a>(slot: &mut Option<&'a Rule>, rule: &'a Rule, later: impl Fn(&Rule) -> bool) {
    let key = |rule: &Rule| (later(rule), rule.order);
    if slot.is_none_or(|kept| key(rule) < key(kept)) {
        *slot = Some(rule);
    }
}

/// What the layers that were asked so far have in common.
struct Agreement<'a> {
    /// The innermost layer speaks, unless only an outer one has a credential to attach.
    speaker: Option<&'a Rule>,
    ask: Option<&'a Rule>,
    limits: PermitLimits,
    private: bool,
    observed: Option<WouldDeny>,
}

impl<'a> Agreement<'a> {
    const fn new() -> Self {
        Self {
            speaker: None,
            ask: None,
            limits: PermitLimits::new(),
            private: true,
            observed: None,
        }
    }

    fn agree(&mut self, found: &Found<'a>, observes: bool) {
        self.private &= found.private;
        // After a yes, what a person was asked about is attached like what needs no asking.
        let with_credential = |rule: &&&Rule| rule.credential.is_some();
        let both = [&found.ask, &found.allow];
        let mut rules = both.into_iter().flatten();
        let rule = rules.clone().find(with_credential).or_else(|| rules.next());
        if let Some(rule) = rule.copied() {
            self.speak(rule);
        }
        let Some(ask) = found.ask else { return };
        if observes {
            let asked = Decision::deny(Reason::ApprovalRequired, Some(Arc::clone(&ask.reference)));
            self.observe(found, &asked);
        } else {
            self.ask = Some(ask);
        }
    }

    fn speak(&mut self, rule: &'a Rule) {
        if let Some(limits) = &rule.limits {
            self.limits.push(&rule.reference, limits);
        }
        let keeps = |outer: &&Rule| outer.credential.is_some() && rule.credential.is_none();
        self.speaker = Some(self.speaker.filter(keeps).unwrap_or(rule));
    }

    /// A layer that only observes would have refused. Private addresses stay closed all the same,
    /// unless a rule of it opens them to this request.
    fn observe(&mut self, found: &Found<'a>, refusal: &Decision) {
        self.private &= found.private;
        self.observed
            .get_or_insert_with(|| WouldDeny::from(refusal));
    }

    /// The last check of an allow: an address may be closed whatever the rules say.
    fn into_decision(self, request: &CanonicalRequest) -> Decision {
        let reference = self.speaker.map(|rule| Arc::clone(&rule.reference));
        if let Some(reason) = closed_address(request.destination(), self.private) {
            return Decision::deny(reason, reference);
        }
        if let Some(rule) = self.ask {
            let decision = Decision::ask(Arc::clone(&rule.reference), rule.ask);
            return decision.with_message(rule.message.clone());
        }
        let credential = self.speaker.and_then(|rule| rule.credential.clone());
        let permit = Permit::new(
            request,
            self.private,
            // What is let through unjudged carries no secret.
            credential.filter(|_| self.observed.is_none()),
            self.limits,
        );
        Decision::allow(reference, permit, self.observed)
    }
}

/// Why an address literal can't be dialled. Names are judged by the gateway, after resolution.
pub(crate) fn closed_address(destination: &Destination, private: bool) -> Option<Reason> {
    let Destination::Ip(address) = destination else {
        return None;
    };
    match AddressClass::of(*address) {
        AddressClass::Metadata => Some(Reason::MetadataAddress),
        AddressClass::Private if !private => Some(Reason::PrivateAddress),
        AddressClass::Public | AddressClass::Private => None,
    }
}
