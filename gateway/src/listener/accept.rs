//! Takes connections, within bounds, and hands each to what is spoken on it.
//!
//! A connection counts against its listener from the first moment, as half open and against its
//! source until its sandbox is known, and against that sandbox from then on. Beyond a bound it is
//! closed at once: a client that waits in a queue would not know why.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::bind::{Bound, BoundSocket};
use super::directory::{Directory, Guest};
use super::refusals::{Refusals, Refused};
use crate::audit::AuditLog;
use crate::http;

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
    /// The one sandbox that it serves without asking for a credential. Whoever can connect is it.
    pub sandbox: Option<String>,
    /// Most connections at a time.
    pub max_connections: usize,
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
        config: &ListenerConfig,
        directory: Arc<ArcSwap<Directory>>,
        audit: AuditLog,
    ) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let socket = Socket::new(&bound)?;
        let (refusals, telling) = Refusals::spawn(audit, &config.name, stop.clone());
        let door = Arc::new(Door {
            directory,
            only: config.sandbox.as_deref().map(Box::from),
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

    /// Takes no more connections, ends the open ones, and returns when all of it is on record.
    pub async fn stop(self) {
        drop(self.stop);
        self.connections.close();
        self.connections.wait().await;
        for task in [self.accepting, self.telling] {
            if let Err(error) = task.await {
                tracing::error!(%error, "a listener's task died");
            }
        }
    }
}

/// What the connections of one listener share.
#[derive(Debug)]
pub(crate) struct Door {
    directory: Arc<ArcSwap<Directory>>,
    only: Option<Box<str>>,
    refusals: Refusals,
}

impl Door {
    /// The sandbox that every connection here belongs to; `None` where each has to prove its own.
    ///
    /// # Errors
    /// When that sandbox is not served any more.
    pub(crate) fn guest(&self) -> Result<Option<Arc<Guest>>, Gone> {
        match &self.only {
            None => Ok(None),
            Some(id) => self.directory.load().get(id).ok_or(Gone).map(Some),
        }
    }

    /// The sandbox that a `Proxy-Authorization` proves.
    pub(crate) fn prove_basic(&self, value: &[u8]) -> Option<Arc<Guest>> {
        self.directory.load().prove_basic(value)
    }

    /// Counts a client that was turned away.
    pub(crate) fn refuse(&self, refused: Refused, half_open: &HalfOpen, detail: &str) {
        self.refusals.count(refused, half_open.source, detail);
    }
}

/// The one sandbox of a listener is not served any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;

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
                Socket::Tcp(listener) => match listener.accept().await {
                    Ok((stream, peer)) => self.take_tcp(stream, peer.ip()),
                    Err(error) => Err(error),
                },
                Socket::Unix(listener) => match listener.accept().await {
                    Ok((stream, _)) => {
                        self.serve(stream, None);
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = taken {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn take_tcp(&self, stream: TcpStream, from: IpAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        self.serve(stream, Some(source(from)));
        Ok(())
    }

    fn serve<S>(&self, stream: S, from: Option<IpAddr>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let half_open = HalfOpen::take(&self.half_open, from);
        let (Some(place), Some(half_open)) = (place, half_open) else {
            self.door.refusals.count(Refused::TooMany, from, "");
            return;
        };
        let (door, stop) = (Arc::clone(&self.door), self.stop.clone());
        self.connections.spawn(async move {
            let served = http::serve_proxy(stream, &door, half_open);
            stop.run_until_cancelled(served).await;
            drop::<OwnedSemaphorePermit>(place);
        });
    }
}

/// What connections are counted by until their sandbox is known.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
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
}

impl HalfOpen {
    fn take(
        counts: &Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
        source: Option<IpAddr>,
    ) -> Option<Self> {
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
        })
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
