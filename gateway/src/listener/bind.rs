//! Opening the sockets that clients connect to, before anything is served on them.
//!
//! All listeners are bound first, so that a gateway that can't have one of them doesn't start
//! (B010), and so that their addresses are known to whoever must never dial them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpTransparent;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::unix_socket;

/// Connections that the system holds until they are taken, as the standard library has it.
const BACKLOG: i32 = 128;

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAt {
    /// An address of this machine; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// The same for connections to any address that the network leads here (`IP_TRANSPARENT`); needs
    /// `CAP_NET_ADMIN`.
    Transparent(SocketAddr),
    /// A unix socket, made with these permission bits.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Who may connect.
        mode: u32,
    },
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) | Self::Transparent(address) => address.fmt(f),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {at}: {source}")]
pub struct ListenError {
    at: ListenAt,
    source: io::Error,
}

/// A socket that listens. A unix socket's file is removed with it.
#[derive(Debug)]
pub struct Bound {
    pub(super) socket: BoundSocket,
    at: ListenAt,
}

#[derive(Debug)]
pub(super) enum BoundSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Bound {
    /// Listens; the system queues connections from here on.
    ///
    /// # Errors
    /// When the address is taken or not this machine's, or the path can't be used.
    pub fn new(at: ListenAt) -> Result<Self, ListenError> {
        match listen(&at) {
            Ok(socket) => Ok(Self { socket, at }),
            Err(source) => Err(ListenError { at, source }),
        }
    }

    /// The address, with the port that the system chose; none for a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().ok(),
            BoundSocket::Unix(_) => None,
        }
    }
}

fn listen(at: &ListenAt) -> io::Result<BoundSocket> {
    match at {
        ListenAt::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(BoundSocket::Tcp(listener))
        }
        ListenAt::Transparent(address) => listen_transparently(*address).map(BoundSocket::Tcp),
        ListenAt::Unix { path, mode } => unix_socket::bind(path, *mode).map(BoundSocket::Unix),
    }
}

fn listen_transparently(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    // One flag for both families.
    setsockopt(&socket, IpTransparent, &true).map_err(|error| {
        let error = io::Error::from(error);
        let message = format!("{error}; `mode: tproxy` needs CAP_NET_ADMIN");
        io::Error::new(error.kind(), message)
    })?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let ListenAt::Unix { path, .. } = &self.at
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(%error, path = %path.display(), "a listener's socket could not be removed");
        }
    }
}
