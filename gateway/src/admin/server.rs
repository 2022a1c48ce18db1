//! The gateway's side of the admin socket.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::descriptor::{receive_line, send_line};
use super::protocol::{Refusal, Reply, Request};
use crate::gateway::{Gateway, GatewayError};

/// Connections served at once: one per sandbox, and a few that are still asking.
const MAX_CONNECTIONS: usize = crate::gateway::MAX_SANDBOXES + 64;
/// How long a client may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves `path` until the future is dropped.
///
/// # Errors
/// When another gateway already listens there, or the socket can't be made.
pub async fn serve(gateway: Gateway, path: &Path) -> io::Result<()> {
    let listener = bind(path)?;
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

/// Binds with mode 0600. A socket file that nobody answers on is what a killed gateway left.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Ok(metadata) = path.symlink_metadata() {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!(
                    "`{}` exists and is no socket; choose another path",
                    path.display()
                ),
            ));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another gateway already listens at `{}`", path.display()),
            ));
        }
        std::fs::remove_file(path)?;
    }
    // Bound under a private name and renamed, so that nobody can connect before the mode is set.
    let private = path.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&private)?;
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&private, path)?;
    Ok(listener)
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
