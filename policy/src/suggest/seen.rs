//! How often something was seen, when and by whom, in bounded memory.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// Sandboxes that are named; a fleet's worth of names helps nobody.
const MAX_SANDBOXES: usize = 5;
/// Bytes kept of a time or a sandbox id: beyond any that a gateway writes.
const MAX_TEXT: usize = 64;

/// Who did something, and when. Text from a record: nothing of it is believed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sighting<'a> {
    /// RFC 3339 in UTC, so that the order of the texts is that of the times.
    pub time: &'a str,
    /// Id of the sandbox; empty for none.
    pub sandbox: &'a str,
    /// How many times at once; a record may stand for several.
    pub count: u64,
}

/// How often something was seen, when and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Seen {
    /// How often.
    pub count: u64,
    /// The earliest time; empty when none was known.
    pub first: String,
    /// The latest time.
    pub last: String,
    /// Some of the sandboxes.
    pub sandboxes: BTreeSet<String>,
    /// Whether there were more than are named.
    pub more_sandboxes: bool,
}

impl Seen {
    pub(super) fn add(&mut self, sighting: Sighting<'_>) {
        let Sighting {
            time,
            sandbox,
            count,
        } = sighting;
        self.count = self.count.saturating_add(count);
        let time = cut(time);
        if !time.is_empty() {
            self.between(time, time);
        }
        let sandbox = cut(sandbox);
        if !sandbox.is_empty() && !self.sandboxes.contains(sandbox) {
            self.name(sandbox.to_owned());
        }
    }

    pub(super) fn absorb(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        if !other.first.is_empty() {
            self.between(&other.first, &other.last);
        }
        self.more_sandboxes |= other.more_sandboxes;
        for sandbox in other.sandboxes {
            self.name(sandbox);
        }
    }

    fn between(&mut self, first: &str, last: &str) {
        if self.first.is_empty() || first < self.first.as_str() {
            first.clone_into(&mut self.first);
        }
        if last > self.last.as_str() {
            last.clone_into(&mut self.last);
        }
    }

    fn name(&mut self, sandbox: String) {
        if self.sandboxes.len() < MAX_SANDBOXES {
            self.sandboxes.insert(sandbox);
        } else {
            self.more_sandboxes |= !self.sandboxes.contains(&sandbox);
        }
    }
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or_default()
}

/// `3 times, TIME to TIME, by sb1, sb2 and others`. Not escaped.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "once")?,
            count => write!(f, "{count} times")?,
        }
        if self.first == self.last {
            write!(f, ", {}", self.first)?;
        } else {
            write!(f, ", {} to {}", self.first, self.last)?;
        }
        let names: Vec<&str> = self.sandboxes.iter().map(String::as_str).collect();
        if !names.is_empty() {
            write!(f, ", by {}", names.join(", "))?;
        }
        if self.more_sandboxes {
            write!(f, " and others")?;
        }
        Ok(())
    }
}
