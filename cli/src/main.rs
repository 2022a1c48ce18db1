//! `outgate`: the one command people type.
//!
//! This file is the list of commands and nothing else; each command is a module.

mod audit;
mod doctor;
mod exit;
mod gateway;
mod image;
mod link;
mod output;
mod places;
mod policy;
mod preset;
mod report;
mod run;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::exit::{Code, Failure};

/// Run AI agents with every approval prompt off.
///
/// Untrusted code runs in a microVM that holds no secret and has one link; the other end of the
/// link is the gateway, which decides every request by a policy file, adds the credentials that the
/// sandbox never sees, and keeps a log that an auditor can verify.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command in a sandbox of its own
    Run(Box<run::RunArgs>),
    /// Check, test and explain policy files
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Read and verify audit logs
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Run a gateway of its own, for nodes and for other people's isolation
    Gateway(gateway::GatewayArgs),
    /// Build, list and verify guest images
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Fetch and unpack guest kernels
    #[command(subcommand)]
    Kernel(image::KernelCommand),
    /// Say what this machine can run and what is missing
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    if let Some(code) = outgate_runtime::janitor::main_if_requested() {
        return code;
    }
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::try_from_env("OUTGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .init();
    let outcome = match cli.command {
        Command::Run(args) => run::main(*args),
        Command::Policy(command) => command.run(),
        Command::Audit(command) => command.run(places::latest_audit_dir()),
        Command::Gateway(args) => gateway::main(&args),
        Command::Image(command) => command.run(),
        Command::Kernel(command) => command.run(),
        Command::Doctor(args) => args.run(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("outgate: {error:#}");
        error
            .downcast_ref::<Failure>()
            .map_or(Code::Outgate, |failure| failure.code)
            .into()
    })
}
