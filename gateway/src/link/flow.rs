//! One TCP connection of a guest, shared by the stack's task and whoever serves the connection.
//!
//! The socket's two buffers are all that is held for a flow; there is no queue between it and its
//! [`FlowStream`]. Reading and writing are independent of each other, and each wakes the stack when
//! it makes room or brings data, as the stack wakes them.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use smoltcp::iface::{Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, CongestionControl, RecvError, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::IpListenEndpoint;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::coop;

use super::device::{TxQueue, Visit};
use super::ingress::FlowKey;
use super::lock;
use super::names::NameLease;

/// Bytes that a flow holds for a server that does not read: eight of the largest segments, because
/// a buffer of one makes the link stop and go.
///
/// It is exactly the largest unscaled window at the scale that this size implies. smoltcp reads the
/// window of its own SYN-ACK, which is never scaled, as if it were: with any other size it would
/// believe to have offered more than it can store.
pub(super) const RECEIVE_BUFFER: usize = 65_535 << 3;
/// Bytes that a flow holds for a guest that does not read.
pub(super) const SEND_BUFFER: usize = 512 << 10;
/// A silent guest is asked whether it still knows the flow.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// A guest that acknowledged nothing for this long is gone. A paused one survives that much.
const DEAD_PEER: Duration = Duration::from_secs(240);

/// The connection as the stack sees it. Its memory goes when both sides have let go.
pub(super) struct Flow {
    key: FlowKey,
    state: Mutex<FlowState>,
    ready: Arc<ReadyList>,
    _permit: OwnedSemaphorePermit,
    _name: Option<NameLease>,
}

struct FlowState {
    /// A set of one: the interface works on sets, and a set per flow makes every packet's cost
    /// independent of the number of flows.
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// The stack has this flow on its list.
    listed: bool,
    /// The window that the guest knows of, at least, counted from what it has sent.
    announced: usize,
    /// The stream was closed in order and dropped: nobody will read.
    orphaned: bool,
}

/// What a flow needs next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The handshake is not complete.
    HalfOpen,
    /// Both ends know the flow.
    Open,
    /// Everything is sent; only the guest's FIN or a reset is still to come.
    Orphaned,
    /// There is nothing left to send or to receive.
    Gone,
}

impl Flow {
    /// A flow that waits for the SYN of `key`.
    pub(super) fn new(
        key: FlowKey,
        ready: Arc<ReadyList>,
        permit: OwnedSemaphorePermit,
        name: Option<NameLease>,
    ) -> Option<Self> {
        let buffer = |len| tcp::SocketBuffer::new(vec![0; len]);
        let mut socket = tcp::Socket::new(buffer(RECEIVE_BUFFER), buffer(SEND_BUFFER));
        // The link is a memory copy: holding data or acknowledgements back only costs latency
        // (B183), and nothing between the ends can be congested.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_congestion_control(CongestionControl::None);
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_timeout(Some(DEAD_PEER));
        let here = IpListenEndpoint {
            addr: Some((*key.to.ip()).into()),
            port: key.to.port(),
        };
        socket.listen(here).ok()?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let state = FlowState {
            sockets,
            handle,
            listed: false,
            announced: RECEIVE_BUFFER,
            orphaned: false,
        };
        Some(Self {
            key,
            state: Mutex::new(state),
            ready,
            _permit: permit,
            _name: name,
        })
    }

    /// Takes in one packet of this flow.
    pub(super) fn receive(
        &self,
        interface: &mut Interface,
        packet: &[u8],
        tx: &mut TxQueue,
        now: Instant,
    ) {
        let mut state = lock(&self.state);
        let mut visit = Visit {
            packet: Some(packet),
            tx,
        };
        interface.poll_ingress_single(now, &mut visit, &mut state.sockets);
    }

    /// Sends at most one segment. The queue must have room. Says whether there was one.
    pub(super) fn send(&self, interface: &mut Interface, tx: &mut TxQueue, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let mut visit = Visit { packet: None, tx };
        let sent = interface.poll_egress(now, &mut visit, &mut state.sockets)
            == PollResult::SocketStateChanged;
        if sent {
            // Every segment carries the window.
            state.announced = state.window();
        }
        sent
    }

    /// When the flow has to be looked at next if nothing happens.
    pub(super) fn deadline(&self, interface: &mut Interface, now: Instant) -> Option<Instant> {
        interface.poll_at(now, &lock(&self.state).sockets)
    }

    pub(super) fn standing(&self) -> Standing {
        let state = lock(&self.state);
        let socket = state.socket();
        match socket.state() {
            // A closed socket that remembers its peer still has to send its reset.
            State::Closed if socket.remote_endpoint().is_some() => Standing::Orphaned,
            // A listening one was reset in the handshake. The guest's side waits TIME-WAIT out:
            // on a link that loses nothing ours has no stray segments to fear.
            State::Closed | State::Listen | State::TimeWait => Standing::Gone,
            State::SynSent | State::SynReceived => Standing::HalfOpen,
            _ if state.orphaned && socket.send_queue() == 0 => Standing::Orphaned,
            _ => Standing::Open,
        }
    }

    /// Whether data came that nobody will read.
    pub(super) fn is_talking_to_nobody(&self) -> bool {
        let state = lock(&self.state);
        state.orphaned && state.socket().can_recv()
    }

    /// Ends the flow; the next segment sent is a reset. Whoever serves it gets an error.
    pub(super) fn abort(&self) {
        lock(&self.state).socket_mut().abort();
    }

    /// Puts the flow on the stack's list. False if it was there.
    pub(super) fn list(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).listed, true)
    }

    /// Takes the flow off the stack's list.
    pub(super) fn unlist(&self) {
        lock(&self.state).listed = false;
    }

    /// Tells the stack to look at this flow.
    fn wake_stack(&self, state: &mut FlowState) {
        if !std::mem::replace(&mut state.listed, true) {
            self.ready.push(self.key);
        }
    }
}

impl FlowState {
    fn socket(&self) -> &tcp::Socket<'static> {
        self.sockets.get(self.handle)
    }

    fn socket_mut(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn window(&self) -> usize {
        RECEIVE_BUFFER - self.socket().recv_queue()
    }

    /// Whether the guest should hear that there is more room: smoltcp's own rule, which spares
    /// the stack a visit for every small read.
    fn has_news_for_sender(&self) -> bool {
        self.window() / 2 >= self.announced
    }
}

/// Flows that want a visit, each at most once.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    keys: Mutex<Vec<FlowKey>>,
    notify: Notify,
}

impl ReadyList {
    fn push(&self, key: FlowKey) {
        lock(&self.keys).push(key);
        self.notify.notify_one();
    }

    pub(super) fn drain_into(&self, queue: &mut VecDeque<FlowKey>) {
        queue.extend(lock(&self.keys).drain(..));
    }

    pub(super) async fn changed(&self) {
        self.notify.notified().await;
    }
}

/// The gateway's end of a guest's TCP connection.
///
/// Shutting down sends FIN once everything written is sent; reading goes on. Dropping it without
/// that, or with unread data, resets the connection.
pub struct FlowStream {
    flow: Arc<Flow>,
    shut_down: bool,
}

impl fmt::Debug for FlowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowKey { guest_port, to } = self.flow.key;
        write!(f, "FlowStream({guest_port} -> {to})")
    }
}

impl FlowStream {
    pub(super) fn new(flow: Arc<Flow>) -> Self {
        Self {
            flow,
            shut_down: false,
        }
    }

    fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut tcp::Socket<'static>) -> Result<usize, tcp::SendError>,
    ) -> Poll<io::Result<usize>> {
        if self.shut_down {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let budget = ready!(coop::poll_proceed(cx));
        let mut state = lock(&self.flow.state);
        match write(state.socket_mut()) {
            Ok(0) => {
                state.socket_mut().register_send_waker(cx.waker());
                Poll::Pending
            }
            Ok(written) => {
                budget.made_progress();
                self.flow.wake_stack(&mut state);
                Poll::Ready(Ok(written))
            }
            Err(tcp::SendError::InvalidState) => {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
        }
    }
}

impl AsyncRead for FlowStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let budget = ready!(coop::poll_proceed(cx));
        let mut state = lock(&self.flow.state);
        // Two pieces, because the buffer is a ring.
        let first = read_piece(state.socket_mut(), buffer);
        match first {
            Ok(0) => {
                state.socket_mut().register_recv_waker(cx.waker());
                return Poll::Pending;
            }
            Ok(_) => {
                // What can fail at this point was reported by the first piece or will be next time.
                let _more = read_piece(state.socket_mut(), buffer);
                if state.has_news_for_sender() {
                    self.flow.wake_stack(&mut state);
                }
            }
            Err(RecvError::Finished) => {}
            Err(RecvError::InvalidState) => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        budget.made_progress();
        Poll::Ready(Ok(()))
    }
}

fn read_piece(
    socket: &mut tcp::Socket<'static>,
    buffer: &mut ReadBuf<'_>,
) -> Result<usize, RecvError> {
    socket.recv(|data| {
        let len = data.len().min(buffer.remaining());
        buffer.put_slice(&data[..len]);
        (len, len)
    })
}

impl AsyncWrite for FlowStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |socket| socket.send_slice(data))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_with(cx, |socket| {
            let mut total = 0;
            for slice in slices {
                let written = socket.send_slice(slice)?;
                total += written;
                if written < slice.len() {
                    break;
                }
            }
            Ok(total)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written is on its way; nothing else is buffered.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut_down {
            self.shut_down = true;
            let mut state = lock(&self.flow.state);
            state.socket_mut().close();
            self.flow.wake_stack(&mut state);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for FlowStream {
    fn drop(&mut self) {
        let mut state = lock(&self.flow.state);
        if self.shut_down && !state.socket().can_recv() {
            state.orphaned = true;
        } else {
            state.socket_mut().abort();
        }
        self.flow.wake_stack(&mut state);
    }
}
