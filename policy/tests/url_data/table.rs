//! Exact counts of kinds, compared as a whole so that a difference shows every line.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Inputs that a failure shows of each kind whose count differs.
const SHOWN: usize = 60;

/// How often each kind was met, with the inputs that belong to it.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<&'static str, Vec<String>>);

impl Table {
    pub(crate) fn count(&mut self, kind: &'static str, input: impl Into<String>) {
        self.0.entry(kind).or_default().push(input.into());
    }

    /// Fails unless exactly these kinds were met exactly so often.
    pub(crate) fn assert(&self, what: &str, expected: &[(&str, usize)]) {
        let mut wanted = expected.to_vec();
        wanted.sort_unstable();
        let counted: Vec<_> = self
            .0
            .iter()
            .map(|(kind, met)| (*kind, met.len()))
            .collect();
        assert!(counted == wanted, "{what}: {}", self.difference(&wanted));
    }

    fn difference(&self, wanted: &[(&str, usize)]) -> String {
        let mut text = String::from("the counts differ\n");
        for (kind, count) in wanted.iter().filter(|(kind, _)| !self.0.contains_key(kind)) {
            writeln!(text, "(\"{kind}\", {count}): not met any more").unwrap();
        }
        for (kind, met) in &self.0 {
            let before = wanted.iter().find(|(wanted, _)| wanted == kind);
            writeln!(text, "(\"{kind}\", {}),", met.len()).unwrap();
            if before.is_none_or(|(_, count)| *count != met.len()) {
                for input in met.iter().take(SHOWN) {
                    writeln!(text, "    {}", input.escape_debug()).unwrap();
                }
                if met.len() > SHOWN {
                    writeln!(text, "    … and {} more", met.len() - SHOWN).unwrap();
                }
            }
        }
        text
    }
}
