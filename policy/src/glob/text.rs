//! Globs on plain texts: header values, names of tools. Slashes have no meaning in them.

use std::fmt;

use super::path::GlobError;
use super::segment::wildcard;
use super::{MAX_PATTERN, Token};

/// A text with `*` for any characters and `?` for any one. `[*]`, `[?]` and `[[]` are literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextGlob {
    text: Box<str>,
    tokens: Box<[Token]>,
}

impl TextGlob {
    /// Reads a pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, GlobError> {
        if text.len() > MAX_PATTERN {
            return Err(GlobError::new(format!(
                "the pattern is longer than {MAX_PATTERN} bytes"
            )));
        }
        let mut tokens: Vec<Token> = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, behind @ ..] = rest {
            let (token, behind) = match (first, behind) {
                (b'*', _) => (Token::Star, behind),
                (b'?', _) => (Token::Any, behind),
                (b'[', [byte @ (b'*' | b'?' | b'['), b']', behind @ ..]) => {
                    (Token::Byte(*byte), behind)
                }
                (b'[', _) => {
                    let shown = text.escape_debug();
                    return Err(GlobError::new(format!("`{shown}` has a `[`"))
                        .help("a literal `[` is written `[[]`, a literal `*` is written `[*]`"));
                }
                (byte, _) => (Token::Byte(*byte), behind),
            };
            if token != Token::Star || tokens.last() != Some(&Token::Star) {
                tokens.push(token);
            }
            rest = behind;
        }
        Ok(Self {
            text: text.into(),
            tokens: tokens.into(),
        })
    }

    /// The same pattern for texts in lower case.
    pub(crate) fn folded(&self) -> Self {
        let fold = |token: &Token| match token {
            Token::Byte(byte) => Token::Byte(byte.to_ascii_lowercase()),
            other => other.clone(),
        };
        Self {
            text: self.text.to_ascii_lowercase().into(),
            tokens: self.tokens.iter().map(fold).collect(),
        }
    }

    /// Whether the pattern stands for the whole text.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        wildcard(&self.tokens, text, take)
    }
}

/// The pattern as written.
impl fmt::Display for TextGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One character is a byte and the UTF-8 continuation bytes that follow it.
fn take<'t>(token: &Token, text: &'t [u8]) -> Option<&'t [u8]> {
    let (first, mut rest) = text.split_first()?;
    match token {
        Token::Byte(byte) => (byte == first).then_some(rest),
        Token::Any => {
            while let [0x80..=0xbf, behind @ ..] = rest {
                rest = behind;
            }
            Some(rest)
        }
        Token::Class(_) | Token::Star => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: &str) -> bool {
        TextGlob::parse(pattern).unwrap().matches(text.as_bytes())
    }

    #[test]
    fn the_documented_table() {
        for (pattern, text, expected) in [
            ("application/*", "application/json", true),
            ("application/*", "text/json", false),
            ("*", "", true),
            ("*", "a/b c", true),
            ("", "", true),
            ("", "a", false),
            ("get_*", "get_file", true),
            ("get_*", "GET_file", false),
            ("?et", "get", true),
            ("?et", "et", false),
            ("t?r", "tür", true),
            ("t??r", "tür", false),
            ("*??", "ü", false),
            ("[*]/[*]", "*/*", true),
            ("[*]/[*]", "a/b", false),
            ("a[?]b[[]]", "a?b[]", true),
            ("{a,b}", "a", false),
            ("{a,b}", "{a,b}", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for pattern in ["[a-z]", "[", "x[*", "[]]"] {
            let help = "a literal `[` is written `[[]`, a literal `*` is written `[*]`";
            let error = TextGlob::parse(pattern).unwrap_err();
            assert_eq!(error.help.as_deref(), Some(help), "{pattern}");
        }
        assert!(TextGlob::parse(&"a".repeat(MAX_PATTERN + 1)).is_err());
    }

    #[test]
    fn hostile_patterns_end() {
        let pattern = "*a".repeat(400) + "b";
        assert!(!matches(&pattern, &"a".repeat(20_000)));
    }

    fn slow(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|at| slow(rest, &text[at..])),
            ['?', rest @ ..] => !text.is_empty() && slow(rest, &text[1..]),
            [c, rest @ ..] => text.first() == Some(c) && slow(rest, &text[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn agrees_with_the_slow_oracle(pattern in "[abü*?/]{0,8}", text in "[abü/]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), slow(&chars(&pattern), &chars(&text)));
        }
    }
}
