//! Text that is safe to put into a YAML file and onto a terminal, wherever it came from.

use std::fmt::Write as _;

/// Longest comment, in characters.
const MAX_COMMENT: usize = 400;

/// The text in double quotes. Reads back as the same text.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_shown(c) => out.push(c),
            // Writing to a string can't fail.
            c => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

/// A name as it is where every reader of YAML takes it for text, else in quotes.
pub(crate) fn name(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && name.parse::<f64>().is_err()
        && !WORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
    if plain { name.to_owned() } else { quoted(name) }
}

/// What some reader of YAML takes for something else than text.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];

/// A list in brackets, each item in quotes.
pub(crate) fn list<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item.as_ref())).collect();
    format!("[{}]", items.join(", "))
}

/// The text as what may follow `# ` on one line: printable ASCII, cut where it is very long.
pub(crate) fn comment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.chars().enumerate() {
        match c {
            _ if at == MAX_COMMENT => {
                out.push_str("...");
                break;
            }
            ' '..='~' => out.push(c),
            c => out.extend(c.escape_default()),
        }
    }
    out
}

/// Letters and signs of any script; no control characters, no marks that turn text around.
fn is_shown(c: char) -> bool {
    matches!(c, ' '..='~') || c.escape_debug().eq([c])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Policy, Source};

    #[test]
    fn names_are_quoted_where_yaml_reads_something_else() {
        for plain in ["github-read", "a", "e5", "x.y_z"] {
            assert_eq!(name(plain), plain);
        }
        for other in [
            "no", "TRUE", "1", "1e3", "inf", "NaN", "-a", ".5", "", "a b",
        ] {
            assert_eq!(name(other), format!("\"{other}\""), "{other}");
        }
    }

    #[test]
    fn a_comment_is_one_line_of_ascii() {
        assert_eq!(
            comment("a\r\n- b\u{2028}\u{85}\u{202e}é"),
            r"a\r\n- b\u{2028}\u{85}\u{202e}\u{e9}"
        );
        assert_eq!(comment(&"x".repeat(9999)).len(), MAX_COMMENT + 3);
    }

    proptest! {
        #[test]
        fn quoted_text_reads_back(text in "(?s).{0,40}") {
            let file = format!("version: 1\ndescription: {}\n", quoted(&text));
            let allowed = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
            match Policy::load(&[Source::new("p.yaml", file)]) {
                Ok(policy) => prop_assert_eq!(policy.description(), Some(&*text)),
                // The language itself has no control characters.
                Err(errors) => prop_assert!(!text.chars().all(allowed), "{}", errors),
            }
        }
    }
}
