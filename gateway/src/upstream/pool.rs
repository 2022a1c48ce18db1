//! The open connections of one sandbox.
//!
//! A connection is used again only for the same authority and protocol, under the same openness for
//! private addresses, and with the same version of the credential: an origin may tie what it knows
//! of a client to the connection. HTTP/2 connections are shared at once; an HTTP/1.1 connection comes
//! back after the body of its answer was read. Everything a guest could pile up here is bounded.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use lru::LruCache;
use outgate_policy::{Authority, Permit, Protocol};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::SendOptions;
use super::connection::{Connection, Connector, Tether};
use super::error::UpstreamError;
use crate::tls::client::Offer;

/// Connections that one sandbox may have open for requests, busy and idle together. Each may pin a
/// receive window of memory.
const MAX_CONNECTIONS: usize = 256;
/// Distinct keys remembered; the least recently used goes first, its idle connections with it.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(128).unwrap();
/// Idle HTTP/1.1 connections kept for one key: a client that asks so many things at once will do so
/// again, and each that is missing costs a handshake.
const MAX_IDLE: usize = 128;
/// How long an unused connection is kept: shorter than common origins do (60 to 75 s), so that we
/// are the ones to close it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// How long a request waits for a free connection when all are taken.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);

/// What two requests must share to share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) authority: Authority,
    pub(super) protocol: Protocol,
    allows_private: bool,
    credential_version: Option<u64>,
    prefer_http1: bool,
}

impl Key {
    pub(super) fn new(permit: &Permit, options: SendOptions) -> Self {
        Self {
            authority: permit.authority().clone(),
            protocol: permit.protocol(),
            allows_private: permit.allows_private(),
            credential_version: options.credential_version,
            prefer_http1: options.prefer_http1,
        }
    }
}

pub(super) struct Pool {
    connector: Connector,
    places: Arc<Semaphore>,
    shelves: Arc<Mutex<Shelves>>,
    sweeper: Once,
    closed: CancellationToken,
    /// Closes every connection when the pool goes.
    _close: DropGuard,
}

type Shelves = LruCache<Key, Shelf>;

/// The connections of one key that can take a request.
#[derive(Default)]
struct Shelf {
    connections: Vec<Idle>,
    /// What the origin was last seen to speak, if it was seen.
    speaks: Option<Speaks>,
    /// Somebody is connecting to an origin that may turn out to share; closed when they are done.
    pioneer: Option<watch::Receiver<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// Waiting for another's connection is no use.
    Http1,
    Http2,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

/// What a request that found no connection does.
enum Role {
    /// Connects for itself.
    Alone,
    /// Connects for all; the others go on when this is dropped.
    Pioneer(watch::Sender<()>),
    /// Waits for the pioneer first.
    Follower(watch::Receiver<()>),
}

impl Pool {
    pub(super) fn new(connector: Connector) -> Self {
        let closed = CancellationToken::new();
        Self {
            connector,
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            shelves: Arc::new(Mutex::new(LruCache::new(MAX_KEYS))),
            sweeper: Once::new(),
            _close: closed.clone().drop_guard(),
            closed,
        }
    }

    /// A connection for `key` that seems alive.
    pub(super) fn checkout(&self, key: &Key) -> Option<Connection> {
        lock(&self.shelves)
            .get_mut(key)?
            .take()
            .map(Connection::into_reused)
    }

    /// A new connection for `key`; or another request's, made in the meantime, if it can be shared.
    pub(super) async fn connect(
        &self,
        key: &Key,
        permit: &Permit,
    ) -> Result<Connection, UpstreamError> {
        // Many requests at once to a new origin: the first connects, and the others wait to see
        // whether they can share. If not, each goes its own way.
        match self.role(key) {
            Role::Alone => self.connect_alone(key, permit).await,
            Role::Pioneer(done) => {
                let outcome = self.connect_alone(key, permit).await;
                drop(done);
                outcome
            }
            Role::Follower(mut pioneer) => {
                while pioneer.changed().await.is_ok() {}
                match self.checkout(key) {
                    Some(shared) => Ok(shared),
                    None => self.connect_alone(key, permit).await,
                }
            }
        }
    }

    /// A new HTTP/1.1 connection that never comes back here.
    pub(super) async fn connect_apart(&self, permit: &Permit) -> Result<Connection, UpstreamError> {
        let tether = self.tether().await?;
        self.connector.connect(permit, Offer::Http1, tether).await
    }

    /// Keeps `connection` for the next request, as soon as it can take one.
    pub(super) fn give_back(&self, key: Key, mut connection: Connection) {
        if connection.share().is_some() {
            return; // Another handle of it never left the shelf.
        }
        let shelves = self.shelves.clone();
        let closed = self.closed.clone();
        // As many of these tasks as busy connections, which are bounded.
        tokio::spawn(async move {
            let ready = tokio::select! {
                ready = connection.becomes_ready() => ready,
                () = closed.cancelled() => false,
            };
            if ready {
                lock(&shelves)
                    .get_or_insert_mut(key, Shelf::default)
                    .put(connection);
            }
        });
    }

    async fn connect_alone(&self, key: &Key, permit: &Permit) -> Result<Connection, UpstreamError> {
        self.sweeper.call_once(|| {
            tokio::spawn(sweep(self.shelves.clone(), self.closed.clone()));
        });
        let tether = self.tether().await?;
        let offer = self.offer(key);
        let mut connected = self.connector.connect(permit, offer, tether).await;
        if let Err(error) = &connected
            && offer == Offer::Http1
            && error.speaks_no_http1()
        {
            let tether = self.tether().await?;
            connected = self.connector.connect(permit, Offer::Any, tether).await;
        }
        let connection = connected?;
        let shared = connection.share();
        let mut shelves = lock(&self.shelves);
        let shelf = shelves.get_or_insert_mut(key.clone(), Shelf::default);
        shelf.speaks = Some(match shared {
            Some(_) => Speaks::Http2,
            None => Speaks::Http1,
        });
        shared.into_iter().for_each(|shared| shelf.put(shared));
        drop(shelves);
        Ok(connection)
    }

    fn offer(&self, key: &Key) -> Offer {
        let speaks = lock(&self.shelves).peek(key).and_then(|shelf| shelf.speaks);
        if key.prefer_http1 && speaks != Some(Speaks::Http2) {
            Offer::Http1
        } else {
            Offer::Any
        }
    }

    fn role(&self, key: &Key) -> Role {
        if key.protocol != Protocol::Https {
            return Role::Alone;
        }
        let mut shelves = lock(&self.shelves);
        let shelf = shelves.get_or_insert_mut(key.clone(), Shelf::default);
        if shelf.speaks == Some(Speaks::Http1) || (key.prefer_http1 && shelf.speaks.is_none()) {
            return Role::Alone;
        }
        if let Some(pioneer) = &shelf.pioneer
            && pioneer.has_changed().is_ok()
        {
            return Role::Follower(pioneer.clone());
        }
        let (done, pioneer) = watch::channel(());
        shelf.pioneer = Some(pioneer);
        Role::Pioneer(done)
    }

    async fn tether(&self) -> Result<Tether, UpstreamError> {
        Ok(Tether {
            closed: self.closed.clone(),
            place: self.place().await?,
        })
    }

    /// The right to open a connection. When all are taken the idle ones are given up first.
    async fn place(&self) -> Result<OwnedSemaphorePermit, UpstreamError> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        for (_, shelf) in lock(&self.shelves).iter_mut() {
            shelf.connections.clear();
        }
        match timeout(PLACE_TIMEOUT, self.places.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(UpstreamError::TooManyConnections {
                limit: MAX_CONNECTIONS,
            }),
        }
    }
}

impl Shelf {
    /// The connection used last, which is the least likely to be closed by now. One that can be
    /// shared stays.
    fn take(&mut self) -> Option<Connection> {
        while let Some(mut idle) = self.connections.pop() {
            if !idle.connection.is_usable() {
                continue;
            }
            if let Some(shared) = idle.connection.share() {
                idle.since = Instant::now();
                self.connections.push(idle);
                return Some(shared);
            }
            return Some(idle.connection);
        }
        None
    }

    fn put(&mut self, connection: Connection) {
        if self.connections.len() >= MAX_IDLE {
            self.connections.remove(0);
        }
        self.connections.push(Idle {
            connection,
            since: Instant::now(),
        });
    }
}

/// Lets go of what was not used for a while, until the pool goes. An HTTP/2 connection ends by
/// itself when the streams still on it have.
async fn sweep(shelves: Arc<Mutex<Shelves>>, closed: CancellationToken) {
    let mut ticks = interval(IDLE_TIMEOUT / 2);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = closed.cancelled() => return,
        }
        for (_, shelf) in lock(&shelves).iter_mut() {
            shelf
                .connections
                .retain(|idle| idle.connection.is_usable() && idle.since.elapsed() < IDLE_TIMEOUT);
        }
    }
}

/// A panic while this is held leaves no half state: every step is one operation on the map.
fn lock(shelves: &Mutex<Shelves>) -> MutexGuard<'_, Shelves> {
    shelves.lock().unwrap_or_else(PoisonError::into_inner)
}
