//! The node's side of the admin socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

use super::descriptor::{receive_line, send_line};
use super::protocol::{Registered, Registration, Reply, Request};

/// A live registration. Dropping it releases the sandbox at the gateway.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
}

/// Why a sandbox could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Nobody answers on the socket.
    #[error("no gateway answers at `{}`: {source}; start one with `outgate gateway --admin {}`", .path.display(), .path.display())]
    Unreachable {
        /// The socket asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The gateway said no.
    #[error("the gateway refused ({code}): {message}")]
    Refused {
        /// Stable code of [`super::protocol::Refusal`].
        code: String,
        /// The gateway's own words.
        message: String,
    },
    /// The gateway broke off, or spoke something else.
    #[error("the gateway broke off: {0}")]
    Broken(#[from] io::Error),
}

/// Asks one thing that needs no connection afterwards: [`Request::SetPolicy`] or [`Request::Reload`].
///
/// # Errors
/// See [`RegisterError`].
pub async fn ask(socket: &Path, request: &Request) -> Result<Reply, RegisterError> {
    let stream = connect(socket).await?;
    let line = serde_json::to_string(request).map_err(io::Error::from)?;
    send_line(&stream, &line, None).await?;
    let (answer, _) = receive_line(&stream).await?;
    match serde_json::from_str(&answer).map_err(io::Error::from)? {
        Reply::Error(refusal) => Err(RegisterError::Refused {
            code: refusal.code,
            message: refusal.message,
        }),
        reply => Ok(reply),
    }
}

async fn connect(socket: &Path) -> Result<UnixStream, RegisterError> {
    UnixStream::connect(socket)
        .await
        .map_err(|source| RegisterError::Unreachable {
            path: socket.to_owned(),
            source,
        })
}

impl Connection {
    /// Registers `sandbox` and hands over `link`, of which the caller keeps its own copy.
    ///
    /// # Errors
    /// See [`RegisterError`]. After [`RegisterError::Unreachable`] and [`RegisterError::Broken`]
    /// the same link may be registered again; [`RegisterError::Refused`] is final.
    pub async fn register(
        socket: &Path,
        sandbox: &Registration,
        link: BorrowedFd<'_>,
    ) -> Result<(Self, Registered), RegisterError> {
        let stream = connect(socket).await?;
        let line =
            serde_json::to_string(&Request::Register(sandbox.clone())).map_err(io::Error::from)?;
        send_line(&stream, &line, Some(link)).await?;
        let (answer, _) = receive_line(&stream).await?;
        match serde_json::from_str(&answer).map_err(io::Error::from)? {
            Reply::Registered(registered) => Ok((Self { stream }, registered)),
            Reply::PolicySet(_) | Reply::Reloaded(_) => {
                let odd = io::Error::new(io::ErrorKind::InvalidData, "an answer to something else");
                Err(odd.into())
            }
            Reply::Error(refusal) => Err(RegisterError::Refused {
                code: refusal.code,
                message: refusal.message,
            }),
        }
    }

    /// Resolves when the gateway is gone.
    pub async fn closed(&self) {
        let mut byte = [0_u8; 1];
        loop {
            if self.stream.readable().await.is_err() {
                return;
            }
            match self.stream.try_read(&mut byte) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}
