//! Whether two files say the same: the proof that formatting lost nothing.

use super::scalar;
use super::shape::{self, Shape};
use crate::document::{Commented, Kind, Node, quotes_matter};

/// Compares two files as the formatter may change them: style, the order of keys, and the place of
/// comments. `old` and `new` are the texts that they were read from.
pub(super) fn is_same((old, before): (&str, &Commented), (new, after): (&str, &Commented)) -> bool {
    let written = |root: &Option<Node>| root.as_ref().is_some_and(|it| !scalar::is_absent(it));
    let same_tree = match (&before.root, &after.root) {
        (Some(a), Some(b)) => is_same_node(a, b, &shape::POLICY),
        (a, b) => !written(a) && !written(b),
    };
    same_tree && comments(old, before) == comments(new, after)
}

/// The comments of a file, in an order that doesn't depend on their place.
fn comments<'a>(text: &'a str, read: &Commented) -> Vec<&'a str> {
    let text = |span: std::ops::Range<usize>| {
        text.get(span)
            .unwrap_or_default()
            .trim_end_matches([' ', '\t'])
    };
    let mut comments: Vec<&str> = read.comments.iter().cloned().map(text).collect();
    comments.sort_unstable();
    comments
}

fn is_same_node(a: &Node, b: &Node, shape: &'static Shape) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Scalar { text, plain }, Kind::Scalar { plain: other, .. }) => {
            is_same_text(a, b) && (plain == other || !quotes_matter(text))
        }
        (Kind::List(a), Kind::List(b)) => {
            let mut pairs = a.iter().zip(b);
            a.len() == b.len() && pairs.all(|(a, b)| is_same_node(a, b, shape.of_item()))
        }
        (Kind::Map(a), Kind::Map(b)) => {
            let mut sorted: Vec<_> = a.iter().collect();
            sorted.sort_by_key(|(key, _)| shape.rank(key));
            sorted.len() == b.len()
                && sorted
                    .iter()
                    .zip(b)
                    .all(|((key, value), (other_key, other))| {
                        let same_key = is_same_text(key, other_key)
                            || is_same_node(key, other_key, &shape::ANY);
                        same_key && is_same_node(value, other, shape.of_key(key))
                    })
        }
        _ => false,
    }
}

/// Of a key, the loader sees the text only.
fn is_same_text(a: &Node, b: &Node) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Scalar { text, .. }, Kind::Scalar { text: other, .. }) => text == other,
        _ => false,
    }
}
