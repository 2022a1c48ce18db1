//! What `outgate run` tells the person or the harness while it works.
//!
//! Three voices over one set of events: a progress line on standard error for people, JSON lines
//! on standard output for programs (`--json`), and silence (`--quiet`).

use std::io::{self, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(120);

/// One thing that happened.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// A step of the set-up began or went on.
    Progress {
        step: &'a str,
        detail: &'a str,
        elapsed_ms: u128,
    },
    /// The sandbox is up and the command is about to run.
    Started {
        sandbox: &'a str,
        accelerator: &'a str,
        policy_revision: &'a str,
        boot_ms: u128,
    },
    /// Bytes of the command; `text` when they are UTF-8, else `base64`.
    Output {
        stream: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// Something that the person should know and that doesn't stop the run.
    Warning { message: &'a str },
    /// The end: the code of the process, and whose code it is (`guest` or `outgate`).
    Exit {
        code: u8,
        source: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'a str>,
        audit: &'a str,
    },
}

#[derive(Debug)]
enum Voice {
    Person(ProgressBar),
    Json,
    Quiet,
}

/// Tells events in the voice that the command line chose.
#[derive(Debug)]
pub(crate) struct Reporter {
    voice: Voice,
    since: Instant,
}

impl Reporter {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let voice = match (json, quiet) {
            (true, _) => Voice::Json,
            (false, true) => Voice::Quiet,
            (false, false) => Voice::Person(spinner()),
        };
        Self {
            voice,
            since: Instant::now(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        matches!(self.voice, Voice::Json)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn progress(&self, step: &str, detail: &str) {
        match &self.voice {
            Voice::Person(bar) if detail.is_empty() => bar.set_message(step.to_owned()),
            Voice::Person(bar) => bar.set_message(format!("{step}: {detail}")),
            Voice::Json => emit(&Event::Progress {
                step,
                detail,
                elapsed_ms: self.elapsed().as_millis(),
            }),
            Voice::Quiet => {}
        }
    }

    /// The set-up is over: the terminal belongs to the command from here on.
    pub(crate) fn started(&self, sandbox: &str, accelerator: &str, policy_revision: &str) {
        match &self.voice {
            Voice::Person(bar) => bar.finish_and_clear(),
            Voice::Json => emit(&Event::Started {
                sandbox,
                accelerator,
                policy_revision,
                boot_ms: self.elapsed().as_millis(),
            }),
            Voice::Quiet => {}
        }
    }

    pub(crate) fn warning(&self, message: &str) {
        match &self.voice {
            Voice::Person(bar) => bar.suspend(|| eprintln!("outgate: warning: {message}")),
            Voice::Json => emit(&Event::Warning { message }),
            Voice::Quiet => {}
        }
    }

    /// Takes the progress line away, so that what follows stands on a line of its own.
    pub(crate) fn clear(&self) {
        if let Voice::Person(bar) = &self.voice {
            bar.finish_and_clear();
        }
    }

    pub(crate) fn event(&self, event: &Event<'_>) {
        if self.is_json() {
            emit(event);
        }
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// A reader that went away is no reason to stop the run: its end is reported by the exit code.
fn emit(event: &Event<'_>) {
    let mut out = io::stdout().lock();
    if let Ok(line) = serde_json::to_string(event)
        && let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush())
    {
        tracing::debug!(%error, "nobody reads the JSON events");
    }
}
