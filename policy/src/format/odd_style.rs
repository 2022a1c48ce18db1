//! Writes trees in all the ways of YAML that a person may think of, with comments everywhere: what
//! the formatter is tested with.

use std::collections::BTreeMap;

/// What a file says. Keys are unique, and texts are those of keys or hostile.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    /// As the loader sees a scalar: its text, and `true` where it was written without quotes and
    /// that matters.
    Text(String, bool),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

/// Writes a tree in a style that the choices decide; when they run out, plainly.
struct Writer<'a> {
    out: String,
    choices: std::slice::Iter<'a, u8>,
    comments: Vec<String>,
    above: BTreeMap<String, String>,
    beside: BTreeMap<String, String>,
}

impl Writer<'_> {
    fn choose(&mut self, among: u8) -> u8 {
        self.choices.next().map_or(0, |choice| choice % among)
    }

    fn comment(&mut self) -> String {
        let tail = ["", " a: b", " \ttab", " - x", " 'x", " # y", " {", "  "];
        let tail = tail[usize::from(self.choose(8))];
        let comment = format!("#{}.{tail}", self.comments.len());
        self.comments.push(comment.trim_end().to_owned());
        comment
    }

    fn line_break(&mut self) {
        self.out.push('\n');
        for _ in 0..self.choose(12).saturating_sub(9) {
            let blank = ["\n", "  \n"][usize::from(self.choose(2))];
            self.out.push_str(blank);
        }
    }

    fn pad(&mut self, indent: usize) {
        self.out.push_str(&" ".repeat(indent));
    }

    /// A comment or more on lines of their own.
    fn notes(&mut self, indent: usize, about: Option<&str>) {
        while self.choose(6) == 5 {
            let comment = self.comment();
            self.pad(indent);
            self.out.push_str(&comment);
            self.line_break();
            if let Some(about) = about {
                self.above
                    .insert(comment.trim_end().to_owned(), about.to_owned());
            }
        }
    }

    /// The end of a line, with a comment or without.
    fn end_line(&mut self, about: Option<&str>) {
        if self.choose(5) == 4 {
            let comment = self.comment();
            let space = [" ", "   ", "\t"][usize::from(self.choose(3))];
            self.out.push_str(space);
            self.out.push_str(&comment);
            if let Some(about) = about {
                self.beside
                    .insert(comment.trim_end().to_owned(), about.to_owned());
            }
        }
        self.line_break();
    }

    fn quoted(&mut self, text: &str) -> String {
        let simple = text
            .chars()
            .all(|c| c == '\t' || (!c.is_control() && c < '\u{2000}'));
        if simple && self.choose(2) == 1 {
            return format!("'{}'", text.replace('\'', "''"));
        }
        let escape = |c: char| match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            c if c.is_control() || c > '\u{2000}' => format!("\\U{:08x}", u32::from(c)),
            c => c.to_string(),
        };
        format!("\"{}\"", text.chars().map(escape).collect::<String>())
    }

    /// A scalar on one line.
    fn scalar(&mut self, text: &str, plain: bool) {
        let word = text.chars().all(|c| c.is_ascii_lowercase()) && !text.is_empty();
        if plain || (word && !crate::document::quotes_matter(text) && self.choose(3) != 2) {
            self.out.push_str(text);
        } else {
            let quoted = self.quoted(text);
            self.out.push_str(&quoted);
        }
    }

    /// A text over lines: as a block scalar where it has such a form, else wrapped in quotes.
    fn lines(&mut self, text: &str, indent: usize) -> bool {
        let body = text.trim_end_matches('\n');
        let breaks = text.len() - body.len();
        let plain = |c: char| c == '\n' || c == '\t' || !(c.is_control() || c == '\u{feff}');
        let blank = |line: &str| line.trim_matches([' ', '\t']).is_empty();
        let odd = body.is_empty() || !text.chars().all(plain) || body.split('\n').any(blank);
        match self.choose(4) {
            1 if !odd => {
                let chomp = ["-", "", "+"][breaks.min(2)];
                let digit = if text.starts_with([' ', '\t']) {
                    "2"
                } else {
                    ""
                };
                self.out.push_str(&format!(" |{digit}{chomp}"));
                self.end_line_once();
                for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
                    if !line.is_empty() {
                        self.pad(indent + 2);
                        self.out.push_str(line);
                    }
                    self.out.push('\n');
                }
                true
            }
            2 if !odd && breaks < 2 && !body.contains(['\n', '\t']) && !body.starts_with(' ') => {
                self.out.push_str([" >-", " >"][breaks]);
                self.end_line_once();
                for (at, word) in body.split(' ').enumerate() {
                    // A line break stands for one space, so no word may be empty.
                    let whole = body.split(' ').any(str::is_empty);
                    if at == 0 || (!whole && self.choose(3) == 0) {
                        self.out.push_str(if at == 0 { "" } else { "\n" });
                        self.pad(indent + 2);
                    } else {
                        self.out.push(' ');
                    }
                    self.out.push_str(word);
                }
                self.out.push('\n');
                true
            }
            3 if text.contains(' ')
                && !text.contains("  ")
                && !text.contains('\t')
                && body == text.trim() =>
            {
                let quoted = self.quoted(text);
                let wrapped = quoted.replace(' ', &format!("\n{}", " ".repeat(indent + 2)));
                self.out.push(' ');
                self.out.push_str(&wrapped);
                self.end_line(None);
                true
            }
            _ => false,
        }
    }

    /// No blank lines: they would be text.
    fn end_line_once(&mut self) {
        if self.choose(5) == 4 {
            let comment = self.comment();
            self.out.push_str("  ");
            self.out.push_str(&comment);
        }
        self.out.push('\n');
    }

    /// A value behind `key:` or `-` in block style, to the end of its last line.
    fn value(&mut self, tree: &Tree, indent: usize, about: &str, is_item: bool) {
        let step = usize::from(self.choose(3)) + 1;
        match tree {
            Tree::Text(text, plain) => {
                if !plain && self.lines(text, indent) {
                    return;
                }
                if text == "~" && *plain && self.choose(2) == 1 {
                    self.end_line(None);
                    return;
                }
                if self.choose(8) == 7 {
                    self.end_line(None);
                    self.notes(indent + step, None);
                    self.pad(indent + step);
                } else {
                    self.out.push(' ');
                }
                self.scalar(text, *plain);
                self.end_line(Some(about));
            }
            Tree::List(items) if items.is_empty() => {
                self.out.push_str(" []");
                self.end_line(Some(about));
            }
            Tree::Map(pairs) if pairs.is_empty() => {
                self.out.push_str(" {}");
                self.end_line(Some(about));
            }
            tree if self.choose(3) == 2 => {
                self.out.push(' ');
                self.flow(tree, indent + step);
                self.end_line(Some(about));
            }
            tree if is_item && self.choose(2) == 1 => {
                self.out.push(' ');
                self.block(tree, indent + 2, true);
            }
            tree => {
                self.end_line(None);
                let step = if is_item || matches!(tree, Tree::Map(_)) {
                    step
                } else {
                    step - 1
                };
                self.block(tree, indent + step, false);
            }
        }
    }

    fn key(&mut self, key: &str) {
        if key.len() > 1000 {
            self.out.push_str("? ");
        }
        self.scalar(key, false);
    }

    fn block(&mut self, tree: &Tree, indent: usize, compact: bool) {
        let first = |at: usize| at == 0 && compact;
        match tree {
            Tree::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    if !first(at) {
                        self.notes(indent, None);
                        self.pad(indent);
                    }
                    self.out.push('-');
                    self.value(item, indent, "-", true);
                }
            }
            Tree::Map(pairs) => {
                for (at, (key, value)) in pairs.iter().enumerate() {
                    if !first(at) {
                        // Before the first it may be the head of the file, or of what is around.
                        self.notes(indent, (at > 0).then_some(key));
                        self.pad(indent);
                    }
                    self.key(key);
                    if key.len() > 1000 {
                        self.end_line(None);
                        self.pad(indent);
                    }
                    self.out.push(':');
                    // A long key and its value are on lines of their own.
                    let about = if key.len() > 1000 { "" } else { key };
                    self.value(value, indent, about, key.len() > 1000);
                }
            }
            Tree::Text(..) => unreachable!("only collections are in block style"),
        }
        self.notes(indent, None);
    }

    /// A space or a line break, with comments.
    fn gap(&mut self, indent: usize) {
        match self.choose(5) {
            0 | 1 => self.out.push(' '),
            2 => {}
            _ => {
                self.out.push(' ');
                self.end_line(None);
                self.notes(indent, None);
                self.pad(indent);
            }
        }
    }

    fn flow(&mut self, tree: &Tree, indent: usize) {
        match tree {
            Tree::Text(text, plain) => self.scalar(text, *plain),
            Tree::List(items) => {
                self.out.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.gap(indent);
                    self.flow(item, indent);
                    if at + 1 < items.len() || self.choose(3) == 2 {
                        self.out.push(',');
                    }
                }
                self.gap(indent);
                self.out.push(']');
            }
            Tree::Map(pairs) => {
                self.out.push('{');
                for (at, (key, value)) in pairs.iter().enumerate() {
                    self.gap(indent);
                    self.key(key);
                    self.out.push_str(" : ");
                    self.flow(value, indent);
                    if at + 1 < pairs.len() || self.choose(3) == 2 {
                        self.out.push(',');
                    }
                }
                self.gap(indent);
                self.out.push('}');
            }
        }
    }
}

/// A file, what it says, and what must be near what.
#[derive(Debug)]
pub(super) struct File {
    pub(super) text: String,
    pub(super) comments: Vec<String>,
    /// Comments on lines of their own, to the key of the entry below.
    pub(super) above: BTreeMap<String, String>,
    /// Comments at the end of a line, to a key on it.
    pub(super) beside: BTreeMap<String, String>,
}

/// Writes a file, as the choices say.
pub(super) fn write(tree: &Tree, choices: &[u8]) -> File {
    let mut writer = Writer {
        out: String::new(),
        choices: choices.iter(),
        comments: Vec::new(),
        above: BTreeMap::new(),
        beside: BTreeMap::new(),
    };
    let crlf = writer.choose(5) == 4;
    let prefix = ["", "\u{feff}", "---\n", "--- # start\n", "\n\n"][usize::from(writer.choose(5))];
    writer.out.push_str(prefix);
    if prefix.contains('#') {
        writer.comments.push("# start".to_owned());
    }
    writer.notes(0, None);
    let is_empty = |tree: &Tree| match tree {
        Tree::Text(..) => true,
        Tree::List(items) => items.is_empty(),
        Tree::Map(pairs) => pairs.is_empty(),
    };
    if is_empty(tree) || writer.choose(5) == 4 {
        writer.flow(tree, 1);
        writer.end_line(None);
    } else {
        writer.block(tree, 0, false);
    }
    writer.notes(1, None);
    let mut text = writer.out;
    if crlf {
        text = text.replace('\n', "\r\n");
    }
    File {
        text,
        comments: writer.comments,
        above: writer.above,
        beside: writer.beside,
    }
}
