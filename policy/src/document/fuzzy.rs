//! "Did you mean": the nearest of a few known words.

/// The candidate with the fewest edits, if it is near enough that a person may have meant it. Case
/// doesn't count.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let length = word.chars().count();
    let limit = (length / 3).max(1);
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates {
        // Each character too many is an edit.
        if candidate.chars().count().abs_diff(length) > limit {
            continue;
        }
        let distance = edits(&word.to_lowercase(), &candidate.to_lowercase());
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, from) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let at =
                |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
            let mut cost = (at(&row, j) + usize::from(from != *to))
                .min(at(&row, j + 1) + 1)
                .min(at(&next, j) + 1);
            let swapped =
                last == Some(*to) && j.checked_sub(1).and_then(|k| b.get(k)) == Some(&from);
            if let (true, Some(k)) = (swapped, j.checked_sub(1)) {
                cost = cost.min(at(&before, k).saturating_add(1));
            }
            next.push(cost);
        }
        before = std::mem::replace(&mut row, next);
        last = Some(from);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "", 2),
            ("host", "hosts", 1),
            ("htpt", "http", 1),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("rulse", "rules", 1),
        ] {
            assert_eq!(edits(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn suggests_only_what_is_near() {
        let keys = ["id", "action", "to", "http", "credential"];
        assert_eq!(nearest("acton", &keys), Some("action"));
        assert_eq!(nearest("Action", &keys), Some("action"));
        assert_eq!(nearest("credentials", &keys), Some("credential"));
        assert_eq!(nearest("colour", &keys), None);
        assert_eq!(nearest(&"action".repeat(1_000_000), &keys), None);
    }
}
