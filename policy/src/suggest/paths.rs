//! Path patterns from paths: a few paths stay as they are; of many, the segments that vary become
//! `*`, and only where the depth itself varies does anything become `**`.
//!
//! Whatever happens, each path that was put in is matched by a pattern that comes out.

use std::collections::BTreeMap;

use super::seen::Seen;

/// Up to this many paths are listed one by one.
const FEW: usize = 8;
/// A segment varies when it has this many values, all else being equal.
const MANY: usize = 4;
/// Segments of a path that are looked at; what is deeper is `**`.
const MAX_SEGMENTS: usize = 32;
/// Bytes of a pattern as it is first written. Below what the loader takes, since a merge may turn an
/// empty segment into a `*`.
const MAX_BYTES: usize = 900;

/// Paths by segment.
#[derive(Debug, Default)]
pub(super) struct PathTree {
    root: Node,
}

#[derive(Debug, Default)]
struct Node {
    /// Paths that end here.
    here: Option<Seen>,
    /// Paths of any depth below here.
    below: Option<Seen>,
    /// By what the segment is.
    children: BTreeMap<String, Node>,
    /// Whatever the segment is.
    any: Option<Box<Node>>,
}

impl PathTree {
    /// Adds a canonical path.
    pub(super) fn insert(&mut self, path: &str, seen: Seen) {
        let mut node = &mut self.root;
        for segment in fit(path) {
            node = match segment {
                Some(text) => node.children.entry(text.to_owned()).or_default(),
                None => node.any.get_or_insert_default(),
            };
        }
        let is_deeper = path.split('/').skip(1).nth(MAX_SEGMENTS).is_some();
        let end = if is_deeper {
            &mut node.below
        } else {
            &mut node.here
        };
        end.get_or_insert_default().absorb(seen);
    }

    /// The patterns, with what each of them stands for.
    pub(super) fn into_patterns(mut self) -> Vec<(String, Seen)> {
        self.generalise();
        let mut patterns = Vec::new();
        self.root.write(&mut String::new(), &mut patterns);
        patterns
    }

    fn generalise(&mut self) {
        let root = &mut self.root;
        if root.leaves() <= FEW {
            return;
        }
        root.merge_ids();
        while root.leaves() > FEW && (root.merge_widest() || root.merge_deepest()) {}
        root.drop_covered();
    }
}

/// The segments of a path, `None` where one has to become `*` for the pattern to be short enough.
fn fit(path: &str) -> Vec<Option<&str>> {
    let mut segments: Vec<Option<&str>> = path
        .split('/')
        .skip(1)
        .take(MAX_SEGMENTS)
        .map(Some)
        .collect();
    let width = |segment: &Option<&str>| segment.map_or(1, |text| super::glob(text).len());
    while segments
        .iter()
        .map(|segment| width(segment) + 1)
        .sum::<usize>()
        > MAX_BYTES
    {
        match segments.iter_mut().max_by_key(|segment| width(segment)) {
            Some(longest) if longest.is_some() => *longest = None,
            _ => break,
        }
    }
    segments
}

impl Node {
    /// How many patterns come out of here.
    fn leaves(&self) -> usize {
        let own = usize::from(self.here.is_some()) + usize::from(self.below.is_some());
        own + self.branches().map(Self::leaves).sum::<usize>()
    }

    fn branches(&self) -> impl Iterator<Item = &Self> {
        self.children.values().chain(self.any.as_deref())
    }

    fn branches_mut(&mut self) -> impl Iterator<Item = &mut Self> {
        self.children.values_mut().chain(self.any.as_deref_mut())
    }

    /// How many values the next segment has. The empty one is a slash at the end.
    fn width(&self) -> usize {
        self.children.len() - usize::from(self.children.contains_key(""))
    }

    /// Numbers and hashes go first: they vary by their nature.
    fn merge_ids(&mut self) {
        if self.children.keys().filter(|text| is_id(text)).count() >= MANY {
            self.merge(is_id);
        }
        self.branches_mut().for_each(Self::merge_ids);
    }

    /// Merges the segments that vary most; the first segment of the path only when no other varies.
    fn merge_widest(&mut self) -> bool {
        let widest = self.branches().map(Self::widest).max().unwrap_or(0);
        if widest >= MANY {
            self.branches_mut()
                .for_each(|branch| branch.merge_wide(widest));
            return true;
        }
        let varies = self.width() >= MANY;
        if varies {
            self.merge(|_| true);
        }
        varies
    }

    fn widest(&self) -> usize {
        let deeper = self.branches().map(Self::widest).max();
        self.width().max(deeper.unwrap_or(0))
    }

    fn merge_wide(&mut self, width: usize) {
        self.branches_mut()
            .for_each(|branch| branch.merge_wide(width));
        if self.width() == width {
            self.merge(|_| true);
        }
    }

    /// Makes the chosen segments one `*`. An empty segment is matched by `*` as well.
    fn merge(&mut self, chosen: impl Fn(&str) -> bool) {
        let mut any = self.any.take().unwrap_or_default();
        for (text, child) in std::mem::take(&mut self.children) {
            if chosen(&text) {
                any.absorb(child);
            } else {
                self.children.insert(text, child);
            }
        }
        self.any = Some(any);
    }

    fn absorb(&mut self, other: Self) {
        for (end, more) in [(&mut self.here, other.here), (&mut self.below, other.below)] {
            if let Some(more) = more {
                end.get_or_insert_default().absorb(more);
            }
        }
        for (text, child) in other.children {
            self.children.entry(text).or_default().absorb(child);
        }
        if let Some(any) = other.any {
            self.any.get_or_insert_default().absorb(*any);
        }
    }

    /// Makes what is below the deepest segments after which the depth varies one `**`. Never where
    /// no segment is named: that would be nearly every path.
    fn merge_deepest(&mut self) -> bool {
        let deepest = self.deepest(0, false);
        if let Some(depth) = deepest {
            self.merge_at(depth, false);
        }
        deepest.is_some()
    }

    /// Depth of the deepest node that [`Self::merge_at`] would merge.
    fn deepest(&self, depth: usize, is_named: bool) -> Option<usize> {
        let named = self.children.values().map(|child| (child, true));
        let any = self.any.as_deref().map(|child| (child, is_named));
        let deeper = named
            .chain(any)
            .filter_map(|(child, is_named)| child.deepest(depth + 1, is_named))
            .max();
        deeper.or_else(|| (is_named && self.varies_in_depth()).then_some(depth))
    }

    fn merge_at(&mut self, levels: usize, is_named: bool) {
        if levels > 0 {
            for child in self.children.values_mut() {
                child.merge_at(levels - 1, true);
            }
            if let Some(any) = &mut self.any {
                any.merge_at(levels - 1, is_named);
            }
        } else if is_named && self.varies_in_depth() {
            self.merge_below();
        }
    }

    fn merge_below(&mut self) {
        let mut all = self.below.take().unwrap_or_default();
        for child in std::mem::take(&mut self.children).into_values() {
            child.drain(&mut all);
        }
        if let Some(any) = self.any.take() {
            any.drain(&mut all);
        }
        self.below = Some(all);
    }

    /// Takes out what another pattern matches as well.
    fn drop_covered(&mut self) {
        if self.below.is_some() {
            self.merge_below();
        }
        if let Some(mut any) = self.any.take() {
            for (text, child) in std::mem::take(&mut self.children) {
                if any.covers(&child) {
                    any.absorb(child);
                } else {
                    self.children.insert(text, child);
                }
            }
            self.any = Some(any);
        }
        self.branches_mut().for_each(Self::drop_covered);
    }

    /// Whether each path of the other is one of this, both being what follows the same segments.
    fn covers(&self, other: &Self) -> bool {
        let covers_child = |text: &str, child: &Self| {
            let same = self.children.get(text).into_iter();
            same.chain(self.any.as_deref())
                .any(|mine| mine.covers(child))
        };
        let ends = other.here.is_none() || self.here.is_some();
        let deeper = || {
            other.below.is_none()
                && other
                    .children
                    .iter()
                    .all(|(text, child)| covers_child(text, child))
                && other.any.as_deref().is_none_or(|theirs| {
                    self.any.as_deref().is_some_and(|mine| mine.covers(theirs))
                })
        };
        ends && (self.below.is_some() || deeper())
    }

    /// Whether many paths below differ in their depth, and aren't one pattern yet.
    fn varies_in_depth(&self) -> bool {
        let ends: Vec<Span> = self
            .branches()
            .filter_map(|branch| branch.span(1))
            .collect();
        let leaves: usize = ends.iter().map(|span| span.leaves).sum();
        let shallow = ends.iter().map(|span| span.shallow).min();
        let deep = ends.iter().map(|span| span.deep).max();
        leaves >= MANY && shallow != deep
    }

    fn span(&self, depth: usize) -> Option<Span> {
        let here = self.here.as_ref().map(|_| Span::new(depth, depth));
        let below = self.below.as_ref().map(|_| Span::new(depth + 1, depth + 2));
        let deeper = self.branches().filter_map(|branch| branch.span(depth + 1));
        here.into_iter()
            .chain(below)
            .chain(deeper)
            .reduce(Span::and)
    }

    fn drain(self, all: &mut Seen) {
        for seen in self.here.into_iter().chain(self.below) {
            all.absorb(seen);
        }
        for child in self.children.into_values() {
            child.drain(all);
        }
        if let Some(any) = self.any {
            any.drain(all);
        }
    }

    fn write(self, path: &mut String, patterns: &mut Vec<(String, Seen)>) {
        if let Some(seen) = self.here {
            patterns.push((path.clone(), seen));
        }
        if let Some(seen) = self.below {
            patterns.push((format!("{path}/**"), seen));
        }
        let length = path.len();
        for (text, child) in self.children {
            path.push('/');
            path.push_str(&super::glob(&text));
            child.write(path, patterns);
            path.truncate(length);
        }
        if let Some(any) = self.any {
            path.push_str("/*");
            any.write(path, patterns);
            path.truncate(length);
        }
    }
}

/// Between which depths paths end.
#[derive(Clone, Copy)]
struct Span {
    leaves: usize,
    shallow: usize,
    deep: usize,
}

impl Span {
    const fn new(shallow: usize, deep: usize) -> Self {
        Self {
            leaves: 1,
            shallow,
            deep,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            leaves: self.leaves + other.leaves,
            shallow: self.shallow.min(other.shallow),
            deep: self.deep.max(other.deep),
        }
    }
}

/// A number, a hash of at least the length that git shows, or a UUID.
fn is_id(text: &str) -> bool {
    /// What git abbreviates a commit to.
    const SHORT_HASH: usize = 7;
    let bytes = text.as_bytes();
    let has_digit = bytes.iter().any(u8::is_ascii_digit);
    let is_number = has_digit && bytes.iter().all(u8::is_ascii_digit);
    let is_hash = has_digit && bytes.len() >= SHORT_HASH && bytes.iter().all(u8::is_ascii_hexdigit);
    let is_uuid = bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    is_number || is_hash || is_uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns<T: AsRef<str>>(paths: &[T]) -> Vec<String> {
        let mut tree = PathTree::default();
        for path in paths {
            tree.insert(path.as_ref(), Seen::default());
        }
        tree.into_patterns()
            .into_iter()
            .map(|(pattern, _)| pattern)
            .collect()
    }

    fn each(range: std::ops::Range<u32>, path: impl Fn(u32) -> String) -> Vec<String> {
        range.map(path).collect()
    }

    #[test]
    fn a_few_paths_stay_as_they_are() {
        let few = each(0..8, |n| format!("/items/{n}"));
        assert_eq!(patterns(&few), few);
        assert_eq!(
            patterns(&["/", "/a/", "/x*{y}", "/a"]),
            ["/", "/a", "/a/", "/x[*][{]y[}]"]
        );
    }

    #[test]
    fn segments_that_vary_become_one_star() {
        let items = each(0..20, |n| format!("/items/{n}/parts"));
        assert_eq!(patterns(&items), ["/items/*/parts"]);
        let names = each(0..20, |n| format!("/simple/pkg-x{n}/"));
        assert_eq!(patterns(&names), ["/simple/*/"]);
        let both = each(0..20, |n| format!("/users/u{n}x/repos/r{n}x"));
        assert_eq!(patterns(&both), ["/users/*/repos/*"]);
    }

    #[test]
    fn ids_go_before_words() {
        let hash = |n: u32| format!("/commits/{:040x}", u128::from(n) << 96 | 7);
        let mut paths = each(1..20, hash);
        paths.extend(["/commits/latest", "/commits/first/diff", "/users"].map(str::to_owned));
        // `latest` is matched by the `*` beside it.
        assert_eq!(
            patterns(&paths),
            ["/commits/first/diff", "/commits/*", "/users"]
        );
    }

    #[test]
    fn three_values_are_no_star() {
        let paths: Vec<String> = ["a", "b", "c"]
            .iter()
            .flat_map(|one| ["x", "y", "z"].map(|two| format!("/{one}/{two}/end")))
            .collect();
        assert_eq!(patterns(&paths), paths);
    }

    #[test]
    fn two_stars_only_where_the_depth_varies() {
        let paths: Vec<String> = ["a", "b", "c"]
            .iter()
            .flat_map(|one| ["/x", "/x/y", "/x/y/z", "/w"].map(|rest| format!("/root/{one}{rest}")))
            .collect();
        assert_eq!(patterns(&paths), ["/root/a/**", "/root/b/**", "/root/c/**"]);
        let at_root: Vec<String> = ["a", "b", "c"]
            .iter()
            .flat_map(|one| ["", "/x", "/x/y"].map(|rest| format!("/{one}{rest}")))
            .collect();
        assert_eq!(patterns(&at_root), at_root, "never every path");
        let unnamed: Vec<String> = (0..9)
            .flat_map(|n| ["", "/x", "/x/y", "/z/y"].map(|rest| format!("/{n}{rest}")))
            .collect();
        assert_eq!(patterns(&unnamed), ["/*", "/*/x", "/*/x/y", "/*/z/y"]);
    }

    #[test]
    fn the_first_segment_varies_last() {
        let crates = each(0..20, |n| format!("/crate-x{n}/download"));
        assert_eq!(patterns(&crates), ["/*/download"]);
        let areas: Vec<String> = ["api", "www", "raw", "git", "doc"]
            .iter()
            .flat_map(|area| each(0..9, |n| format!("/{area}/item-x{n}")))
            .collect();
        assert_eq!(
            patterns(&areas),
            ["/api/*", "/doc/*", "/git/*", "/raw/*", "/www/*"]
        );
    }

    #[test]
    fn what_is_too_long_to_write_gives_way() {
        let long = format!("/a/{}/b", "x".repeat(5000));
        assert_eq!(patterns(&[long]), ["/a/*/b"]);
        let specials = format!("/a/{}/b", "*".repeat(400));
        assert_eq!(patterns(&[specials]), ["/a/*/b"]);
        let deep = "/a".repeat(5000);
        assert_eq!(
            patterns(&[deep]),
            [format!("{}/**", "/a".repeat(MAX_SEGMENTS))]
        );
    }

    #[test]
    fn counts_go_with_their_patterns() {
        let mut tree = PathTree::default();
        for n in 0..20 {
            let seen = Seen {
                count: n,
                ..Seen::default()
            };
            tree.insert(&format!("/items/{n}"), seen);
        }
        let patterns = tree.into_patterns();
        assert_eq!(
            patterns
                .iter()
                .map(|(_, seen)| seen.count)
                .collect::<Vec<_>>(),
            [190]
        );
    }
}
