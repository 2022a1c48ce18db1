//! The flows of one sandbox and when each has to be looked at.
//!
//! A packet concerns one flow, which is found by its 4-tuple; a visit sends what that flow has to
//! send. No step of the stack walks over all flows.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::time::{Duration, Instant};

use super::device::{TxQueue, Visit};
use super::flow::{Flow, FlowStream, ReadyList, Standing};
use super::frame_socket::Link;
use super::ingress::{FlowKey, Segment, SegmentKind};
use super::openings::Attempt;

/// Segments that a flow may send before the next one gets its turn.
const BURST: usize = 8;
/// How long a guest may take to complete a handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(15);
/// How long a guest may take to close its side after ours was closed and dropped.
const ORPHAN_LIMIT: Duration = Duration::from_secs(30);
/// Shortest time between two visits that nothing but the clock asked for.
const TIMER_GRAIN: Duration = Duration::from_millis(1);

/// What is called with the stream once a handshake is complete.
pub(super) type Deliver = Box<dyn FnOnce(FlowStream) + Send>;

pub(super) struct FlowTable {
    interface: Interface,
    flows: HashMap<FlowKey, Entry>,
    half_open: usize,
    timers: BTreeSet<(Instant, FlowKey)>,
    /// Flows to visit, each at most once.
    queue: VecDeque<FlowKey>,
    /// Flows that their streams want visited.
    ready: Arc<ReadyList>,
}

struct Entry {
    flow: Arc<Flow>,
    isn: i32,
    /// Present until the handshake is complete.
    deliver: Option<Deliver>,
    /// When the flow is reset if it is still where it is.
    give_up: Option<Instant>,
    timer: Option<Instant>,
}

impl fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowTable")
            .field("flows", &self.flows.len())
            .finish_non_exhaustive()
    }
}

impl FlowTable {
    pub(super) fn new(interface: Interface) -> Self {
        Self {
            interface,
            flows: HashMap::new(),
            half_open: 0,
            timers: BTreeSet::new(),
            queue: VecDeque::new(),
            ready: Arc::default(),
        }
    }

    pub(super) fn ready(&self) -> Arc<ReadyList> {
        Arc::clone(&self.ready)
    }

    /// Flows whose handshake is not complete.
    pub(super) fn half_open(&self) -> usize {
        self.half_open
    }

    /// Whether a flow waits for a visit.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// When a flow has to be visited though nothing happens.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Gives a segment to its flow. False if it has none: the segment opens one or is a stray.
    pub(super) fn receive(
        &mut self,
        segment: &Segment<'_>,
        tx: &mut TxQueue,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.flows.get(&segment.flow) else {
            return false;
        };
        if let SegmentKind::Open(isn) = segment.kind
            && isn != entry.isn
        {
            // The guest has forgotten its end and uses the port again. There is nobody else on the
            // link who could have forged this, and smoltcp would leave the new SYN unanswered.
            entry.flow.abort();
            self.remove(&segment.flow);
            return false;
        }
        entry
            .flow
            .receive(&mut self.interface, segment.packet, tx, now);
        if entry.flow.list() {
            self.queue.push_back(segment.flow);
        }
        true
    }

    /// Answers a segment that belongs to no flow with a reset (RFC 9293, 3.10.7.1).
    pub(super) fn reset(&mut self, packet: &[u8], tx: &mut TxQueue, now: Instant) {
        let mut nobody = SocketSet::new(Vec::new());
        let mut visit = Visit {
            packet: Some(packet),
            tx,
        };
        self.interface
            .poll_ingress_single(now, &mut visit, &mut nobody);
    }

    /// Completes the handshake of an attempt; `deliver` gets the stream when the guest has, too.
    pub(super) fn accept(
        &mut self,
        attempt: Attempt,
        deliver: Deliver,
        tx: &mut TxQueue,
        now: Instant,
    ) {
        let Attempt {
            key,
            syn,
            isn,
            name,
            permit,
        } = attempt;
        let Some(flow) = Flow::new(key, self.ready(), permit, name) else {
            return self.reset(&syn, tx, now);
        };
        flow.receive(&mut self.interface, &syn, tx, now);
        flow.list();
        self.queue.push_back(key);
        let give_up = Some(now + HANDSHAKE_LIMIT);
        let flow = Arc::new(flow);
        self.half_open += 1;
        self.flows.insert(
            key,
            Entry {
                flow,
                isn,
                deliver: Some(deliver),
                give_up,
                timer: None,
            },
        );
    }

    /// Visits every flow that something happened to, once, as far as the link takes frames.
    pub(super) fn send(&mut self, tx: &mut TxQueue, link: &Link, now: Instant) {
        self.list_expired(now);
        self.ready.drain_into(&mut self.queue);
        for _ in 0..self.queue.len() {
            if !tx.has_room() {
                return;
            }
            if let Some(key) = self.queue.pop_front() {
                self.visit(key, tx, link, now);
            }
        }
    }

    fn list_expired(&mut self, now: Instant) {
        while let Some((at, key)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(entry) = self.flows.get_mut(&key) else {
                continue;
            };
            entry.timer = None;
            if entry.give_up.is_some_and(|limit| limit <= now) {
                entry.give_up = None;
                entry.flow.abort();
            }
            if entry.flow.list() {
                self.queue.push_back(key);
            }
        }
    }

    fn visit(&mut self, key: FlowKey, tx: &mut TxQueue, link: &Link, now: Instant) {
        let Some(entry) = self.flows.get(&key) else {
            return;
        };
        entry.flow.unlist();
        for _ in 0..BURST {
            // Each frame goes out at once, so that the guest works on it while the next is made.
            let sent = entry.flow.send(&mut self.interface, tx, now);
            tx.flush(link);
            if !sent {
                return self.settle(key, now);
            }
            if !tx.has_room() {
                break;
            }
        }
        if entry.flow.list() {
            self.queue.push_back(key);
        }
    }

    /// Decides what a flow that has nothing to send now waits for.
    fn settle(&mut self, key: FlowKey, now: Instant) {
        let Some(entry) = self.flows.get_mut(&key) else {
            return;
        };
        if entry.flow.is_talking_to_nobody() {
            // The next visit sends the reset.
            entry.flow.abort();
            if entry.flow.list() {
                self.queue.push_back(key);
            }
            return;
        }
        match entry.flow.standing() {
            Standing::Gone => return self.remove(&key),
            Standing::HalfOpen => {}
            Standing::Open => {
                if let Some(deliver) = entry.deliver.take() {
                    self.half_open -= 1;
                    entry.give_up = None;
                    deliver(FlowStream::new(Arc::clone(&entry.flow)));
                }
            }
            Standing::Orphaned => {
                entry.give_up.get_or_insert(now + ORPHAN_LIMIT);
            }
        }
        let wanted = entry.flow.deadline(&mut self.interface, now);
        // What is due at once was not sent at once; looking again in this instant would spin.
        let wanted = wanted.map(|at| at.max(now + TIMER_GRAIN));
        let timer = [wanted, entry.give_up].into_iter().flatten().min();
        if timer != entry.timer {
            if let Some(old) = std::mem::replace(&mut entry.timer, timer) {
                self.timers.remove(&(old, key));
            }
            self.timers.extend(timer.map(|at| (at, key)));
        }
    }

    fn remove(&mut self, key: &FlowKey) {
        if let Some(entry) = self.flows.remove(key) {
            self.half_open -= usize::from(entry.deliver.is_some());
            if let Some(at) = entry.timer {
                self.timers.remove(&(at, *key));
            }
        }
    }
}

impl Drop for FlowTable {
    /// The link is going: whoever serves a flow learns it now.
    fn drop(&mut self) {
        for entry in self.flows.values() {
            entry.flow.abort();
        }
    }
}
