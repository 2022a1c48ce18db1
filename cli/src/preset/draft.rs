//! What a package manager's configuration opens, and the policy text that says so.
//!
//! Everything that comes from a configuration is canonical before it is written, and quoted when it
//! is: nothing of it can become a key, a rule or a wildcard.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use outgate_policy::{CanonicalRequest, Destination, Protocol};

use super::error::shown;
use super::site::{Origin, Reading, Site};
use super::{Machine, PresetError};

/// Places of one configuration. More are no configuration but an attack or an accident.
const MAX_PLACES: usize = 512;

/// How a place is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// GET and HEAD.
    Read,
    /// What git sends to fetch: GET, and a POST that asks for objects.
    Fetch,
}

impl Use {
    const fn methods(self) -> &'static str {
        match self {
            Self::Read => "GET, HEAD",
            Self::Fetch => "GET, POST",
        }
    }
}

/// What is open at a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) usage: Use,
    /// The path that every pattern is below of: canonical, empty for the root.
    pub(super) base: String,
    /// Path patterns.
    pub(super) patterns: Vec<String>,
    /// Paths that are allowed.
    pub(super) samples: Vec<String>,
    /// Paths that nothing here allows, as methods and paths.
    pub(super) misses: Vec<(&'static str, String)>,
    /// Whether an encoded slash is part of a name.
    pub(super) encoded_slash: bool,
}

impl Reach {
    /// GET and HEAD for everything below a canonical path.
    pub(super) fn below(base: &str, sample: &str) -> Self {
        Self {
            usage: Use::Read,
            base: base.to_owned(),
            patterns: vec![format!("{}/**", glob(base))],
            samples: vec![format!("{base}{sample}")],
            misses: Vec::new(),
            encoded_slash: false,
        }
    }
}

/// A canonical path as a pattern that matches it and nothing else.
pub(super) fn glob(path: &str) -> String {
    let mut pattern = String::with_capacity(path.len());
    for c in path.chars() {
        if matches!(c, '*' | '?' | '[' | ']') {
            pattern.extend(['[', c, ']']);
        } else {
            pattern.push(c);
        }
    }
    pattern
}

/// Destination and port, protocol, use: one rule each.
type Key = (String, u16, &'static str, Use);

#[derive(Debug)]
struct Opening {
    site: Site,
    reaches: Vec<Reach>,
    origins: BTreeSet<Origin>,
}

/// A preset in the making.
#[derive(Debug)]
pub(super) struct Draft {
    name: &'static str,
    client: &'static str,
    summary: &'static str,
    openings: BTreeMap<Key, Opening>,
    places: usize,
    notes: Vec<String>,
}

impl Draft {
    pub(super) const fn new(
        name: &'static str,
        client: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            client,
            summary,
            openings: BTreeMap::new(),
            places: 0,
            notes: Vec::new(),
        }
    }

    /// Adds something that a person should know.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// What a person should know.
    pub(super) fn into_notes(self) -> Vec<String> {
        self.notes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.openings.is_empty()
    }

    /// Reads a file of configuration, unless it is in the folder that somebody works in: what a
    /// sandbox may have written must not open anything for the next one.
    pub(super) fn read(
        &mut self,
        machine: &dyn Machine,
        file: &Path,
    ) -> Result<Option<String>, PresetError> {
        if !machine.is_of_project(file) {
            return machine.read(file);
        }
        // It may be anything, so that what is wrong with it is no error here.
        if let Ok(Some(_)) = machine.read(file) {
            self.note(format!(
                "`{}` is in the folder that you work in, where a sandbox's work may end up, so it opens nothing; put what is needed into your own configuration, or write a rule",
                shown(file)
            ));
        }
        Ok(None)
    }

    /// Reads an address; `None` for the machine itself, which is noted.
    pub(super) fn site(
        &mut self,
        text: &str,
        origin: &Origin,
    ) -> Result<Option<Site>, PresetError> {
        let mut notes = Vec::new();
        let reading = Site::read(text, origin, &mut notes)?;
        for note in notes {
            self.note(note);
        }
        match reading {
            Reading::Site(site) => Ok(Some(site)),
            Reading::ThisMachine => {
                self.note(format!(
                    "{origin} names this machine by a loopback address, which is the sandbox itself inside of a sandbox: it opens nothing; use a name of this machine that others can reach"
                ));
                Ok(None)
            }
        }
    }

    /// Opens a place.
    pub(super) fn open(
        &mut self,
        site: &Site,
        mut reach: Reach,
        origin: &Origin,
    ) -> Result<(), PresetError> {
        self.places += 1;
        if self.places > MAX_PLACES {
            return Err(PresetError::TooMany {
                client: self.client,
                limit: MAX_PLACES,
            });
        }
        let authority = &site.authority;
        let key = (
            authority.destination.to_string(),
            authority.port,
            site.protocol.as_str(),
            reach.usage,
        );
        let opening = self.openings.entry(key).or_insert_with(|| Opening {
            site: site.clone(),
            reaches: Vec::new(),
            origins: BTreeSet::new(),
        });
        reach.encoded_slash |= site.has_encoded_slash;
        if !opening.reaches.contains(&reach) {
            opening.reaches.push(reach);
        }
        opening.origins.insert(origin.clone());
        Ok(())
    }

    /// The policy text.
    ///
    /// # Errors
    /// [`PresetError::NothingToOpen`] when no place was opened.
    pub(super) fn render(&self) -> Result<String, PresetError> {
        if self.is_empty() {
            let why = match self.notes.as_slice() {
                [] => "its configuration names no other machine".to_owned(),
                notes => notes.join("; "),
            };
            return Err(PresetError::NothingToOpen {
                client: self.client,
                why,
            });
        }
        let mut text = String::new();
        let written = self.write(&mut text);
        debug_assert_eq!(written, Ok(()), "writing to a string can't fail");
        Ok(text)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "# {}", self.summary)?;
        writeln!(out, "#")?;
        writeln!(
            out,
            "# Opens: reading from the places that {} is configured for on this machine.",
            self.client
        )?;
        writeln!(
            out,
            "# Does not open: publishing, searching by POST, and what else changes something."
        )?;
        writeln!(
            out,
            "# What can leave: names and versions of packages, in URLs of these places."
        )?;
        for note in &self.notes {
            writeln!(out, "# Note: {note}.")?;
        }
        writeln!(out, "version: 1\nname: {}", self.name)?;
        writeln!(out, "description: {}\n\nrules:", quoted(self.summary))?;
        for (number, opening) in self.openings.values().enumerate() {
            self.write_rule(out, number, opening)?;
        }
        writeln!(out, "tests:")?;
        for (number, opening) in self.openings.values().enumerate() {
            self.write_tests(out, number, opening)?;
        }
        Ok(())
    }

    fn id(&self, number: usize) -> String {
        format!("{}-{}", self.name, number + 1)
    }

    fn write_rule(&self, out: &mut String, number: usize, opening: &Opening) -> std::fmt::Result {
        let site = &opening.site;
        for origin in &opening.origins {
            writeln!(out, "  # From {origin}.")?;
        }
        writeln!(out, "  - id: {}\n    action: allow", self.id(number))?;
        writeln!(out, "    protocol: {}", site.protocol)?;
        let to = match &site.authority.destination {
            Destination::Name(host) => format!("hosts: [{}]", quoted(host.as_str())),
            Destination::Ip(address) => format!("ips: [{}]", quoted(&address.to_string())),
        };
        let private = if site.is_private() {
            ", private: true"
        } else {
            ""
        };
        writeln!(
            out,
            "    to: {{ {to}, ports: [{}]{private} }}",
            site.authority.port
        )?;
        let usage = opening
            .reaches
            .first()
            .map_or(Use::Read, |reach| reach.usage);
        writeln!(out, "    http:\n      methods: [{}]", usage.methods())?;
        if opening.reaches.iter().any(|reach| reach.encoded_slash) {
            writeln!(out, "      encoded_slash: data")?;
        }
        writeln!(out, "      paths:")?;
        for pattern in opening.patterns() {
            writeln!(out, "        - {}", quoted(pattern))?;
        }
        writeln!(out)
    }

    fn write_tests(&self, out: &mut String, number: usize, opening: &Opening) -> std::fmt::Result {
        let id = self.id(number);
        let mut test = |name: &str, request: &str, expect: &str, rule: Option<&str>| {
            let rule = rule
                .map(|rule| format!(", rule: {rule}"))
                .unwrap_or_default();
            writeln!(
                out,
                "  - {{ name: {}, request: {}, expect: {expect}{rule} }}",
                quoted(name),
                quoted(request)
            )
        };
        for sample in opening.reaches.iter().flat_map(|reach| &reach.samples) {
            let request = format!("GET {}", opening.site.url(sample));
            test("reads", &request, "allow", Some(&id))?;
        }
        for (name, request) in self.refused(opening) {
            let expect = match CanonicalRequest::from_line(&request) {
                Ok(_) => "deny",
                Err(_) => "reject",
            };
            test(name, &request, expect, None)?;
        }
        Ok(())
    }

    /// Requests near to what is open that must not pass.
    fn refused(&self, opening: &Opening) -> Vec<(&'static str, String)> {
        let site = &opening.site;
        let Some(first) = opening.reaches.first() else {
            return Vec::new();
        };
        let sample = first.samples.first().map_or("/", String::as_str);
        let url = site.url(sample);
        let mut requests: Vec<(&'static str, String)> = ["PUT", "DELETE"]
            .map(|method| ("changes nothing", format!("{method} {url}")))
            .into();
        if first.usage == Use::Read {
            requests.push(("changes nothing", format!("POST {url}")));
        }
        // Where one place is below another, the near misses of one may be open by the other.
        if self.places_at(site) == 1 {
            for (method, path) in &first.misses {
                requests.push(("no other path", format!("{method} {}", site.url(path))));
            }
            let depth = first.base.matches('/').count();
            if depth > 0 {
                let up = format!(
                    "{}{}/outgate-outside/x",
                    first.base,
                    "/%2e%2e".repeat(depth)
                );
                requests.push((
                    "no way round by escaped dots",
                    format!("GET {}", site.url(&up)),
                ));
            }
        }
        requests.push((
            "no way above the root",
            format!("GET {}", site.url("/../x")),
        ));
        let port = site.authority.port;
        if let Destination::Name(host) = &site.authority.destination {
            for name in look_alikes(host.as_str()).filter(|name| !self.is_open_host(name)) {
                let request = format!("GET {}://{name}:{port}{sample}", site.protocol);
                requests.push(("no look-alike", request));
            }
        }
        let is_default = site.protocol.default_port() == Some(port);
        let clear_port = if is_default { 80 } else { port };
        if site.protocol == Protocol::Https && !self.has(site, clear_port, Protocol::Http) {
            let host = &site.authority.destination;
            let request = format!("GET http://{host}:{clear_port}{sample}");
            requests.push(("no clear text", request));
        }
        let other = [8443, 9443, 10443]
            .into_iter()
            .find(|other| *other != port && !self.has(site, *other, site.protocol));
        if let Some(other) = other {
            let host = &site.authority.destination;
            let request = format!("GET {}://{host}:{other}{sample}", site.protocol);
            requests.push(("no other port", request));
        }
        requests.push(("no raw tunnel", format!("tcp://{}", site.authority)));
        requests
    }

    fn places_at(&self, site: &Site) -> usize {
        self.openings
            .values()
            .filter(|other| other.site.authority == site.authority)
            .filter(|other| other.site.protocol == site.protocol)
            .map(|other| other.reaches.len())
            .sum()
    }

    fn has(&self, site: &Site, port: u16, protocol: Protocol) -> bool {
        self.openings
            .values()
            .map(|opening| &opening.site)
            .any(|other| {
                other.authority.destination == site.authority.destination
                    && other.authority.port == port
                    && other.protocol == protocol
            })
    }

    fn is_open_host(&self, name: &str) -> bool {
        self.openings.keys().any(|(host, ..)| host == name)
    }
}

impl Opening {
    /// The patterns, without those that another one covers.
    fn patterns(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self
            .reaches
            .iter()
            .flat_map(|reach| reach.patterns.iter().map(String::as_str))
            .collect();
        let covered = |pattern: &str| {
            all.iter().any(|other| {
                let above = other.strip_suffix("**");
                *other != pattern && above.is_some_and(|above| pattern.starts_with(above))
            })
        };
        all.iter()
            .copied()
            .filter(|pattern| !covered(pattern))
            .collect()
    }
}

/// Names that somebody else can register, where they are names.
fn look_alikes(host: &str) -> impl Iterator<Item = String> {
    [format!("{host}.example.net"), format!("evil-{host}")]
        .into_iter()
        .filter(|name| outgate_policy::Host::parse(name).is_ok())
}

/// Double-quoted YAML, which a JSON string is as well.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, check};
    use super::super::site::MAX_PATH;
    use super::*;

    fn draft(addresses: &[&str]) -> Result<Draft, PresetError> {
        let mut draft = Draft::new("pip", "pip", "Packages of this test, read only.");
        for (number, address) in addresses.iter().enumerate() {
            let origin = Origin::variable(&format!("INDEX_{number}"));
            if let Some(site) = draft.site(address, &origin)? {
                let reach = Reach::below(&site.path, "/x");
                draft.open(&site, reach, &origin)?;
            }
        }
        Ok(draft)
    }

    fn text(addresses: &[&str]) -> String {
        let text = draft(addresses).unwrap().render().unwrap();
        check(&text);
        text
    }

    #[test]
    fn one_rule_a_place_and_use() {
        let text = text(&[
            "https://a.test/one/",
            "https://a.test/two",
            "https://a.test/one/below",
            "http://a.test/",
            "https://a.test:8443/x",
            "http://10.0.0.1:8080/x",
            "http://[2001:db8::1]/x",
            "https://nexus.corp/x",
        ]);
        let rules: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("to:"))
            .collect();
        assert_eq!(
            rules,
            [
                "to: { ips: [\"10.0.0.1\"], ports: [8080], private: true }",
                "to: { ips: [\"2001:db8::1\"], ports: [80], private: true }",
                "to: { hosts: [\"a.test\"], ports: [80] }",
                "to: { hosts: [\"a.test\"], ports: [443] }",
                "to: { hosts: [\"a.test\"], ports: [8443] }",
                "to: { hosts: [\"nexus.corp\"], ports: [443], private: true }",
            ]
        );
        assert!(text.contains(
            "  # From `INDEX_0`.\n  # From `INDEX_1`.\n  # From `INDEX_2`.\n  - id: pip-4\n"
        ));
        assert!(
            text.contains("paths:\n        - \"/one/**\"\n        - \"/two/**\"\n\n"),
            "{text}"
        );
    }

    #[test]
    fn letters_that_mean_something_in_patterns_or_yaml_mean_themselves() {
        for path in [
            "/a[b]c", "/a{b,c}d", "/a*b", "/**", "/a**", "/!x", "/'x\"y", "/x:y", "/#", "/&a",
            "/%22", "/{", "/[", "/]", "/x;y=1", "/x=1", "//x", "/[!x]", "/[a-z]", "/a%2Fb", "/|",
            "/-x", "/~",
        ] {
            let address = format!("https://a.test{path}");
            let Ok(made) = draft(&[&address]) else {
                assert!(path.contains(['#', '{']), "{path}");
                continue;
            };
            check(&made.render().unwrap());
        }
        let text = text(&["https://a.test/a[b]c"]);
        assert!(text.contains("- \"/a[[]b[]]c/**\"\n"), "{text}");
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let path = format!("https://a.test/{}", "x".repeat(MAX_PATH));
        let error = draft(&[&path]).unwrap_err().to_string();
        assert_eq!(error, "`INDEX_0`: the path is longer than 256 bytes");
        let longest = format!("https://a.test/{}", "[".repeat(MAX_PATH - 1));
        text(&[&longest]);

        let many: Vec<String> = (0..=MAX_PLACES)
            .map(|n| format!("https://h{n}.test/x"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        text(&many[..MAX_PLACES]);
        assert!(matches!(
            draft(&many),
            Err(PresetError::TooMany {
                limit: MAX_PLACES,
                ..
            })
        ));
    }

    #[test]
    fn nothing_to_open_says_why() {
        let error = draft(&["http://localhost:3141/x"])
            .unwrap()
            .render()
            .unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(
            "pip needs no network here, so leave the preset out: `INDEX_0` names this machine"
        ));
    }

    #[test]
    fn a_file_of_the_project_opens_nothing_and_is_noted() {
        let machine = Fake::new()
            .file("/project/.npmrc", "registry=https://evil.test/")
            .file("/home/me/.npmrc", "x");
        let mut draft = draft(&[]).unwrap();
        let mut read = |file: &str| draft.read(&machine, Path::new(file)).unwrap();
        assert_eq!(read("/project/.npmrc"), None);
        assert_eq!(read("/project/missing"), None);
        assert_eq!(read("/home/me/.npmrc").as_deref(), Some("x"));
        let notes = draft.into_notes();
        assert_eq!(notes.len(), 1);
        assert!(notes[0].starts_with("`/project/.npmrc` is in the folder that you work in"));
    }
}
