//! A folder with files, and the program run in it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

pub(crate) struct Desk {
    dir: TempDir,
}

/// What the program left behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
        }
    }

    /// With files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let desk = Self::new();
        for (name, content) in files {
            desk.write(name, content);
        }
        desk
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(name), content).expect("a file");
    }

    /// Runs `outgate policy …`.
    pub(crate) fn policy(&self, args: &[&str]) -> Run {
        self.policy_reading("", args)
    }

    /// The same, with something on standard input.
    pub(crate) fn policy_reading(&self, stdin: &str, args: &[&str]) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outgate"))
            .arg("policy")
            .args(args)
            .current_dir(self.path())
            .env("OUTGATE_STATE", self.path().join("state"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut input = child.stdin.take().expect("standard input");
        let stdin = stdin.to_owned();
        // The program may end without reading.
        let writer = std::thread::spawn(move || input.write_all(stdin.as_bytes()).is_ok());
        let output = child.wait_with_output().expect("an end");
        writer.join().expect("the writer");
        Run {
            code: output.status.code().expect("an exit code"),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

impl Run {
    /// Standard output as JSON, one value a line.
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert(&self, code: i32, out: &str) {
        assert_eq!(self.out, out, "{}", self.err);
        assert_eq!((self.code, self.err.as_str()), (code, ""));
    }
}
