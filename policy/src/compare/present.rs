//! From findings to what is said: the request as a line, the rules by name, the region in words. Every
//! example is decided by both policies for real before it is shown.

use std::collections::HashMap;
use std::sync::Arc;

use super::addresses::Found;
use super::cases::Case;
use super::effect::{Effect, Kind, limits};
use super::extent::Extent;
use super::judge::{Outcome, Pass, Side, Slot};
use super::places::Place;
use super::probe::{Certainty, Finding, Gap};
use super::report::{Answer, Change, Difference, Region, Undecided};
use super::view::{RuleView, View, Views};
use crate::{
    AddressClass, Authority, CanonicalRequest, Decision, Destination, Protocol, Reason,
    RequestParts, RuleRef, Verdict,
};

/// Findings of one case with what is needed to speak of them: for any place with rules of the same
/// shapes.
pub(super) struct Sketch {
    protocol: Protocol,
    ports: super::cases::Values<u16>,
    methods: Option<super::cases::Values<String>>,
    findings: Vec<Finding>,
    gaps: Vec<Gap>,
}

impl Sketch {
    pub(super) fn new(case: &Case<'_, '_>, findings: Vec<Finding>, gaps: Vec<Gap>) -> Self {
        Self {
            protocol: case.protocol,
            ports: case.ports.clone(),
            methods: case.methods.clone(),
            findings,
            gaps,
        }
    }
}

/// Both sides of a place.
pub(super) struct Here<'p, 'v, 'a> {
    pub(super) place: &'p Place,
    pub(super) old: Side<'v, 'a>,
    pub(super) new: Side<'v, 'a>,
}

/// Gathers what is said, equal regions of several hosts as one.
pub(super) struct Presenter<'v, 'a> {
    views: &'v Views<'a>,
    difference: Difference,
    known: HashMap<(List, String), usize>,
    undecided: HashMap<Undecided, usize>,
    /// Hosts of places that were not looked at.
    unseen: Vec<String>,
}

/// Which list of [`Difference`] a change is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum List {
    Of(Kind),
    Depends,
}

impl<'v, 'a> Presenter<'v, 'a> {
    pub(super) fn new(views: &'v Views<'a>) -> Self {
        Self {
            views,
            difference: Difference::default(),
            known: HashMap::new(),
            undecided: HashMap::new(),
            unseen: Vec::new(),
        }
    }

    pub(super) fn finish(mut self) -> Difference {
        if let Some(first) = self.unseen.first() {
            let more = match self.unseen.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            self.difference.undecided.push(Undecided {
                region: format!("{first}{more}"),
                why:
                    "the policies differ in so much that not everything was compared; compare them \
                      in smaller steps"
                        .to_owned(),
                rules: Vec::new(),
                widens: true,
            });
        }
        self.difference
    }

    /// A difference that is sure and gives more.
    pub(super) fn counterexample(&self) -> Option<&Change> {
        let difference = &self.difference;
        let mut sure = difference.allowed.iter().chain(&difference.changed);
        sure.find(|change| change.widens)
    }

    /// Speaks of what was found in a place.
    pub(super) fn add(&mut self, here: &Here<'_, 'v, 'a>, sketches: &[Sketch]) {
        let mut changes = Vec::new();
        for sketch in sketches {
            for finding in &sketch.findings {
                for (effect, is_private) in effects(here.place, finding) {
                    changes.extend(self.change(here, sketch, finding, effect, is_private));
                }
            }
            self.add_gaps(here, sketch);
        }
        let changes = joined(changes, Dimension::Methods);
        let changes = joined(changes, Dimension::Ports);
        for (list, change) in changes {
            self.push(list, change);
        }
    }

    fn add_gaps(&mut self, here: &Here<'_, 'v, 'a>, sketch: &Sketch) {
        for gap in &sketch.gaps {
            let (old, new, why) = match gap {
                Gap::TooLong { old, new } => (
                    old,
                    new,
                    "the path patterns of these rules make too many combinations to compare; write \
                     fewer `*` and `?` in them",
                ),
                Gap::TooFree { old, new } => (
                    old,
                    new,
                    "so many matchers on queries, headers and bodies are not compared; give the rules \
                     methods and paths that set them apart",
                ),
            };
            let mut rules = references(&here.old, old);
            rules.extend(references(&here.new, new));
            let region = self.region(here, sketch, None);
            self.undecide(&region, why, rules, true);
        }
    }

    /// A change that holds; what doesn't is undecided.
    fn change(
        &mut self,
        here: &Here<'_, 'v, 'a>,
        sketch: &Sketch,
        finding: &Finding,
        effect: &Effect,
        is_private: bool,
    ) -> Option<(List, Change)> {
        let region = self.region(here, sketch, Some((finding, effect)));
        let Some(destination) = destination(here.place, is_private) else {
            let why = "it could not be found out whether these networks have other addresses than \
                       those of metadata services";
            let rules = references(
                &here.new,
                &effect.new.rule().into_iter().collect::<Vec<_>>(),
            );
            self.undecide(&region, why, rules, effect.widens);
            return None;
        };
        let mut given = Vec::new();
        let is_name = destination.name().is_some();
        if is_private && is_name {
            given.push("where the name resolves to a private address".to_owned());
        }
        if finding.key.websocket {
            given.push("with the header `Upgrade: websocket`".to_owned());
        }
        if finding.key.asterisk {
            given.push("with the target `*`".to_owned());
        }
        let Some(request) = request(&destination, sketch, finding) else {
            let why = "the shortest request that could differ is too long to be one";
            self.undecide(&region, why, Vec::new(), effect.widens);
            return None;
        };
        let mut change = Change {
            region,
            request: request.to_string(),
            given,
            old: answer(&self.views.old, &here.old, &effect.old),
            new: answer(&self.views.new, &here.new, &effect.new),
            widens: effect.widens,
            aspects: effect.aspects.clone(),
            opaque: None,
        };
        let list = match &finding.key.certainty {
            Certainty::Content(contents) => {
                change.opaque = Some(opaque(here, contents));
                List::Depends
            }
            Certainty::Sure | Certainty::Percent => List::Of(effect.kind),
        };
        if change.opaque.is_none()
            && !self.holds(
                &mut change,
                &request,
                effect,
                &finding.key.certainty,
                is_private && is_name,
            )
        {
            let why = match finding.key.certainty {
                Certainty::Percent => {
                    "in paths with `%25` deny patterns could match what is decoded twice; repeat the \
                     deny patterns of the old policy as they are"
                }
                Certainty::Sure | Certainty::Content(_) => {
                    "both policies don't decide the example as expected; this is a fault of the \
                     comparison, please report it"
                }
            };
            let rules = [(&here.old, &effect.old), (&here.new, &effect.new)];
            let rules = rules.into_iter().flat_map(|(side, outcome)| {
                references(side, &outcome.rule().into_iter().collect::<Vec<_>>())
            });
            let rules = rules.collect();
            self.undecide(&change.region, why, rules, effect.widens);
            return None;
        }
        Some((list, change))
    }

    /// Whether both policies really decide the example like this; takes the reasons from them.
    fn holds(
        &self,
        change: &mut Change,
        request: &CanonicalRequest,
        effect: &Effect,
        certainty: &Certainty,
        resolves_to_private: bool,
    ) -> bool {
        let old = self.views.old.policy.decide(request);
        let new = self.views.new.policy.decide(request);
        let attached = |decision: &'_ Decision| {
            let permit = decision.permit();
            permit.and_then(|permit| permit.credential().cloned())
        };
        // Another deny pattern may match, so that another rule lets the request through.
        let same_rule = |decision: &Decision, answer: &Answer| {
            certainty != &Certainty::Percent || decision.rule() == answer.rule.as_ref()
        };
        let is_same = |decision: &Decision, outcome: &Outcome, answer: &Answer| {
            let opens = |decision: &Decision| {
                let permit = decision.permit();
                permit.is_none_or(|permit| !resolves_to_private || permit.allows_private())
            };
            match outcome {
                Outcome::Deny(_) => {
                    decision.verdict() == Verdict::Deny
                        || !opens(decision)
                        || (resolves_to_private && decision.verdict() == Verdict::Ask)
                }
                Outcome::Pass(pass) => {
                    decision.verdict() == outcome.verdict()
                        && opens(decision)
                        && (pass.ask.is_some() || same_rule(decision, answer))
                        && (pass.ask.is_some() || attached(decision) == answer.credential)
                        && decision.would_deny().is_some() == (pass.observed && pass.ask.is_none())
                }
            }
        };
        let holds =
            is_same(&old, &effect.old, &change.old) && is_same(&new, &effect.new, &change.new);
        for (answer, decision) in [(&mut change.old, &old), (&mut change.new, &new)] {
            if answer.verdict == Verdict::Deny && decision.verdict() == Verdict::Deny {
                answer.reason = decision.reason();
                answer.rule = decision.rule().cloned();
            }
        }
        holds
    }

    fn push(&mut self, list: List, change: Change) {
        let key = (list, without(&change, Dimension::Hosts));
        let next = self.list(list).len();
        let at = *self.known.entry(key).or_insert(next);
        match self.list(list).get_mut(at) {
            Some(known) => known.region.hosts.extend(change.region.hosts),
            None => self.list(list).push(change),
        }
    }

    fn list(&mut self, list: List) -> &mut Vec<Change> {
        match list {
            List::Of(Kind::Allowed) => &mut self.difference.allowed,
            List::Of(Kind::Denied) => &mut self.difference.denied,
            List::Of(Kind::Changed) => &mut self.difference.changed,
            List::Depends => &mut self.difference.depends,
        }
    }

    fn undecide(&mut self, region: &Region, why: &str, rules: Vec<RuleRef>, widens: bool) {
        let undecided = Undecided {
            region: region.to_string(),
            why: why.to_owned(),
            rules,
            widens,
        };
        let next = self.difference.undecided.len();
        if *self.undecided.entry(undecided.clone()).or_insert(next) == next {
            self.difference.undecided.push(undecided);
        }
    }

    /// Says that not everything of a place was looked at.
    pub(super) fn give_up(&mut self, place: &Place) {
        self.unseen.extend(hosts(place));
    }

    fn region(
        &self,
        here: &Here<'_, 'v, 'a>,
        sketch: &Sketch,
        about: Option<(&Finding, &Effect)>,
    ) -> Region {
        let (paths, except) = about.map_or_else(Default::default, |(finding, effect)| {
            self.paths(here, finding, effect)
        });
        Region {
            protocol: sketch.protocol,
            hosts: hosts(here.place),
            ports: sketch.ports.extent.clone(),
            methods: match about {
                Some((finding, _)) if finding.key.asterisk => {
                    Some(Extent::Only(vec!["OPTIONS".to_owned()]))
                }
                _ => sketch
                    .methods
                    .as_ref()
                    .map(|methods| methods.extent.clone()),
            },
            paths,
            except,
        }
    }

    /// The patterns of the rule that makes the difference, and those that keep paths out of it.
    fn paths(
        &self,
        here: &Here<'_, 'v, 'a>,
        finding: &Finding,
        effect: &Effect,
    ) -> (Vec<String>, Vec<String>) {
        let gives = match effect.kind {
            Kind::Denied => (&here.old, &effect.old),
            Kind::Allowed | Kind::Changed => (&here.new, &effect.new),
        };
        let takes = match effect.kind {
            Kind::Denied => (&here.new, &effect.new),
            Kind::Allowed | Kind::Changed => (&here.old, &effect.old),
        };
        // A deny rule says more closely which paths these are than what it denies.
        let denies = takes.0.find(takes.1.rule()).filter(|view| view.is_deny());
        let speaks = denies
            .filter(|view| view.paths.is_some())
            .or_else(|| gives.0.find(gives.1.rule()));
        let texts = |view: Option<&RuleView<'_>>, numbers: &[u32]| -> Vec<String> {
            let own = view.and_then(|view| view.rule.paths.as_ref());
            let is_one = |text: &&str| {
                let is_text = |number: &&u32| {
                    let pattern = self.views.pattern(**number);
                    pattern.is_some_and(|pattern| pattern.text() == *text)
                };
                numbers.iter().any(|number| is_text(&number))
            };
            let own = own.into_iter().flat_map(|paths| paths.texts());
            own.filter(is_one).map(str::to_owned).collect()
        };
        let paths = texts(speaks, &finding.matched);
        let mut except: Vec<String> = Vec::new();
        let others = takes.0.rules().filter(|rule| !rule.view.is_deny());
        let denials = gives.0.rules().filter(|rule| rule.view.is_deny());
        for candidate in others.chain(denials) {
            for text in texts(Some(candidate.view), &finding.excluded) {
                if !except.contains(&text) && !paths.contains(&text) {
                    except.push(text);
                }
            }
        }
        if finding.path.is_none() {
            return (Vec::new(), Vec::new());
        }
        (paths, except)
    }
}

/// In what changes may differ that are said as one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dimension {
    Hosts,
    Ports,
    Methods,
}

/// Everything that a change says, apart from a dimension and from its example.
fn without(change: &Change, dimension: Dimension) -> String {
    let mut rest = change.clone();
    rest.request.clear();
    match dimension {
        Dimension::Hosts => rest.region.hosts.clear(),
        Dimension::Ports => rest.region.ports = Extent::Only(Vec::new()),
        Dimension::Methods => rest.region.methods = None,
    }
    format!("{rest:?}")
}

/// Changes that are the same but for a dimension, as one each.
fn joined(changes: Vec<(List, Change)>, dimension: Dimension) -> Vec<(List, Change)> {
    let mut joined: Vec<(List, Change)> = Vec::new();
    let mut known: HashMap<(List, String), usize> = HashMap::new();
    for (list, change) in changes {
        let next = joined.len();
        let at = *known
            .entry((list, without(&change, dimension)))
            .or_insert(next);
        let Some((_, first)) = joined.get_mut(at) else {
            joined.push((list, change));
            continue;
        };
        let (mine, other) = (&mut first.region, &change.region);
        match dimension {
            Dimension::Hosts => mine.hosts.extend(other.hosts.iter().cloned()),
            Dimension::Ports => mine.ports = mine.ports.or(&other.ports),
            Dimension::Methods => {
                if let (Some(own), Some(other)) = (&mut mine.methods, &other.methods) {
                    *own = own.or(other);
                }
            }
        }
    }
    joined
}

/// The effects to speak of: a private address only where it differs in another way.
fn effects<'f>(place: &Place, finding: &'f Finding) -> Vec<(&'f Effect, bool)> {
    let (public, private) = (&finding.key.public, &finding.key.private);
    let has = |class| match place.runs.is_empty() {
        true => true,
        false => place
            .runs
            .iter()
            .any(|run| run.find(class) != Found::Nowhere),
    };
    let public = public.as_ref().filter(|_| has(AddressClass::Public));
    let private = private.as_ref().filter(|private| {
        has(AddressClass::Private) && !public.is_some_and(|public| public.is_like(private))
    });
    let public = public.map(|effect| (effect, false));
    public
        .into_iter()
        .chain(private.map(|effect| (effect, true)))
        .collect()
}

/// A destination of the place; `None` where it isn't known whether there is one.
fn destination(place: &Place, is_private: bool) -> Option<Destination> {
    if let Some(name) = place.names.first() {
        return Some(Destination::Name(name.host.clone()));
    }
    let class = if is_private {
        AddressClass::Private
    } else {
        AddressClass::Public
    };
    place.runs.iter().find_map(|run| match run.find(class) {
        Found::At(address) => Some(Destination::from(address)),
        Found::Nowhere | Found::Unknown => None,
    })
}

/// The example as a request; `None` where it has no canonical form.
fn request(
    destination: &Destination,
    sketch: &Sketch,
    finding: &Finding,
) -> Option<CanonicalRequest> {
    let authority = Authority {
        destination: destination.clone(),
        port: sketch.ports.example,
    };
    let Some(methods) = &sketch.methods else {
        return Some(CanonicalRequest::tunnel(sketch.protocol, authority));
    };
    let path = finding.path.as_deref().map_or(Ok("*"), std::str::from_utf8);
    let method = if finding.key.asterisk {
        "OPTIONS"
    } else {
        &methods.example
    };
    let parts = RequestParts {
        protocol: sketch.protocol,
        authority: &authority,
        method,
        target: path.ok()?,
        body_len: Some(0),
    };
    let request = CanonicalRequest::new(parts).ok()?;
    let request = request.with_headers([]).with_body(Vec::new(), true);
    Some(if finding.key.websocket {
        request.asking_for_websocket()
    } else {
        request
    })
}

fn hosts(place: &Place) -> Vec<String> {
    let names = place.names.iter().map(|name| name.shown.clone());
    names
        .chain(place.runs.iter().map(ToString::to_string))
        .collect()
}

impl<'v, 'a> Side<'v, 'a> {
    fn find(&self, slot: Option<Slot>) -> Option<&'v RuleView<'a>> {
        slot.and_then(|slot| self.get(slot))
    }
}

fn references(side: &Side<'_, '_>, slots: &[Slot]) -> Vec<RuleRef> {
    let views = slots.iter().filter_map(|slot| side.get(*slot));
    views
        .map(|view| view.rule.reference.as_ref().clone())
        .collect()
}

fn answer(view: &View<'_>, side: &Side<'_, '_>, outcome: &Outcome) -> Answer {
    let rule = side.find(outcome.rule());
    let empty = Answer {
        verdict: outcome.verdict(),
        reason: Reason::Allowed,
        rule: rule.map(|view| view.rule.reference.as_ref().clone()),
        credential: None,
        limits: Vec::new(),
        observed: false,
    };
    match outcome {
        Outcome::Deny(refusal) => Answer {
            reason: refusal.reason,
            ..empty
        },
        Outcome::Pass(pass) => Answer {
            reason: match pass.ask {
                Some(_) => Reason::ApprovalRequired,
                None => Reason::Allowed,
            },
            credential: credential(view, side, pass),
            limits: limits(side, &pass.limits)
                .into_iter()
                .map(|(_, limits)| limits.clone())
                .collect(),
            observed: pass.observed,
            ..empty
        },
    }
}

fn credential(view: &View<'_>, side: &Side<'_, '_>, pass: &Pass) -> Option<crate::CredentialName> {
    pass.credential?;
    let name = side.find(pass.speaker)?.rule.credential.as_ref()?;
    view.policy.credential(name).map(|spec| spec.name.clone())
}

/// The matchers with the rules that have them.
fn opaque(here: &Here<'_, '_, '_>, contents: &[u32]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for candidate in here.old.rules().chain(here.new.rules()) {
        let view = candidate.view;
        let is_one = view
            .content
            .is_some_and(|content| contents.contains(&content));
        if let (true, Some(content)) = (is_one, &view.rule.content) {
            let reference = Arc::clone(&view.rule.reference);
            let text = format!("`{}` of {reference}", content.key());
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    texts.join(" and ")
}
