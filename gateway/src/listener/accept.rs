//! Takes connections, within bounds, and hands each to what is spoken on it.
//!
//! A connection counts against its listener from the first moment, as half open and against its
//! source until its sandbox is known, and against that sandbox from then on. Beyond a bound it is
//! closed at once: a client that waits in a queue would not know why.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::bind::{Bound, BoundSocket};
use super::client::Presented;
use super::directory::{Directory, Guest};
use super::entrance;
use super::refusals::{Refusals, Refused};
use super::tls::ServerTls;
use super::transparent;
use super::transport::Plain;
use crate::audit::AuditLog;

/// Connections that a listener has open at a time, where its configuration says nothing else.
pub const MAX_CONNECTIONS: usize = 4096;
/// Connections whose sandbox is not known yet, per listener.
const MAX_HALF_OPEN: usize = 2048;
/// The same from one source: an IPv4 address or an IPv6 /64 network; all local sockets are one.
const MAX_HALF_OPEN_PER_SOURCE: usize = 512;
/// Pause after a connection could not be taken, mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What a listener is told.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Names it in records and messages.
    pub name: String,
    /// Whose connections they are.
    pub who: Who,
    /// What comes in on them.
    pub kind: Kind,
    /// Most connections at a time.
    pub max_connections: usize,
}

/// Whose connections those of a listener are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Each proves its sandbox by a credential.
    Proven,
    /// All of them belong to this sandbox: whoever can connect is it.
    Only(String),
    /// The operator's network tells by the client's address, which it does not let anybody forge;
    /// the longest prefix counts, and who is in none is refused.
    Sources(Vec<(IpNet, String)>),
}

/// What comes in on a listener.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Clients that were told to use a proxy; with TLS around it, only who speaks it.
    Proxy(Protocols, Option<ServerTls>),
    /// Connections to somebody else that the network led here.
    Transparent(Origin),
}

/// What may be spoken to a proxy; told apart by the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// HTTP/1: CONNECT and absolute URLs.
    pub http: bool,
    /// SOCKS5.
    pub socks5: bool,
}

/// Where it is kept whom a connection was made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// With the NAT of a `REDIRECT` rule (`SO_ORIGINAL_DST`).
    Redirect,
    /// In the socket's own address, by a `TPROXY` rule.
    Tproxy,
}

/// A listener that serves until it is stopped or dropped.
#[derive(Debug)]
pub struct Listener {
    stop: DropGuard,
    accepting: JoinHandle<()>,
    connections: TaskTracker,
    telling: JoinHandle<()>,
}

impl Listener {
    /// Serves `bound` for the sandboxes in `directory`, whatever is in it at the time.
    ///
    /// # Errors
    /// When the socket can't be watched.
    pub fn spawn(
        bound: Bound,
        config: ListenerConfig,
        directory: Arc<ArcSwap<Directory>>,
        audit: AuditLog,
    ) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let socket = Socket::new(&bound)?;
        let (refusals, telling) = Refusals::spawn(audit, &config.name, stop.clone());
        let door = Arc::new(Door {
            directory,
            who: config.who,
            kind: config.kind,
            own: bound.address(),
            refusals,
        });
        let connections = TaskTracker::new();
        let accept = Accept {
            socket,
            door,
            half_open: Arc::default(),
            places: Arc::new(Semaphore::new(config.max_connections)),
            connections: connections.clone(),
            stop: stop.clone(),
        };
        let accepting = tokio::spawn(async move {
            accept.stop.run_until_cancelled(accept.run()).await;
            drop(bound);
        });
        Ok(Self {
            stop: stop.drop_guard(),
            accepting,
            connections,
            telling,
        })
    }

    /// Takes no more connections; the open ones go on.
    pub fn refuse(&self) {
        self.accepting.abort();
    }

    /// Takes no more connections, ends the open ones, and returns when all of it is on record.
    pub async fn stop(self) {
        drop(self.stop);
        self.connections.close();
        self.connections.wait().await;
        for task in [self.accepting, self.telling] {
            if let Err(error) = task.await
                && !error.is_cancelled()
            {
                tracing::error!(%error, "a listener's task died");
            }
        }
    }
}

/// What the connections of one listener share.
#[derive(Debug)]
pub(crate) struct Door {
    directory: Arc<ArcSwap<Directory>>,
    who: Who,
    pub(super) kind: Kind,
    /// The listener's own address.
    pub(super) own: Option<SocketAddr>,
    refusals: Refusals,
}

impl Door {
    /// The sandbox that a connection from `from` belongs to; `None` where it has to prove its own.
    ///
    /// # Errors
    /// When it belongs to none, or to one that is not served any more.
    pub(super) fn guest(&self, from: Option<IpAddr>) -> Result<Option<Arc<Guest>>, Stranger> {
        let id = match &self.who {
            Who::Proven => return Ok(None),
            Who::Only(id) => id,
            Who::Sources(networks) => networks
                .iter()
                .filter(|(network, _)| from.is_some_and(|from| network.contains(&from)))
                .max_by_key(|(network, _)| network.prefix_len())
                .map(|(_, id)| id)
                .ok_or(Stranger)?,
        };
        self.directory.load().get(id).ok_or(Stranger).map(Some)
    }

    /// The sandbox that a credential proves.
    pub(super) fn prove(&self, presented: Presented<'_>) -> Option<Arc<Guest>> {
        self.directory.load().prove(presented)
    }

    /// Counts a client that was turned away.
    pub(super) fn count(&self, refused: Refused, source: Option<IpAddr>, detail: &str) {
        self.refusals.count(refused, source, detail);
    }
}

/// A connection belongs to no sandbox that is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger;

struct Accept {
    socket: Socket,
    door: Arc<Door>,
    half_open: Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
    places: Arc<Semaphore>,
    connections: TaskTracker,
    stop: CancellationToken,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    fn new(bound: &Bound) -> io::Result<Self> {
        match &bound.socket {
            BoundSocket::Tcp(listener) => {
                TcpListener::from_std(listener.try_clone()?).map(Self::Tcp)
            }
            BoundSocket::Unix(listener) => {
                UnixListener::from_std(listener.try_clone()?).map(Self::Unix)
            }
        }
    }
}

impl Accept {
    async fn run(&self) {
        loop {
            let taken = match &self.socket {
                Socket::Tcp(listener) => listener.accept().await.and_then(|(stream, peer)| {
                    stream.set_nodelay(true)?;
                    Ok((Plain::Tcp(stream), Some(peer.ip().to_canonical())))
                }),
                Socket::Unix(listener) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, _)| (Plain::Unix(stream), None))
                }
            };
            match taken {
                Ok((stream, from)) => self.serve(stream, from),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn serve(&self, stream: Plain, from: Option<IpAddr>) {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let half_open = HalfOpen::take(&self.half_open, from);
        let (Some(place), Some(half_open)) = (place, half_open) else {
            self.door.count(Refused::TooMany, from, "");
            return;
        };
        let (door, stop) = (Arc::clone(&self.door), self.stop.clone());
        self.connections.spawn(async move {
            let served = async {
                match (&door.kind, stream) {
                    (Kind::Transparent(origin), Plain::Tcp(stream)) => {
                        transparent::serve(stream, *origin, &door, half_open).await;
                    }
                    (_, stream) => entrance::serve(stream, &door, half_open).await,
                }
            };
            stop.run_until_cancelled(served).await;
            drop::<OwnedSemaphorePermit>(place);
        });
    }
}

/// What connections are counted by until their sandbox is known.
fn source(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => {
            let network = u128::from(ip) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 => v4,
    }
}

/// A place among the connections whose sandbox is not known; given up by dropping it.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    counts: Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
    source: Option<IpAddr>,
    from: Option<IpAddr>,
}

impl HalfOpen {
    fn take(
        counts: &Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
        from: Option<IpAddr>,
    ) -> Option<Self> {
        let source = from.map(source);
        let mut held = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if held.values().sum::<usize>() >= MAX_HALF_OPEN {
            return None;
        }
        let own = held.entry(source).or_insert(0);
        if *own >= MAX_HALF_OPEN_PER_SOURCE {
            return None;
        }
        *own += 1;
        drop(held);
        Some(Self {
            counts: Arc::clone(counts),
            source,
            from,
        })
    }
}

impl HalfOpen {
    /// The client's address; none of a local socket.
    pub(super) fn from(&self) -> Option<IpAddr> {
        self.from
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        let mut held = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut own) = held.entry(self.source) {
            *own.get_mut() = own.get().saturating_sub(1);
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}
