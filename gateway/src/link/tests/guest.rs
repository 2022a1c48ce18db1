//! A guest with smoltcp for a kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use tokio::net::UnixDatagram;
use tokio::time::Instant;

use super::*;

pub(super) const GUEST_BUFFER: usize = 256 << 10;

pub(super) struct Guest {
    pub(super) interface: Interface,
    pub(super) sockets: SocketSet<'static>,
    wire: Wire,
    started: Instant,
    next_port: u16,
}

/// The guest's network card.
struct Wire {
    socket: UnixDatagram,
    outgoing: VecDeque<Vec<u8>>,
    max_frame: usize,
}

/// A link whose other end is returned.
pub(super) fn pair() -> (Link, StdDatagram) {
    let (ours, theirs) = StdDatagram::pair().unwrap();
    (Link::from_fd(OwnedFd::from(ours)).unwrap(), theirs)
}

impl Guest {
    /// A guest and the stack that serves it.
    pub(super) fn start(handler: &Arc<Recorder>) -> (Self, StackHandle) {
        Self::start_with(handler, LinkConfig::default())
    }

    /// The same over a link of another MTU, of which the guest knows.
    pub(super) fn start_with(handler: &Arc<Recorder>, config: LinkConfig) -> (Self, StackHandle) {
        let (link, theirs) = pair();
        let handler: Arc<dyn FlowHandler> = Arc::<Recorder>::clone(handler);
        let frame = max_frame(config.mtu);
        let stack = Stack::spawn(link, handler, config);
        let mut guest = Self::new(theirs, 1);
        guest.wire.max_frame = frame;
        (guest, stack)
    }

    /// A guest at the other end of a link; `seed` decides its sequence numbers.
    pub(super) fn new(socket: StdDatagram, seed: u64) -> Self {
        socket.set_nonblocking(true).unwrap();
        let socket = UnixDatagram::from_std(socket).unwrap();
        let mut wire = Wire {
            socket,
            outgoing: VecDeque::new(),
            max_frame: MAX_FRAME,
        };
        let mut config = Config::new(HardwareAddress::Ethernet(GUEST_MAC));
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(IpAddress::Ipv4(GUEST_IP), PREFIX_LEN))
                .unwrap();
        });
        interface
            .routes_mut()
            .add_default_ipv4_route(GATEWAY_IP)
            .unwrap();
        let sockets = SocketSet::new(Vec::new());
        Self {
            interface,
            sockets,
            wire,
            started: Instant::now(),
            next_port: 40_000,
        }
    }

    pub(super) fn connect(&mut self, to: (Ipv4Addr, u16)) -> SocketHandle {
        self.next_port = self.next_port.checked_add(1).unwrap_or(40_000);
        self.connect_from(self.next_port, to)
    }

    pub(super) fn connect_from(&mut self, port: u16, to: (Ipv4Addr, u16)) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; GUEST_BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.connect(self.interface.context(), to, port).unwrap();
        self.sockets.add(socket)
    }

    pub(super) fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Runs the guest until `done` says something.
    pub(super) async fn until<T>(
        &mut self,
        mut done: impl FnMut(&mut SocketSet<'static>) -> Option<T>,
    ) -> T {
        in_time(async {
            loop {
                self.turn();
                let result = done(&mut self.sockets);
                // Only sends: what is received here would wait for another frame to be looked at.
                self.send();
                if let Some(result) = result {
                    return result;
                }
                self.wait().await;
            }
        })
        .await
    }

    pub(super) async fn until_state(&mut self, handle: SocketHandle, state: tcp::State) {
        self.until(|sockets| {
            (sockets.get::<tcp::Socket<'_>>(handle).state() == state).then_some(())
        })
        .await;
    }

    pub(super) async fn until_established(&mut self, handle: SocketHandle) {
        self.until_state(handle, tcp::State::Established).await;
    }

    /// Sends everything and expects it back, reading and writing as the buffers allow.
    pub(super) async fn echo(&mut self, handle: SocketHandle, len: usize) {
        let (mut sent, mut received) = (0_usize, 0_usize);
        self.until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            while sent < len && socket.can_send() {
                let chunk: Vec<u8> = (sent..len.min(sent + 32_768)).map(pattern).collect();
                sent += socket.send_slice(&chunk).unwrap();
            }
            while socket.can_recv() {
                received += socket
                    .recv(|data| {
                        let expected = (received..).map(pattern);
                        assert!(expected.zip(data.iter()).all(|(want, got)| want == *got));
                        (data.len(), data.len())
                    })
                    .unwrap();
            }
            (received == len).then_some(())
        })
        .await;
    }

    fn turn(&mut self) {
        let now = self.now();
        self.wire.flush();
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        self.wire.flush();
    }

    fn send(&mut self) {
        let now = self.now();
        while self
            .interface
            .poll_egress(now, &mut self.wire, &mut self.sockets)
            != PollResult::None
        {}
        self.wire.flush();
    }

    async fn wait(&mut self) {
        let now = self.now();
        let delay = self
            .interface
            .poll_delay(now, &self.sockets)
            .map(Duration::from);
        tokio::select! {
            ready = self.wire.socket.readable() => ready.unwrap(),
            ready = self.wire.socket.writable(), if !self.wire.outgoing.is_empty() => ready.unwrap(),
            () = tokio::time::sleep(delay.unwrap_or_default()), if delay.is_some() => {}
        }
    }

    fn now(&self) -> time::Instant {
        time::Instant::ZERO + time::Duration::from(self.started.elapsed())
    }
}

pub(super) fn pattern(position: usize) -> u8 {
    u8::try_from(position % 251).unwrap()
}

impl Wire {
    fn flush(&mut self) {
        while let Some(frame) = self.outgoing.front() {
            match self.socket.try_send(frame) {
                Ok(_) => drop(self.outgoing.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl phy::Device for Wire {
    type RxToken<'t> = Received;
    type TxToken<'t> = Sending<'t>;

    fn receive(&mut self, _now: time::Instant) -> Option<(Received, Sending<'_>)> {
        let mut buffer = vec![0; MAX_FRAME];
        let len = self.socket.try_recv(&mut buffer).ok()?;
        buffer.truncate(len);
        Some((Received(buffer), Sending(&mut self.outgoing)))
    }

    fn transmit(&mut self, _now: time::Instant) -> Option<Sending<'_>> {
        (self.outgoing.len() < 16).then_some(Sending(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.max_frame;
        capabilities
    }
}

pub(super) struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

pub(super) struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.push_back(frame);
        result
    }
}
