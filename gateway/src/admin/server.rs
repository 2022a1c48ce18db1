//! The gateway's side of the admin socket.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::descriptor::{receive_line, send_line};
use super::protocol::{Refusal, Reply, Request};
use crate::gateway::{Gateway, GatewayError};
use crate::unix_socket;

/// Connections served at once: one per sandbox, and a few that are still asking.
const MAX_CONNECTIONS: usize = crate::gateway::MAX_SANDBOXES + 64;
/// Permission bits of the socket: whoever may connect may put sandboxes behind the gateway.
const MODE: u32 = 0o600;
/// How long a client may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves `path` until the future is dropped.
///
/// # Errors
/// When another gateway already listens there, or the socket can't be made.
pub async fn serve(gateway: Gateway, path: &Path) -> io::Result<()> {
    let listener = UnixListener::from_std(unix_socket::bind(path, MODE)?)?;
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return Ok(());
        };
        let (stream, _) = listener.accept().await?;
        let gateway = gateway.clone();
        tokio::spawn(async move {
            if let Err(error) = serve_connection(&gateway, &stream).await {
                tracing::warn!(%error, "an admin connection failed");
            }
            drop(slot);
        });
    }
}

async fn serve_connection(gateway: &Gateway, stream: &UnixStream) -> io::Result<()> {
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
        GatewayError::BadId { .. } => "bad_request",
        GatewayError::TooManySandboxes => "too_many_sandboxes",
        _ => "internal",
    }
}
