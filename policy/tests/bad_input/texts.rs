//! Large texts from small ones.

use std::fmt::Write;

/// A policy of that many rules; `keys` is what each has beside its id.
pub(crate) fn rules(count: usize, keys: impl Fn(usize) -> String) -> String {
    let mut text = String::from("version: 1\nrules:\n");
    for at in 0..count {
        writeln!(text, "  - {{ id: r{at}, {} }}", keys(at)).unwrap();
    }
    text
}

/// That many items with a separator between two.
pub(crate) fn joined(count: usize, separator: &str, item: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for at in 0..count {
        if at > 0 {
            text.push_str(separator);
        }
        text.push_str(&item(at));
    }
    text
}
