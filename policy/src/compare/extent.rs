//! Some values of a dimension, or all but some.

use std::fmt;

use serde::{Serialize, Serializer};

/// Ports or methods that a difference is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Extent<T> {
    /// Exactly these.
    Only(Vec<T>),
    /// All others.
    AllBut(Vec<T>),
}

impl<T: Clone + PartialEq> Extent<T> {
    /// What is in either.
    pub(super) fn or(&self, other: &Self) -> Self {
        let minus = |list: &[T], other: &[T]| -> Vec<T> {
            let mut rest = list.to_vec();
            rest.retain(|item| !other.contains(item));
            rest
        };
        match (self, other) {
            (Self::Only(one), Self::Only(two)) => {
                let mut both = one.clone();
                both.extend(minus(two, one));
                Self::Only(both)
            }
            (Self::AllBut(not), Self::Only(list)) | (Self::Only(list), Self::AllBut(not)) => {
                Self::AllBut(minus(not, list))
            }
            (Self::AllBut(one), Self::AllBut(two)) => {
                let mut neither = one.clone();
                neither.retain(|item| two.contains(item));
                Self::AllBut(neither)
            }
        }
    }

    /// Whether that is every value.
    pub(super) fn is_all(&self) -> bool {
        matches!(self, Self::AllBut(not) if not.is_empty())
    }
}

/// `A, B`, `any`, or `any but A, B`.
impl<T: fmt::Display> fmt::Display for Extent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |items: &[T]| {
            items
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match self {
            Self::Only(items) => f.write_str(&list(items)),
            Self::AllBut(items) if items.is_empty() => f.write_str("any"),
            Self::AllBut(items) => write!(f, "any but {}", list(items)),
        }
    }
}

/// As text.
impl<T: fmt::Display> Serialize for Extent<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_joined_as_sets() {
        let only = |list: &[u8]| Extent::Only(list.to_vec());
        let all_but = |list: &[u8]| Extent::AllBut(list.to_vec());
        assert_eq!(only(&[1, 2]).or(&only(&[2, 3])), only(&[1, 2, 3]));
        assert_eq!(only(&[1]).or(&all_but(&[1, 2])), all_but(&[2]));
        assert_eq!(all_but(&[1, 2]).or(&only(&[2, 9])), all_but(&[1]));
        assert_eq!(all_but(&[1, 2]).or(&all_but(&[2, 3])), all_but(&[2]));
        assert!(all_but(&[1]).or(&only(&[1])).is_all());
        assert_eq!(all_but(&[]).to_string(), "any");
        assert_eq!(all_but(&[1, 2]).to_string(), "any but 1, 2");
    }
}
