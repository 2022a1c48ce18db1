//! Gives every comment to the entry that it speaks of, by where both stand in the text.
//!
//! A comment at the end of a line belongs to the entry that ends on that line, or whose value
//! begins below it. A comment on a line of its own belongs to the next entry; one that is followed
//! by no entry of its collection, and is indented like one, to the end of that collection.

use std::ops::Range;

use super::shape::{self, Shape};
use super::tree::{Body, Entry, Form, Group, Note};
use super::{TooDeep, layout, scalar};
use crate::document::{Commented, Kind, Node, Style};

/// A file, ready to be printed.
#[derive(Debug)]
pub(super) struct Document<'a> {
    /// Its notes are the comment at the head of the file; a blank line follows them.
    pub(super) root: Option<Entry<'a>>,
    /// Comments after everything else.
    pub(super) footer: Vec<Note<'a>>,
}

/// Builds the tree of a file.
pub(super) fn attach<'a>(text: &'a str, read: &'a Commented) -> Result<Document<'a>, TooDeep> {
    let mut walk = Walk {
        text,
        remarks: read
            .comments
            .iter()
            .map(|span| Remark::of(text, span))
            .collect(),
        next: 0,
        passed: 0,
    };
    let root = read.root.as_ref().filter(|root| !scalar::is_absent(root));
    let root = root.map(|root| walk.root(root)).transpose()?;
    let mut footer = Vec::new();
    while let Some(remark) = walk.before(usize::MAX) {
        footer.push(walk.note(remark));
    }
    Ok(Document { root, footer })
}

/// A comment in the text.
#[derive(Clone, Copy, Debug)]
struct Remark<'a> {
    start: usize,
    end: usize,
    text: &'a str,
    /// Bytes before it on its line, when those are blank.
    column: Option<usize>,
}

impl<'a> Remark<'a> {
    fn of(text: &'a str, span: &Range<usize>) -> Self {
        let before = text.get(..span.start).unwrap_or_default();
        let line = before.trim_end_matches([' ', '\t']);
        let own = line.is_empty() || line.ends_with(['\n', '\r', '\u{feff}']);
        Self {
            start: span.start,
            end: span.end,
            text: text
                .get(span.clone())
                .unwrap_or_default()
                .trim_end_matches([' ', '\t']),
            column: own.then_some(before.len() - line.len()),
        }
    }
}

/// Where an entry stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Collections around it.
    level: usize,
    /// Where the text ends that it may own: the next entry, or the bracket around it.
    limit: usize,
    /// Column of the block mapping that it is in.
    column: Option<usize>,
    shape: &'static Shape,
}

/// Walks nodes and comments in the order of the text, each byte once.
struct Walk<'a> {
    text: &'a str,
    remarks: Vec<Remark<'a>>,
    next: usize,
    /// End of what was seen last.
    passed: usize,
}

impl<'a> Walk<'a> {
    /// The next comment, when it begins before `limit`.
    fn before(&self, limit: usize) -> Option<Remark<'a>> {
        let next = self.remarks.get(self.next).copied();
        next.filter(|remark| remark.start < limit)
    }

    /// Takes the comment that [`Self::before`] gave.
    fn note(&mut self, remark: Remark<'a>) -> Note<'a> {
        let blank = self.is_blank_before(remark.start);
        self.next += 1;
        self.pass(remark.end);
        Note {
            text: remark.text,
            blank,
        }
    }

    fn pass(&mut self, end: usize) {
        self.passed = self.passed.max(end);
    }

    /// Whether a line between what was seen last and `start` is blank.
    fn is_blank_before(&self, start: usize) -> bool {
        let gap = self.text.get(self.passed..start).unwrap_or_default();
        let breaks = |line: &'a str| line.strip_suffix('\r').unwrap_or(line).split('\r');
        let lines = gap.split('\n').flat_map(breaks);
        // The first and the last of them are parts of lines that hold something.
        let mut lines = lines.skip(1).peekable();
        while let Some(line) = lines.next() {
            if lines.peek().is_some() && line.trim().is_empty() {
                return true;
            }
        }
        false
    }

    fn is_same_line(&self, start: usize) -> bool {
        let gap = self.text.get(self.passed..start).unwrap_or_default();
        !gap.contains(['\n', '\r'])
    }

    fn root(&mut self, node: &'a Node) -> Result<Entry<'a>, TooDeep> {
        let place = Place {
            level: 0,
            limit: usize::MAX,
            column: None,
            shape: &shape::POLICY,
        };
        if !has_children(node) {
            let mut entry = Entry::new(None, Body::Leaf(node));
            while let Some(remark) = self.before(node.span.start) {
                let note = self.note(remark);
                entry.margin_mut().notes.push(note);
            }
            entry.blank = self.is_blank_before(node.span.start);
            self.pass(node.span.end);
            return Ok(entry);
        }
        // The group is made below, when the head of the file is cut off.
        let mut entry = Entry::new(None, Body::Leaf(node));
        let mut children = self.children(node, &mut entry, Vec::new(), &place)?;
        if let Some(first) = children.first_mut() {
            self.cut_head(first, &mut entry);
        }
        let mut group = Group::new(matches!(node.kind, Kind::List(_)), children, place.shape);
        layout::set_sections_apart(&mut group);
        entry.body = Body::Group(Box::new(group));
        entry.form = Form::Below;
        Ok(entry)
    }

    /// Comments at the head of a file that a blank line parts from the first entry speak of the
    /// file, and stay where they are when that entry doesn't.
    fn cut_head(&self, first: &mut Entry<'a>, root: &mut Entry<'a>) {
        let mut head = first.take(|margin| &mut margin.notes);
        if !std::mem::take(&mut first.blank) {
            let last = head.iter().rposition(|note| note.blank).unwrap_or(0);
            let mut rest = head.split_off(last);
            if let Some(note) = rest.first_mut() {
                note.blank = false;
            }
            if !rest.is_empty() {
                first.margin_mut().notes = rest;
            }
        }
        if !head.is_empty() {
            root.margin_mut().notes = head;
            root.blank = true;
        }
    }

    /// `carried` are comments that stand before the entry and were taken already.
    fn entry(
        &mut self,
        key: Option<&'a Node>,
        value: &'a Node,
        carried: Vec<Note<'a>>,
        place: &Place,
    ) -> Result<Entry<'a>, TooDeep> {
        let mut entry = Entry::new(key, Body::Leaf(value));
        let start = key.unwrap_or(value).span.start;
        if !carried.is_empty() {
            entry.margin_mut().notes = carried;
        }
        while let Some(remark) = self.before(start) {
            let note = self.note(remark);
            entry.margin_mut().notes.push(note);
        }
        entry.blank = self.is_blank_before(start);
        self.pass(start);
        let mut carried = Vec::new();
        if let Some(key) = key {
            while let Some(remark) = self.before(key.span.end) {
                let note = self.note(remark);
                entry.hoist(note.text);
            }
            self.pass(key.span.end);
            // What isn't written is nowhere; the library puts it before the next thing.
            let nothing = scalar::is_absent(value);
            let start = if nothing { 0 } else { value.span.start };
            self.head(&mut entry, start, &mut carried);
        }
        if has_children(value) {
            let shape = match key {
                Some(key) => place.shape.of_key(key),
                None => place.shape.of_item(),
            };
            let inner = Place { shape, ..*place };
            let before = std::mem::take(&mut carried);
            let children = self.children(value, &mut entry, before, &inner)?;
            let group = Group::new(matches!(value.kind, Kind::List(_)), children, shape);
            entry.body = Body::Group(Box::new(group));
        } else {
            self.leaf(value, &mut entry, &mut carried);
        }
        if let Some(remark) = self.before(place.limit)
            && remark.column.is_none()
            && self.is_same_line(remark.start)
        {
            let note = self.note(remark);
            entry.margin_mut().trailing = Some(note.text);
        }
        if key.is_some() && scalar::is_absent(value) {
            // Such as rules that are commented out, all of them.
            self.end(
                &mut entry,
                place.limit,
                place.column.map(|column| column + 1),
            );
        }
        layout::settle(&mut entry, self.text, place.level)?;
        for note in carried {
            entry.hoist(note.text);
        }
        Ok(entry)
    }

    /// Takes the comments before `limit`. The first at the end of a line is the entry's head.
    fn head(&mut self, entry: &mut Entry<'a>, limit: usize, others: &mut Vec<Note<'a>>) {
        while let Some(remark) = self.before(limit) {
            let note = self.note(remark);
            if remark.column.is_none() && entry.margin().is_none_or(|it| it.head.is_none()) {
                entry.margin_mut().head = Some(note.text);
            } else {
                others.push(note);
            }
        }
    }

    /// Passes a scalar or an empty collection.
    fn leaf(&mut self, value: &'a Node, entry: &mut Entry<'a>, others: &mut Vec<Note<'a>>) {
        let Range { start, end } = value.span;
        if matches!(value.kind, Kind::Scalar { .. }) {
            // Blank lines below a block scalar are part of its span. What isn't written may be said
            // to stand behind comments.
            let written = self.text.get(start..end).unwrap_or_default();
            let comment = self.remarks.get(self.next).map_or(start, |next| next.start);
            self.pass(start.min(comment) + written.trim_end().len());
        } else {
            self.head(entry, end, others);
            self.pass(end);
        }
    }

    /// The entries of a collection that has some; its shape is that of `place`, its own place too.
    fn children(
        &mut self,
        node: &'a Node,
        entry: &mut Entry<'a>,
        mut carried: Vec<Note<'a>>,
        place: &Place,
    ) -> Result<Vec<Entry<'a>>, TooDeep> {
        let nodes = match &node.kind {
            Kind::Scalar { .. } => Vec::new(),
            Kind::List(items) => items.iter().map(|item| (None, item)).collect(),
            Kind::Map(pairs) => pairs
                .iter()
                .map(|(key, value)| (Some(key), value))
                .collect(),
        };
        let start = |&(key, value): &(Option<&'a Node>, &'a Node)| key.unwrap_or(value).span.start;
        let is_flow = node.style == Style::Flow;
        let limit = if is_flow { node.span.end } else { place.limit };
        let column = (!is_flow).then(|| self.column(node.span.start));
        if is_flow {
            self.pass(node.span.start);
            // Behind the opening bracket.
            if place.level > 0
                && let Some(remark) = self.before(nodes.first().map_or(limit, start))
                && remark.column.is_none()
                && entry.margin().is_none_or(|it| it.head.is_none())
            {
                let note = self.note(remark);
                entry.margin_mut().head = Some(note.text);
            }
        }
        let mut children = Vec::with_capacity(nodes.len());
        for (at, (key, value)) in nodes.iter().enumerate() {
            let inner = Place {
                level: place.level + 1,
                limit: nodes.get(at + 1).map_or(limit, start),
                column: column.filter(|_| key.is_some()),
                shape: place.shape,
            };
            children.push(self.entry(*key, value, std::mem::take(&mut carried), &inner)?);
        }
        if is_flow {
            while let Some(remark) = self.before(limit) {
                let note = self.note(remark);
                entry.margin_mut().end.push(note);
            }
            self.pass(limit);
        } else {
            self.end(entry, limit, column);
        }
        Ok(children)
    }

    /// The comments that follow, as far as they are indented enough to be inside the entry.
    fn end(&mut self, entry: &mut Entry<'a>, limit: usize, least: Option<usize>) {
        while let Some(remark) = self.before(limit)
            && let (Some(column), Some(least)) = (remark.column, least)
            && column >= least
        {
            let note = self.note(remark);
            entry.margin_mut().end.push(note);
        }
    }

    /// Bytes before a block collection on its line.
    fn column(&self, start: usize) -> usize {
        let before = self.text.get(..start).unwrap_or_default();
        let begins = |c: &char| matches!(c, '\n' | '\r' | '\u{feff}');
        before.chars().rev().take_while(|c| !begins(c)).count()
    }
}

fn has_children(node: &Node) -> bool {
    match &node.kind {
        Kind::Scalar { .. } => false,
        Kind::List(items) => !items.is_empty(),
        Kind::Map(pairs) => !pairs.is_empty(),
    }
}
