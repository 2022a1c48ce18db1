//! What a canonical path is spelled with: bytes, and escapes as one letter each. Of letters that no
//! pattern tells apart, one is enough to find every difference.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::automaton::Automaton;
use crate::canonical::CanonicalPath;
use crate::glob::ByteSet;

/// One letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    bytes: [u8; 3],
    length: usize,
    /// What it means: the byte itself, or the one that is escaped.
    pub(super) value: u8,
}

/// What a letter does besides standing in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// Ends a segment.
    Slash,
    /// Ends a piece of a segment, to a server that decodes it.
    EncodedSlash,
    /// Makes dot segments.
    Dot,
    /// Begins parameters of a segment.
    Semicolon,
    /// `%25`: what follows may be another escape, to a server that decodes twice.
    EncodedPercent,
    Plain,
}

impl Letter {
    const fn byte(byte: u8) -> Self {
        Self {
            bytes: [byte, 0, 0],
            length: 1,
            value: byte,
        }
    }

    fn escape(value: u8) -> Self {
        let digit = |nibble: u8| b"0123456789ABCDEF".get(usize::from(nibble)).copied();
        let (high, low) = (digit(value >> 4), digit(value & 15));
        Self {
            bytes: [b'%', high.unwrap_or(b'0'), low.unwrap_or(b'0')],
            length: 3,
            value,
        }
    }

    /// As it stands in a path.
    pub(super) fn text(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    const fn is_escape(&self) -> bool {
        self.length == 3
    }

    pub(super) const fn role(&self) -> Role {
        match (self.is_escape(), self.value) {
            (false, b'/') => Role::Slash,
            (true, b'/') => Role::EncodedSlash,
            (false, b'.') => Role::Dot,
            (_, b';') => Role::Semicolon,
            (true, b'%') => Role::EncodedPercent,
            _ => Role::Plain,
        }
    }

    /// 1 for `%`, 2 for a hex digit, 0 for other bytes.
    pub(super) const fn part_of_escape(&self) -> u8 {
        match self.value {
            b'%' => 1,
            value if value.is_ascii_hexdigit() => 2,
            _ => 0,
        }
    }

    /// The letters that people would take for a name come first.
    fn rank(&self) -> (u8, u8) {
        let kind = match (self.is_escape(), self.value) {
            (false, b'x') => 0,
            (false, b'a'..=b'z') => 1,
            (false, b'0'..=b'9') => 2,
            (false, b'A'..=b'Z') => 3,
            (false, b'-' | b'_') => 4,
            (false, _) => 5,
            (true, _) => 6,
        };
        (kind, self.value)
    }
}

/// Which texts are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Canonical paths.
    Canonical,
    /// Canonical paths without `%25`.
    WithoutPercent,
    /// Every text that begins with a slash and has no escape: what servers may make of a path that
    /// decode it until nothing is left to decode.
    Decoded,
}

impl Alphabet {
    fn letters(self) -> Vec<Letter> {
        let canonical = canonical().iter().copied();
        match self {
            Self::Canonical => canonical.collect(),
            Self::WithoutPercent => canonical
                .filter(|letter| letter.role() != Role::EncodedPercent)
                .collect(),
            Self::Decoded => (0..=u8::MAX).map(Letter::byte).collect(),
        }
    }
}

/// Every letter of canonical paths, as the code that makes them says.
fn canonical() -> &'static [Letter] {
    static LETTERS: OnceLock<Vec<Letter>> = OnceLock::new();
    LETTERS.get_or_init(|| {
        let is_kept = |letter: &Letter| {
            let text = format!("/x{}x", String::from_utf8_lossy(letter.text()));
            CanonicalPath::parse(&text).is_ok_and(|path| path.as_str() == text)
        };
        // A question mark ends the path before it is read.
        let bytes = (0..0x80).filter(|byte| *byte != b'?').map(Letter::byte);
        let escapes = (0..=u8::MAX).map(Letter::escape);
        let mut letters: Vec<Letter> = bytes.chain(escapes).filter(is_kept).collect();
        letters.sort_by_key(Letter::rank);
        letters
    })
}

/// One letter of each kind that the automata of allow and deny patterns tell apart. `reads_values`
/// when the latter also reads what escapes mean.
pub(super) fn kinds(
    alphabet: Alphabet,
    [allow, deny]: [&Automaton; 2],
    reads_values: bool,
) -> Vec<Letter> {
    let classes = byte_classes([allow, deny]);
    let class = |byte: u8| classes.get(usize::from(byte)).copied().unwrap_or(0);
    let percent_is_plain = canonical().iter().any(|letter| {
        !letter.is_escape() && letter.role() == Role::Plain && class(letter.value) == class(b'%')
    });
    // Where `%` is a byte like any, a path with these three bytes one by one does the same.
    let is_spelled_out = |letter: &Letter| {
        let is_told_apart = match letter.role() {
            Role::EncodedSlash => true,
            Role::EncodedPercent => !deny.is_empty(),
            Role::Slash | Role::Dot | Role::Semicolon | Role::Plain => false,
        };
        letter.is_escape() && percent_is_plain && !reads_values && !is_told_apart
    };
    let mut kinds: Vec<Vec<Letter>> = Vec::new();
    let mut known: HashMap<([u32; 4], Option<Role>), usize> = HashMap::new();
    let letters = alphabet.letters().into_iter();
    for letter in letters.filter(|letter| !is_spelled_out(letter)) {
        let [first, second, third] = letter.bytes;
        let escaped = |byte| {
            if letter.is_escape() {
                class(byte)
            } else {
                u32::MAX
            }
        };
        let value = match (reads_values, alphabet) {
            (true, _) => class(letter.value),
            (false, Alphabet::Decoded) => u32::from(letter.part_of_escape()),
            (false, _) => 0,
        };
        let seen = [class(first), escaped(second), escaped(third), value];
        let role = Some(letter.role()).filter(|role| match role {
            Role::Slash | Role::EncodedSlash => true,
            Role::EncodedPercent => !deny.is_empty(),
            Role::Semicolon => reads_values,
            Role::Dot | Role::Plain => false,
        });
        let next = kinds.len();
        let at = *known.entry((seen, role)).or_insert(next);
        match kinds.get_mut(at) {
            Some(kind) => kind.push(letter),
            None => kinds.push(vec![letter]),
        }
    }
    kinds.iter().flat_map(|kind| examples(kind)).collect()
}

/// A letter of the kind that may stand everywhere, or one of each role.
fn examples(kind: &[Letter]) -> Vec<Letter> {
    let role = |letter: &&Letter| letter.role() == Role::Plain;
    if let Some(plain) = kind.iter().find(role) {
        return vec![*plain];
    }
    let mut examples: Vec<Letter> = Vec::new();
    for letter in kind {
        if examples.iter().all(|known| known.role() != letter.role()) {
            examples.push(*letter);
        }
    }
    examples
}

/// Equal numbers for bytes that are in the same sets.
fn byte_classes(automata: [&Automaton; 2]) -> [u32; 256] {
    let mut classes = [0; 256];
    let mut alone = ByteSet::default();
    let mut several: HashSet<&ByteSet> = HashSet::new();
    for set in automata.into_iter().flat_map(Automaton::sets) {
        match set.only() {
            Some(byte) => alone.insert(byte),
            None => {
                several.insert(set);
            }
        }
    }
    let mut count = 0;
    for set in several {
        let mut split: HashMap<u32, u32> = HashMap::new();
        for (byte, class) in (0..=u8::MAX).zip(&mut classes) {
            if set.contains(byte) {
                *class = *split.entry(*class).or_insert_with(|| next(&mut count));
            }
        }
    }
    for (byte, class) in (0..=u8::MAX).zip(&mut classes) {
        if alone.contains(byte) {
            *class = next(&mut count);
        }
    }
    classes
}

fn next(count: &mut u32) -> u32 {
    *count += 1;
    *count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_are_those_of_canonical_paths() {
        let text = |letter: &Letter| String::from_utf8_lossy(letter.text()).into_owned();
        let letters: Vec<String> = canonical().iter().map(text).collect();
        assert_eq!(letters.first().unwrap(), "x");
        for letter in [
            "/", ".", ";", "~", "%2F", "%3B", "%25", "%20", "%FF", "%3F", "]", "\"",
        ] {
            assert!(letters.iter().any(|known| known == letter), "{letter}");
        }
        for letter in [
            "?", "#", "\\", "%", "<", " ", "%5C", "%41", "%2f", "%0A", "%7F", "%7E",
        ] {
            assert!(letters.iter().all(|known| known != letter), "{letter}");
        }
    }

    #[test]
    fn bytes_that_no_pattern_names_are_one_kind() {
        let glob = crate::glob::PathGlob::parse("/a*[0-9]").unwrap();
        let automaton = Automaton::new([(0, &glob)]);
        let kinds = kinds(
            Alphabet::Canonical,
            [&automaton, &Automaton::default()],
            false,
        );
        let texts: Vec<_> = kinds
            .iter()
            .map(|letter| String::from_utf8_lossy(letter.text()).into_owned())
            .collect();
        assert_eq!(texts, ["x", "a", "0", "/", "%2F"]);
    }
}
