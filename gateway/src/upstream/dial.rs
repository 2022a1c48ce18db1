//! Opens a TCP connection to one of the checked addresses.
//!
//! Families take turns and a slow address does not hold up the next (a small form of RFC 8305), but
//! nothing outside the checked list is ever tried, and the connected socket is asked where it leads
//! before a byte is written.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use outgate_policy::Permit;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::error::UpstreamError;
use super::resolve::{CheckedAddress, Resolver};

/// How long one address is tried alone (RFC 8305 section 5, connection attempt delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// How many addresses of an answer are tried at most.
const MAX_ATTEMPTS: usize = 8;
/// Silence after which the kernel asks whether the origin is still there, how often it asks again,
/// and how many questions may stay unanswered. A stream may be silent for as long as it likes; a
/// dead peer is noticed within two minutes all the same.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// Resolves and connects. Cheap to clone.
#[derive(Clone)]
pub(super) struct Dialer {
    resolver: Resolver,
    connect_timeout: Duration,
}

/// A connection to a checked address and what it took.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    /// None for an address that needed no resolution.
    pub(super) dns: Option<Duration>,
    pub(super) connect: Duration,
}

impl Dialer {
    pub(super) fn new(resolver: Resolver, connect_timeout: Duration) -> Self {
        Self {
            resolver,
            connect_timeout,
        }
    }

    pub(super) async fn dial(&self, permit: &Permit) -> Result<Dialed, UpstreamError> {
        let started = Instant::now();
        let addresses = self.resolver.resolve(permit).await?;
        let dns = permit
            .authority()
            .destination
            .name()
            .map(|_| started.elapsed());

        let started = Instant::now();
        let (stream, peer) = timeout(self.connect_timeout, connect_first(&addresses))
            .await
            .map_err(|_| UpstreamError::ConnectTimeout {
                authority: permit.authority().clone(),
                within: self.connect_timeout,
            })?
            .map_err(|(peer, source)| UpstreamError::Connect {
                authority: permit.authority().clone(),
                peer,
                source,
            })?;
        let local = stream.local_addr();
        if local.is_ok_and(|local| self.resolver.is_own_socket(local, peer)) {
            let authority = permit.authority().clone();
            return Err(UpstreamError::OwnAddress {
                authority,
                address: peer,
            });
        }
        Ok(Dialed {
            stream,
            peer,
            dns,
            connect: started.elapsed(),
        })
    }
}

type Attempt = Result<(TcpStream, SocketAddr), (SocketAddr, io::Error)>;

/// The first connection that comes about, or the last failure.
async fn connect_first(addresses: &[CheckedAddress]) -> Attempt {
    let mut waiting = families_in_turn(addresses)
        .into_iter()
        .take(MAX_ATTEMPTS)
        .peekable();
    // Dropping the set ends the attempts that lost.
    let mut attempts = JoinSet::new();
    let mut outcome = Err((
        SocketAddr::from(([0, 0, 0, 0], 0)),
        io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to connect to"),
    ));
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(connect(address));
        } else if attempts.is_empty() {
            return outcome;
        }
        tokio::select! {
            Some(attempt) = attempts.join_next() => match attempt {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(failed) => outcome = failed,
                Err(error) => tracing::error!(%error, "a connection attempt died"),
            },
            () = sleep(ATTEMPT_DELAY), if waiting.peek().is_some() => {}
        }
    }
}

async fn connect(address: CheckedAddress) -> Attempt {
    let address = address.get();
    let connected = async {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        socket.set_nodelay(true)?;
        socket.set_keepalive(true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
        let stream = socket.connect(address).await?;
        let peer = stream.peer_addr()?;
        if peer != address {
            let text = format!("connected to {peer} instead");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        }
        Ok(stream)
    };
    match connected.await {
        Ok(stream) => Ok((stream, address)),
        Err(error) => Err((address, error)),
    }
}

/// The addresses with IPv6 and IPv4 alternating, each family in the order of the answer.
fn families_in_turn(addresses: &[CheckedAddress]) -> Vec<CheckedAddress> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses
        .iter()
        .partition(|address| address.get().is_ipv6());
    let longest = v6.len().max(v4.len());
    (0..longest)
        .flat_map(|turn| [v6.get(turn), v4.get(turn)])
        .flatten()
        .copied()
        .collect()
}
