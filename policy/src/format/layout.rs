//! Decides flow or block style for each collection, orders keys, and finds a place for comments
//! that can't stay where they were.
//!
//! The style of a collection depends on what is in it alone, never on how it looked before: that is
//! what makes the layout canonical, and formatting twice the same as formatting once. Of a person's
//! layout only blank lines and the lines of texts are kept.

use super::print::{self, INDENT, MAX_KEY};
use super::scalar::{self, Context};
use super::shape::Shape;
use super::tree::{Body, Entry, Form, Group};
use super::{TooDeep, WIDTH};
use crate::document::{Kind, MAX_DEPTH, Node};

/// Collections in one another that a reader takes in on one line: `http: { query: { a: [x] } }`.
const MAX_FLOW: usize = 3;

/// Collections in a node, one within the other, itself included.
fn nesting(node: &Node) -> usize {
    match &node.kind {
        Kind::Scalar { .. } => 0,
        Kind::List(items) => 1 + items.iter().map(nesting).max().unwrap_or(0),
        Kind::Map(pairs) => {
            let parts = pairs.iter().flat_map(|(key, value)| [key, value]);
            1 + parts.map(nesting).max().unwrap_or(0)
        }
    }
}

impl<'a> Group<'a> {
    /// Orders the entries and measures the whole. The entries are settled already.
    pub(super) fn new(is_list: bool, mut entries: Vec<Entry<'a>>, shape: &'static Shape) -> Self {
        if let Some(first) = entries.first_mut() {
            // Nothing stands before it, and it may come to stand elsewhere.
            first.set_apart(false);
        }
        entries.sort_by_key(|entry| entry.key.map(|key| shape.rank(key)));
        if shape.spaced && entries.iter().any(Entry::spans_lines) {
            for entry in entries.iter_mut().skip(1) {
                entry.set_apart(true);
            }
        }
        let brackets = if is_list { 2 } else { 4 };
        let mut group = Self {
            is_list,
            shape,
            width: brackets + 2 * entries.len().saturating_sub(1),
            nesting: 1,
            may_flow: true,
            entries,
        };
        for entry in &group.entries {
            let (mut width, mut nested) = match &entry.body {
                Body::Leaf(node) => (print::width(node, Context::Flow), nesting(node)),
                Body::Group(inner) => (inner.width, inner.nesting),
            };
            if let Some(key) = entry.key {
                width += print::width(key, Context::Flow) + 2;
                nested = nested.max(nesting(key));
            }
            group.width += width;
            group.nesting = group.nesting.max(nested + 1);
        }
        group
    }

    fn is_free_of_comments_and_lines(&self) -> bool {
        self.entries.iter().all(|entry| {
            let free = match &entry.body {
                Body::Leaf(node) => scalar::may_flow(node),
                Body::Group(inner) => inner.may_flow,
            };
            free && !entry.has_comments()
        })
    }
}

/// Lays out one entry. `level` is the number of collections around it, `source` the whole text.
pub(super) fn settle(entry: &mut Entry<'_>, source: &str, level: usize) -> Result<(), TooDeep> {
    let mut column = INDENT * level.saturating_sub(1) + 2;
    if let Some(key) = entry.key {
        if nesting(key) > MAX_DEPTH {
            return Err(TooDeep);
        }
        entry.explicit = print::width(key, Context::Flow) > MAX_KEY;
        if !entry.explicit {
            column += print::width(key, Context::Block);
        }
    }
    if entry.is_compact() {
        hoist_from_dash(entry);
    }
    entry.form = if is_below(entry, source, level, column)? {
        Form::Below
    } else {
        Form::Inline
    };
    place_trailing(entry);
    Ok(())
}

/// What follows a dash on its line has no line before it for comments: they go before the dash.
fn hoist_from_dash(entry: &mut Entry<'_>) {
    if let Some(head) = entry.take(|margin| &mut margin.head) {
        entry.hoist(head);
    }
    let Body::Group(group) = &mut entry.body else {
        for note in entry.take(|margin| &mut margin.end) {
            entry.hoist(note.text);
        }
        return;
    };
    let Some(first) = group.entries.first_mut() else {
        return;
    };
    let notes = first.take(|margin| &mut margin.notes);
    let blank = std::mem::take(&mut first.blank);
    if notes.is_empty() {
        return;
    }
    for mut note in notes {
        note.blank |= std::mem::take(&mut entry.blank);
        entry.margin_mut().notes.push(note);
    }
    entry.blank = blank;
}

fn is_below(
    entry: &mut Entry<'_>,
    source: &str,
    level: usize,
    column: usize,
) -> Result<bool, TooDeep> {
    let has_head = entry.margin().is_some_and(|margin| margin.head.is_some());
    let has_end = entry.margin().is_some_and(|margin| !margin.end.is_empty());
    let group = match &mut entry.body {
        Body::Leaf(node) => return Ok(scalar::is_below(node, source, column)),
        Body::Group(group) => group,
    };
    group.may_flow = group.is_free_of_comments_and_lines() && !has_head && !has_end;
    if level >= MAX_DEPTH {
        // The loader reads no more block collections here, but as many again in flow style.
        if group.nesting > MAX_DEPTH {
            return Err(TooDeep);
        }
        for text in entry.drain_inside() {
            entry.hoist(text);
        }
        return Ok(false);
    }
    let is_small = group.nesting <= MAX_FLOW && column + group.width <= WIDTH;
    Ok(group.shape.is_block(group.is_list) || !group.may_flow || !is_small)
}

/// Puts comments on the line that an entry's value begins or ends on.
fn place_trailing(entry: &mut Entry<'_>) {
    let head = entry.take(|margin| &mut margin.head);
    let trailing = entry.take(|margin| &mut margin.trailing);
    let (Some(last), first) = (match trailing {
        Some(_) => (trailing, head),
        None => (head, None),
    }) else {
        return;
    };
    if let Some(first) = first {
        // One line holds one comment.
        entry.hoist(first);
    }
    match entry.form {
        Form::Inline => entry.margin_mut().trailing = Some(last),
        Form::Below if entry.is_compact() => entry.hoist(last),
        Form::Below => entry.margin_mut().head = Some(last),
    }
}

/// A section of the policy is set apart from what stands before and after it.
pub(super) fn set_sections_apart(group: &mut Group<'_>) {
    let mut follows_section = false;
    for (at, entry) in group.entries.iter_mut().enumerate() {
        let is_block = |inner: &Group<'_>| inner.shape.is_block(inner.is_list);
        let is_section = entry.form == Form::Below
            && matches!(&entry.body, Body::Group(inner) if is_block(inner));
        if at > 0 && (is_section || follows_section) {
            entry.set_apart(true);
        }
        follows_section = is_section;
    }
}
