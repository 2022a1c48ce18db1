//! Writes the tree out.

use super::attach::Document;
use super::scalar::{self, Context, Lines};
use super::tree::{Body, Entry, Form, Group, Note};
use crate::document::{Kind, Node};

/// Spaces of one level.
pub(super) const INDENT: usize = 2;
/// Characters of a key that needs no `?` before it. YAML's limit is 1024.
pub(super) const MAX_KEY: usize = 1000;

/// The text of a file; `source` is the text that it was read from.
pub(super) fn document(document: &Document<'_>, source: &str) -> String {
    let mut printer = Printer {
        out: String::with_capacity(source.len()),
        source,
    };
    if let Some(root) = &document.root {
        if let Some(margin) = root.margin() {
            printer.notes(&margin.notes, 0);
        }
        printer.blank(root.blank);
        match &root.body {
            Body::Leaf(node) => {
                inline(&mut printer.out, node, Context::Block);
                printer.out.push('\n');
            }
            Body::Group(group) => printer.entries(group, 0, false),
        }
        if let Some(margin) = root.margin() {
            printer.notes(&margin.end, 0);
        }
    }
    printer.notes(&document.footer, 0);
    printer.out
}

/// Columns of a node on one line.
pub(super) fn width(node: &Node, context: Context) -> usize {
    match &node.kind {
        Kind::Scalar { text, plain } => scalar::inline(text, *plain, context).chars().count(),
        Kind::List(_) | Kind::Map(_) => {
            let mut out = String::new();
            inline(&mut out, node, context);
            out.chars().count()
        }
    }
}

/// A node on one line.
fn inline(out: &mut String, node: &Node, context: Context) {
    match &node.kind {
        Kind::Scalar { text, plain } => out.push_str(&scalar::inline(text, *plain, context)),
        Kind::List(items) if items.is_empty() => out.push_str("[]"),
        Kind::Map(pairs) if pairs.is_empty() => out.push_str("{}"),
        Kind::List(items) => {
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "[" } else { ", " });
                inline(out, item, Context::Flow);
            }
            out.push(']');
        }
        Kind::Map(pairs) => {
            for (at, (key, value)) in pairs.iter().enumerate() {
                out.push_str(if at == 0 { "{ " } else { ", " });
                let start = out.len();
                inline(out, key, Context::Flow);
                let width = out.get(start..).map_or(0, |key| key.chars().count());
                if width > MAX_KEY {
                    out.insert_str(start, "? ");
                    out.push(' ');
                }
                out.push_str(": ");
                inline(out, value, Context::Flow);
            }
            out.push_str(" }");
        }
    }
}

/// A collection on one line, its keys in order.
fn flow(out: &mut String, group: &Group<'_>) {
    let (open, close) = if group.is_list {
        ("[", "]")
    } else {
        ("{ ", " }")
    };
    for (at, entry) in group.entries.iter().enumerate() {
        out.push_str(if at == 0 { open } else { ", " });
        if let Some(key) = entry.key {
            if entry.explicit {
                out.push_str("? ");
            }
            inline(out, key, Context::Flow);
            out.push_str(if entry.explicit { " : " } else { ": " });
        }
        match &entry.body {
            Body::Leaf(node) => inline(out, node, Context::Flow),
            Body::Group(inner) => flow(out, inner),
        }
    }
    out.push_str(close);
}

struct Printer<'a> {
    out: String,
    source: &'a str,
}

impl Printer<'_> {
    /// A blank line, unless nothing stands before it or one does already.
    fn blank(&mut self, wanted: bool) {
        if wanted && !self.out.is_empty() && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    fn indent(&mut self, indent: usize) {
        self.out.extend(std::iter::repeat_n(' ', indent));
    }

    fn notes(&mut self, notes: &[Note<'_>], indent: usize) {
        for note in notes {
            self.blank(note.blank);
            self.indent(indent);
            self.out.push_str(note.text);
            self.out.push('\n');
        }
    }

    /// The entries of a collection in block style; `compact` when the first of them continues a
    /// line.
    fn entries(&mut self, group: &Group<'_>, indent: usize, compact: bool) {
        for (at, entry) in group.entries.iter().enumerate() {
            if at > 0 || !compact {
                // No blank line before the first of them.
                let notes = entry
                    .margin()
                    .map_or(&[][..], |margin| margin.notes.as_slice());
                let (first, rest) = notes.split_at(usize::from(at == 0).min(notes.len()));
                for note in first {
                    self.notes(&[note.unblanked()], indent);
                }
                self.notes(rest, indent);
                self.blank(entry.blank && (at > 0 || !notes.is_empty()));
                self.indent(indent);
            }
            self.entry(entry, indent);
        }
    }

    fn entry(&mut self, entry: &Entry<'_>, indent: usize) {
        match entry.key {
            None => self.out.push_str("- "),
            Some(key) if entry.explicit => {
                self.out.push_str("? ");
                inline(&mut self.out, key, Context::Block);
                self.out.push('\n');
                self.indent(indent);
                self.out.push_str(": ");
            }
            Some(key) => {
                inline(&mut self.out, key, Context::Block);
                self.out.push(':');
            }
        }
        let space = if entry.is_compact() { "" } else { " " };
        let inner = indent + INDENT;
        match (&entry.body, entry.form) {
            (Body::Leaf(node), Form::Inline) => {
                if entry.is_compact() || !scalar::is_absent(node) {
                    self.out.push_str(space);
                    inline(&mut self.out, node, Context::Block);
                }
                self.end_line(entry.margin().and_then(|margin| margin.trailing));
            }
            (Body::Group(group), Form::Inline) => {
                self.out.push_str(space);
                flow(&mut self.out, group);
                self.end_line(entry.margin().and_then(|margin| margin.trailing));
            }
            (Body::Leaf(node), Form::Below) => {
                let Lines { header, lines } = scalar::lines(node, self.source, inner);
                self.out.push_str(space);
                self.out.push_str(&header);
                self.end_line(entry.margin().and_then(|margin| margin.head));
                for line in lines {
                    if !line.is_empty() {
                        self.indent(inner);
                        self.out.push_str(line);
                    }
                    self.out.push('\n');
                }
            }
            (Body::Group(group), Form::Below) => {
                if !entry.is_compact() {
                    self.end_line(entry.margin().and_then(|margin| margin.head));
                }
                self.entries(group, inner, entry.is_compact());
            }
        }
        if let Some(margin) = entry.margin() {
            self.notes(&margin.end, inner);
        }
    }

    fn end_line(&mut self, comment: Option<&str>) {
        if let Some(comment) = comment {
            self.out.push_str("  ");
            self.out.push_str(comment);
        }
        self.out.push('\n');
    }
}
