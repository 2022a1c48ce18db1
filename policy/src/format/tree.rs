//! The tree that is printed: nodes with their comments, blank lines and layout.

use super::shape::Shape;
use crate::document::Node;

/// A comment on a line of its own.
#[derive(Debug)]
pub(super) struct Note<'a> {
    /// From `#` on, without trailing blanks.
    pub(super) text: &'a str,
    /// Whether a blank line stands before it.
    pub(super) blank: bool,
}

impl Note<'_> {
    pub(super) const fn unblanked(&self) -> Self {
        Self {
            text: self.text,
            blank: false,
        }
    }
}

/// An entry of a mapping or an item of a list.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) key: Option<&'a Node>,
    pub(super) body: Body<'a>,
    pub(super) form: Form,
    /// Whether a blank line stands before it, after its notes.
    pub(super) blank: bool,
    /// The key is too long to be seen as one without the sign `?`.
    pub(super) explicit: bool,
    /// Boxed because most entries have no comments, and hostile files have millions of entries.
    margin: Option<Box<Margin<'a>>>,
}

/// The comments of an entry.
#[derive(Debug, Default)]
pub(super) struct Margin<'a> {
    /// On lines of their own before the entry.
    pub(super) notes: Vec<Note<'a>>,
    /// Behind the key, before a value that begins further down.
    pub(super) head: Option<&'a str>,
    /// At the end of the line that the value ends on.
    pub(super) trailing: Option<&'a str>,
    /// On lines of their own inside the value, after all that is in it.
    pub(super) end: Vec<Note<'a>>,
}

/// What an entry holds.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// A scalar or an empty collection.
    Leaf(&'a Node),
    Group(Box<Group<'a>>),
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// On the line of its key or dash.
    Inline,
    /// On lines of its own below.
    Below,
}

/// A list or a mapping that isn't empty.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) is_list: bool,
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) shape: &'static Shape,
    /// Columns that it takes in flow style.
    pub(super) width: usize,
    /// Collections in it, one within the other, itself included.
    pub(super) nesting: usize,
    /// Flow style would lose nothing: no comments and no block scalars are in it.
    pub(super) may_flow: bool,
}

impl<'a> Entry<'a> {
    pub(super) fn new(key: Option<&'a Node>, body: Body<'a>) -> Self {
        Self {
            key,
            body,
            form: Form::Inline,
            blank: false,
            explicit: false,
            margin: None,
        }
    }

    pub(super) fn margin(&self) -> Option<&Margin<'a>> {
        self.margin.as_deref()
    }

    pub(super) fn margin_mut(&mut self) -> &mut Margin<'a> {
        self.margin.get_or_insert_default()
    }

    /// Takes one part of the margin, without making a margin for it.
    pub(super) fn take<T: Default>(
        &mut self,
        part: impl for<'m> FnOnce(&'m mut Margin<'a>) -> &'m mut T,
    ) -> T {
        let margin = self.margin.as_deref_mut();
        margin
            .map(|margin| std::mem::take(part(margin)))
            .unwrap_or_default()
    }

    /// Puts a comment that can't stay where it is on a line before the entry.
    pub(super) fn hoist(&mut self, text: &'a str) {
        let blank = std::mem::take(&mut self.blank);
        self.margin_mut().notes.push(Note { text, blank });
    }

    /// A blank line before the entry and its notes.
    pub(super) fn set_apart(&mut self, apart: bool) {
        let first = self
            .margin
            .as_mut()
            .and_then(|margin| margin.notes.first_mut());
        *first.map_or(&mut self.blank, |note| &mut note.blank) = apart;
    }

    /// Whether the entry itself takes more than one line, its notes aside.
    pub(super) fn spans_lines(&self) -> bool {
        if self.margin().is_some_and(|margin| !margin.end.is_empty()) {
            return true;
        }
        match (&self.body, self.form) {
            (_, Form::Inline) => self.explicit,
            (Body::Group(group), Form::Below) if self.key.is_none() => {
                group.entries.len() > 1 || group.entries.iter().any(Self::spans_lines)
            }
            (_, Form::Below) => true,
        }
    }

    /// Whether it is printed behind a dash, as the value of a long key is behind its colon.
    pub(super) const fn is_compact(&self) -> bool {
        self.key.is_none() || self.explicit
    }

    pub(super) fn has_comments(&self) -> bool {
        self.margin().is_some_and(|margin| {
            let lines = margin.head.is_some() || margin.trailing.is_some();
            lines || !margin.notes.is_empty() || !margin.end.is_empty()
        })
    }

    /// The comments inside the value, in order; none is left there.
    pub(super) fn drain_inside(&mut self) -> Vec<&'a str> {
        let mut comments = Vec::new();
        comments.extend(self.take(|margin| &mut margin.head));
        if let Body::Group(group) = &mut self.body {
            for entry in &mut group.entries {
                let notes = entry.take(|margin| &mut margin.notes);
                comments.extend(notes.iter().map(|note| note.text));
                comments.append(&mut entry.drain_inside());
                comments.extend(entry.take(|margin| &mut margin.trailing));
            }
        }
        let end = self.take(|margin| &mut margin.end);
        comments.extend(end.iter().map(|note| note.text));
        comments
    }
}
