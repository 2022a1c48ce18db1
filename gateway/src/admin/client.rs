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
    #[error("the gateway refused the sandbox ({code}): {message}")]
    Refused {
        /// Stable code of [`super::protocol::Refusal`].
        code: String,
        /// The gateway's own words.
        message: String,
    },
    /// The gateway broke off, or spoke something else.
    #[error("the gateway broke off the registration: {0}")]
    Broken(#[from] io::Error),
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
        let stream =
            UnixStream::connect(socket)
                .await
                .map_err(|source| RegisterError::Unreachable {
                    path: socket.to_owned(),
                    source,
                })?;
        let line =
            serde_json::to_string(&Request::Register(sandbox.clone())).map_err(io::Error::from)?;
        send_line(&stream, &line, Some(link)).await?;
        let (answer, _) = receive_line(&stream).await?;
        match serde_json::from_str(&answer).map_err(io::Error::from)? {
            Reply::Registered(registered) => Ok((Self { stream }, registered)),
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
