//! Rules for many denied requests: the narrowest that would have allowed them, and what no rule is
//! suggested for.
//!
//! Requests come from guests, so what is kept is bounded, and no text of theirs leaves its line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::paths::PathTree;
use super::seen::{Seen, Sighting};
use super::{head, id, nameable, never};
use crate::yaml_text::{comment, list, quoted};
use crate::{Authority, CanonicalRequest, Destination, Protocol};

/// Different requests that are kept.
const MAX_REQUESTS: usize = 65_536;
/// Different requests to one place: a tree of more takes long to make patterns of.
const MAX_AT_PLACE: usize = 4096;
/// Bytes of path that are kept in all.
const MAX_PATH_BYTES: usize = 32 * 1024 * 1024;
/// Things without a rule that are kept.
const MAX_LEFT_OUT: usize = 4096;
/// Bytes kept of a text about one of them.
const MAX_TEXT: usize = 512;
/// Patterns of one rule; more are hard to read and to compile.
const MAX_PATTERNS: usize = 64;
/// Longest id that the loader takes.
const MAX_ID: usize = 64;

/// Takes denied requests one by one and makes rules of them.
#[derive(Debug, Default)]
pub struct Suggester {
    taken: BTreeSet<String>,
    places: BTreeMap<Authority, Place>,
    /// What was refused before anybody could say what would be asked, by the port where known.
    unread: BTreeMap<(Destination, Option<u16>), Seen>,
    left_out: BTreeMap<(String, String), Seen>,
    kept: usize,
    kept_bytes: usize,
    beyond: u64,
}

/// Requests by protocol.
type Place = BTreeMap<Protocol, Asked>;

/// Requests of one protocol to one place, and how many different ones.
#[derive(Debug, Default)]
struct Asked {
    different: usize,
    paths: BTreeMap<Kind, BTreeMap<String, Seen>>,
}

/// What a rule can't leave open without opening more than was asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// `None` where a rule can't name it.
    method: Option<String>,
    encoded_slash: bool,
}

impl Suggester {
    /// Knows of nothing yet. `taken` are ids that the rules must not have.
    pub fn new<'a>(taken: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            taken: taken.into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// Takes a request that an allow rule would have let through.
    pub fn denied(&mut self, request: &CanonicalRequest, sighting: Sighting<'_>) {
        if let Some(why) = never(request) {
            self.leave_out(&request.to_string(), why, sighting);
            return;
        }
        let kind = Kind {
            method: nameable(request.method()).map(str::to_owned),
            encoded_slash: request.has_encoded_slash(),
        };
        let path = request.path();
        let asked = self
            .places
            .get(request.authority())
            .and_then(|place| place.get(&request.protocol()));
        let is_known = asked
            .and_then(|asked| asked.paths.get(&kind))
            .is_some_and(|paths| paths.contains_key(path));
        if !is_known {
            let is_full = self.kept >= MAX_REQUESTS
                || self.kept_bytes + path.len() > MAX_PATH_BYTES
                || asked.is_some_and(|asked| asked.different >= MAX_AT_PLACE);
            if is_full {
                self.beyond = self.beyond.saturating_add(sighting.count);
                return;
            }
            self.kept += 1;
            self.kept_bytes += path.len();
        }
        let place = self.places.entry(request.authority().clone()).or_default();
        let asked = place.entry(request.protocol()).or_default();
        asked.different += usize::from(!is_known);
        let paths = asked.paths.entry(kind).or_default();
        paths.entry(path.to_owned()).or_default().add(sighting);
    }

    /// Takes a name that was not resolved, or a connection that was refused before anything was
    /// read: what would have been asked there is not known.
    pub fn unread(&mut self, destination: &Destination, port: Option<u16>, sighting: Sighting<'_>) {
        let key = (destination.clone(), port);
        if self.unread.len() >= MAX_LEFT_OUT && !self.unread.contains_key(&key) {
            self.beyond = self.beyond.saturating_add(sighting.count);
            return;
        }
        self.unread.entry(key).or_default().add(sighting);
    }

    /// Takes something that was denied and that no rule is to be suggested for.
    pub fn leave_out(&mut self, what: &str, why: &str, sighting: Sighting<'_>) {
        let cut = |text: &str| {
            let end = text.floor_char_boundary(MAX_TEXT);
            text.get(..end).unwrap_or_default().to_owned()
        };
        let key = (cut(what), cut(why));
        if self.left_out.len() >= MAX_LEFT_OUT && !self.left_out.contains_key(&key) {
            self.beyond = self.beyond.saturating_add(sighting.count);
            return;
        }
        self.left_out.entry(key).or_default().add(sighting);
    }

    /// The rules, those of the most asked place first. What was seen fewer than `min_count` times is
    /// left out.
    #[must_use]
    pub fn finish(self, min_count: u64) -> Suggestions {
        let Self {
            mut taken,
            places,
            unread,
            left_out,
            beyond,
            ..
        } = self;
        let mut left_out: Vec<LeftOut> = left_out
            .into_iter()
            .map(|((what, why), seen)| LeftOut::new(what, why, seen))
            .collect();
        let mut by_place = Vec::with_capacity(places.len());
        for (to, place) in places {
            let mut rules = rules_of(&to, place, &mut left_out);
            rules.retain(|rule| {
                let is_rare = rule.seen.count < min_count;
                if is_rare {
                    let why = format!("seen fewer than {min_count} times");
                    left_out.push(LeftOut::new(rule.what(), why, rule.seen.clone()));
                }
                !is_rare
            });
            let total = rules
                .iter()
                .fold(0_u64, |total, rule| total.saturating_add(rule.seen.count));
            by_place.push((std::cmp::Reverse(total), rules));
        }
        by_place.sort_by_key(|(total, _)| *total);
        let mut rules: Vec<SuggestedRule> =
            by_place.into_iter().flat_map(|(_, rules)| rules).collect();
        for rule in &mut rules {
            rule.id = free_id(&rule.to, &mut taken);
        }
        let is_open = |(destination, port): &(Destination, Option<u16>)| {
            rules.iter().any(|rule| {
                rule.to.destination == *destination && port.is_none_or(|port| rule.to.port == port)
            })
        };
        left_out.extend(
            unread
                .into_iter()
                .filter(|(place, _)| !is_open(place))
                .map(|((destination, port), seen)| LeftOut::unread(&destination, port, seen)),
        );
        left_out.sort_by_key(|one| std::cmp::Reverse(one.seen.count));
        Suggestions {
            rules,
            left_out,
            beyond,
        }
    }
}

/// Rules for one place, without ids.
fn rules_of(to: &Authority, place: Place, left_out: &mut Vec<LeftOut>) -> Vec<SuggestedRule> {
    let is_judged = place.keys().any(|protocol| protocol.is_http());
    let mut rules = Vec::new();
    for (protocol, asked) in place {
        if protocol.is_http() {
            http_rules(to, protocol, asked, &mut rules);
            continue;
        }
        let mut seen = Seen::default();
        for one in asked.paths.into_values().flat_map(BTreeMap::into_values) {
            seen.absorb(one);
        }
        let rule = SuggestedRule::new(to, protocol, seen);
        if is_judged {
            let why = "a rule for raw bytes would be a way around the rules for requests there";
            left_out.push(LeftOut::new(rule.what(), why.to_owned(), rule.seen));
        } else {
            rules.push(rule);
        }
    }
    rules
}

/// What is asked with a pattern: the methods, each as [`Kind::method`].
type Methods = BTreeSet<Option<String>>;

fn http_rules(to: &Authority, protocol: Protocol, asked: Asked, rules: &mut Vec<SuggestedRule>) {
    let mut patterns: BTreeMap<(bool, Option<String>), (Methods, Seen)> = BTreeMap::new();
    for (kind, paths) in asked.paths {
        let mut tree = PathTree::default();
        let mut found = Vec::new();
        for (path, seen) in paths {
            if path.starts_with('/') {
                tree.insert(&path, seen);
            } else {
                // The asterisk of OPTIONS: no pattern matches it.
                found.push((None, seen));
            }
        }
        let written = tree.into_patterns().into_iter();
        found.extend(written.map(|(pattern, seen)| (Some(pattern), seen)));
        for (pattern, seen) in found {
            let entry = patterns.entry((kind.encoded_slash, pattern)).or_default();
            entry.0.insert(kind.method.clone());
            entry.1.absorb(seen);
        }
    }
    let mut groups: BTreeMap<(bool, bool, Methods), Vec<(String, Seen)>> = BTreeMap::new();
    for ((slash, pattern), (methods, seen)) in patterns {
        let group = (slash, pattern.is_some(), methods);
        let patterns = groups.entry(group).or_default();
        patterns.push((pattern.unwrap_or_default(), seen));
    }
    for ((slash, has_paths, methods), patterns) in groups {
        // Where one method can't be named, the rule is open to all.
        let methods: Option<Vec<String>> = methods.into_iter().collect();
        for patterns in patterns.chunks(MAX_PATTERNS) {
            let mut seen = Seen::default();
            let mut paths = Vec::with_capacity(patterns.len());
            for (pattern, one) in patterns {
                seen.absorb(one.clone());
                paths.push(pattern.clone());
            }
            rules.push(SuggestedRule {
                methods: methods.clone(),
                paths: has_paths.then_some(paths),
                encoded_slash_is_data: slash,
                ..SuggestedRule::new(to, protocol, seen)
            });
        }
    }
}

fn free_id(to: &Authority, taken: &mut BTreeSet<String>) -> String {
    let base = id(to);
    let mut free = base.clone();
    let mut number = 1_usize;
    while taken.contains(&free) {
        number += 1;
        let end = format!("-{number}");
        let stem = base.get(..MAX_ID - end.len()).unwrap_or(&base);
        free = format!("{stem}{end}");
    }
    taken.insert(free.clone());
    free
}

/// Rules for what was denied. [`fmt::Display`] is a policy that loads and allows just that, with
/// comments on what each rule is for and on what has none.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Suggestions {
    /// Those of the most asked place first.
    pub rules: Vec<SuggestedRule>,
    /// What has no rule, the most frequent first.
    pub left_out: Vec<LeftOut>,
    /// Denials that were not looked at, because there were too many different ones.
    pub beyond: u64,
}

/// A rule that would have allowed what it says.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SuggestedRule {
    /// Unique among the rules, and none that was taken.
    pub id: String,
    /// What is spoken.
    pub protocol: Protocol,
    /// Where to.
    #[serde(serialize_with = "as_text")]
    pub to: Authority,
    /// `None` for every method: some method that was asked for can't be named in a rule.
    pub methods: Option<Vec<String>>,
    /// `None` for every path: the request named none.
    pub paths: Option<Vec<String>>,
    /// Whether an encoded slash is part of its segment.
    pub encoded_slash_is_data: bool,
    /// The denied requests that it stands for.
    #[serde(flatten)]
    pub seen: Seen,
}

/// Something that was denied and has no rule.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// What was asked. Text from a guest.
    pub what: String,
    /// Why there is no rule for it.
    pub why: String,
    /// How often.
    #[serde(flatten)]
    pub seen: Seen,
    /// A rule to begin with, where only a person can know what would have been asked.
    pub hint: Option<String>,
}

fn as_text<S: serde::Serializer>(to: &Authority, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(to)
}

impl SuggestedRule {
    fn new(to: &Authority, protocol: Protocol, seen: Seen) -> Self {
        Self {
            id: String::new(),
            protocol,
            to: to.clone(),
            methods: None,
            paths: None,
            encoded_slash_is_data: false,
            seen,
        }
    }

    /// For a comment.
    fn what(&self) -> String {
        let methods = self.methods.as_ref().map(|methods| methods.join(", "));
        let paths = self.paths.as_ref().map(|paths| paths.join(", "));
        format!(
            "{} {}://{} {}",
            methods.unwrap_or_default(),
            self.protocol,
            self.to,
            paths.unwrap_or_default()
        )
        .trim()
        .to_owned()
    }
}

/// YAML for the list `rules:`.
impl fmt::Display for SuggestedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&head(&self.id, self.protocol, &self.to))?;
        if !self.protocol.is_http() {
            return Ok(());
        }
        let mut parts = Vec::new();
        if let Some(methods) = &self.methods {
            parts.push(format!("methods: {}", list(methods)));
        }
        match self.paths.as_deref() {
            Some([only]) => parts.push(format!("paths: [{}]", quoted(only))),
            Some(paths) => {
                let lines: String = paths
                    .iter()
                    .map(|path| format!("\n      - {}", quoted(path)))
                    .collect();
                parts.push(format!("paths:{lines}"));
            }
            None => {}
        }
        if self.encoded_slash_is_data {
            parts.push("encoded_slash: data".to_owned());
        }
        match self.paths.as_ref().map_or(0, Vec::len) {
            _ if parts.is_empty() => Ok(()),
            0 | 1 => writeln!(f, "  http: {{ {} }}", parts.join(", ")),
            _ => writeln!(f, "  http:\n    {}", parts.join("\n    ")),
        }
    }
}

impl LeftOut {
    const fn new(what: String, why: String, seen: Seen) -> Self {
        Self {
            what,
            why,
            seen,
            hint: None,
        }
    }

    fn unread(destination: &Destination, port: Option<u16>, seen: Seen) -> Self {
        /// Where a name leads when nothing else is known.
        const HTTPS_PORT: u16 = 443;
        let protocol = match port {
            None | Some(HTTPS_PORT) => Protocol::Https,
            Some(80) => Protocol::Http,
            Some(_) => Protocol::Tcp,
        };
        let (what, why) = match port {
            None => (
                destination.to_string(),
                "the name was not resolved, so what would be asked there is not known",
            ),
            Some(port) => (
                format!("{destination} port {port}"),
                "the connection was refused before anything was read",
            ),
        };
        let to = Authority {
            destination: destination.clone(),
            port: port.unwrap_or(HTTPS_PORT),
        };
        let tunnel = CanonicalRequest::tunnel(Protocol::Tcp, to.clone());
        let hint = match never(&tunnel) {
            Some(_) => None,
            None if protocol.is_http() => Some(format!(
                "{}  http: {{ methods: [GET, HEAD] }}\n",
                head(&id(&to), protocol, &to)
            )),
            None => Some(head(&id(&to), protocol, &to)),
        };
        Self {
            hint,
            ..Self::new(what, why.to_owned(), seen)
        }
    }
}

impl fmt::Display for Suggestions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = self.rules.iter().map(|rule| rule.seen.count);
        let allowed = allowed.fold(0_u64, u64::saturating_add);
        writeln!(
            f,
            "# These rules would have allowed {allowed} denied requests."
        )?;
        writeln!(
            f,
            "# What was asked for is not always what is needed: read each one first."
        )?;
        writeln!(f, "version: 1")?;
        if self.rules.is_empty() {
            writeln!(f, "rules: []")?;
        } else {
            writeln!(f, "rules:")?;
        }
        for rule in &self.rules {
            writeln!(f, "  # {}", comment(&rule.seen.to_string()))?;
            if rule.protocol.is_http() && rule.methods.is_none() {
                writeln!(
                    f,
                    "  # a method in lower case can't be named: every method is open"
                )?;
            }
            for line in rule.to_string().lines() {
                writeln!(f, "  {line}")?;
            }
        }
        if !self.left_out.is_empty() {
            writeln!(f, "# Not suggested:")?;
        }
        for LeftOut {
            what,
            why,
            seen,
            hint,
        } in &self.left_out
        {
            writeln!(f, "# - {}: {}", comment(what), comment(why))?;
            writeln!(f, "#   {}", comment(&seen.to_string()))?;
            for line in hint.iter().flat_map(|hint| hint.lines()) {
                writeln!(f, "#     {}", comment(line))?;
            }
        }
        if self.beyond > 0 {
            let beyond = self.beyond;
            writeln!(
                f,
                "# {beyond} more denials are not in here: there were too many different ones"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
