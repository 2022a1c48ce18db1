//! SYNs that wait for a decision. The guest hears nothing until it is made.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::wire::Ipv4Packet;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::ingress::{FlowKey, Segment};
use super::names::NameLease;
use super::{FlowDestination, FlowHandler, Opening};

/// Longest time that a SYN is held. Guests give up after about two minutes.
const DECISION_LIMIT: Duration = Duration::from_secs(60);

/// A connection attempt and what its flow will need.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) key: FlowKey,
    /// The SYN packet, without data.
    pub(super) syn: Vec<u8>,
    /// Its sequence number.
    pub(super) isn: i32,
    /// Keeps the destination's name at its address.
    pub(super) name: Option<NameLease>,
    /// One of the flows that the sandbox may have.
    pub(super) permit: OwnedSemaphorePermit,
}

impl Attempt {
    /// Copies the headers of a SYN. Data in a SYN is not acknowledged, so the guest repeats it.
    pub(super) fn new(
        segment: &Segment<'_>,
        isn: i32,
        name: Option<NameLease>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            key: segment.flow,
            syn: headers(segment),
            isn,
            name,
            permit,
        }
    }
}

/// The packet without its payload.
fn headers(segment: &Segment<'_>) -> Vec<u8> {
    let mut bytes = segment.packet[..segment.header_len].to_vec();
    // A header is far shorter than its own length field can say.
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    Ipv4Packet::new_unchecked(bytes.as_mut_slice()).set_total_len(len);
    bytes
}

/// The attempts of one sandbox that are being decided.
#[derive(Debug, Default)]
pub(super) struct Openings {
    pending: HashMap<FlowKey, (Attempt, AbortHandle)>,
    tasks: JoinSet<Opening>,
}

impl Openings {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        self.pending.contains_key(key)
    }

    /// Asks the handler about an attempt.
    pub(super) fn ask(
        &mut self,
        attempt: Attempt,
        to: FlowDestination,
        handler: &Arc<dyn FlowHandler>,
    ) {
        let handler = Arc::clone(handler);
        let key = attempt.key;
        let task = self.tasks.spawn(async move {
            let decision = tokio::time::timeout(DECISION_LIMIT, handler.open(to)).await;
            decision.unwrap_or(Opening::Refuse)
        });
        self.pending.insert(key, (attempt, task));
    }

    /// A retransmitted SYN is the same attempt; one with another number replaces it.
    pub(super) fn repeat(&mut self, segment: &Segment<'_>, isn: i32) {
        if let Some((attempt, _)) = self.pending.get_mut(&segment.flow)
            && attempt.isn != isn
        {
            attempt.syn = headers(segment);
            attempt.isn = isn;
        }
    }

    /// The guest gave up. False if nothing was pending.
    pub(super) fn cancel(&mut self, key: &FlowKey) -> bool {
        let pending = self.pending.remove(key);
        if let Some((_, task)) = &pending {
            task.abort();
        }
        pending.is_some()
    }

    /// A decision that is already made.
    pub(super) fn try_next(&mut self) -> Option<(Attempt, Opening)> {
        loop {
            let joined = self.tasks.try_join_next_with_id()?;
            if let Some(decided) = self.decided(joined) {
                return Some(decided);
            }
        }
    }

    /// The next decision. Never resolves while there is none to wait for.
    pub(super) async fn next(&mut self) -> (Attempt, Opening) {
        loop {
            match self.tasks.join_next_with_id().await {
                Some(joined) => {
                    if let Some(decided) = self.decided(joined) {
                        return decided;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// The attempt that a finished task was about; none if it was cancelled meanwhile.
    fn decided(&mut self, joined: Result<(Id, Opening), JoinError>) -> Option<(Attempt, Opening)> {
        let (id, opening) = match joined {
            Ok(decided) => decided,
            // A handler that panicked has allowed nothing.
            Err(error) => (error.id(), Opening::Refuse),
        };
        let key = *self
            .pending
            .iter()
            .find(|(_, (_, task))| task.id() == id)?
            .0;
        let (attempt, _) = self.pending.remove(&key)?;
        Some((attempt, opening))
    }
}
