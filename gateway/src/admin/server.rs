//! The gateway's side of the admin socket.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::descriptor::{receive_line, send_line};
use super::protocol::{PolicyChange, Refusal, Reloaded, Reply, Request};
use crate::gateway::{Gateway, GatewayError};
use crate::unix_socket;

/// Connections served at once: one per sandbox, and a few that are still asking.
const MAX_CONNECTIONS: usize = crate::gateway::MAX_SANDBOXES + 64;
/// Permission bits of the socket: whoever may connect may put sandboxes behind the gateway.
const MODE: u32 = 0o600;
/// How long a client may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks whoever started the gateway to read its configuration again. The answer is what changed, or
/// why nothing did.
pub type Reload = oneshot::Sender<Result<Reloaded, String>>;

/// Serves `path` until the future is dropped. Without `reloads` there is no configuration to read
/// again.
///
/// # Errors
/// When another gateway already listens there, or the socket can't be made.
pub async fn serve(
    gateway: Gateway,
    path: &Path,
    reloads: Option<mpsc::Sender<Reload>>,
) -> io::Result<()> {
    let listener = UnixListener::from_std(unix_socket::bind(path, MODE)?)?;
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return Ok(());
        };
        let (stream, _) = listener.accept().await?;
        let (gateway, reloads) = (gateway.clone(), reloads.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(&gateway, reloads.as_ref(), &stream).await {
                tracing::warn!(%error, "an admin connection failed");
            }
            drop(slot);
        });
    }
}

async fn serve_connection(
    gateway: &Gateway,
    reloads: Option<&mpsc::Sender<Reload>>,
    stream: &UnixStream,
) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    let own = rustix::process::geteuid().as_raw();
    if peer != own && peer != 0 {
        let message = format!("user {peer} may not use the admin socket of user {own}");
        return answer(stream, &refusal("forbidden", message)).await;
    }
    let received = tokio::time::timeout(REQUEST_TIMEOUT, receive_line(stream)).await;
    let (line, descriptor) = received.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let request = match serde_json::from_str(&line) {
        Ok(Request::Register(registration)) => registration,
        Ok(Request::SetPolicy(change)) => {
            return answer(stream, &set_policy(gateway, change).await).await;
        }
        Ok(Request::Reload) => return answer(stream, &reload(reloads).await).await,
        Err(error) => return answer(stream, &refusal("bad_request", error.to_string())).await,
    };
    let Some(link) = descriptor else {
        let message = "a registration carries the link as its one descriptor".to_owned();
        return answer(stream, &refusal("bad_request", message)).await;
    };
    match gateway.register(request, link).await {
        Ok(sandbox) => {
            answer(stream, &Reply::Registered(sandbox.registered().clone())).await?;
            wait_for_end(stream).await;
            sandbox.release().await;
            Ok(())
        }
        Err(error) => answer(stream, &refusal(code(&error), error.to_string())).await,
    }
}

async fn set_policy(gateway: &Gateway, change: PolicyChange) -> Reply {
    let PolicyChange { id, policy } = change;
    match gateway.set_policy(&id, &policy).await {
        Ok(set) => Reply::PolicySet(set),
        Err(error) => refusal(code(&error), error.to_string()),
    }
}

async fn reload(reloads: Option<&mpsc::Sender<Reload>>) -> Reply {
    let Some(reloads) = reloads else {
        let message = "this gateway was started without a configuration file";
        return refusal("bad_request", message.to_owned());
    };
    let (answer, answered) = oneshot::channel();
    let gone = || refusal("internal", "the gateway is about to end".to_owned());
    if reloads.send(answer).await.is_err() {
        return gone();
    }
    match answered.await {
        Ok(Ok(reloaded)) => Reply::Reloaded(reloaded),
        Ok(Err(why)) => refusal("configuration", why),
        Err(_) => gone(),
    }
}

/// A client says nothing after its request; the end of its stream is the end of the sandbox.
async fn wait_for_end(stream: &UnixStream) {
    let mut ignored = [0_u8; 64];
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut ignored) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
        }
    }
}

async fn answer(stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    send_line(stream, &serde_json::to_string(reply)?, None).await
}

fn refusal(code: &str, message: String) -> Reply {
    Reply::Error(Refusal {
        code: code.to_owned(),
        message,
    })
}

fn code(error: &GatewayError) -> &'static str {
    match error {
        GatewayError::Policy(_) => "policy",
        GatewayError::IdInUse { .. } => "id_in_use",
        GatewayError::BadId { .. } | GatewayError::BadMtu { .. } => "bad_request",
        GatewayError::NotRegistered { .. } => "not_registered",
        GatewayError::TooManySandboxes => "too_many_sandboxes",
        _ => "internal",
    }
}
