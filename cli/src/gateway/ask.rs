//! `outgate gateway reload|set-policy`: asks a running gateway for a change, and says what is in force.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use outgate_gateway::admin::protocol::{PolicyChange, PolicySet, Reloaded, Reply, Request};
use outgate_gateway::admin::{RegisterError, ask};
use tokio::time::timeout;

use crate::exit::{Code, Failure};
use crate::policy;

/// What can be asked of a running gateway.
#[derive(Debug, Subcommand)]
pub(crate) enum Ask {
    /// Have a running gateway read its configuration file again
    ///
    /// All of it is checked first: what does not load changes nothing. Sandboxes come, go and change
    /// their policies and tokens; what a new policy denies is cut, open streams and tunnels included.
    /// Says which policy each sandbox is under now.
    Reload(At),
    /// Put another policy in force for one sandbox of a running gateway
    ///
    /// For its next request, and at once for what it has under way.
    SetPolicy(SetPolicy),
}

/// Which gateway.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// Admin socket of the gateway
    #[arg(long, value_name = "SOCKET")]
    admin: PathBuf,
    /// How long the gateway may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
}

/// Which sandbox, and what for.
#[derive(Debug, Args)]
pub(crate) struct SetPolicy {
    #[command(flatten)]
    at: At,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// Policy files, all of them: the sandbox may do what each of them allows
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Asks, and prints the answer.
///
/// # Errors
/// When the gateway can't be asked or says no; nothing was changed then.
pub(super) fn main(what: &Ask) -> anyhow::Result<ExitCode> {
    let (at, request) = match what {
        Ask::Reload(at) => (at, Request::Reload),
        Ask::SetPolicy(SetPolicy { at, id, files }) => {
            let policy = policy::select(files, &Default::default())?;
            let id = id.clone();
            (at, Request::SetPolicy(PolicyChange { id, policy }))
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the async runtime can't start")?;
    let asked = async { timeout(Duration::from_secs(at.wait), ask(&at.admin, &request)).await };
    let Ok(answer) = runtime.block_on(asked) else {
        let message = format!(
            "the gateway has not answered within {} s; what is in force is unknown",
            at.wait
        );
        return Err(Failure::new(Code::Environment, message).into());
    };
    match answer {
        Ok(Reply::Reloaded(reloaded)) => print(&reloaded),
        Ok(Reply::PolicySet(set)) => print_policy(&set),
        Ok(_) => anyhow::bail!("the gateway answered something else"),
        Err(error @ RegisterError::Refused { .. }) => {
            return Err(Failure::new(Code::Usage, error.to_string()).into());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn print(reloaded: &Reloaded) {
    reloaded.sandboxes.iter().for_each(print_policy);
    for (what, ids) in [("added", &reloaded.added), ("removed", &reloaded.removed)] {
        if !ids.is_empty() {
            println!("{what}: {}", ids.join(", "));
        }
    }
    if !reloaded.needs_restart.is_empty() {
        println!(
            "changed in the file, but needs a restart: {}",
            reloaded.needs_restart.join(", ")
        );
    }
}

fn print_policy(set: &PolicySet) {
    let PolicySet {
        id,
        desired,
        enforced,
    } = set;
    if desired == enforced {
        println!("{id}: policy {enforced} is in force");
    } else {
        println!("{id}: policy {enforced} is in force, not {desired} that was asked for");
    }
}
