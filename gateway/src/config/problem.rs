//! What is wrong with a configuration file, said so that a person can mend it.

use std::fmt;

/// Characters of a line that are shown.
const MAX_SHOWN: usize = 120;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// From 1; 0 where no place is known.
    pub line: u64,
    /// From 1; 0 where no place is known.
    pub column: u64,
    /// Lower case, no full stop, input in backticks.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// The line may be shown: it holds no secret.
    pub is_shown: bool,
}

impl Problem {
    pub(super) fn at(location: serde_saphyr::Location, message: impl Into<String>) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
            message: message.into(),
            help: None,
            is_shown: true,
        }
    }

    /// The line holds something that must not get into a log.
    pub(super) fn unshown(self) -> Self {
        Self {
            is_shown: false,
            ..self
        }
    }

    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }
}

impl From<&serde_saphyr::Error> for Problem {
    fn from(error: &serde_saphyr::Error) -> Self {
        use serde_saphyr::Error;
        let location = error.location().unwrap_or(serde_saphyr::Location::UNKNOWN);
        match error.without_snippet() {
            Error::SerdeUnknownField {
                field, expected, ..
            } => Self::at(location, format!("`{field}` is no key here")).help(
                if expected.is_empty() {
                    "there are no keys here".to_owned()
                } else {
                    format!("the keys here are {}", quoted(expected))
                },
            ),
            Error::SerdeUnknownVariant {
                variant, expected, ..
            } => Self::at(location, format!("`{variant}` is not understood here"))
                .help(format!("write one of {}", quoted(expected))),
            Error::SerdeMissingField { field, .. } => {
                Self::at(location, format!("`{field}:` is missing"))
                    .help("docs/gateway.md lists the keys")
            }
            Error::DuplicateMappingKey { key, .. } => {
                let key = key.as_deref().unwrap_or_default();
                Self::at(location, format!("`{key}` is there twice")).help("keep one of them")
            }
            other => {
                let text = other.to_string();
                // The place is said in front.
                let message = text.split(" at line ").next().unwrap_or(&text);
                Self::at(location, message.lines().next().unwrap_or_default())
            }
        }
    }
}

fn quoted(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

/// A file that is not understood. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// In the order of the text.
    pub problems: Vec<Problem>,
    rendered: String,
}

impl ConfigError {
    pub(super) fn new(name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.line, problem.column));
        let rendered: Vec<_> = problems
            .iter()
            .map(|problem| render(name, text, problem))
            .collect();
        Self {
            problems,
            rendered: rendered.join("\n\n"),
        }
    }
}

/// All problems, each with its place, its line and what to do.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rendered)
    }
}

impl std::error::Error for ConfigError {}

fn render(name: &str, text: &str, problem: &Problem) -> String {
    let Problem {
        line,
        column,
        message,
        help,
        is_shown,
    } = problem;
    let message = message
        .escape_debug()
        .to_string()
        .replace("\\'", "'")
        .replace("\\\"", "\"");
    let mut out = format!("{name}:{line}:{column}: error: {message}");
    let at = usize::try_from(*line)
        .ok()
        .and_then(|line| line.checked_sub(1));
    if let Some(source) = at.and_then(|at| text.lines().nth(at)).filter(|_| *is_shown) {
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = source.chars().take(MAX_SHOWN).map(visible).collect();
        let gutter = " ".repeat(line.to_string().len());
        let before = usize::try_from(column.saturating_sub(1))
            .unwrap_or(0)
            .min(MAX_SHOWN);
        out.push_str(&format!(
            "\n{line} | {shown}\n{gutter} | {}^",
            " ".repeat(before)
        ));
    }
    if let Some(help) = help {
        out.push_str(&format!("\n  help: {help}"));
    }
    out
}
