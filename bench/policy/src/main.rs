//! What a decision costs with ten thousand rules, beside Cedar, and whether both decide the same.
//!
//! `measure` writes one figure a line, `oracle` compares random policies; see the README.

mod cedar;
mod figure;
mod heap;
mod measure;
mod oracle;
mod random;
mod shape;
mod timing;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The policy language of Outgate, measured and compared
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Load time, memory, time and allocations a decision, one JSON object a line (the default)
    Measure,
    /// Decide random requests by random policies in both languages; exit 1 on a difference
    Oracle(oracle::OracleArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task.unwrap_or(Task::Measure) {
        Task::Measure => measure::run().map(|()| true),
        Task::Oracle(options) => oracle::run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
