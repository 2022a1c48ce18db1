//! Starting and stopping a gateway with all its ways in, in one place.
//!
//! The order keeps promises: sockets are bound before anything is decided (a gateway that can't have
//! one of them doesn't start), their addresses are never dialled for a sandbox, and nobody is taken
//! before the sandboxes stand. It ends the other way round.

use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use outgate_gateway::config::{FileListener, ListenerCertificate, ListenerKind};
use outgate_gateway::gateway::{Gateway, RegisteredSandbox};
use outgate_gateway::listener::{Bound, Directory, Kind, Listener, ListenerConfig, Recognised};
use tokio::signal::unix::{SignalKind, signal};

use super::notify;
use super::plan::{Plan, PlannedListener};

/// Serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// When the gateway can't start; nothing is served then.
pub(super) async fn serve(mut plan: Plan) -> anyhow::Result<()> {
    let mut bound = Vec::with_capacity(plan.listeners.len());
    for planned in plan.listeners {
        let FileListener { name, at, .. } = &planned.listener;
        let socket = Bound::new(at.clone()).with_context(|| format!("listener `{name}`"))?;
        plan.config.upstream.own_addresses.extend(socket.address());
        bound.push((socket, planned));
    }
    let gateway = Gateway::start(plan.config).await?;
    let mut sandboxes = Vec::with_capacity(plan.sandboxes.len());
    let mut recognised = Vec::with_capacity(plan.sandboxes.len());
    for (registration, token) in plan.sandboxes {
        let sandbox = gateway.register_unlinked(registration).await?;
        let context = sandbox.context();
        sandboxes.push(sandbox);
        recognised.push(Recognised {
            sandbox: context,
            token,
        });
    }
    let listeners = listen(&gateway, bound, recognised)?;
    notify::say("READY=1");

    let mut terminate = signal(SignalKind::terminate())?;
    let admin = async {
        match &plan.admin {
            Some(path) => outgate_gateway::admin::serve(gateway.clone(), path)
                .await
                .with_context(|| format!("the admin socket `{}`", path.display())),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = admin => served?,
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    notify::say("STOPPING=1");
    stop(&gateway, listeners, sandboxes).await;
    if let Some(path) = &plan.admin
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(%error, "the admin socket could not be removed");
    }
    Ok(())
}

fn listen(
    gateway: &Gateway,
    bound: Vec<(Bound, PlannedListener)>,
    recognised: Vec<Recognised>,
) -> anyhow::Result<Vec<Listener>> {
    let directory = Arc::new(ArcSwap::from_pointee(Directory::new(recognised)));
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
        let spawned = Listener::spawn(socket, config, Arc::clone(&directory), gateway.audit());
        listeners.push(spawned.context(failed)?);
    }
    Ok(listeners)
}

/// Nobody new is taken, everybody is let go, and then the last record is written.
async fn stop(gateway: &Gateway, listeners: Vec<Listener>, sandboxes: Vec<RegisteredSandbox>) {
    for listener in listeners {
        listener.stop().await;
    }
    for sandbox in sandboxes {
        sandbox.release().await;
    }
    gateway.stop().await;
}
