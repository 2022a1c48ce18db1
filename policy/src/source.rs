//! A policy text with everything that it includes, gathered before anything is compiled.
//!
//! This crate reads no files: [`Source::assemble`] asks its caller for each. What is included is
//! named as people see it, so that a rule's origin, a diagnostic and `include:` agree.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::document::decode_includes;
use crate::{Diagnostic, Diagnostics};

/// A policy text with the name it is reported under, usually a path. One source is one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// As people should see it in messages and in the audit log.
    pub name: String,
    /// YAML.
    pub text: String,
    /// The files that this one includes, and those that they include: each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub included: Vec<Included>,
}

/// A text that a source includes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Included {
    /// `preset:NAME`, or a path.
    pub name: String,
    /// YAML.
    pub text: String,
}

impl Source {
    /// Files that one source may include, all levels together.
    pub const MAX_INCLUDED: usize = 64;
    /// Bytes of one source with all that it includes. Ten thousand wordy rules take two megabytes.
    pub const MAX_BYTES: usize = 16 * 1024 * 1024;

    /// A named text that includes nothing.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
            included: Vec::new(),
        }
    }

    /// A named text with what it includes: `read` is asked once for each name, `preset:NAME` or a
    /// path; a relative one is relative to where `name` is.
    ///
    /// # Errors
    /// What can't be read, at the place that includes it, in the words of `read`.
    pub fn assemble(
        name: impl Into<String>,
        text: impl Into<String>,
        mut read: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, Diagnostics> {
        let mut source = Self::new(name, text);
        let mut found = Vec::new();
        let mut known = BTreeSet::from([source.name.clone()]);
        let mut bytes = source.text.len();
        let mut next = 0;
        let mut current = Arc::new(source.clone());
        loop {
            for reference in includes(&current) {
                // Whatever else is wrong with a reference is said when the source is compiled.
                let Ok(name) = included_name(&current.name, &reference.value) else {
                    continue;
                };
                if !known.insert(name.clone()) {
                    continue;
                }
                let refuse = |message: String| {
                    let span = reference.span.clone();
                    Diagnostic::error("include_unreadable", &current, span, message)
                };
                if source.included.len() >= Self::MAX_INCLUDED {
                    let most = Self::MAX_INCLUDED;
                    found.push(refuse(format!("more than {most} files are included")));
                    return Diagnostics::check(found).map(|()| source);
                }
                match read(&name) {
                    Ok(text) => {
                        bytes = bytes.saturating_add(text.len());
                        source.included.push(Included { name, text });
                    }
                    Err(why) => found.push(refuse(format!("`{name}` can't be included: {why}"))),
                }
                if bytes > Self::MAX_BYTES {
                    let most = Self::MAX_BYTES;
                    found.push(refuse(format!(
                        "the policy with all that it includes is larger than {most} bytes"
                    )));
                    return Diagnostics::check(found).map(|()| source);
                }
            }
            let Some(included) = source.included.get(next) else {
                break;
            };
            current = Arc::new(Self::new(&included.name, &included.text));
            next += 1;
        }
        Diagnostics::check(found)?;
        Ok(source)
    }
}

fn includes(source: &Arc<Source>) -> Vec<crate::document::At<String>> {
    // Most files include nothing, and reading a large one twice takes time.
    if source.text.contains("include") {
        decode_includes(source)
    } else {
        Vec::new()
    }
}

/// The name of what a file includes: `reference` is `preset:NAME`, or a path relative to `from`.
pub(crate) fn included_name(from: &str, reference: &str) -> Result<String, IncludeError> {
    if let Some(preset) = reference.strip_prefix("preset:") {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if preset.is_empty() || preset.len() > 64 || !preset.bytes().all(plain) {
            return Err(IncludeError::BadPreset);
        }
        return Ok(reference.to_owned());
    }
    if reference.starts_with('/') {
        return Ok(normal(reference));
    }
    if !reference.starts_with("./") && !reference.starts_with("../") {
        return Err(IncludeError::NoPath);
    }
    if from.starts_with("preset:") {
        return Err(IncludeError::FromPreset);
    }
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    Ok(match (folder, from.starts_with('/')) {
        ("", true) => normal(&format!("/{reference}")),
        ("", false) => normal(reference),
        _ => normal(&format!("{folder}/{reference}")),
    })
}

/// A path without `.` segments, and without `..` where what it leaves is known.
fn normal(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." if kept.last().is_some_and(|last| *last != "..") => {
                kept.pop();
            }
            ".." if absolute => {}
            _ => kept.push(segment),
        }
    }
    let root = if absolute { "/" } else { "" };
    format!("{root}{}", kept.join("/"))
}

/// What is wrong with an entry of `include:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncludeError {
    BadPreset,
    NoPath,
    FromPreset,
}

impl IncludeError {
    /// What is wrong, and what to write.
    pub(crate) const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::BadPreset => (
                "is no name of a preset",
                "write `preset:` and small letters, digits and `-`; `outgate policy presets` lists them",
            ),
            Self::NoPath => (
                "is neither a preset nor a path",
                "write `preset:NAME`, or a path that begins with `./`, `../` or `/`",
            ),
            Self::FromPreset => (
                "is a relative path in a preset, which lies in no folder",
                "include another preset, or an absolute path",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_include_is_named_relative_to_its_file() {
        for (from, reference, name) in [
            ("a.yaml", "./b.yaml", "b.yaml"),
            ("x/a.yaml", "./b.yaml", "x/b.yaml"),
            ("x/a.yaml", "../b.yaml", "b.yaml"),
            ("a.yaml", "../b.yaml", "../b.yaml"),
            ("/x/a.yaml", "../../../b.yaml", "/b.yaml"),
            ("/a.yaml", "./b.yaml", "/b.yaml"),
            ("x/a.yaml", "/etc/b.yaml", "/etc/b.yaml"),
            ("x/a.yaml", "./.././y//b.yaml", "y/b.yaml"),
            ("preset:npm", "preset:pip", "preset:pip"),
        ] {
            assert_eq!(
                included_name(from, reference).as_deref(),
                Ok(name),
                "{from} {reference}"
            );
        }
        assert_eq!(included_name("a", "b.yaml"), Err(IncludeError::NoPath));
        assert_eq!(included_name("a", "https://x/b"), Err(IncludeError::NoPath));
        assert_eq!(
            included_name("a", "preset:../x"),
            Err(IncludeError::BadPreset)
        );
        assert_eq!(
            included_name("preset:a", "./x"),
            Err(IncludeError::FromPreset)
        );
    }

    fn assemble(files: &[(&str, &str)]) -> Result<Source, String> {
        let files: BTreeMap<&str, &str> = files.iter().copied().collect();
        Source::assemble("p.yaml", files["p.yaml"], |name| {
            let text = files.get(name).ok_or("no such file")?;
            Ok((*text).to_owned())
        })
        .map_err(|errors| errors.render())
    }

    #[test]
    fn each_file_is_read_once_however_often_it_is_included() {
        let source = assemble(&[
            ("p.yaml", "version: 1\ninclude: [./a.yaml, ./x/b.yaml]\n"),
            ("a.yaml", "version: 1\ninclude: [./x/b.yaml, ./p.yaml]\n"),
            ("x/b.yaml", "version: 1\ninclude: [../a.yaml]\n"),
        ]);
        let names: Vec<_> = source
            .unwrap()
            .included
            .into_iter()
            .map(|file| file.name)
            .collect();
        assert_eq!(names, ["a.yaml", "x/b.yaml"]);
    }

    #[test]
    fn what_cannot_be_read_is_reported_where_it_is_included() {
        let text = "version: 1\ninclude: [./gone.yaml, ./a.yaml]\n";
        let errors = assemble(&[("p.yaml", text), ("a.yaml", "include: [./lost.yaml]\n")]);
        let errors = errors.unwrap_err();
        assert!(errors.contains("p.yaml:2:11: error[include_unreadable]: `gone.yaml` can't be included: no such file"), "{errors}");
        assert!(
            errors.contains("a.yaml:1:11: error[include_unreadable]"),
            "{errors}"
        );
    }

    #[test]
    fn a_chain_without_end_ends() {
        let mut asked = 0;
        let errors = Source::assemble("0", "include: [./1]", |name| {
            asked += 1;
            Ok(format!(
                "include: [./{}]",
                name.parse::<usize>().unwrap() + 1
            ))
        });
        assert!(errors.unwrap_err().render().contains("more than 64 files"));
        assert_eq!(asked, Source::MAX_INCLUDED);
    }
}
