//! pip's own configuration: its files and variables, with pip's precedence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::draft::Draft;
use super::super::site::Origin;
use super::super::{Machine, PresetError};

/// Section and key.
type Key = (String, String);

/// pip's configuration: its files and variables.
#[derive(Debug)]
pub(super) struct Settings {
    files: BTreeMap<Key, (String, Origin)>,
    variables: BTreeMap<&'static str, (String, Origin)>,
}

/// Commands that fetch packages, each with a section of its own that goes before `[global]`.
const SECTIONS: [&str; 4] = ["global", "install", "download", "wheel"];

const VARIABLES: [(&str, &str); 4] = [
    ("index-url", "PIP_INDEX_URL"),
    ("extra-index-url", "PIP_EXTRA_INDEX_URL"),
    ("find-links", "PIP_FIND_LINKS"),
    ("no-index", "PIP_NO_INDEX"),
];

impl Settings {
    pub(super) fn read(machine: &dyn Machine, draft: &mut Draft) -> Result<Self, PresetError> {
        let mut settings = Self {
            files: BTreeMap::new(),
            variables: BTreeMap::new(),
        };
        for file in files(machine, draft)? {
            if let Some(text) = draft.read(machine, &file)? {
                settings.parse(&file, &text)?;
            }
        }
        for (key, variable) in VARIABLES {
            if let Some(value) = machine.variable(variable) {
                let origin = Origin::variable(variable);
                settings.variables.insert(key, (value.to_owned(), origin));
            }
        }
        Ok(settings)
    }

    /// Python's configparser: sections, `key = value` or `key: value`, values that go on in lines
    /// that are indented.
    fn parse(&mut self, file: &Path, text: &str) -> Result<(), PresetError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut section: Option<String> = None;
        // The key of the line before, and how far it is indented.
        let mut last: Option<(Key, usize)> = None;
        for (number, line) in text.lines().enumerate() {
            let origin = Origin::line(file, number + 1);
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
                continue;
            }
            let indent = line.len() - line.trim_start().len();
            if let Some((key, _)) = last.as_ref().filter(|(_, own)| indent > *own) {
                if let Some((value, _)) = self.files.get_mut(key) {
                    value.push('\n');
                    value.push_str(trimmed);
                }
                continue;
            }
            let header = trimmed
                .strip_prefix('[')
                .and_then(|rest| rest.split_once(']'));
            if let Some((name, _)) = header {
                section = Some(name.to_owned());
                last = None;
                continue;
            }
            let (Some(section), Some((key, value))) = (&section, trimmed.split_once(['=', ':']))
            else {
                let what = "this is neither a `[section]` nor a `key = value` in a section";
                return Err(PresetError::malformed(&origin, what));
            };
            let key = (section.clone(), normal(key));
            self.files
                .insert(key.clone(), (value.trim().to_owned(), origin));
            last = Some((key, indent));
        }
        Ok(())
    }

    /// What a key is set to: by a variable, or else in the sections of all commands.
    pub(super) fn values(&self, key: &str) -> Vec<(String, Origin)> {
        if let Some(value) = self.variables.get(key) {
            return vec![value.clone()];
        }
        let keys = SECTIONS.map(|section| (section.to_owned(), key.to_owned()));
        let found = keys.iter().filter_map(|key| self.files.get(key));
        found
            .filter(|(value, _)| !value.trim().is_empty())
            .cloned()
            .collect()
    }

    /// The words of a list.
    pub(super) fn words(&self, key: &str) -> Vec<(String, Origin)> {
        let values = self.values(key).into_iter();
        let words = values.flat_map(|(value, origin)| {
            let words: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
            words.into_iter().map(move |word| (word, origin.clone()))
        });
        words.collect()
    }

    pub(super) fn is_on(&self, key: &str) -> bool {
        let on = ["1", "true", "yes", "on", "y", "t"];
        self.values(key)
            .iter()
            .any(|(value, _)| on.contains(&value.trim().to_ascii_lowercase().as_str()))
    }
}

/// pip takes a key with dashes or underscores, in any case, and by the name of its option.
fn normal(key: &str) -> String {
    let key = key.trim().to_ascii_lowercase().replace('_', "-");
    let key = key.strip_prefix("--").unwrap_or(&key);
    match key {
        "pypi-url" => "index-url".to_owned(),
        other => other.to_owned(),
    }
}

/// pip's files, the least important first.
fn files(machine: &dyn Machine, draft: &mut Draft) -> Result<Vec<PathBuf>, PresetError> {
    let named = machine.variable("PIP_CONFIG_FILE").map(PathBuf::from);
    if named.as_deref() == Some(Path::new("/dev/null")) {
        return Ok(Vec::new());
    }
    let mut files: Vec<PathBuf> = machine
        .config_dirs()
        .iter()
        .map(|folder| folder.join("pip/pip.conf"))
        .collect();
    files.push("/etc/pip.conf".into());
    // The user's files are read only where no file is named that is there.
    let is_named = match &named {
        Some(file) => draft.read(machine, file)?.is_some(),
        None => false,
    };
    if !is_named {
        files.extend(machine.home().map(|home| home.join(".pip/pip.conf")));
        files.extend(
            machine
                .config_home()
                .map(|folder| folder.join("pip/pip.conf")),
        );
    }
    let environments = ["CONDA_PREFIX", "VIRTUAL_ENV"].map(|variable| machine.folder(variable));
    files.extend(
        environments
            .iter()
            .flatten()
            .map(|folder| folder.join("pip.conf")),
    );
    files.extend(named);
    Ok(files)
}
