//! Starting and stopping a gateway with all its ways in, in one place.
//!
//! The order keeps promises: sockets are bound before anything is decided (a gateway that can't have
//! one of them doesn't start), their addresses are never dialled for a sandbox, and nobody is taken
//! before the sandboxes stand. It ends the other way round.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use outgate_gateway::admin::Reload;
use outgate_gateway::admin::protocol::Reloaded;
use outgate_gateway::config::{FileListener, ListenerCertificate, ListenerKind};
use outgate_gateway::gateway::Gateway;
use outgate_gateway::listener::{Bound, Directory, Kind, Listener, ListenerConfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::GatewayArgs;
use super::notify;
use super::plan::{Plan, PlannedListener};
use super::reload::Served;

/// How many who ask for a reload may wait for theirs.
const RELOADS: usize = 16;

/// Serves until SIGTERM or Ctrl-C, then lets answers under way be whole for as long as `args` say.
/// SIGHUP reads the configuration again.
///
/// # Errors
/// When the gateway can't start; nothing is served then.
pub(super) async fn serve(args: &GatewayArgs, mut plan: Plan) -> anyhow::Result<()> {
    let fixed = plan.fixed();
    let mut bound = Vec::with_capacity(plan.listeners.len());
    for planned in plan.listeners {
        let FileListener { name, at, .. } = &planned.listener;
        let socket = Bound::new(at.clone()).with_context(|| format!("listener `{name}`"))?;
        plan.config.upstream.own_addresses.extend(socket.address());
        bound.push((socket, planned));
    }
    let gateway = Gateway::start(plan.config).await?;
    let mut served = Served::start(gateway.clone(), fixed, plan.sandboxes).await?;
    let listeners = listen(&gateway, bound, &served.directory())?;
    notify::say("READY=1");

    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (reloads, mut asked) = mpsc::channel::<Reload>(RELOADS);
    let reloads = args.config.is_some().then_some(reloads);
    let admin = async {
        match &plan.admin {
            Some(path) => outgate_gateway::admin::serve(gateway.clone(), path, reloads)
                .await
                .with_context(|| format!("the admin socket `{}`", path.display())),
            None => std::future::pending().await,
        }
    };
    let mut admin = pin!(admin);
    loop {
        tokio::select! {
            ended = &mut admin => ended?,
            _ = hang_up.recv() => drop(reload(&mut served, args).await),
            Some(answer) = asked.recv() => {
                // Who asked may have gone; it is in force all the same, and logged.
                let _gone = answer.send(reload(&mut served, args).await);
                continue;
            }
            _ = terminate.recv() => break,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                break;
            }
        }
    }
    notify::say("STOPPING=1");
    drain(&gateway, &listeners, args.drain).await;
    stop(&gateway, listeners, served).await;
    if let Some(path) = &plan.admin
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(%error, "the admin socket could not be removed");
    }
    Ok(())
}

/// Reads the configuration again, and says what came of it.
async fn reload(served: &mut Served, args: &GatewayArgs) -> Result<Reloaded, String> {
    if args.config.is_none() {
        let why = "this gateway was started without a configuration file";
        tracing::warn!("nothing to reload: {why}");
        return Err(why.to_owned());
    }
    match served.reload(args).await {
        Ok(reloaded) => {
            let Reloaded {
                sandboxes,
                added,
                removed,
                needs_restart,
            } = &reloaded;
            tracing::info!(
                sandboxes = sandboxes.len(),
                ?added,
                ?removed,
                "the configuration was read again"
            );
            if !needs_restart.is_empty() {
                tracing::warn!(keys = ?needs_restart, "these changes need a restart");
            }
            Ok(reloaded)
        }
        Err(error) => {
            let why = format!("{error:#}");
            tracing::error!("the configuration was not changed: {why}");
            Err(why)
        }
    }
}

fn listen(
    gateway: &Gateway,
    bound: Vec<(Bound, PlannedListener)>,
    directory: &Arc<ArcSwap<Directory>>,
) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::with_capacity(bound.len());
    for (socket, PlannedListener { listener, tls }) in bound {
        let kind = match listener.kind {
            ListenerKind::Transparent(origin) => Kind::Transparent(origin),
            ListenerKind::Proxy(protocols, None) => Kind::Proxy(protocols, None),
            ListenerKind::Proxy(protocols, Some(ListenerCertificate::Minted(name))) => {
                Kind::Proxy(protocols, Some(gateway.listener_tls(name)?))
            }
            ListenerKind::Proxy(protocols, Some(ListenerCertificate::Files(..))) => {
                Kind::Proxy(protocols, tls)
            }
        };
        let failed = format!("listener `{}`", listener.name);
        let config = ListenerConfig {
            name: listener.name,
            who: listener.who,
            kind,
            max_connections: listener.max_connections,
        };
        let spawned = Listener::spawn(socket, config, Arc::clone(directory), gateway.audit());
        listeners.push(spawned.context(failed)?);
    }
    Ok(listeners)
}

/// Nobody new is taken, and what is under way may end by itself.
async fn drain(gateway: &Gateway, listeners: &[Listener], seconds: u64) {
    listeners.iter().for_each(Listener::refuse);
    let within = Duration::from_secs(seconds);
    if timeout(within, gateway.drain()).await.is_err() {
        tracing::warn!("what was still open after {seconds} s is cut");
    }
}

/// Everybody is let go, and then the last record is written.
async fn stop(gateway: &Gateway, listeners: Vec<Listener>, served: Served) {
    for listener in listeners {
        listener.stop().await;
    }
    served.stop().await;
    gateway.stop().await;
}
