//! Path patterns by their segments: of ten thousand rules for one host, a path meets a few.
//!
//! A pattern is followed as long as its segments are plain text or wildcards within a segment. What
//! comes after (`**`, braces) is left to the rule; of `/**/tail` at least the tail is used.

use std::collections::HashMap;

/// Patterns as a tree of segments.
#[derive(Clone, Debug)]
pub(super) struct PathTree {
    nodes: Box<[Node]>,
}

/// In the order of the segments.
type BySegment<T> = Box<[(Box<[u8]>, T)]>;

#[derive(Clone, Debug)]
struct Node {
    /// Plain segments.
    literal: BySegment<u32>,
    /// Whatever the segment.
    any: Option<u32>,
    /// Rules whose pattern ends here.
    ends: Box<[u32]>,
    /// Rules for whatever comes after.
    deep: Box<[u32]>,
    /// Rules for whatever comes after that ends in this segment.
    deep_by_tail: BySegment<Box<[u32]>>,
}

impl PathTree {
    pub(super) fn builder() -> Builder {
        Builder {
            nodes: vec![Draft::default()],
        }
    }

    /// Calls `visit` with each rule that has a pattern for the path; some may come twice.
    pub(super) fn visit(&self, path: &[u8], visit: &mut impl FnMut(u32)) {
        let rest = path.strip_prefix(b"/").unwrap_or(path);
        let tail = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.walk(0, Some(rest), tail, visit);
    }

    /// Goes two ways at most for each segment, and no deeper than the longest pattern.
    fn walk(&self, node: u32, rest: Option<&[u8]>, tail: &[u8], visit: &mut impl FnMut(u32)) {
        let Some(node) = self.nodes.get(node as usize) else {
            return;
        };
        node.deep.iter().copied().for_each(&mut *visit);
        if let Some(rules) = find(&node.deep_by_tail, tail) {
            rules.iter().copied().for_each(&mut *visit);
        }
        let Some(rest) = rest else {
            node.ends.iter().copied().for_each(visit);
            return;
        };
        let end = rest.iter().position(|byte| *byte == b'/');
        let (segment, after) = match end {
            Some(end) => (
                rest.get(..end).unwrap_or_default(),
                rest.get(end.saturating_add(1)..),
            ),
            None => (rest, None),
        };
        if let Some(next) = find(&node.literal, segment) {
            self.walk(*next, after, tail, visit);
        }
        if let Some(next) = node.any {
            self.walk(next, after, tail, visit);
        }
    }
}

fn find<'a, T>(sorted: &'a [(Box<[u8]>, T)], key: &[u8]) -> Option<&'a T> {
    let at = sorted
        .binary_search_by(|(own, _)| own.as_ref().cmp(key))
        .ok()?;
    sorted.get(at).map(|(_, value)| value)
}

/// A tree under way.
pub(super) struct Builder {
    nodes: Vec<Draft>,
}

#[derive(Default)]
struct Draft {
    literal: HashMap<Box<[u8]>, u32>,
    any: Option<u32>,
    ends: Vec<u32>,
    deep: Vec<u32>,
    deep_by_tail: HashMap<Box<[u8]>, Vec<u32>>,
}

/// Deeper patterns are left to their rules: the walk can't take longer than this many forks.
const MAX_DEPTH: usize = 8;

impl Builder {
    /// Adds a pattern of a rule.
    pub(super) fn add(&mut self, pattern: &str, rule: u32) {
        let mut node = 0;
        let mut rest = pattern.strip_prefix('/').unwrap_or(pattern);
        for _ in 0..MAX_DEPTH {
            let (segment, after) = match rest.split_once('/') {
                Some((segment, after)) => (segment, Some(after)),
                None => (rest, None),
            };
            // A `[` may hold a slash that means nothing; braces may hold segments.
            let next = if segment.contains(['{', '}', '[', ']']) || segment == "**" {
                None
            } else if segment.contains(['*', '?']) {
                self.any_child(node)
            } else {
                self.child(node, segment)
            };
            let Some(next) = next else { break };
            node = next;
            match after {
                Some(after) => rest = after,
                None => {
                    if let Some(draft) = self.nodes.get_mut(node) {
                        draft.ends.push(rule);
                    }
                    return;
                }
            }
        }
        let tail = pattern.rsplit('/').next().unwrap_or(pattern);
        let Some(draft) = self.nodes.get_mut(node) else {
            return;
        };
        if tail.contains(['*', '?', '[', ']', '{', '}']) {
            draft.deep.push(rule);
        } else {
            let tail = tail.as_bytes().into();
            draft.deep_by_tail.entry(tail).or_default().push(rule);
        }
    }

    fn child(&mut self, node: usize, segment: &str) -> Option<usize> {
        let fresh = self.nodes.len();
        let draft = self.nodes.get_mut(node)?;
        let next = *draft
            .literal
            .entry(segment.as_bytes().into())
            .or_insert(u32::try_from(fresh).ok()?);
        self.place(next)
    }

    fn any_child(&mut self, node: usize) -> Option<usize> {
        let fresh = u32::try_from(self.nodes.len()).ok()?;
        let draft = self.nodes.get_mut(node)?;
        let next = *draft.any.get_or_insert(fresh);
        self.place(next)
    }

    /// Makes the node where it is new.
    fn place(&mut self, node: u32) -> Option<usize> {
        let node = node as usize;
        if node == self.nodes.len() {
            self.nodes.push(Draft::default());
        }
        Some(node)
    }

    pub(super) fn build(self) -> PathTree {
        let nodes = self.nodes.into_iter().map(|draft| {
            let mut literal: Vec<_> = draft.literal.into_iter().collect();
            literal.sort_unstable();
            let tails = draft.deep_by_tail.into_iter();
            let mut tails: Vec<_> = tails
                .map(|(tail, rules)| (tail, rules.into_boxed_slice()))
                .collect();
            tails.sort_unstable();
            Node {
                literal: literal.into(),
                any: draft.any,
                ends: draft.ends.into(),
                deep: draft.deep.into(),
                deep_by_tail: tails.into(),
            }
        });
        PathTree {
            nodes: nodes.collect(),
        }
    }
}
