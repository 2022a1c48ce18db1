//! One case, path by path: for every combination of path patterns that some path matches, both sides
//! judge, whatever isn't known of the request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::rc::Rc;

use super::cases::Case;
use super::effect::Effect;
use super::inclusion::Inclusions;
use super::judge::{Candidate, Facts, Free, Side, Slot, Stratum, judge};
use super::letters::Alphabet;
use super::view::Views;
use super::walk::{Budget, Example, Reads, TooLong, Walk};

/// What isn't known of a request may be one of two to the power of this.
const MAX_FREE: usize = 10;

/// How a difference depends on what isn't compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Certainty {
    /// It doesn't.
    Sure,
    /// It is there only if these matchers hold, or only if they don't.
    Content(Vec<u32>),
    /// Only if deny patterns match a reading of a path with `%25`, or don't.
    Percent,
}

/// Requests of a case that differ in one way, whichever path.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) key: Key,
    /// The path of an example; `*` of OPTIONS is no path.
    pub(super) path: Option<Vec<u8>>,
    /// Path patterns that some of the paths match, and those that none of them does although other
    /// paths match them together with the former.
    pub(super) matched: Vec<u32>,
    pub(super) excluded: Vec<u32>,
}

/// What findings of one case are told apart by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// To public addresses, and to private ones.
    pub(super) public: Option<Effect>,
    pub(super) private: Option<Effect>,
    pub(super) websocket: bool,
    pub(super) asterisk: bool,
    pub(super) certainty: Certainty,
}

/// Why a case has no whole answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Gap {
    /// Patterns of these rules make too many combinations.
    TooLong { old: Vec<Slot>, new: Vec<Slot> },
    /// These rules have too many matchers that aren't compared.
    TooFree { old: Vec<Slot>, new: Vec<Slot> },
}

/// Looks at cases, and remembers the paths of patterns that come again.
pub(super) struct Prober<'v, 'a> {
    views: &'v Views<'a>,
    walked: HashMap<(Vec<u32>, Vec<u32>, bool), Rc<Walked>>,
    inclusions: Inclusions<'v, 'a>,
    /// Only what gives more counts.
    only_widening: bool,
}

/// Examples for all combinations of some patterns, and whether these are all.
struct Walked {
    examples: Vec<Example>,
    is_whole: bool,
}

impl<'v, 'a> Prober<'v, 'a> {
    pub(super) fn new(views: &'v Views<'a>, only_widening: bool) -> Self {
        Self {
            views,
            walked: HashMap::new(),
            inclusions: Inclusions::new(views),
            only_widening,
        }
    }

    /// Forgets the paths of former cases.
    pub(super) fn forget(&mut self) {
        self.walked.clear();
    }

    /// What differs in a case.
    pub(super) fn probe(
        &mut self,
        case: &Case<'_, '_>,
        budget: &mut Budget,
    ) -> (Vec<Finding>, Vec<Gap>) {
        let is_http = case.protocol.is_http();
        let mut found = Gathering::default();
        let mut gaps = Vec::new();
        let sides = Sides::of(case);
        if self.only_widening && (!sides.new.is_open(is_http) || sides.new.only_narrows(&sides.old))
        {
            return (Vec::new(), gaps);
        }
        if !is_http {
            let flow = Example {
                matched: Vec::new(),
                has_slash: false,
                has_percent: false,
                path: Vec::new(),
            };
            self.judge_all(&sides, Question::flow(&flow), &mut found, &mut gaps);
            return (found.finish(&[]), gaps);
        }
        let walked = self.walked(&sides, budget);
        if !walked.is_whole {
            gaps.push(Gap::TooLong {
                old: with_patterns(&case.old),
                new: with_patterns(&case.new),
            });
        }
        for example in &walked.examples {
            self.judge_all(&sides, Question::path(example), &mut found, &mut gaps);
        }
        if case.has_options() {
            let none = Example {
                matched: Vec::new(),
                has_slash: false,
                has_percent: false,
                path: Vec::new(),
            };
            self.judge_all(&sides, Question::asterisk(&none), &mut found, &mut gaps);
        }
        gaps.dedup();
        (found.finish(&walked.examples), gaps)
    }

    fn walked(&mut self, sides: &Sides<'_, '_>, budget: &mut Budget) -> Rc<Walked> {
        let numbers = |is_deny: bool| {
            let rules = sides.old.rules().chain(sides.new.rules());
            let of_kind = rules.filter(|candidate| candidate.view.is_deny() == is_deny);
            let mut numbers: Vec<u32> = of_kind
                .flat_map(|candidate| candidate.view.paths.iter().flatten().copied())
                .collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        let needs_allow = sides.need_a_path(self.only_widening);
        let key = (numbers(false), numbers(true), needs_allow);
        if let Some(known) = self.walked.get(&key) {
            return Rc::clone(known);
        }
        let walked = Rc::new(self.walk(&key, budget));
        self.walked.insert(key, Rc::clone(&walked));
        walked
    }

    fn walk(
        &self,
        (allow, deny, needs_allow): &(Vec<u32>, Vec<u32>, bool),
        budget: &mut Budget,
    ) -> Walked {
        let globs = |numbers: &[u32]| {
            let numbers = numbers.iter();
            let globs = numbers.filter_map(|number| Some((*number, self.views.pattern(*number)?)));
            globs.collect::<Vec<_>>()
        };
        let mut examples = Vec::new();
        let mut run = |reads, alphabet, wanted: fn(&Example) -> bool| {
            let walk = Walk::new(globs(allow), globs(deny), reads, alphabet);
            let visit = |example| {
                if wanted(&example) {
                    examples.push(example);
                }
                ControlFlow::Continue(())
            };
            if *needs_allow {
                walk.run_within_allow(budget, visit)
            } else {
                walk.run(budget, visit)
            }
        };
        let whole = if deny.is_empty() {
            run(Reads::Text, Alphabet::Canonical, |_| true)
        } else {
            // Decoding again and again is nothing that an automaton could do. Without `%25` once is
            // enough; with it, what deny patterns make of the readings is left open.
            run(Reads::EveryReading, Alphabet::WithoutPercent, |_| true).and_then(|()| {
                run(Reads::Text, Alphabet::Canonical, |example| {
                    example.has_percent
                })
            })
        };
        Walked {
            examples,
            is_whole: whole != Err(TooLong),
        }
    }

    fn judge_all(
        &mut self,
        sides: &Sides<'_, '_>,
        question: Question<'_>,
        found: &mut Gathering,
        gaps: &mut Vec<Gap>,
    ) {
        let plain = self.judge_free(sides, question, gaps);
        found.add(&plain, question);
        if question.kind == Kind::Flow || !sides.open_sockets {
            return;
        }
        let socket = Question {
            websocket: true,
            ..question
        };
        let upgraded = self.judge_free(sides, socket, gaps);
        // A WebSocket is worth its own line only where it differs in another way.
        let is_news = |one: &Both| !plain.iter().any(|other| one.is_like(other));
        if upgraded.iter().any(is_news) {
            found.add(&upgraded, socket);
        }
    }

    /// What differs, for everything that may be unknown of the request.
    fn judge_free(
        &mut self,
        sides: &Sides<'_, '_>,
        question: Question<'_>,
        gaps: &mut Vec<Gap>,
    ) -> Vec<Both> {
        let free = question.free(sides);
        if free.len() > MAX_FREE {
            let open = |side: &Side<'_, '_>| {
                let rules = side.rules();
                let open = rules.filter(|candidate| candidate.view.content.is_some());
                open.map(|candidate| candidate.slot).collect()
            };
            gaps.push(Gap::TooFree {
                old: open(&sides.old),
                new: open(&sides.new),
            });
            return Vec::new();
        }
        let mut answers: Vec<(u32, Both)> = Vec::new();
        for chosen in 0..1_u32 << free.len() {
            if !self.inclusions.allow(&free, chosen) {
                continue;
            }
            let mut taken: Vec<(Free, bool)> = Vec::new();
            for (at, together) in free.iter().enumerate() {
                let is_taken = chosen >> at & 1 == 1;
                taken.extend(together.iter().map(|free| (*free, is_taken)));
            }
            answers.push((chosen, self.answer(sides, question.facts(&taken))));
        }
        sum_up(&free, answers)
    }

    fn answer(&self, sides: &Sides<'_, '_>, facts: Facts<'_>) -> Both {
        let (old, new) = (judge(&sides.old, &facts), judge(&sides.new, &facts));
        let at = |is_private: bool| {
            let old = (&sides.old, old.clone().at(is_private));
            let new = (&sides.new, new.clone().at(is_private));
            Effect::between(old, new).filter(|effect| effect.widens || !self.only_widening)
        };
        Both {
            public: at(false),
            private: at(true),
            certainty: Certainty::Sure,
        }
    }
}

/// Both sides of a case, without the rules of a side through which nothing comes.
struct Sides<'v, 'a> {
    old: Side<'v, 'a>,
    new: Side<'v, 'a>,
    /// Whether a WebSocket could come through anywhere.
    open_sockets: bool,
}

impl<'v, 'a> Sides<'v, 'a> {
    fn of(case: &Case<'v, 'a>) -> Self {
        let is_http = case.protocol.is_http();
        let open_or_empty = |side: &Side<'v, 'a>| {
            if side.is_open(is_http) {
                side.clone()
            } else {
                Side { layers: Vec::new() }
            }
        };
        let (old, new) = (open_or_empty(&case.old), open_or_empty(&case.new));
        let open = |side: &Side<'_, '_>| {
            side.layers.iter().any(|stratum| stratum.observes)
                || side.rules().any(|candidate| candidate.view.rule.websocket)
        };
        Self {
            open_sockets: open(&old) || open(&new),
            old,
            new,
        }
    }
}

impl Sides<'_, '_> {
    /// Whether nothing comes through, or nothing that matters, where no allow pattern matches.
    fn need_a_path(&self, only_widening: bool) -> bool {
        let needs = |side: &Side<'_, '_>| {
            let by_path = |candidate: &Candidate<'_, '_>| {
                candidate.view.is_deny() || candidate.view.paths.is_some()
            };
            let is_closed =
                |stratum: &Stratum<'_, '_>| !stratum.observes && stratum.rules.iter().all(by_path);
            side.layers.is_empty() || side.layers.iter().any(is_closed)
        };
        needs(&self.new) && (only_widening || needs(&self.old))
    }
}

fn with_patterns(side: &Side<'_, '_>) -> Vec<Slot> {
    let rules = side.rules();
    let rules = rules.filter(|candidate| candidate.view.paths.is_some());
    rules.map(|candidate| candidate.slot).collect()
}

/// One request, as far as it is known.
#[derive(Clone, Copy)]
struct Question<'e> {
    example: &'e Example,
    websocket: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Path,
    Asterisk,
    /// Not HTTP.
    Flow,
}

impl<'e> Question<'e> {
    const fn of(example: &'e Example, kind: Kind) -> Self {
        Self {
            example,
            websocket: false,
            kind,
        }
    }

    const fn path(example: &'e Example) -> Self {
        Self::of(example, Kind::Path)
    }

    const fn asterisk(example: &'e Example) -> Self {
        Self::of(example, Kind::Asterisk)
    }

    const fn flow(example: &'e Example) -> Self {
        Self::of(example, Kind::Flow)
    }

    fn facts<'f>(&self, free: &'f [(Free, bool)]) -> Facts<'f>
    where
        'e: 'f,
    {
        Facts {
            is_http: self.kind != Kind::Flow,
            matched: &self.example.matched,
            has_slash: self.example.has_slash,
            websocket: self.websocket,
            free,
        }
    }

    /// What isn't known and could decide. What stands or falls together is one.
    fn free(&self, sides: &Sides<'_, '_>) -> Vec<Vec<Free>> {
        let mut contents: Vec<Free> = Vec::new();
        let mut roles: BTreeMap<u32, BTreeSet<Role>> = BTreeMap::new();
        for (side, is_new) in [(&sides.old, false), (&sides.new, true)] {
            for Candidate { slot, view } in side.rules() {
                let content = view.content.map(Free::Content);
                let set = view
                    .deny_set
                    .filter(|_| self.example.has_percent && !self.facts(&[]).match_path(view));
                let open = content.into_iter().chain(set.map(Free::DenySet));
                let taken: Vec<(Free, bool)> = open.map(|free| (free, true)).collect();
                if taken.is_empty() || !self.facts(&taken).match_rule(view) {
                    continue;
                }
                contents.extend(content.filter(|content| !contents.contains(content)));
                if let Some(set) = set {
                    let role = (is_new, slot.layer, view.content);
                    roles.entry(set).or_default().insert(role);
                }
            }
        }
        // Which of a layer's deny rules matches makes no difference.
        let mut by_role: BTreeMap<BTreeSet<Role>, Vec<Free>> = BTreeMap::new();
        for (set, roles) in roles {
            by_role.entry(roles).or_default().push(Free::DenySet(set));
        }
        let contents = contents.into_iter().map(|content| vec![content]);
        contents.chain(by_role.into_values()).collect()
    }
}

/// Where a deny rule stands: in the new policy or not, in which layer, with which other matchers.
type Role = (bool, usize, Option<u32>);

/// What differs for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Both {
    public: Option<Effect>,
    private: Option<Effect>,
    certainty: Certainty,
}

impl Both {
    const fn is_nothing(&self) -> bool {
        self.public.is_none() && self.private.is_none()
    }

    /// Whether it is a difference of the same sort.
    fn is_like(&self, other: &Self) -> bool {
        let alike = |one: &Option<Effect>, other: &Option<Effect>| match (one, other) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_like(other),
            _ => false,
        };
        alike(&self.public, &other.public)
            && alike(&self.private, &other.private)
            && self.certainty == other.certainty
    }
}

/// From the answers for everything that may be unknown to what is sure and what depends on what.
fn sum_up(free: &[Vec<Free>], answers: Vec<(u32, Both)>) -> Vec<Both> {
    let Some((_, first)) = answers.first() else {
        return Vec::new();
    };
    if answers.iter().all(|(_, answer)| answer.is_like(first)) {
        let sure = Some(first.clone()).filter(|answer| !answer.is_nothing());
        return sure.into_iter().collect();
    }
    let by_choice: BTreeMap<u32, &Both> =
        answers.iter().map(|(at, answer)| (*at, answer)).collect();
    let matters = |bit: usize| {
        by_choice.iter().any(|(chosen, answer)| {
            let flipped = by_choice.get(&(chosen ^ 1 << bit));
            flipped.is_some_and(|other| !answer.is_like(other))
        })
    };
    let mut contents = Vec::new();
    let mut has_pattern = false;
    for (bit, together) in free.iter().enumerate() {
        for free in together {
            match free {
                Free::Content(content) if matters(bit) => contents.push(*content),
                Free::Content(_) => {}
                Free::DenySet(_) => has_pattern = true,
            }
        }
    }
    let certainty = if contents.is_empty() && has_pattern {
        Certainty::Percent
    } else {
        Certainty::Content(contents)
    };
    let mut sorts: Vec<Both> = Vec::new();
    for (_, answer) in answers {
        let answer = Both {
            certainty: certainty.clone(),
            ..answer
        };
        if !answer.is_nothing() && !sorts.iter().any(|known| known.is_like(&answer)) {
            sorts.push(answer);
        }
    }
    sorts
}

/// The path of the first example, and which patterns each example matched.
type Seen = (Option<Vec<u8>>, Vec<Vec<u32>>);

/// Findings of one case, each difference once.
#[derive(Default)]
struct Gathering {
    order: Vec<Key>,
    found: HashMap<Key, Seen>,
}

impl Gathering {
    fn add(&mut self, answers: &[Both], question: Question<'_>) {
        for answer in answers {
            let key = Key {
                public: answer.public.clone(),
                private: answer.private.clone(),
                websocket: question.websocket,
                asterisk: question.kind == Kind::Asterisk,
                certainty: answer.certainty.clone(),
            };
            let matched = question.example.matched.clone();
            let path = (question.kind == Kind::Path).then(|| question.example.path.clone());
            let order = &mut self.order;
            let (_, all) = self.found.entry(key).or_insert_with_key(|key| {
                order.push(key.clone());
                (path, Vec::new())
            });
            all.push(matched);
        }
    }

    /// The target `*`, and what depends on `%25`, are news only where no path says the same for sure.
    fn is_known(&self, key: &Key) -> bool {
        let is_percent = key.certainty == Certainty::Percent;
        (key.asterisk || is_percent)
            && self.order.iter().any(|known| {
                let alike = |one: &Option<Effect>, other: &Option<Effect>| match (one, other) {
                    (None, _) => true,
                    (Some(one), Some(other)) => one.is_like(other),
                    (Some(_), None) => false,
                };
                !known.asterisk
                    && known.websocket == key.websocket
                    && (known.certainty == Certainty::Sure
                        || (!is_percent && known.certainty == key.certainty))
                    && alike(&key.public, &known.public)
                    && alike(&key.private, &known.private)
            })
    }

    fn finish(mut self, examples: &[Example]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let news = self.order.iter().filter(|key| !self.is_known(key));
        for key in news.cloned().collect::<Vec<_>>() {
            let Some((path, all)) = self.found.remove(&key) else {
                continue;
            };
            let mut matched: Vec<u32> = all.into_iter().flatten().collect();
            matched.sort_unstable();
            matched.dedup();
            let is_matched = |number: &u32| matched.binary_search(number).is_ok();
            let beside = examples
                .iter()
                .filter(|example| matched.is_empty() || example.matched.iter().any(&is_matched));
            let mut excluded: Vec<u32> = beside
                .flat_map(|example| example.matched.iter().copied())
                .filter(|number| !is_matched(number))
                .collect();
            excluded.sort_unstable();
            excluded.dedup();
            findings.push(Finding {
                key,
                path,
                matched,
                excluded,
            });
        }
        findings
    }
}
