//! Which canonical paths a rule's `http.paths:` speaks of: globs, segment by segment.
//!
//! A pattern that no canonical path can match is refused when it is read, with what to write
//! instead: such a pattern would make an allow rule useless and a deny rule a hole.

use std::fmt;

use super::escapes;
use super::parse::{self, Flaw, MAX_ALTERNATIVES};
use super::segment;
use super::{MAX_PATTERN, Segment};
use crate::canonical::{CanonicalPath, canonical_escapes};

/// What is wrong with a pattern and what to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GlobError {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl GlobError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: None,
        }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }
}

/// One glob, ready to match.
///
/// `*` is any part of a segment, `?` one byte, `[a-z]` a class, `{a,b}` a choice, `**` any number of
/// whole segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathGlob {
    text: Box<str>,
    /// Whether what it matches begins with a slash.
    rooted: bool,
    alternatives: Box<[Box<[Segment]>]>,
}

impl PathGlob {
    /// Reads a pattern for canonical paths.
    pub(crate) fn parse(text: &str) -> Result<Self, GlobError> {
        if !text.starts_with('/') {
            return Err(GlobError::new(format!(
                "the path pattern `{text}` doesn't start with `/`"
            ))
            .help(format!("write `/{}`", text.trim_start_matches("./"))));
        }
        check_length(text, "path pattern")?;
        check_spelling(text)?;
        Self::compile(text, true)
    }

    /// Reads a pattern for other texts of segments without a slash in front, as names of
    /// repositories and refs are.
    #[allow(
        dead_code,
        reason = "matchers on repositories and refs are still to come"
    )]
    pub(crate) fn parse_relative(text: &str) -> Result<Self, GlobError> {
        let shown = text.escape_debug();
        check_length(text, "pattern")?;
        if text.is_empty() {
            return Err(GlobError::new("the pattern is empty").help("write `**` for everything"));
        }
        if let Some(rest) = text.strip_prefix('/') {
            return Err(
                GlobError::new(format!("the pattern `{shown}` starts with `/`"))
                    .help(format!("write `{}`", rest.escape_debug())),
            );
        }
        if text.contains(|c: char| c == '\\' || c == ' ' || c.is_control()) {
            return Err(GlobError::new(format!(
                "`{shown}` has a backslash, a space or a control character, which no such name has"
            )));
        }
        let strange = |segment: &str| matches!(segment, "" | "." | "..");
        if text.split('/').any(strange) {
            return Err(GlobError::new(format!(
                "`{shown}` has an empty or a dot segment, which no such name has"
            )));
        }
        Self::compile(text, false)
    }

    pub(super) fn compile(text: &str, rooted: bool) -> Result<Self, GlobError> {
        let alternatives =
            parse::alternatives(text, rooted).map_err(|flaw| explain(text, &flaw))?;
        Ok(Self {
            text: text.into(),
            rooted,
            alternatives,
        })
    }

    /// The pattern as written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What the pattern stands for without braces: one list of segments each.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = &[Segment]> {
        self.alternatives.iter().map(|segments| &**segments)
    }

    /// How much there is of the pattern, braces multiplied out.
    pub(crate) fn cost(&self) -> usize {
        let segments = self.alternatives().flatten();
        segments.map(Segment::cost).sum()
    }

    /// Whether the pattern stands for the whole text.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let path = match path {
            [b'/', rest @ ..] if self.rooted => rest,
            _ if self.rooted => return false,
            path => path,
        };
        let mut alternatives = self.alternatives();
        alternatives.any(|segments| segment::matches(segments, path))
    }
}

/// The pattern as written.
impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The patterns of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPatterns {
    globs: Box<[PathGlob]>,
    /// Of a deny rule, what the patterns with escapes mean without them.
    decoded: Box<[PathGlob]>,
}

impl PathPatterns {
    /// Patterns that were each read by [`PathGlob::parse`], for [`Self::matches`].
    pub(crate) fn new(globs: Vec<PathGlob>) -> Self {
        Self {
            globs: globs.into(),
            decoded: Box::default(),
        }
    }

    /// The same for [`Self::matches_any_reading`].
    pub(crate) fn for_deny(globs: Vec<PathGlob>) -> Self {
        Self {
            decoded: globs.iter().filter_map(escapes::decoded).collect(),
            globs: globs.into(),
        }
    }

    /// The patterns as written.
    pub(crate) fn globs(&self) -> &[PathGlob] {
        &self.globs
    }

    /// Everything that a reading of a path is compared to.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathGlob> {
        self.globs.iter().chain(&self.decoded)
    }

    /// Whether there is none, so that nothing matches.
    pub(crate) const fn is_empty(&self) -> bool {
        self.globs.is_empty()
    }

    /// The patterns as written.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.globs.iter().map(PathGlob::text)
    }

    /// Whether a pattern matches the canonical path. The asterisk of OPTIONS and the empty path of
    /// a tunnel are no paths.
    pub(crate) fn matches(&self, path: &CanonicalPath) -> bool {
        let path = path.as_str().as_bytes();
        self.globs.iter().any(|glob| glob.matches(path))
    }

    /// As [`Self::matches`], and also true for the path as more lenient upstreams read it: a deny
    /// rule must not be avoided by `%3A` for `:` or the other way round, by `;x`, or by a second
    /// slash.
    pub(crate) fn matches_any_reading(&self, path: &CanonicalPath) -> bool {
        let own = std::iter::once(path.as_str().as_bytes());
        let mut readings = own.chain(path.readings());
        readings.any(|reading| self.all().any(|glob| glob.matches(reading)))
    }
}

fn explain(text: &str, flaw: &Flaw) -> GlobError {
    let shown = text.escape_debug();
    match flaw {
        Flaw::Stars => GlobError::new(format!("in `{shown}` {flaw}"))
            .help("write `/**` for any depth, `*` within a segment"),
        Flaw::Explodes => GlobError::new(format!("`{shown}` is a path glob that explodes: {flaw}"))
            .help(format!(
                "split it into several patterns, or write `*` for a choice; {MAX_ALTERNATIVES} is enough for one"
            )),
        flaw => GlobError::new(format!("`{shown}` is no glob: {flaw}"))
            .help("brackets and braces that are meant literally are written `[[]`, `[{]`"),
    }
}

fn check_length(text: &str, what: &str) -> Result<(), GlobError> {
    if text.len() > MAX_PATTERN {
        return Err(GlobError::new(format!(
            "the {what} is longer than {MAX_PATTERN} bytes"
        )));
    }
    Ok(())
}

/// Canonical paths have one spelling; a pattern in another spelling would never match.
fn check_spelling(text: &str) -> Result<(), GlobError> {
    if text.contains('\\') {
        return Err(GlobError::new(format!(
            "`{text}` has a backslash, which no canonical path has"
        ))
        .help("a literal `*` is written `[*]`; backslash is no escape"));
    }
    let mut written = String::with_capacity(text.len());
    for c in text.chars() {
        if c == ' ' || !c.is_ascii() {
            written.push_str(&escape(c));
        } else {
            written.push(c);
        }
    }
    match canonical_escapes(&written) {
        Ok(canonical) if canonical != text => {
            return Err(GlobError::new(format!(
                "`{text}` is not the canonical spelling, so it would never match"
            ))
            .help(format!("write `{canonical}`")));
        }
        Ok(_) => {}
        Err(reject) => {
            let shown = text.escape_debug();
            return Err(GlobError::new(format!("`{shown}` has {}", reject.detail)));
        }
    }
    if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(GlobError::new(format!(
            "`{text}` has a dot segment, which no canonical path has"
        ))
        .help("write the path without `.` and `..` segments"));
    }
    Ok(())
}

fn escape(c: char) -> String {
    c.to_string()
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect()
}
