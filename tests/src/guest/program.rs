//! Real programs of this host, run inside a guest's network with an environment of its own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::Guest;

/// Where programs are looked for; version managers' shims in a person's `PATH` stay out.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Seconds until a program that hangs is killed: longer than any legitimate one takes here.
const DEADLINE_SECONDS: &str = "60";

/// A program about to run.
#[derive(Debug)]
pub struct Program<'a> {
    guest: &'a Guest,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    input: Vec<u8>,
}

impl<'a> Program<'a> {
    pub(super) fn new(guest: &'a Guest, program: &str) -> Self {
        let arguments = ["timeout", "--kill-after=1", DEADLINE_SECONDS, program];
        Self {
            guest,
            arguments: arguments.map(str::to_owned).to_vec(),
            environment: guest.environment().clone(),
            input: Vec::new(),
        }
    }

    pub fn args<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// What the program reads from its standard input; nothing unless set.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Finished {
        let input = std::mem::take(&mut self.input);
        let name = self.arguments[3].clone();
        let mut child = self.spawn();
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // A program may end without reading its input: that is its business.
        let feed = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child
            .wait_with_output()
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let _ = feed.join();
        output.into()
    }

    /// Starts it with all three streams piped.
    pub fn spawn(self) -> Child {
        let folder = self.guest.folder().to_owned();
        let (arguments, environment) = (self.arguments, self.environment);
        let name = arguments[3].clone();
        let spawned = self
            .guest
            .namespace()
            .run(move || start(&arguments, &environment, &folder));
        spawned.unwrap_or_else(|error| panic!("cannot run `{name}`: {error}"))
    }
}

fn start(
    arguments: &[String],
    environment: &BTreeMap<String, String>,
    folder: &Path,
) -> std::io::Result<Child> {
    Command::new(&arguments[0])
        .args(&arguments[1..])
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", folder)
        .env("LC_ALL", "C.UTF-8")
        .envs(environment)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// How a program ended and what it wrote.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    /// Lossy text.
    pub stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    /// Standard output as lossy text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails the test with the program's own words unless it ended well.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(
            self.code,
            Some(0),
            "stdout: {}\nstderr: {}",
            self.text(),
            self.stderr
        );
        self
    }
}
