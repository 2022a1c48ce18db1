//! Names with `*` for any run of characters: GraphQL fields, gRPC methods, MCP tools.
//!
//! Everything else in a pattern stands for itself, case included. Which characters a pattern may
//! have is for the reader of each kind of name to say.

/// A pattern over one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wildcard(Box<str>);

impl Wildcard {
    /// Every text is a pattern.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The pattern as written.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole name matches. Linear: each piece is looked for once, from the left.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let mut pieces = self.0.split('*');
        let Some(mut rest) = name.strip_prefix(pieces.next().unwrap_or_default()) else {
            return false;
        };
        let Some(last) = pieces.next_back() else {
            return rest.is_empty();
        };
        for piece in pieces {
            match rest.split_once(piece) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_table() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("a", "A", false),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "abc", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*Issue*", "createIssueComment", true),
            ("*Issue*", "createissue", false),
            ("ab*bc*cd", "abcd", false),
            ("ab*bc*cd", "ab-bc-cd", true),
            ("a**b", "ab", true),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "aab", false),
            ("é*", "été", true),
        ] {
            assert_eq!(
                Wildcard::new(pattern).matches(name),
                expected,
                "{pattern} {name}"
            );
        }
    }

    fn slow(pattern: &[u8], name: &[u8]) -> bool {
        match pattern {
            [] => name.is_empty(),
            [b'*', rest @ ..] => (0..=name.len()).any(|at| slow(rest, &name[at..])),
            [byte, rest @ ..] => name.first() == Some(byte) && slow(rest, &name[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn agrees_with_the_slow_definition(pattern in "[ab*]{0,7}", name in "[ab]{0,9}") {
            prop_assert_eq!(
                Wildcard::new(&pattern).matches(&name),
                slow(pattern.as_bytes(), name.as_bytes())
            );
        }
    }
}
