//! `outgate policy fmt`: policy files in the one layout.
//!
//! A file is replaced whole or not at all, and keeps its mode; a link stays a link.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tempfile::NamedTempFile;

use super::findings::Finding;
use super::read::Reader;
use crate::exit::{Code, Failure};
use crate::output::{self, printable};

/// Write policy files in the one layout.
///
/// Ends with 0, with 1 under --check when a file is laid out otherwise, and with 2 when a file can't
/// be read as a policy or be written.
#[derive(Debug, Args)]
pub(crate) struct FmtArgs {
    /// Policy files
    #[arg(value_name = "FILE", required_unless_present = "stdin")]
    files: Vec<PathBuf>,
    /// Write nothing; list the files that are laid out otherwise
    #[arg(long)]
    check: bool,
    /// Read standard input, and write the result on standard output
    #[arg(long, conflicts_with = "files")]
    stdin: bool,
}

/// What became of one file.
enum Outcome {
    Same,
    /// It is laid out otherwise, or was.
    Changed,
    Broken,
}

impl FmtArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut reader = Reader::default();
        let stdin = [PathBuf::from("-")];
        let files = if self.stdin {
            stdin.as_slice()
        } else {
            &self.files
        };
        let (mut broken, mut changed) = (false, false);
        for path in files {
            match self.one(&mut reader, path)? {
                Outcome::Same => {}
                Outcome::Changed => changed = true,
                Outcome::Broken => broken = true,
            }
        }
        Ok(if broken {
            Code::Usage.into()
        } else if self.check && changed {
            Code::CheckFailed.into()
        } else {
            ExitCode::SUCCESS
        })
    }

    fn one(&self, reader: &mut Reader, path: &Path) -> anyhow::Result<Outcome> {
        let source = match reader.read(path) {
            Ok(source) => source,
            Err(error) => return Ok(complain(&[Finding::unreadable(&error)])),
        };
        let text = match outgate_policy::format(&source) {
            Ok(text) => text,
            Err(errors) => {
                let findings: Vec<Finding> = errors.iter().map(Finding::of).collect();
                return Ok(complain(&findings));
            }
        };
        let is_same = text == source.text;
        let is_stdin = path.as_os_str() == "-";
        if is_stdin && !self.check {
            io::stdout().lock().write_all(text.as_bytes())?;
        } else if !is_same {
            output::line(printable(&source.name))?;
            if !self.check {
                replace(path, &text).map_err(|error| {
                    let name = printable(&source.name);
                    Failure::new(Code::Usage, format!("`{name}` can't be written: {error}"))
                })?;
            }
        }
        Ok(if is_same {
            Outcome::Same
        } else {
            Outcome::Changed
        })
    }
}

/// On standard error: standard output may be the file.
fn complain(findings: &[Finding]) -> Outcome {
    for finding in findings {
        eprintln!("{}\n", finding.text);
    }
    Outcome::Broken
}

/// Writes beside the file and moves over it, so that nobody ever sees half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    let mut fresh = NamedTempFile::new_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    fresh
        .as_file()
        .set_permissions(fs::metadata(&path)?.permissions())?;
    fresh.as_file().sync_all()?;
    fresh.persist(&path)?;
    Ok(())
}
