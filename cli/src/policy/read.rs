//! Reading policy files: bounded, as UTF-8, and with an error that says what to do.
//!
//! Every command reads here, so that `-`, a folder or a file of another encoding means the same to
//! all of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use outgate_policy::{Diagnostics, Policy, Source};

use crate::exit::{Code, Failure};
use crate::output::{printable, printable_lines};
use crate::preset::{self, PresetError, ThisMachine};

/// Bytes of one file: what the loader takes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The path that means standard input.
const STDIN: &str = "-";
/// What begins the name of a preset.
const PRESET: &str = "preset:";
/// What standard input is called in messages.
const STDIN_NAME: &str = "<stdin>";

/// Reads policy files as layers, the first one the most general. A folder stands for those of its
/// policies that select a sandbox with these labels. Every file of the folder has to load: one that
/// doesn't could have been meant to narrow.
///
/// # Errors
/// A [`Failure`] with [`Code::Usage`] for a file that can't be read, or of a folder that doesn't load.
pub(crate) fn select(
    paths: &[PathBuf],
    labels: &BTreeMap<String, String>,
) -> Result<Vec<Source>, Failure> {
    let mut reader = Reader::default();
    let mut chosen = Vec::new();
    for path in paths {
        if !path.is_dir() {
            chosen.extend(read_with(&mut reader, [path])?);
            continue;
        }
        for source in read_with(&mut reader, &policies_in(path)?)? {
            let policy = load(std::slice::from_ref(&source))?;
            if policy.has_selection() && policy.selects(labels) {
                chosen.push(source);
            }
        }
    }
    Ok(chosen)
}

/// The policy files of a folder, by name; what is in folders below is not looked at.
fn policies_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error: io::Error| {
        let name = printable(&name_of(folder)).to_string();
        Failure::new(Code::Usage, format!("`{name}` can't be read: {error}"))
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path
            .extension()
            .is_some_and(|end| end == "yaml" || end == "yml")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads policy files as layers, where other things are read as well.
///
/// # Errors
/// A [`Failure`] with [`Code::Usage`] for a file that can't be read.
pub(super) fn read_with<'a>(
    reader: &mut Reader,
    paths: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<Vec<Source>, Failure> {
    let sources = paths.into_iter().map(|path| reader.read(path));
    sources
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::new(Code::Usage, error))
}

/// Loads `sources`, or fails with every diagnostic in its words.
///
/// # Errors
/// A [`Failure`] with [`Code::Usage`].
pub(crate) fn load(sources: &[Source]) -> Result<Policy, Failure> {
    Policy::load(sources).map_err(|diagnostics| {
        let message = format!(
            "the policy does not load\n\n{}",
            printable_lines(diagnostics.render().trim_end())
        );
        Failure::new(Code::Usage, message)
    })
}

/// Reads files one by one. Standard input can be read once.
#[derive(Debug, Default)]
pub(super) struct Reader {
    stdin_is_read: bool,
}

impl Reader {
    /// Reads a policy file with all that it includes; `-` is standard input, `preset:NAME` a preset.
    pub(super) fn read(&mut self, path: &Path) -> Result<Source, ReadError> {
        let name = name_of(path);
        let read = self.text_of(path, &name).and_then(|text| {
            let included = |name: &str| {
                let text = self.text_of(Path::new(name), name);
                text.map_err(|problem| problem.to_string())
            };
            Source::assemble(&name, text, included).map_err(Problem::Includes)
        });
        read.map_err(|problem| ReadError { name, problem })
    }

    fn text_of(&mut self, path: &Path, name: &str) -> Result<String, Problem> {
        if !name.starts_with(PRESET) {
            return self.bytes_of(path).and_then(utf8);
        }
        let preset = preset::load(name, &ThisMachine::new()).map_err(Problem::Preset)?;
        for note in &preset.notes {
            eprintln!("outgate: {name}: {}", printable(note));
        }
        Ok(preset.text)
    }

    /// Reads a file of any kind; `-` is standard input.
    pub(super) fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, ReadError> {
        self.bytes_of(path).map_err(|problem| ReadError {
            name: name_of(path),
            problem,
        })
    }

    fn bytes_of(&mut self, path: &Path) -> Result<Vec<u8>, Problem> {
        if path.as_os_str() != STDIN {
            let file = File::open(path)?;
            let found = file.metadata()?;
            if found.is_dir() {
                return Err(Problem::Folder);
            }
            if found.len() > MAX_BYTES {
                return Err(Problem::TooLarge);
            }
            return bounded(file);
        }
        if std::mem::replace(&mut self.stdin_is_read, true) {
            return Err(Problem::StdinTwice);
        }
        bounded(io::stdin().lock())
    }
}

/// What a file is called in messages and reports.
pub(super) fn name_of(path: &Path) -> String {
    if path.as_os_str() == STDIN {
        return STDIN_NAME.to_owned();
    }
    path.display().to_string()
}

/// Reads to the end, but not beyond the bound: a pipe or a device has no size to ask for.
fn bounded(from: impl Read) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Problem::TooLarge);
    }
    Ok(bytes)
}

fn utf8(bytes: Vec<u8>) -> Result<String, Problem> {
    String::from_utf8(bytes).map_err(|error| {
        let (good, bad) = error
            .as_bytes()
            .split_at_checked(error.utf8_error().valid_up_to())
            .unwrap_or_default();
        let good = String::from_utf8_lossy(good);
        let last = good.rsplit('\n').next().unwrap_or_default();
        Problem::NotUtf8 {
            line: good.matches('\n').count() + 1,
            column: last.chars().count() + 1,
            byte: bad.first().copied().unwrap_or_default(),
        }
    })
}

/// Why a file can't be read.
#[derive(Debug, thiserror::Error)]
#[error("`{}` {problem}", printable(.name))]
pub(super) struct ReadError {
    pub(super) name: String,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("does not exist; check the spelling of the path")]
    Missing,
    #[error("is a folder; name the files in it")]
    Folder,
    #[error("is larger than {} MiB, the most that is read", MAX_BYTES >> 20)]
    TooLarge,
    #[error(
        "is no UTF-8: line {line}, column {column} has the byte 0x{byte:02x}; save it as UTF-8"
    )]
    NotUtf8 {
        line: usize,
        column: usize,
        byte: u8,
    },
    #[error("was read already: `-` can be named once")]
    StdinTwice,
    #[error("can't be read: {0}")]
    Io(io::Error),
    #[error("can't be made: {0}")]
    Preset(PresetError),
    #[error("includes what can't be read\n\n{}", printable_lines(.0.render().trim_end()))]
    Includes(Diagnostics),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::IsADirectory => Self::Folder,
            _ => Self::Io(error),
        }
    }
}

impl ReadError {
    /// Stable, as the codes of diagnostics are.
    pub(super) const fn code(&self) -> &'static str {
        match self.problem {
            Problem::Missing => "file_missing",
            Problem::Folder => "file_is_folder",
            Problem::TooLarge => "file_too_large",
            Problem::NotUtf8 { .. } => "file_not_utf8",
            Problem::StdinTwice => "stdin_twice",
            Problem::Io(_) => "file_unreadable",
            Problem::Preset(_) => "preset",
            Problem::Includes(_) => "include_unreadable",
        }
    }

    /// What is wrong with the includes of a file that can be read itself.
    pub(super) const fn includes(&self) -> Option<&Diagnostics> {
        match &self.problem {
            Problem::Includes(diagnostics) => Some(diagnostics),
            _ => None,
        }
    }

    /// Line and column, where the problem has a place.
    pub(super) const fn place(&self) -> Option<(usize, usize)> {
        match self.problem {
            Problem::NotUtf8 { line, column, .. } => Some((line, column)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn error(content: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.yaml");
        std::fs::write(&path, content).unwrap();
        let error = Reader::default().read(&path).unwrap_err().to_string();
        error.replace(&path.display().to_string(), "p.yaml")
    }

    #[test]
    fn the_first_byte_that_is_no_utf8_is_named() {
        assert_eq!(
            error(b"a: 1\nb: \xc3\xbc\xff"),
            "`p.yaml` is no UTF-8: line 2, column 5 has the byte 0xff; save it as UTF-8"
        );
        assert_eq!(
            error(b"\xff\xfea\0"),
            "`p.yaml` is no UTF-8: line 1, column 1 has the byte 0xff; save it as UTF-8"
        );
    }

    #[test]
    fn what_is_too_large_is_refused_whether_it_has_a_size_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.yaml");
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for path in [path.as_path(), Path::new("/dev/zero")] {
            let error = Reader::default().read(path).unwrap_err();
            assert_eq!(error.code(), "file_too_large", "{error}");
        }
        File::create(&path).unwrap().set_len(MAX_BYTES).unwrap();
        assert_eq!(
            Reader::default().read(&path).unwrap().text.len() as u64,
            MAX_BYTES
        );
    }

    #[test]
    fn a_folder_stands_for_the_policies_that_select_the_sandbox() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.yaml", "version: 1\nsandboxes: { labels: { team: a } }\n");
        write(
            "b.yml",
            "version: 1\nsandboxes: { labels: { tier: dev } }\n",
        );
        write("everybody.yaml", "version: 1\n");
        write("notes.txt", "no policy");
        let folder = [dir.path().to_owned()];
        let names = |labels: &[(&str, &str)]| -> Vec<String> {
            let labels = labels.iter();
            let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let sources = select(&folder, &labels.collect()).unwrap();
            let name = |source: Source| source.name.rsplit('/').next().unwrap().to_owned();
            sources.into_iter().map(name).collect()
        };
        assert_eq!(names(&[("team", "a")]), ["a.yaml"]);
        assert_eq!(
            names(&[("team", "a"), ("tier", "dev")]),
            ["a.yaml", "b.yml"]
        );
        assert!(names(&[]).is_empty());
        write("broken.yaml", "version: 2\n");
        assert!(select(&folder, &BTreeMap::new()).is_err());
    }

    #[test]
    fn a_name_cannot_drive_the_terminal() {
        let path = Path::new(std::ffi::OsStr::from_bytes(b"\x1b[2J\n\xff"));
        let error = Reader::default().read(path).unwrap_err().to_string();
        assert_eq!(
            error,
            "`\\u{1b}[2J\\n\u{fffd}` does not exist; check the spelling of the path"
        );
        let folder = Reader::default().read(Path::new("/")).unwrap_err();
        assert_eq!(folder.to_string(), "`/` is a folder; name the files in it");
    }
}
