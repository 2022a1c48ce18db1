//! What a pattern with escapes means to a server that decodes them: `/k%3Av` is `/k:v`.
//!
//! For deny rules only. Most servers read both as the same path, so that a rule which denies one
//! must deny the other.

use super::PathGlob;

/// The pattern with the characters that its escapes stand for. `None` when it has no escape, or an
/// encoded slash: `/x%2Fy` speaks of one segment, and must not be read as the two of `/x/y`.
pub(super) fn decoded(glob: &PathGlob) -> Option<PathGlob> {
    let text = without_escapes(glob.text())?;
    PathGlob::compile(&text, true).ok()
}

fn without_escapes(text: &str) -> Option<String> {
    if !text.contains('%') || text.contains("%2F") {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = match c {
            '%' => push_decoded(&mut out, rest)?,
            '[' => push_class(&mut out, rest),
            _ => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = rest.get(taken..)?;
    }
    (out != text).then_some(out)
}

/// Decodes the escapes in front of `text` and gives back how many bytes they take.
fn push_decoded(out: &mut String, text: &str) -> Option<usize> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(after) = rest.strip_prefix('%') {
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        rest = after.get(2..)?;
    }
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '*' | '?' | '[' | ']' | '{' | '}' | ',' => out.extend(['[', c, ']']),
                _ => out.push(c),
            }
        }
        // A glob is text, so a byte that is none of a text is any one byte.
        out.extend(chunk.invalid().iter().map(|_| '?'));
    }
    Some(text.len() - rest.len())
}

/// Copies the `[class]` in front of `text`: what looks like an escape in it is none.
fn push_class(out: &mut String, text: &str) -> usize {
    let negated = text
        .get(1..)
        .is_some_and(|rest| rest.starts_with(['!', '^']));
    // A bracket right after the opening is one of the characters.
    let first = 1 + usize::from(negated) + 1;
    let close = text.get(first..).and_then(|rest| rest.find(']'));
    let length = close.map_or(text.len(), |close| first + close + 1);
    out.push_str(text.get(..length).unwrap_or_default());
    length
}
