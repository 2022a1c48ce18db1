//! The node's end of a sandbox's link to its gateway.
//!
//! A link is a pair of datagram sockets, one Ethernet frame a datagram. One end goes to the VMM. Of
//! the other the node keeps a duplicate, so that a gateway that was restarted gets the same link
//! again and the VMM never notices (`docs/architecture.md`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outgate_gateway::admin::protocol::{Registered, Registration};
use outgate_gateway::admin::{Connection, RegisterError};
use outgate_gateway::gateway::{Gateway, GatewayError, RegisteredSandbox};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::task::JoinHandle;

/// Pause between two attempts to reach a gateway that is gone. Meanwhile nothing leaves.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// The two ends of a new link: the VMM's and the gateway's.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        flags,
        None,
    )?)
}

/// A sandbox's place at a gateway, in this process or another one.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// The gateway runs in this process.
    Inside(Gateway, Box<RegisteredSandbox>),
    /// The gateway is another process; the task registers again whenever it comes back.
    Apart(JoinHandle<()>),
}

impl Attachment {
    /// Registers at a gateway in this process.
    pub(crate) async fn inside(
        gateway: Gateway,
        sandbox: Registration,
        link: OwnedFd,
    ) -> Result<(Self, Registered), GatewayError> {
        let handle = gateway.register(sandbox, link).await?;
        let registered = handle.registered().clone();
        Ok((Self::Inside(gateway, Box::new(handle)), registered))
    }

    /// Registers at the gateway behind `socket` and keeps the registration alive.
    pub(crate) async fn apart(
        socket: PathBuf,
        sandbox: Registration,
        link: OwnedFd,
    ) -> Result<(Self, Registered), RegisterError> {
        let (connection, registered) =
            Connection::register(&socket, &sandbox, link.as_fd()).await?;
        let placeholders = registered.placeholders.clone();
        let keeper = tokio::spawn(keep(socket, with(sandbox, placeholders), link, connection));
        Ok((Self::Apart(keeper), registered))
    }

    /// Gives the place up; the last audit records are written when this returns.
    pub(crate) async fn release(self) {
        match self {
            Self::Inside(gateway, sandbox) => {
                sandbox.release().await;
                gateway.stop().await;
            }
            Self::Apart(keeper) => keeper.abort(),
        }
    }
}

fn with(mut sandbox: Registration, placeholders: BTreeMap<String, String>) -> Registration {
    sandbox.placeholders = placeholders;
    sandbox
}

/// Registers again each time the gateway goes away, with the placeholders the guest already has.
async fn keep(socket: PathBuf, sandbox: Registration, link: OwnedFd, first: Connection) {
    let mut connection = first;
    loop {
        connection.closed().await;
        tracing::warn!("the gateway is gone; the sandbox has no network until it is back");
        connection = reconnect(&socket, &sandbox, &link).await;
        tracing::warn!("the gateway is back");
    }
}

async fn reconnect(socket: &Path, sandbox: &Registration, link: &OwnedFd) -> Connection {
    loop {
        match Connection::register(socket, sandbox, link.as_fd()).await {
            Ok((connection, _)) => return connection,
            Err(error) => tracing::debug!(%error, "the gateway does not take the link yet"),
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}
