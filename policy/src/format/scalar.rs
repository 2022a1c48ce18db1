//! Scalars: when quotes are needed, and texts of several lines.
//!
//! The loader tells plain words such as `443` or `true` from the same words in quotes, so those
//! keep what they have. Every other text is plain where all readers of YAML see the same text, and
//! in double quotes where one might not.

use std::borrow::Cow;
use std::fmt::Write;

use super::WIDTH;
use crate::document::{Kind, Node, Style, quotes_matter};

/// What surrounds a scalar on its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Nothing: the value of an entry in block style.
    Block,
    /// Brackets or braces, which are syntax there, and so are commas.
    Flow,
}

/// Whether nothing is written where the value of a key would be.
pub(super) fn is_absent(node: &Node) -> bool {
    node.style == Style::Plain && node.span.is_empty()
}

/// A scalar on one line. Nothing written shows as `~`.
pub(super) fn inline<'a>(text: &'a str, plain: bool, context: Context) -> Cow<'a, str> {
    // A merge key is none of the loader's, and must not become one for other readers.
    let keep = if quotes_matter(text) || text == "<<" {
        plain
    } else {
        is_safe(text, context)
    };
    if keep {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(quoted(text))
    }
}

/// Whether a scalar can stand in a flow collection and still be read as it is now.
pub(super) fn may_flow(node: &Node) -> bool {
    match &node.kind {
        Kind::Scalar { text, .. } => !(is_block(node) && has_block_form(text)),
        Kind::List(_) | Kind::Map(_) => true,
    }
}

/// A question mark ends a text in a flow collection for some readers of YAML 1.1.
fn breaks_flow(text: &str, context: Context) -> bool {
    context == Context::Flow && text.contains([',', '?', '[', ']', '{', '}'])
}

/// Whether every reader of YAML takes the text, written without quotes, for just this text.
fn is_safe(text: &str, context: Context) -> bool {
    let indicators = [
        '-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@',
        '`',
    ];
    !text.is_empty()
        && !text.starts_with(indicators)
        && !text.starts_with("...")
        && !text.starts_with(char::is_whitespace)
        && !text.ends_with(char::is_whitespace)
        && !text.ends_with(':')
        && !text.contains(": ")
        && !text.contains(" #")
        && text.chars().all(is_visible)
        && !breaks_flow(text, context)
        && !means_other_elsewhere(text)
}

/// Whether a reader of YAML 1.1 or 1.2 other than ours may take the plain text for a number, a
/// time, or a key with a meaning of its own.
fn means_other_elsewhere(text: &str) -> bool {
    let unsigned = text.trim_start_matches(['+', '-']);
    let special = [".inf", ".nan"];
    if text == "="
        || special
            .iter()
            .any(|word| unsigned.eq_ignore_ascii_case(word))
    {
        return true;
    }
    // Floats may have several dots in YAML 1.1; `12:30` counts in sixties; `1,000` is Ruby's.
    let numeric = |c: char| c.is_ascii_digit() || "+-.:_,eEb".contains(c);
    let starts = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    if starts && text.contains(|c: char| c.is_ascii_digit()) && text.chars().all(numeric) {
        return true;
    }
    is_timestamp(text)
}

/// `2001-12-14`, alone or followed by a time.
fn is_timestamp(text: &str) -> bool {
    let number = |part: Option<&str>, longest: usize| {
        part.is_some_and(|part| {
            (1..=longest).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let mut parts = date.split('-');
    let is_date = number(parts.next(), 4)
        && number(parts.next(), 2)
        && number(parts.next(), 2)
        && parts.next().is_none();
    let time = time.trim_start_matches(['T', 't', ' ']);
    is_date && (time.is_empty() || time.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a character looks like what it is: no control character, no line break of some YAML
/// version, nothing that turns the direction of the text around it, no byte order mark, and no code
/// point that YAML refuses.
fn is_visible(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            c if is_visible(c) => out.push(c),
            c => {
                // Writing to a string can't fail. Nothing above U+FFFF is hidden.
                let _ = match u32::from(c) {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code => write!(out, "\\u{code:04x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

/// A scalar below its header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lines<'a> {
    /// `|2-` and the like.
    pub(super) header: String,
    /// Without indentation.
    pub(super) lines: Vec<&'a str>,
}

/// Whether a node is to be written as a block scalar. `column` is where it would begin on the line
/// of its key, `source` the whole text.
pub(super) fn is_below(node: &Node, source: &str, column: usize) -> bool {
    let Kind::Scalar { text, plain } = &node.kind else {
        return false;
    };
    if is_block(node) {
        return has_block_form(text);
    }
    let written = source.get(node.span.clone()).unwrap_or_default();
    written.contains(['\n', '\r'])
        && may_wrap(text)
        && column + inline(text, *plain, Context::Block).chars().count() > WIDTH
}

/// The block scalar of a node of which [`is_below`] holds; its lines stand at `indent`.
pub(super) fn lines<'a>(node: &'a Node, source: &'a str, indent: usize) -> Lines<'a> {
    let text = match &node.kind {
        Kind::Scalar { text, .. } => text.as_str(),
        Kind::List(_) | Kind::Map(_) => "",
    };
    match node.style {
        Style::Literal => below('|', text, text.trim_end_matches('\n').split('\n').collect()),
        Style::Folded => below('>', text, folded(node, text, source)),
        _ => below('>', text, wrapped(text, WIDTH.saturating_sub(indent))),
    }
}

fn is_block(node: &Node) -> bool {
    matches!(node.style, Style::Literal | Style::Folded)
}

/// Whether a block scalar can hold the text. The odd ones go in quotes, where blanks are seen.
fn has_block_form(text: &str) -> bool {
    let first = text.split('\n').find(|line| !line.is_empty());
    let last = text.trim_end_matches('\n').rsplit('\n').next();
    let is_text = |line: Option<&str>| line.is_some_and(|line| !line.trim().is_empty());
    let fits = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    is_text(first) && is_text(last) && text.chars().all(fits)
}

fn below<'a>(indicator: char, text: &str, mut lines: Vec<&'a str>) -> Lines<'a> {
    let mut header = String::from(indicator);
    let first = lines.iter().find(|line| !line.is_empty());
    if first.is_some_and(|line| line.starts_with(' ')) {
        // Otherwise the indentation of the first line counts as that of the scalar.
        header.push('2');
    }
    let breaks = text.len() - text.trim_end_matches('\n').len();
    match breaks {
        0 => header.push('-'),
        1 => {}
        _ => header.push('+'),
    }
    lines.extend(std::iter::repeat_n("", breaks.saturating_sub(1)));
    Lines { header, lines }
}

/// The lines of a folded scalar as they are: where a person broke them is worth keeping.
fn folded<'a>(node: &Node, text: &str, source: &'a str) -> Vec<&'a str> {
    // The span begins behind the indentation of the first line that isn't blank.
    let start = node.span.start;
    let before = source.get(..start).unwrap_or_default();
    let indent = before.len() - before.trim_end_matches(' ').len();
    let blank = text.len() - text.trim_start_matches('\n').len();
    let mut lines = vec![""; blank];
    let written = source.get(node.span.clone()).unwrap_or_default();
    let breaks = |line: &'a str| line.strip_suffix('\r').unwrap_or(line).split('\r');
    for (at, line) in written.split('\n').flat_map(breaks).enumerate() {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        let indent = if at == 0 { 0 } else { indent.min(spaces) };
        lines.push(line.get(indent..).unwrap_or_default());
    }
    while lines
        .last()
        .is_some_and(|line| line.trim_end_matches(' ').is_empty())
    {
        lines.pop();
    }
    lines
}

/// Whether a text of several source lines can be folded anew.
fn may_wrap(text: &str) -> bool {
    let is_edged = |line: &str| line.starts_with(' ') || line.ends_with(' ');
    !quotes_matter(text)
        && !text.starts_with('\n')
        && !text.ends_with('\n')
        && !text.split('\n').any(is_edged)
        && text.chars().all(|c| c == '\n' || is_visible(c))
}

/// Folds a text so that its lines fit, by breaking at single spaces.
fn wrapped(text: &str, room: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    for (at, paragraph) in text.split('\n').enumerate() {
        if at > 0 {
            lines.push("");
        }
        if !paragraph.is_empty() {
            wrap(paragraph, room, &mut lines);
        }
    }
    lines
}

fn wrap<'a>(text: &'a str, room: usize, lines: &mut Vec<&'a str>) {
    let mut start = 0;
    let mut width = 0;
    // Where the line may end, and its width from there on.
    let mut last: Option<usize> = None;
    let mut since = 0;
    let mut before = ' ';
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let after = chars.peek().map_or(' ', |(_, after)| *after);
        if c == ' ' && before != ' ' && after != ' ' {
            last = Some(at);
            since = 0;
        } else {
            since += 1;
        }
        width += 1;
        before = c;
        if width > room
            && let Some(end) = last.take()
        {
            lines.push(text.get(start..end).unwrap_or_default());
            start = end + 1;
            width = since;
        }
    }
    lines.push(text.get(start..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_where_some_reader_needs_them() {
        let block = |text| inline(text, false, Context::Block).into_owned();
        let flow = |text| inline(text, false, Context::Flow).into_owned();
        for text in [
            "api.github.com",
            "/repos/acme/**",
            "GET https://x.test/a&d#e",
            "ümläut 🦀",
            "10.0.0.0/8",
            "2001:db8::/32",
            "180s",
            "can't",
            "a  b",
            "a:b",
            "C#",
        ] {
            assert_eq!(block(text), text);
            assert_eq!(flow(text), text);
        }
        for text in [
            "*.a.test",
            "",
            "~",
            "null",
            "true",
            "No",
            "y",
            "1",
            "1e3",
            "0x1f",
            "inf",
            ".NaN",
            "10.9.8.7",
            "12:30:45",
            "1,000",
            "2001-12-14",
            "2001-12-14 21:59:43",
            "=",
            "a: b",
            "a #b",
            "a:",
            "- a",
            "-a",
            "@x",
            "%41",
            "`x`",
            " a",
            "a ",
            "?a",
            "&a",
            "!a",
            "|",
            ">",
            "...",
            "...x",
            "0b1",
        ] {
            let expected = format!("\"{text}\"");
            assert_eq!(block(text), expected);
            assert_eq!(flow(text), expected);
        }
        for text in [
            "a, b",
            "Bearer {}",
            "a{b,c}",
            "x]",
            "GET https://x.test/?a=b",
        ] {
            assert_eq!(block(text), text);
            assert_eq!(flow(text), format!("\"{text}\""));
        }
        let hidden = "\u{0}\u{1b}\u{7f}\u{85}\u{2028}\u{feff}\u{ffff}\r\n\t\"\\";
        let expected = r#""\0\x1b\x7f\x85\u2028\ufeff\uffff\r\n\t\"\\""#;
        assert_eq!(block(hidden), expected);
        assert_eq!(inline("443", true, Context::Flow), "443");
        assert_eq!(inline("no", true, Context::Flow), "no");
        assert_eq!(inline("<<", true, Context::Block), "<<");
        assert_eq!(block("<<"), "\"<<\"");
    }

    #[test]
    fn wraps_at_single_spaces_only() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("aa bb cc", 4), ["aa", "bb", "cc"]);
        assert_eq!(wrapped("aaaaaaaa b", 4), ["aaaaaaaa", "b"]);
        assert_eq!(wrapped("aa  bb cc", 3), ["aa  bb", "cc"]);
        assert_eq!(wrapped("aa\nbb\n\ncc", 3), ["aa", "", "bb", "", "", "cc"]);
    }
}
