//! A machine made of a few lines, and the check that every made preset must pass.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use outgate_policy::{CanonicalRequest, Policy, Source, Verdict};

use super::{Machine, Preset, PresetError, load};

/// A machine that somebody works on in `/project`, with their home in `/home/me`.
#[derive(Debug)]
pub(super) struct Fake {
    variables: BTreeMap<String, String>,
    files: BTreeMap<PathBuf, String>,
    unreadable: BTreeSet<PathBuf>,
    programs: BTreeMap<String, PathBuf>,
    answers: BTreeMap<String, String>,
}

impl Fake {
    pub(super) fn new() -> Self {
        Self {
            variables: BTreeMap::from([("HOME".to_owned(), "/home/me".to_owned())]),
            files: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            programs: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    pub(super) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(super) fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), text.to_owned());
        self
    }

    /// A file that is there and can't be read.
    pub(super) fn unreadable(mut self, path: &str) -> Self {
        self.unreadable.insert(path.into());
        self
    }

    pub(super) fn program(mut self, name: &str, path: &str) -> Self {
        self.programs.insert(name.to_owned(), path.into());
        self
    }

    /// What a program says, whatever it is asked.
    pub(super) fn answer(mut self, program: &str, text: &str) -> Self {
        self.answers.insert(program.to_owned(), text.to_owned());
        self
    }

    /// The preset, checked.
    pub(super) fn preset(&self, name: &str) -> Preset {
        let preset = load(name, self).unwrap_or_else(|error| panic!("{error}"));
        check(&preset.text);
        preset
    }

    /// Why there is none.
    pub(super) fn refusal(&self, name: &str) -> String {
        let error = load(name, self).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
        error
    }
}

impl Machine for Fake {
    fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    fn read(&self, file: &Path) -> Result<Option<String>, PresetError> {
        if self.unreadable.contains(file) {
            let denied = io::ErrorKind::PermissionDenied.into();
            return Err(PresetError::unreadable(file, denied));
        }
        Ok(self.files.get(file).cloned())
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>, PresetError> {
        let below = self.files.keys().filter_map(|file| {
            let below = file.strip_prefix(folder).ok()?;
            let first = below.components().next()?;
            Some(first.as_os_str().to_str()?.to_owned())
        });
        Ok(below.collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn project(&self) -> Option<&Path> {
        Some(Path::new("/project"))
    }

    fn is_of_project(&self, file: &Path) -> bool {
        file.is_relative() || file.starts_with("/project")
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.programs.get(program).cloned()
    }

    fn ask(&self, program: &str, _: &[&str]) -> Option<String> {
        self.answers.get(program).cloned()
    }
}

/// A made preset loads without a finding, and its tests hold.
pub(super) fn check(text: &str) {
    let policy = policy(text);
    let lints: Vec<String> = policy
        .lints()
        .iter()
        .map(outgate_policy::Diagnostic::render)
        .collect();
    assert!(lints.is_empty(), "{}\n{text}", lints.join("\n"));
    let outcomes = policy.run_tests();
    for expected in ["allow", "deny", "reject"] {
        let tested = outcomes.iter().any(|outcome| outcome.expected == expected);
        assert!(tested, "no test expects {expected}\n{text}");
    }
    for outcome in outcomes {
        assert!(
            outcome.passed(),
            "{}: {:?}\n{text}",
            outcome.request,
            outcome.differences
        );
    }
}

/// Whether a preset allows a request.
pub(super) fn allows(preset: &Preset, request: &str) -> bool {
    let request = CanonicalRequest::from_line(request).unwrap();
    policy(&preset.text).decide(&request).verdict() == Verdict::Allow
}

fn policy(text: &str) -> Policy {
    Policy::load(&[Source::new("preset", text)]).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}
