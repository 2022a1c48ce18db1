//! What was found in files, in the one shape that every format is written from.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use outgate_policy::{Diagnostic, Label, Policy, Severity, Source};
use serde::Serialize;

use super::read::{ReadError, Reader, name_of};
use crate::output::{printable, printable_lines};

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// JUnit XML, for test reports
    Junit,
}

#[derive(Debug, Args)]
pub(super) struct FormatArgs {
    /// How to write the results
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: Format,
    /// The same as `--format json`
    #[arg(long)]
    json: bool,
}

impl FormatArgs {
    pub(super) const fn get(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// One file, read and loaded as far as it goes.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) path: PathBuf,
    /// What the file is called in messages.
    pub(super) name: String,
    /// Nothing where there is an error among the findings.
    pub(super) policy: Option<Policy>,
    pub(super) findings: Vec<Finding>,
}

impl Checked {
    /// Reads and loads one file as a policy of its own.
    pub(super) fn of(reader: &mut Reader, path: &Path) -> Self {
        let (policy, findings) = match reader.read(path) {
            Err(error) => match error.includes() {
                Some(errors) => (None, errors.iter().map(Finding::of).collect()),
                None => (None, vec![Finding::unreadable(&error)]),
            },
            Ok(source) => match Policy::load(&[source]) {
                Ok(policy) => {
                    let mut found = policy.lints();
                    found.extend(unenforced(&policy));
                    (Some(policy), found.iter().map(Finding::of).collect())
                }
                Err(errors) => (None, errors.iter().map(Finding::of).collect()),
            },
        };
        Self {
            path: path.to_owned(),
            name: name_of(path),
            policy,
            findings,
        }
    }

    pub(super) fn count(&self, severity: Severity) -> usize {
        let all = self.findings.iter();
        all.filter(|finding| finding.severity == severity).count()
    }
}

/// What the gateway of this version can't keep: a policy for a later one may say it all the same.
fn unenforced(policy: &Policy) -> Vec<Diagnostic> {
    let Err(missing) = policy.require(outgate_gateway::gateway::ENFORCED) else {
        return Vec::new();
    };
    let warnings = missing.into_iter().map(|missing| Diagnostic {
        severity: Severity::Warning,
        ..missing
    });
    warnings.collect()
}

/// Something to tell about a file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) code: &'static str,
    /// The file, and the place in it where there is one.
    #[serde(flatten)]
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) help: Option<String>,
    pub(super) labels: Vec<Labelled>,
    /// The whole of it for people, safe for a terminal.
    #[serde(skip)]
    pub(super) text: String,
}

/// Another place that a finding speaks of.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Labelled {
    #[serde(flatten)]
    pub(super) place: Place,
    pub(super) text: String,
}

/// A file, or some text in it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Place {
    pub(super) file: String,
    #[serde(flatten)]
    pub(super) region: Option<Region>,
}

/// Lines and columns from 1, columns in characters; the end is the place after the last character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Region {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) end_line: usize,
    pub(super) end_column: usize,
}

impl Region {
    /// The place in front of a character.
    pub(super) const fn at(line: usize, column: usize) -> Self {
        Self {
            line,
            column,
            end_line: line,
            end_column: column,
        }
    }

    fn covering(line: usize, column: usize, text: &str) -> Self {
        let last = text.rsplit('\n').next().unwrap_or_default().chars().count();
        let breaks = text.matches('\n').count();
        Self {
            end_line: line + breaks,
            end_column: if breaks == 0 { column + last } else { last + 1 },
            ..Self::at(line, column)
        }
    }
}

impl Place {
    fn of(source: &Source, line: usize, column: usize, span: &std::ops::Range<usize>) -> Self {
        let covered = source.text.get(span.clone()).unwrap_or_default();
        Self {
            file: source.name.clone(),
            region: Some(Region::covering(line, column, covered)),
        }
    }
}

impl Finding {
    pub(super) fn of(found: &Diagnostic) -> Self {
        let label = |label: &Label| Labelled {
            place: Place::of(&label.source, label.line, label.column, &label.span),
            text: label.text.clone(),
        };
        Self {
            severity: found.severity,
            code: found.code,
            place: Place::of(&found.source, found.line, found.column, &found.span),
            message: found.message.clone(),
            help: found.help.clone(),
            labels: found.labels.iter().map(label).collect(),
            text: printable_lines(found.render().trim_end()),
        }
    }

    pub(super) fn unreadable(error: &ReadError) -> Self {
        let message = error.to_string();
        Self {
            severity: Severity::Error,
            code: error.code(),
            place: Place {
                file: error.name.clone(),
                region: error.place().map(|(line, column)| Region::at(line, column)),
            },
            text: format!(
                "{}: error[{}]: {message}",
                printable(&error.name),
                error.code()
            ),
            message,
            help: None,
            labels: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_ends_after_its_last_character() {
        let end = |text| {
            let region = Region::covering(3, 5, text);
            (region.end_line, region.end_column)
        };
        assert_eq!(end(""), (3, 5));
        assert_eq!(end("üb"), (3, 7));
        assert_eq!(end("a\r\nbcd"), (4, 4));
        assert_eq!(end("a\n"), (4, 1));
    }
}
