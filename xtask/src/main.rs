//! `cargo xtask`: set-up, demo, tests and benchmarks of Outgate in one place. Every command is
//! safe to repeat, says what it does and how long it took, and is quick when nothing changed.

mod bench;
mod demo;
mod fuzz;
mod kernel;
mod place;
mod setup;
mod step;
mod suite;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use place::Place;

/// Set-up, demo, tests and benchmarks of Outgate
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    /// Where everything fetched or built is kept [default: ~/.cache/outgate]
    #[arg(long, global = true, env = "OUTGATE_CACHE", value_name = "DIR")]
    cache: Option<std::path::PathBuf>,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what is missing and build PID 1, the guest kernel's package and the guest image
    Setup,
    /// Set up, then show the main job: a guest that can leave only as its policy says
    Demo,
    /// Set up, then run every check and test
    Test(suite::TestArguments),
    /// Measure, as a table and with --json as one line per figure
    Bench(bench::BenchArguments),
    /// Build the minimal guest kernel from the distribution's source
    Kernel,
    /// What continuous integration runs: test, with the tools that are optional elsewhere
    Ci,
    /// Formatting and lints only
    Lint,
    /// Build the fuzz targets and run each for a short while
    Fuzz(fuzz::FuzzArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let place = Place::new(arguments.cache)?;
    match arguments.task {
        Task::Setup => setup::run(&place),
        Task::Demo => demo::run(&place),
        Task::Test(options) => suite::test(&place, &options),
        Task::Bench(options) => bench::run(&place, &options),
        Task::Kernel => kernel::run(&place),
        Task::Ci => suite::ci(&place),
        Task::Lint => suite::lint(&place),
        Task::Fuzz(options) => fuzz::run(&place, &options),
    }
}
