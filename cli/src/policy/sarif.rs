//! Findings as SARIF 2.1.0, the format of code scanning (OASIS, section numbers below are its).

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use outgate_policy::Severity;
use serde::Serialize;

use super::findings::{Checked, Finding, Labelled, Place, Region};

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// The findings of all files as one run.
///
/// # Errors
/// None that a finding could bring about.
pub(super) fn of_findings(checked: &[Checked]) -> serde_json::Result<String> {
    let files = checked
        .iter()
        .map(|file| (file.name.as_str(), file.path.as_path()));
    let findings: Vec<&Finding> = checked.iter().flat_map(|file| &file.findings).collect();
    document(&Files::new(files), &findings)
}

/// `files` are the paths by what they are called in the findings.
///
/// # Errors
/// None that a finding could bring about.
pub(super) fn document(files: &Files<'_>, findings: &[&Finding]) -> serde_json::Result<String> {
    let rules = rules(findings);
    let numbers: HashMap<&str, usize> = rules
        .iter()
        .enumerate()
        .map(|(number, rule)| (rule.id, number))
        .collect();
    let result = |finding: &&Finding| Outcome {
        rule_id: finding.code,
        rule_index: numbers.get(finding.code).copied().unwrap_or_default(),
        level: level(finding.severity),
        message: Text::new(&match &finding.help {
            Some(help) => format!("{}\n{help}", finding.message),
            None => finding.message.clone(),
        }),
        locations: vec![files.location(&finding.place, None)],
        related_locations: finding
            .labels
            .iter()
            .map(|Labelled { place, text }| files.location(place, Some(text)))
            .collect(),
    };
    let results = findings.iter().map(result).collect();
    let log = Log {
        version: "2.1.0",
        schema: SCHEMA,
        runs: [Run {
            tool: Tool {
                driver: Driver {
                    name: "outgate",
                    version: env!("CARGO_PKG_VERSION"),
                    information_uri: env!("CARGO_PKG_REPOSITORY"),
                    rules,
                },
            },
            column_kind: "unicodeCodePoints",
            results,
        }],
    };
    serde_json::to_string_pretty(&log)
}

/// One rule for each code that was found, in the order of the codes.
fn rules<'a>(findings: &[&'a Finding]) -> Vec<Rule<'a>> {
    let mut rules: BTreeMap<&str, Rule<'_>> = BTreeMap::new();
    for finding in findings {
        let rule = rules.entry(finding.code).or_insert_with(|| Rule {
            id: finding.code,
            short_description: Text::new(&finding.code.replace('_', " ")),
            help: Text::new(finding.help.as_ref().unwrap_or(&finding.message)),
            default_configuration: Configuration {
                level: level(finding.severity),
            },
        });
        if finding.severity == Severity::Error {
            rule.default_configuration.level = level(Severity::Error);
        }
    }
    rules.into_values().collect()
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

#[derive(Serialize)]
struct Log<'a> {
    version: &'static str,
    #[serde(rename = "$schema")]
    schema: &'static str,
    runs: [Run<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run<'a> {
    tool: Tool<'a>,
    column_kind: &'static str,
    results: Vec<Outcome<'a>>,
}

#[derive(Serialize)]
struct Tool<'a> {
    driver: Driver<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Driver<'a> {
    name: &'static str,
    version: &'static str,
    information_uri: &'static str,
    rules: Vec<Rule<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule<'a> {
    id: &'a str,
    short_description: Text,
    help: Text,
    default_configuration: Configuration,
}

#[derive(Serialize)]
struct Configuration {
    level: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    rule_id: &'a str,
    rule_index: usize,
    level: &'static str,
    message: Text,
    locations: Vec<Location>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    related_locations: Vec<Location>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    physical_location: PhysicalLocation,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Text>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PhysicalLocation {
    artifact_location: ArtifactLocation,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<SourceRegion>,
}

#[derive(Serialize)]
struct ArtifactLocation {
    uri: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SourceRegion {
    start_line: usize,
    start_column: usize,
    end_line: usize,
    end_column: usize,
}

impl From<Region> for SourceRegion {
    fn from(region: Region) -> Self {
        Self {
            start_line: region.line,
            start_column: region.column,
            end_line: region.end_line,
            end_column: region.end_column,
        }
    }
}

/// A plain text message.
#[derive(Serialize)]
struct Text {
    text: String,
}

impl Text {
    /// Braces are doubled (3.11.5). A `](` would end the text of a link (3.11.6): text from a policy
    /// must not become one.
    fn new(text: &str) -> Self {
        let text = crate::output::printable_lines(text);
        let text = text.replace('{', "{{").replace('}', "}}");
        Self {
            text: text.replace("](", "] ("),
        }
    }
}

/// The URIs of files.
pub(super) struct Files<'a> {
    paths: HashMap<&'a str, &'a Path>,
    /// URIs below it are relative.
    here: PathBuf,
}

impl<'a> Files<'a> {
    /// Paths by what they are called in findings.
    pub(super) fn new(paths: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Self {
        Self {
            paths: paths.into_iter().collect(),
            here: std::env::current_dir().unwrap_or_default(),
        }
    }

    fn location(&self, place: &Place, message: Option<&str>) -> Location {
        let name = place.file.as_str();
        let path = self.paths.get(name).copied();
        Location {
            physical_location: PhysicalLocation {
                artifact_location: ArtifactLocation {
                    uri: uri(path.unwrap_or_else(|| Path::new(name)), &self.here),
                },
                region: place.region.map(SourceRegion::from),
            },
            message: message.map(Text::new),
        }
    }
}

/// Relative to `here` where the file is below it, else absolute; never with a dot segment.
fn uri(path: &Path, here: &Path) -> String {
    let whole = here.join(path);
    let mut segments: Vec<&[u8]> = Vec::new();
    for component in whole.components() {
        match component {
            Component::Normal(name) => segments.push(name.as_bytes()),
            Component::ParentDir => {
                segments.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    let base: Vec<&[u8]> = here
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        })
        .collect();
    let (lead, segments) = match segments.strip_prefix(base.as_slice()) {
        Some(below) if !below.is_empty() => ("", below),
        _ => ("file:///", segments.as_slice()),
    };
    let segments: Vec<String> = segments.iter().map(|segment| escape(segment)).collect();
    format!("{lead}{}", segments.join("/"))
}

/// Percent-encodes all but the unreserved characters of RFC 3986.
fn escape(segment: &[u8]) -> String {
    let mut out = String::with_capacity(segment.len());
    for byte in segment {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn uris_are_relative_below_the_folder_and_escaped() {
        let here = Path::new("/work dir/repo");
        for (path, expected) in [
            ("p.yaml", "p.yaml"),
            ("./a/../b/p q#?.yaml", "b/p%20q%23%3F.yaml"),
            ("c:d%.yaml", "c%3Ad%25.yaml"),
            ("../other/ü.yaml", "file:///work%20dir/other/%C3%BC.yaml"),
            ("/work dir/repo/x.yaml", "x.yaml"),
            (
                "/work dir/repository/x.yaml",
                "file:///work%20dir/repository/x.yaml",
            ),
            ("/x.yaml", "file:///x.yaml"),
            ("/../../x.yaml", "file:///x.yaml"),
            ("<stdin>", "%3Cstdin%3E"),
        ] {
            assert_eq!(uri(Path::new(path), here), expected, "{path}");
        }
        assert_eq!(uri(Path::new(OsStr::from_bytes(b"\xff\n")), here), "%FF%0A");
        assert_eq!(uri(Path::new("x"), Path::new("/")), "x");
    }

    #[test]
    fn text_is_neither_link_nor_placeholder() {
        let text = Text::new("write `{0}`, see [here](https://evil.test/)\u{202e}\u{1b}").text;
        assert_eq!(
            text,
            r"write `{{0}}`, see [here] (https://evil.test/)\u{{202e}}\u{{1b}}"
        );
    }
}
