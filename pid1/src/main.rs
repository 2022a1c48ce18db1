//! First process of a guest: brings the machine up, serves the control API, reaps, and never ends
//! but with the machine.

mod body;
mod boot;
mod configure;
mod console;
mod exec;
mod files;
mod network;
mod port;
mod power;
mod query;
mod range;
mod reaper;
mod ring;
mod server;
mod stdin;
mod sys;
#[cfg(test)]
mod tests;
mod trust;
mod users;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outgate_pid1::api;

use crate::exec::Execs;
use crate::port::Port;
use crate::reaper::Reaper;
use crate::server::Control;

/// How long the answer to the request for the end has to leave.
const FAREWELL: Duration = Duration::from_millis(50);

fn main() {
    if std::process::id() != 1 {
        eprintln!("outgate-pid1 is the first process of an Outgate guest; `outgate run` starts it");
        std::process::exit(2);
    }
    // An end of this process would be a kernel panic: say why, and end the machine properly.
    std::panic::set_hook(Box::new(|panic| {
        console::say(format_args!("{}{panic}", api::FATAL_PREFIX));
        power::off();
    }));
    if let Err(error) = run() {
        console::say(format_args!("{}{error}", api::FATAL_PREFIX));
    }
    power::off();
}

/// Returns when the host asked for the end.
fn run() -> Result<(), Box<dyn Error>> {
    boot::early()?;
    if boot::has_parameter(api::PROBE_PARAMETER) {
        console::say(api::PROBE_LINE);
        return Ok(());
    }
    boot::enter_image()?;
    power::protect_itself();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(serve());
    // A file operation that waits for ever must not hold up the end of the machine.
    runtime.shutdown_background();
    outcome
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let reaper = Arc::new(Reaper::default());
    let execs = Execs::new(PathBuf::from("/"), Arc::clone(&reaper));
    let control = Arc::new(Control::new(PathBuf::from("/"), execs, configure::apply));
    let port = Port::open(api::PORT_NAME).await?;
    console::say(api::READY_LINE);
    let connections = async {
        loop {
            let connection = port.connected().await?;
            if let Err(error) = server::serve(Arc::clone(&control), connection).await {
                console::say(format_args!(
                    "outgate-pid1: the control connection ended: {error}"
                ));
            }
        }
    };
    let farewell = async {
        control.shutdown.notified().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        ended = connections => ended,
        ended = reaper.run() => Ok(ended?),
        () = farewell => Ok(()),
    }
}
