//! UDP by rule: datagrams of a guest to one destination, handed to whoever relays them.
//!
//! A flow is a guest's port and a destination, opened by its first datagram after the same question
//! that a SYN asks. Nothing here is reliable, as nothing about UDP is: what finds a queue full is
//! dropped and counted, and neither side ever waits for the other. DNS to the gateway is no flow; it
//! is answered on the spot and leaves nothing behind (field case B109).

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use super::ingress::FlowKey;
use super::names::NameLease;
use super::{DatagramOpening, Dropped, FlowDestination, FlowHandler};
use crate::rate::Rate;

/// UDP flows of one sandbox, decisions under way included.
pub const MAX_DATAGRAM_FLOWS: usize = 64;
/// Datagrams from a guest per second, averaged, and at once.
pub const DATAGRAMS_PER_SECOND: u32 = 10_000;
const DATAGRAM_BURST: u32 = 10_000;
/// Flows opened per second and sandbox, averaged, and at once. Each one is a decision and a record.
const OPENINGS_PER_SECOND: u32 = 100;
const OPENING_BURST: u32 = 200;
/// Datagrams that wait for a decision or a slow relay, per flow.
const WAITING: usize = 32;
/// Datagrams that wait for the guest, of all its flows together.
const REPLIES: usize = 128;
/// Longest time for a decision.
const DECISION_LIMIT: Duration = Duration::from_secs(10);

/// A datagram from the guest that asks for a flow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Datagram<'f> {
    pub(super) flow: FlowKey,
    pub(super) payload: &'f [u8],
}

/// A datagram on its way to the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(super) flow: FlowKey,
    pub(crate) payload: Vec<u8>,
}

/// One UDP flow, as its relay holds it. Dropping it ends the flow; the guest's next datagram opens
/// another one.
pub struct DatagramFlow {
    key: FlowKey,
    from_guest: Receiver<Vec<u8>>,
    to_guest: Sender<Reply>,
    _permit: OwnedSemaphorePermit,
    _name: Option<NameLease>,
}

impl DatagramFlow {
    /// A flow without a link: what the guest sends, and what it gets.
    #[cfg(test)]
    pub(crate) fn for_test() -> (Self, Sender<Vec<u8>>, Receiver<Reply>) {
        let (to_relay, from_guest) = mpsc::channel(WAITING);
        let (to_guest, replies) = mpsc::channel(REPLIES);
        let permits = Arc::new(Semaphore::new(1));
        let to = std::net::SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 5432);
        let flow = Self {
            key: FlowKey {
                guest_port: 5000,
                to,
            },
            from_guest,
            to_guest,
            _permit: permits.try_acquire_owned().expect("the only one"),
            _name: None,
        };
        (flow, to_relay, replies)
    }

    /// The payload of the guest's next datagram, which may be empty. `None` once the link is gone.
    pub async fn receive(&mut self) -> Option<Vec<u8>> {
        self.from_guest.recv().await
    }

    /// Sends a datagram to the guest. False if it was dropped, because the guest does not keep up.
    pub fn send(&self, payload: &[u8]) -> bool {
        let payload = payload.to_vec();
        let flow = self.key;
        self.to_guest.try_send(Reply { flow, payload }).is_ok()
    }
}

impl fmt::Debug for DatagramFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowKey { guest_port, to } = self.key;
        write!(f, "DatagramFlow({guest_port} -> {to})")
    }
}

/// What [`Datagrams`] has for the stack to do.
#[derive(Debug)]
pub(super) enum News {
    Reply(Reply),
    /// A decision was made and has been acted on; so many datagrams were dropped with a refusal.
    Decided(usize),
}

/// The UDP flows of one sandbox.
pub(super) struct Datagrams {
    flows: HashMap<FlowKey, Entry>,
    decisions: JoinSet<DatagramOpening>,
    permits: Arc<Semaphore>,
    rate: Rate,
    openings: Rate,
    replies: (Sender<Reply>, Receiver<Reply>),
}

struct Entry {
    to_relay: Sender<Vec<u8>>,
    /// What the relay gets when it is decided that there is one.
    pending: Option<(Id, DatagramFlow)>,
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams")
            .field("flows", &self.flows.len())
            .finish_non_exhaustive()
    }
}

impl Datagrams {
    pub(super) fn new() -> Self {
        Self {
            flows: HashMap::new(),
            decisions: JoinSet::new(),
            permits: Arc::new(Semaphore::new(MAX_DATAGRAM_FLOWS)),
            rate: Rate::new(DATAGRAMS_PER_SECOND, DATAGRAM_BURST),
            openings: Rate::new(OPENINGS_PER_SECOND, OPENING_BURST),
            replies: mpsc::channel(REPLIES),
        }
    }

    /// Gives a datagram to its flow. False if it has none.
    pub(super) fn deliver(&mut self, datagram: &Datagram<'_>) -> Result<bool, Dropped> {
        if !self.rate.admit(Instant::now()) {
            return Err(Dropped::DatagramRate);
        }
        let Some(entry) = self.flows.get(&datagram.flow) else {
            return Ok(false);
        };
        match entry.to_relay.try_send(datagram.payload.to_vec()) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Err(Dropped::DatagramRate),
            // The relay has ended, for silence or an error: this is a new flow (B110).
            Err(TrySendError::Closed(_)) => {
                self.flows.remove(&datagram.flow);
                Ok(false)
            }
        }
    }

    /// Asks the handler about a flow and keeps its first datagram until it has answered.
    pub(super) fn open(
        &mut self,
        datagram: &Datagram<'_>,
        to: FlowDestination,
        name: Option<NameLease>,
        handler: &Arc<dyn FlowHandler>,
    ) -> Result<(), Dropped> {
        if !self.openings.admit(Instant::now()) {
            return Err(Dropped::DatagramRate);
        }
        if self.flows.len() >= MAX_DATAGRAM_FLOWS {
            self.flows.retain(|_, entry| !entry.to_relay.is_closed());
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| Dropped::DatagramFlows)?;
        let (to_relay, from_guest) = mpsc::channel(WAITING);
        let flow = DatagramFlow {
            key: datagram.flow,
            from_guest,
            to_guest: self.replies.0.clone(),
            _permit: permit,
            _name: name,
        };
        to_relay
            .try_send(datagram.payload.to_vec())
            .map_err(|_| Dropped::DatagramRate)?;
        let handler = Arc::clone(handler);
        let task = self.decisions.spawn(async move {
            let decision = timeout(DECISION_LIMIT, handler.open_datagrams(to)).await;
            decision.unwrap_or(DatagramOpening::Refuse)
        });
        let pending = Some((task.id(), flow));
        self.flows
            .insert(datagram.flow, Entry { to_relay, pending });
        Ok(())
    }

    /// A decision that is already made.
    pub(super) fn try_decided(&mut self) -> Option<News> {
        let joined = self.decisions.try_join_next_with_id()?;
        Some(self.decided(joined))
    }

    /// A datagram for the guest, if one waits.
    pub(super) fn try_reply(&mut self) -> Option<Reply> {
        self.replies.1.try_recv().ok()
    }

    /// The next thing to do: only decisions while the guest has no room for datagrams. Never
    /// resolves while there is nothing.
    pub(super) async fn next(&mut self, has_room: bool) -> News {
        let joined = tokio::select! {
            Some(joined) = self.decisions.join_next_with_id() => joined,
            // Never none: one sender is ours.
            Some(reply) = self.replies.1.recv(), if has_room => return News::Reply(reply),
            else => std::future::pending().await,
        };
        self.decided(joined)
    }

    /// Hands an accepted flow to its relay.
    fn decided(&mut self, joined: Result<(Id, DatagramOpening), JoinError>) -> News {
        let (id, opening) = match joined {
            Ok(decided) => decided,
            // A handler that panicked has allowed nothing.
            Err(error) => (error.id(), DatagramOpening::Refuse),
        };
        let is_it = |entry: &Entry| entry.pending.as_ref().is_some_and(|(own, _)| *own == id);
        let key = self
            .flows
            .iter()
            .find(|(_, entry)| is_it(entry))
            .map(|(key, _)| *key);
        let pending = key
            .and_then(|key| self.flows.get_mut(&key))
            .and_then(|entry| entry.pending.take());
        let Some((_, mut flow)) = pending else {
            return News::Decided(0);
        };
        match opening {
            DatagramOpening::Accept(relay) => {
                relay(flow);
                News::Decided(0)
            }
            DatagramOpening::Refuse => {
                self.flows.remove(&flow.key);
                let mut dropped = 0;
                while flow.from_guest.try_recv().is_ok() {
                    dropped += 1;
                }
                News::Decided(dropped)
            }
        }
    }
}

/// The longest payload that fits into one packet of the link.
pub(super) fn max_payload(mtu: u16) -> usize {
    const IPV4_AND_UDP: u16 = 28;
    usize::from(mtu.saturating_sub(IPV4_AND_UDP))
}

/// Who a reply comes from, as the guest knows it.
pub(super) fn source(reply: &Reply) -> (Ipv4Addr, u16) {
    (*reply.flow.to.ip(), reply.flow.to.port())
}
