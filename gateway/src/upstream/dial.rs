//! Opens a TCP connection to one of the checked addresses.
//!
//! Happy Eyeballs (RFC 8305): both families are looked up at once, IPv6 gets a short head start,
//! families take turns, and a slow address does not hold up the next. But nothing outside of what
//! [`Resolution`] hands out is ever tried, and the connected socket is asked where it leads before
//! a byte is written.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outgate_policy::{Authority, Permit};
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{self, sleep_until, timeout};

use super::error::UpstreamError;
use super::next_hop::NextHop;
use super::resolve::{CheckedAddress, Resolution, Resolver};
use super::stream::UpstreamStream;
use crate::rate::Rate;

/// How long IPv4 addresses that came first wait for IPv6 ones (section 3, resolution delay).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// How long one address is tried alone (section 5, connection attempt delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// How many addresses of an answer are tried at most.
const MAX_ATTEMPTS: usize = 8;
/// How many addresses a next hop is asked for, one after the other.
const MAX_TUNNELS: usize = 3;
/// Dials of one sandbox per second, averaged, and at once: as many as its link may open.
const DIALS_PER_SECOND: u32 = 2000;
const DIAL_BURST: u32 = 4000;
/// Silence after which the kernel asks whether the origin is still there, how often it asks again,
/// and how many questions may stay unanswered. A stream may be silent for as long as it likes; a
/// dead peer is noticed within two minutes all the same.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// Resolves and connects for one sandbox. Cheap to clone.
#[derive(Clone)]
pub(super) struct Dialer {
    resolver: Resolver,
    next_hop: Option<NextHop>,
    connect_timeout: Duration,
    rate: Arc<Mutex<Rate>>,
}

/// A connection to a checked address and what it took.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) stream: UpstreamStream,
    /// The address that the connection leads to; that of the next hop if it resolved the name.
    pub(super) peer: SocketAddr,
    /// None for an address that needed no resolution.
    pub(super) dns: Option<Duration>,
    pub(super) connect: Duration,
}

/// A datagram socket that takes and sends only what goes to and comes from a checked address.
#[derive(Debug)]
pub(super) struct DialedUdp {
    pub(super) socket: UdpSocket,
    pub(super) peer: SocketAddr,
    pub(super) dns: Option<Duration>,
}

impl Dialer {
    pub(super) fn new(
        resolver: Resolver,
        next_hop: Option<NextHop>,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            resolver,
            next_hop,
            connect_timeout,
            rate: Arc::new(Mutex::new(Rate::new(DIALS_PER_SECOND, DIAL_BURST))),
        }
    }

    /// The same way out with a rate of its own.
    pub(super) fn for_sandbox(&self) -> Self {
        Self::new(
            self.resolver.clone(),
            self.next_hop.clone(),
            self.connect_timeout,
        )
    }

    pub(super) async fn dial(&self, permit: &Permit) -> Result<Dialed, UpstreamError> {
        self.admit()?;
        match &self.next_hop {
            Some(hop) if !hop.spares(&permit.authority().destination) => {
                self.dial_through(hop, permit).await
            }
            _ => self.dial_directly(permit).await,
        }
    }

    async fn dial_directly(&self, permit: &Permit) -> Result<Dialed, UpstreamError> {
        let authority = permit.authority();
        let started = Instant::now();
        let mut resolution = self.resolver.resolve(permit);
        let mut candidates = Candidates::default();
        candidates.first(&mut resolution).await;
        if candidates.is_empty() {
            return Err(resolution.into_error());
        }
        let dns = authority.destination.name().map(|_| started.elapsed());
        self.connect(authority, candidates, &mut resolution, dns)
            .await
    }

    /// Connects to one of the candidates, or of what the resolution still brings.
    async fn connect(
        &self,
        authority: &Authority,
        candidates: Candidates,
        resolution: &mut Resolution,
        dns: Option<Duration>,
    ) -> Result<Dialed, UpstreamError> {
        let started = Instant::now();
        let (stream, peer) = timeout(self.connect_timeout, race(candidates, resolution))
            .await
            .map_err(|_| UpstreamError::ConnectTimeout {
                authority: authority.clone(),
                within: self.connect_timeout,
            })?
            .map_err(|(peer, source)| UpstreamError::Connect {
                authority: authority.clone(),
                peer,
                source,
            })?;
        self.not_ourselves(authority, &stream, peer)?;
        Ok(Dialed {
            stream: stream.into(),
            peer,
            dns,
            connect: started.elapsed(),
        })
    }

    /// A tunnel through the next hop: to a checked address, or to the name if the operator has left
    /// that to the proxy.
    async fn dial_through(&self, hop: &NextHop, permit: &Permit) -> Result<Dialed, UpstreamError> {
        let authority = permit.authority();
        let started = Instant::now();
        if hop.resolves() && authority.destination.name().is_some() {
            let target = authority.to_string();
            let (stream, peer) = hop.tunnel(&self.resolver, authority, &target).await?;
            return Ok(Dialed {
                stream,
                peer,
                dns: None,
                connect: started.elapsed(),
            });
        }
        let mut resolution = self.resolver.resolve(permit);
        let (mut direct, mut through) = (Candidates::default(), Candidates::default());
        while let Some(addresses) = resolution.next().await {
            let spared = |address: &CheckedAddress| hop.spares_address(address.get().ip());
            let (near, far) = addresses.into_iter().partition(spared);
            direct.add(near);
            through.add(far);
        }
        let dns = authority.destination.name().map(|_| started.elapsed());
        if !direct.is_empty() {
            return self.connect(authority, direct, &mut resolution, dns).await;
        }
        let started = Instant::now();
        let mut failure = None;
        for _ in 0..MAX_TUNNELS {
            let Some(address) = through.take() else { break };
            let peer = address.get();
            match hop
                .tunnel(&self.resolver, authority, &peer.to_string())
                .await
            {
                Ok((stream, _)) => {
                    return Ok(Dialed {
                        stream,
                        peer,
                        dns,
                        connect: started.elapsed(),
                    });
                }
                Err(error) => {
                    let UpstreamError::NextHop { failure: why, .. } = &error else {
                        return Err(error);
                    };
                    if !why.is_of_the_address() {
                        return Err(error);
                    }
                    failure = Some(error);
                }
            }
        }
        Err(failure.unwrap_or_else(|| resolution.into_error()))
    }

    /// A datagram socket that is connected to a checked address. A next hop carries none.
    pub(super) async fn dial_udp(&self, permit: &Permit) -> Result<DialedUdp, UpstreamError> {
        self.admit()?;
        let authority = permit.authority();
        let started = Instant::now();
        let mut addresses = self.resolver.resolve(permit).all().await?;
        let dns = authority.destination.name().map(|_| started.elapsed());
        if let Some(hop) = &self.next_hop
            && !hop.spares(&authority.destination)
        {
            addresses.retain(|address| hop.spares_address(address.get().ip()));
        }
        // Nobody says whether a datagram arrived, so there is nothing to race: IPv4 goes first
        // because it is what a sandbox has itself.
        addresses.sort_by_key(|address| address.get().is_ipv6());
        let mut failure = UpstreamError::NoDatagrams {
            authority: authority.clone(),
        };
        for address in addresses.into_iter().take(MAX_ATTEMPTS) {
            let peer = address.get();
            match connect_udp(peer).await {
                Ok(socket) => {
                    let local = socket.local_addr();
                    if local.is_ok_and(|local| self.resolver.is_own_socket(local, peer)) {
                        return Err(UpstreamError::OwnAddress {
                            authority: authority.clone(),
                            address: peer,
                        });
                    }
                    return Ok(DialedUdp { socket, peer, dns });
                }
                Err(source) => {
                    failure = UpstreamError::Connect {
                        authority: authority.clone(),
                        peer,
                        source,
                    }
                }
            }
        }
        Err(failure)
    }

    fn admit(&self) -> Result<(), UpstreamError> {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if rate.admit(time::Instant::now()) {
            Ok(())
        } else {
            Err(UpstreamError::TooManyDials {
                per_second: DIALS_PER_SECOND,
            })
        }
    }

    fn not_ourselves(
        &self,
        authority: &Authority,
        stream: &TcpStream,
        peer: SocketAddr,
    ) -> Result<(), UpstreamError> {
        let local = stream.local_addr();
        if local.is_ok_and(|local| self.resolver.is_own_socket(local, peer)) {
            return Err(UpstreamError::OwnAddress {
                authority: authority.clone(),
                address: peer,
            });
        }
        Ok(())
    }
}

/// Addresses that wait for their turn, each family in the order of its answer.
#[derive(Debug, Default)]
struct Candidates {
    v6: VecDeque<CheckedAddress>,
    v4: VecDeque<CheckedAddress>,
    last_was_v6: bool,
}

impl Candidates {
    fn add(&mut self, addresses: Vec<CheckedAddress>) {
        for address in addresses {
            if address.get().is_ipv6() {
                self.v6.push_back(address);
            } else {
                self.v4.push_back(address);
            }
        }
    }

    /// Waits for the first addresses; for IPv6 a little longer, because the first to be tried is
    /// mostly the one that is taken.
    async fn first(&mut self, resolution: &mut Resolution) {
        while self.is_empty() {
            match resolution.next().await {
                Some(addresses) => self.add(addresses),
                None => return,
            }
        }
        if self.v6.is_empty()
            && !resolution.is_over()
            && let Ok(Some(addresses)) = timeout(RESOLUTION_DELAY, resolution.next()).await
        {
            self.add(addresses);
        }
    }

    fn is_empty(&self) -> bool {
        self.v6.is_empty() && self.v4.is_empty()
    }

    /// The next one; the families take turns, IPv6 first.
    fn take(&mut self) -> Option<CheckedAddress> {
        let v6 = if self.last_was_v6 {
            self.v4.is_empty()
        } else {
            !self.v6.is_empty()
        };
        self.last_was_v6 = v6;
        if v6 {
            self.v6.pop_front()
        } else {
            self.v4.pop_front()
        }
    }
}

type Attempt = Result<(TcpStream, SocketAddr), (SocketAddr, io::Error)>;

/// The first connection that comes about, or the last failure.
async fn race(mut candidates: Candidates, resolution: &mut Resolution) -> Attempt {
    // Dropping the set ends the attempts that lost.
    let mut attempts = JoinSet::new();
    let mut started = 0;
    let mut next_at = time::Instant::now();
    let mut outcome = Err((
        SocketAddr::from(([0, 0, 0, 0], 0)),
        io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to connect to"),
    ));
    loop {
        let is_due = attempts.is_empty() || time::Instant::now() >= next_at;
        if is_due
            && started < MAX_ATTEMPTS
            && let Some(address) = candidates.take()
        {
            attempts.spawn(connect(address));
            started += 1;
            next_at = time::Instant::now() + ATTEMPT_DELAY;
        }
        let more = started < MAX_ATTEMPTS;
        if attempts.is_empty() && (!more || resolution.is_over()) {
            return outcome;
        }
        tokio::select! {
            Some(attempt) = attempts.join_next() => match attempt {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(failed) => {
                    outcome = failed;
                    next_at = time::Instant::now();
                }
                Err(error) => tracing::error!(%error, "a connection attempt died"),
            },
            Some(addresses) = resolution.next(), if more && !resolution.is_over() => {
                candidates.add(addresses);
            }
            () = sleep_until(next_at), if more && !candidates.is_empty() => {}
        }
    }
}

/// Connects to one address.
pub(super) async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
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
}

async fn connect_udp(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if peer.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(peer).await?;
    Ok(socket)
}

async fn connect(address: CheckedAddress) -> Attempt {
    let address = address.get();
    match connect_to(address).await {
        Ok(stream) => Ok((stream, address)),
        Err(error) => Err((address, error)),
    }
}
