//! What is wrong with a policy file, said so that a person can mend it without a manual.
//!
//! A diagnostic is a plain value; [`Diagnostic::render`] is the plain-text form. Nothing here
//! decides what is an error.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::Source;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file loads, and probably doesn't mean what it says.
    Warning,
    /// Nothing is loaded.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Findings of one source that are kept. Nobody mends more than that at once, and each costs a walk
/// through the text.
pub(crate) const MAX_FINDINGS: usize = 100;

/// One finding in one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Stable code in snake case.
    pub code: &'static str,
    /// One sentence: lower case, no full stop, input in backticks.
    pub message: String,
    /// The text that it is about.
    pub source: Arc<Source>,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Bytes of the offending text; within the source, on character boundaries.
    pub span: Range<usize>,
    /// What to do.
    pub help: Option<String>,
    /// Other places that matter, such as the first of two equal ids.
    pub labels: Vec<Label>,
}

/// Another place that a diagnostic speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its text.
    pub source: Arc<Source>,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Bytes, as in [`Diagnostic::span`].
    pub span: Range<usize>,
    /// What is there.
    pub text: String,
}

impl Diagnostic {
    pub(crate) fn error(
        code: &'static str,
        source: &Arc<Source>,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> Self {
        let span = clamp(&source.text, span);
        let (line, column) = position(&source.text, span.start);
        Self {
            severity: Severity::Error,
            code,
            message: one_line(&message.into()),
            source: Arc::clone(source),
            line,
            column,
            span,
            help: None,
            labels: Vec::new(),
        }
    }

    pub(crate) fn warning(
        code: &'static str,
        source: &Arc<Source>,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(code, source, span, message)
        }
    }

    /// Stands for the findings beyond [`MAX_FINDINGS`].
    pub(crate) fn more(severity: Severity, source: &Arc<Source>) -> Self {
        let end = source.text.trim_end().len();
        let message = format!("there are more findings than the {MAX_FINDINGS} that are shown");
        Self {
            severity,
            ..Self::error("more_findings", source, end..end, message)
        }
        .help("mend these first, then check again")
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        let help: String = help.into();
        let lines: Vec<String> = help.lines().map(one_line).collect();
        Self {
            help: Some(lines.join("\n")),
            ..self
        }
    }

    pub(crate) fn label(
        mut self,
        source: &Arc<Source>,
        span: Range<usize>,
        text: impl Into<String>,
    ) -> Self {
        let span = clamp(&source.text, span);
        let (line, column) = position(&source.text, span.start);
        let source = Arc::clone(source);
        self.labels.push(Label {
            source,
            line,
            column,
            span,
            text: one_line(&text.into()),
        });
        self
    }

    /// The finding as plain text with the offending line underlined; ends with a line break.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = format!(
            "{}:{}:{}: {}[{}]: {}\n",
            self.source.name, self.line, self.column, self.severity, self.code, self.message
        );
        excerpt(&mut out, &self.source.text, &self.span, self.line);
        for label in &self.labels {
            let Label {
                source,
                line,
                column,
                span,
                text,
            } = label;
            out.push_str(&format!("  {}:{line}:{column}: {text}\n", source.name));
            excerpt(&mut out, &source.text, span, *line);
        }
        if let Some(help) = &self.help {
            for (at, line) in help.lines().enumerate() {
                let lead = if at == 0 { "  help: " } else { "        " };
                out.push_str(&format!("{lead}{line}\n"));
            }
        }
        out
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render().trim_end())
    }
}

/// Why a policy was refused: never empty, and holds at least one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// `Err` when there is any error among the findings.
    pub(crate) fn check(found: Vec<Diagnostic>) -> Result<(), Self> {
        if found
            .iter()
            .all(|diagnostic| diagnostic.severity != Severity::Error)
        {
            return Ok(());
        }
        Err(Self::sorted(found))
    }

    /// For findings of which the caller knows that one is an error.
    pub(crate) fn sorted(mut found: Vec<Diagnostic>) -> Self {
        found.sort_by(|a, b| (&a.source.name, a.span.start).cmp(&(&b.source.name, b.span.start)));
        Self(found)
    }

    /// In the order of the text.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// How many.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All findings as plain text, a blank line between two.
    #[must_use]
    pub fn render(&self) -> String {
        self.0
            .iter()
            .map(Diagnostic::render)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render().trim_end())
    }
}

impl std::error::Error for Diagnostics {}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Widest line of an excerpt, in characters; longer ones are cut so that a terminal shows them.
const MAX_EXCERPT: usize = 120;

/// The source line and carets under the part of it that the span covers.
fn excerpt(out: &mut String, text: &str, span: &Range<usize>, line: usize) {
    let start = text
        .get(..span.start)
        .and_then(|before| before.rfind('\n'))
        .map_or(0, |at| at + 1);
    let full = text
        .get(start..)
        .and_then(|rest| rest.lines().next())
        .unwrap_or_default();
    let shown: String = full.chars().take(MAX_EXCERPT).map(visible).collect();
    let before = count(text, start..span.start).min(MAX_EXCERPT);
    let end = span.end.min(start + full.len());
    let width = count(text, span.start..end).clamp(1, (MAX_EXCERPT - before).max(1));
    let number = line.to_string();
    let gutter = " ".repeat(number.len());
    out.push_str(&format!("{number} | {shown}\n"));
    out.push_str(&format!(
        "{gutter} | {}{}\n",
        " ".repeat(before),
        "^".repeat(width)
    ));
}

fn count(text: &str, range: Range<usize>) -> usize {
    text.get(range).map_or(0, |part| part.chars().count())
}

/// Control characters must not reach a terminal; a tab would shift the carets.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if misleads(c) => '\u{fffd}',
        c => c,
    }
}

/// Characters of one line of a message: a value that it quotes may be the whole file.
const MAX_LINE: usize = 2000;

/// What a message quotes from a file must not reach a terminal as a control either.
fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_LINE));
    for (at, c) in text.chars().enumerate() {
        if at == MAX_LINE {
            out.push('…');
            break;
        }
        if misleads(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that a terminal obeys, or that make a line look like another: controls, marks of
/// direction, line separators, the byte order mark.
fn misleads(c: char) -> bool {
    let direction = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || direction || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Line and column, both from 1, the column in characters.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |last| last.chars().count())
        + 1;
    (line, column)
}

/// Puts a span inside the text and on character boundaries.
fn clamp(text: &str, span: Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(span.start);
    start..text.ceil_char_boundary(span.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_place_line_carets_label_and_help() {
        let source = Arc::new(Source::new("p.yaml", "ä: 1\nüb: [x, yy]\n"));
        let at = source.text.find("yy").unwrap();
        let first = source.text.find('x').unwrap();
        let diagnostic = Diagnostic::error("bad_thing", &source, at..at + 2, "`yy` is bad")
            .label(&source, first..first + 1, "`x` was first")
            .help("write `zz`");
        let expected = "\
p.yaml:2:9: error[bad_thing]: `yy` is bad
2 | üb: [x, yy]
  |         ^^
  p.yaml:2:6: `x` was first
2 | üb: [x, yy]
  |      ^
  help: write `zz`
";
        assert_eq!(diagnostic.render(), expected);
    }

    #[test]
    fn any_span_of_any_text_renders() {
        for (text, span) in [
            ("", 0..0),
            ("a", 5..9),
            ("ü", 1..1),
            ("a\r\nb", 2..4),
            ("\u{1b}[31m\t", 0..9),
        ] {
            let source = Arc::new(Source::new("x", text));
            let rendered = Diagnostic::error("x", &source, span, "x").render();
            assert!(
                rendered.contains('^') && !rendered.contains(['\u{1b}', '\t', '\r']),
                "{rendered:?}"
            );
        }
        let hostile = "a\u{1b}[2J\r\u{202e}\nb";
        let source = Arc::new(Source::new("x", hostile));
        let found = Diagnostic::error("x", &source, 0..3, hostile)
            .label(&source, 0..1, hostile)
            .help(hostile);
        let rendered = found.render();
        assert!(
            !rendered.contains(['\u{1b}', '\r', '\u{202e}']),
            "{rendered:?}"
        );
        assert_eq!(found.message, "a\\u{1b}[2J\\r\\u{202e}\\nb");
        assert_eq!(found.help.as_deref(), Some("a\\u{1b}[2J\\r\\u{202e}\nb"));

        let found = Diagnostic::error("x", &source, 0..3, "ü".repeat(1_000_000));
        assert_eq!(found.message.chars().count(), MAX_LINE + 1);

        let long = Arc::new(Source::new("x", "a".repeat(500)));
        let rendered = Diagnostic::error("x", &long, 300..400, "x").render();
        assert!(rendered.lines().all(|line| line.len() < 130));
    }
}
