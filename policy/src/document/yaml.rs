//! YAML text to a tree of nodes that know their place. The only module that knows the YAML library.
//!
//! Refuses what makes a file mean something else than it shows: anchors, aliases, merge keys, tags,
//! directives and a second document. Scalars stay text; what they mean is up to who expects what.

use std::ops::Range;
use std::sync::Arc;

use serde_saphyr::granit_parser::{
    Event, Marker, Options, Parser, ScalarStyle, ScanError, Span, StructureStyle,
};

use crate::diagnostic::MAX_FINDINGS;
use crate::{Diagnostic, Source};

/// Keys, values and collections of one source. Each takes some hundred bytes until the source is
/// compiled; a rule has about twenty.
const MAX_NODES: usize = 2_000_000;
/// Nested block collections, and nested flow collections in them. The language itself needs six.
pub(crate) const MAX_DEPTH: usize = 32;

/// A YAML node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Bytes of a scalar; of a collection, its first byte up to where it ends.
    pub(crate) span: Range<usize>,
    /// How it is written. It means nothing; the formatter keeps some of it.
    pub(crate) style: Style,
    pub(crate) kind: Kind,
}

/// The ways to write a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// In single or double quotes.
    Quoted,
    /// `|`
    Literal,
    /// `>`
    Folded,
    /// A collection by indentation.
    Block,
    /// A collection in brackets or braces, or a lone pair in a list in brackets.
    Flow,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Text and whether it was written without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the text; duplicates are kept.
    Map(Vec<(Node, Node)>),
}

/// The root of the only document; `None` when there is none.
pub(super) fn parse(source: &Arc<Source>) -> Result<Option<Node>, Vec<Diagnostic>> {
    read(source, false).map(|text| text.root)
}

/// As [`parse`], with the comments. What [`parse`] refuses is refused with the same words.
pub(crate) fn parse_commented(source: &Arc<Source>) -> Result<Commented, Vec<Diagnostic>> {
    let mut read = match read(source, true) {
        Ok(read) => read,
        Err(found) => return Err(parse(source).err().unwrap_or(found)),
    };
    // The comment behind `|` arrives after the text below it.
    read.comments.sort_by_key(|span| span.start);
    Ok(read)
}

/// A document and the bytes of its comments, `#` included, in the order of the text.
#[derive(Debug)]
pub(crate) struct Commented {
    pub(crate) root: Option<Node>,
    pub(crate) comments: Vec<Range<usize>>,
}

fn read(source: &Arc<Source>, comments: bool) -> Result<Commented, Vec<Diagnostic>> {
    let mut builder = Builder {
        source,
        open: Vec::new(),
        root: None,
        nodes: 0,
        comments: Vec::new(),
        found: Vec::new(),
    };
    let mut parser = Parser::new_from_str_with_options(&source.text, options(comments));
    while let Some(next) = parser.next_event() {
        match next {
            Ok((event, span)) => builder.accept(event, &span),
            Err(error) => {
                builder.found.push(syntax_error(source, &error));
                break;
            }
        }
        if builder.nodes > MAX_NODES {
            let end = source.text.len();
            let message = format!("the file has more than {MAX_NODES} keys, values and lists");
            let found = Diagnostic::error("file_too_large", source, end..end, message);
            builder
                .found
                .push(found.help("split it into several policies"));
            break;
        }
        // One more than is kept, so that the reader is told.
        if builder.found.len() > MAX_FINDINGS {
            break;
        }
    }
    if builder.found.is_empty() {
        Ok(Commented {
            root: builder.root,
            comments: builder.comments,
        })
    } else {
        Err(builder.found)
    }
}

fn options(comments: bool) -> Options {
    let mut options = Options::default();
    options.disallow_directives = true;
    options.emit_unresolved_aliases = true;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    options.set_emit_comments(comments);
    // The size of the source bounds them.
    options.max_buffered_comment_events = usize::MAX;
    options
}

fn syntax_error(source: &Arc<Source>, error: &ScanError) -> Diagnostic {
    let at = offset(error.marker());
    let found = Diagnostic::error("yaml_syntax", source, at..at + 1, error.info());
    // The library has many errors about tabs; all of them have the same cure.
    if found.message.contains("tab") {
        return found.help("indent with spaces; YAML allows no tabs there");
    }
    found
}

fn offset(marker: &Marker) -> usize {
    marker.byte_offset().unwrap_or(0)
}

/// A collection that is not closed yet.
#[derive(Debug)]
struct Open {
    start: usize,
    style: Style,
    children: Vec<Node>,
}

struct Builder<'a> {
    source: &'a Arc<Source>,
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
    comments: Vec<Range<usize>>,
    found: Vec<Diagnostic>,
}

impl Builder<'_> {
    fn accept(&mut self, event: Event<'_>, span: &Span) {
        let range = offset(&span.start)..offset(&span.end);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_extras(anchor, tag.is_some(), &range);
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
                    ScalarStyle::Literal => Style::Literal,
                    ScalarStyle::Folded => Style::Folded,
                };
                self.place(Node {
                    span: range,
                    style,
                    kind: Kind::Scalar {
                        text: text.into_owned(),
                        plain: style == Style::Plain,
                    },
                });
            }
            Event::SequenceStart(style, anchor, tag) | Event::MappingStart(style, anchor, tag) => {
                self.refuse_extras(anchor, tag.is_some(), &range);
                self.open.push(Open {
                    start: range.start,
                    style: match style {
                        StructureStyle::Block => Style::Block,
                        StructureStyle::Flow => Style::Flow,
                    },
                    children: Vec::new(),
                });
            }
            Event::SequenceEnd => self.close(range.end, Kind::List),
            Event::MappingEnd => self.close(range.end, |children| Kind::Map(pairs(children))),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                let word = self.source.text.get(range.clone()).unwrap_or_default();
                let help = format!("a wildcard must be in quotes: \"{word}\"");
                let message = "an unquoted `*` begins an alias, which is not part of the language";
                let found = Diagnostic::error("yaml_alias", self.source, range.clone(), message);
                self.found.push(found.help(help));
                // Keeps the tree in shape for the rest of the walk; nothing is loaded anyway.
                self.place(Node {
                    span: range,
                    style: Style::Flow,
                    kind: Kind::List(Vec::new()),
                });
            }
            Event::Comment(..) => self.comments.push(range),
            Event::DocumentStart(..) if self.root.is_some() => {
                self.refuse(
                    "yaml_documents",
                    range,
                    "a policy file is one YAML document, and this starts another",
                );
            }
            _ => {}
        }
    }

    fn refuse_extras(&mut self, anchor: usize, tag: bool, range: &Range<usize>) {
        if anchor != 0 {
            self.refuse(
                "yaml_anchor",
                range.clone(),
                "anchors (`&name`) are not part of the language",
            );
        }
        if tag {
            self.refuse(
                "yaml_tag",
                range.clone(),
                "tags (`!name`) are not part of the language",
            );
        }
    }

    fn refuse(&mut self, code: &'static str, range: Range<usize>, message: &str) {
        let help = "write the value out where it is used; a policy is read as it stands";
        self.found
            .push(Diagnostic::error(code, self.source, range, message).help(help));
    }

    fn close(&mut self, end: usize, kind: impl FnOnce(Vec<Node>) -> Kind) {
        if let Some(open) = self.open.pop() {
            let Open {
                start,
                style,
                children,
            } = open;
            self.place(Node {
                span: start..end.max(start),
                style,
                kind: kind(children),
            });
        }
    }

    fn place(&mut self, node: Node) {
        self.nodes += 1;
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.root = Some(node),
        }
    }
}

/// A mapping's children alternate between key and value.
fn pairs(children: Vec<Node>) -> Vec<(Node, Node)> {
    let mut children = children.into_iter();
    std::iter::from_fn(|| children.next().zip(children.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> Vec<&'static str> {
        let source = Arc::new(Source::new("p.yaml", text));
        parse(&source)
            .err()
            .unwrap_or_default()
            .iter()
            .map(|found| found.code)
            .collect()
    }

    #[test]
    fn what_hides_meaning_is_refused() {
        assert_eq!(codes("a: &x 1\nb: *x\n"), ["yaml_anchor", "yaml_alias"]);
        assert_eq!(codes("b: *nowhere\n"), ["yaml_alias"]);
        assert_eq!(codes("a: !!str 1\n"), ["yaml_tag"]);
        assert_eq!(codes("a: 1\n---\nb: 2\n"), ["yaml_documents"]);
        assert_eq!(codes("%YAML 1.1\n---\na: 1\n"), ["yaml_syntax"]);
        assert_eq!(codes("a: [1\n"), ["yaml_syntax"]);
        assert_eq!(codes(&"[".repeat(1000)), ["yaml_syntax"]);
        assert_eq!(codes("a:\n\tb: 1\n"), ["yaml_syntax"]);
    }

    #[test]
    fn byte_order_mark_and_crlf_are_plain_text() {
        let source = Arc::new(Source::new("p.yaml", "\u{feff}a: 1\r\nb: [x]\r\n"));
        let Some(Node {
            kind: Kind::Map(entries),
            ..
        }) = parse(&source).unwrap()
        else {
            panic!()
        };
        let spans: Vec<_> = entries
            .iter()
            .map(|(key, _)| &source.text[key.span.clone()])
            .collect();
        assert_eq!(spans, ["a", "b"]);
    }

    #[test]
    fn nothing_is_no_document() {
        for text in ["", "\n\n", "# nothing\n", "\u{feff}"] {
            assert!(
                parse(&Arc::new(Source::new("p.yaml", text)))
                    .unwrap()
                    .is_none(),
                "{text:?}"
            );
        }
    }
}
