//! How fast one flow goes over a link at its full MTU, each way, to a guest in the same process.
//!
//! `cargo run --release -p outgate-gateway --example link_throughput [MiB]`
//!
//! The guest is smoltcp too, on its own thread: the numbers are for both ends of the link and the
//! socketpair between them, without a hypervisor.

use std::collections::VecDeque;
use std::error::Error;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outgate_gateway::link::{
    BoxFuture, DatagramOpening, Dropped, FlowDestination, FlowHandler, FlowStream, GATEWAY_IP,
    GUEST_IP, GUEST_MAC, Link, LinkConfig, MAX_FRAME, NameAdmission, NameAlarm, NameAnswer,
    Opening, PREFIX_LEN, Stack,
};
use outgate_policy::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, Ipv4Address};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SERVER: Ipv4Address = Ipv4Address::new(203, 0, 113, 7);
const UPLOAD: u16 = 1;
const DOWNLOAD: u16 = 2;
const ONE_BYTE: u16 = 3;
const GUEST_BUFFER: usize = 1 << 20;
const EXCHANGES: u32 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mebibytes: usize = std::env::args()
        .nth(1)
        .map_or(Ok(1024), |arg| arg.parse())?;
    let total = mebibytes << 20;
    let (ours, theirs) = UnixDatagram::pair()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let link = Link::from_fd(ours.into())?;
    let _stack = Stack::spawn(link, Arc::new(Server { total }), LinkConfig::default());

    let mut guest = Guest::new(theirs)?;
    let up = guest.timed(UPLOAD, |socket, _| {
        while socket.can_send()
            && socket
                .send(|room| (room.len(), room.len()))
                .is_ok_and(|n| n > 0)
        {}
        socket.state() != tcp::State::Established
    })?;
    let down = guest.timed(DOWNLOAD, |socket, received| {
        while socket.can_recv() {
            *received += socket.recv(|data| (data.len(), data.len())).unwrap_or(0);
        }
        *received >= total
    })?;
    let mut asked = 0;
    let small = guest.timed(ONE_BYTE, |socket, answered| {
        *answered += socket.recv(|data| (data.len(), data.len())).unwrap_or(0);
        if *answered == asked && socket.can_send() {
            asked += socket.send_slice(b"?").unwrap_or(0);
        }
        *answered >= EXCHANGES as usize
    })?;
    let rate = |time: Duration| total as f64 / 1e6 / time.as_secs_f64();
    println!("guest -> gateway: {:7.0} MB/s", rate(up));
    println!("gateway -> guest: {:7.0} MB/s", rate(down));
    println!(
        "one byte and back: {:6.1} us",
        (small / EXCHANGES).as_secs_f64() * 1e6
    );
    Ok(())
}

/// Takes or gives `total` bytes, or echoes.
struct Server {
    total: usize,
}

impl FlowHandler for Server {
    fn open(&self, to: FlowDestination) -> BoxFuture<'_, Opening> {
        let total = self.total;
        Box::pin(async move {
            Opening::Accept(Box::new(move |stream| {
                tokio::spawn(async move {
                    if let Err(error) = serve(stream, to.port, total).await {
                        eprintln!("{to}: {error}");
                    }
                });
            }))
        })
    }

    fn admits_datagrams(&self, _to: &FlowDestination) -> bool {
        false
    }

    fn open_datagrams(&self, _to: FlowDestination) -> BoxFuture<'_, DatagramOpening> {
        Box::pin(async { DatagramOpening::Refuse })
    }

    fn resolve(&self, _name: &Host) -> NameAdmission {
        NameAdmission::Denied
    }

    fn dropped(&self, what: Dropped, count: u64) {
        eprintln!("dropped {count} {what}");
    }

    fn name_query(&self, _name: &str, _answer: NameAnswer) {}

    fn name_alarm(&self, _alarm: &NameAlarm) {}
}

async fn serve(mut stream: FlowStream, port: u16, total: usize) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    match port {
        UPLOAD => {
            while done < total {
                done += stream.read(&mut buffer).await?;
            }
        }
        DOWNLOAD => {
            while done < total {
                done += stream.write(&buffer).await?;
            }
        }
        _ => {
            for _ in 0..EXCHANGES {
                let byte = stream.read_u8().await?;
                stream.write_all(&[byte]).await?;
            }
        }
    }
    stream.shutdown().await?;
    // Until the guest closes too.
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

struct Guest {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    started: Instant,
}

struct Wire {
    socket: UnixDatagram,
    outgoing: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Guest {
    fn new(socket: UnixDatagram) -> Result<Self, Box<dyn Error>> {
        socket.set_nonblocking(true)?;
        let mut wire = Wire {
            socket,
            outgoing: VecDeque::new(),
            buffer: vec![0; MAX_FRAME],
        };
        let config = Config::new(HardwareAddress::Ethernet(GUEST_MAC));
        let mut interface = Interface::new(config, &mut wire, time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let _fits = addresses.push(IpCidr::new(IpAddress::Ipv4(GUEST_IP), PREFIX_LEN));
        });
        interface.routes_mut().add_default_ipv4_route(GATEWAY_IP)?;
        let sockets = SocketSet::new(Vec::new());
        Ok(Self {
            interface,
            sockets,
            wire,
            started: Instant::now(),
        })
    }

    /// Connects, then runs until `done`, and says how long that took.
    fn timed(
        &mut self,
        port: u16,
        mut done: impl FnMut(&mut tcp::Socket<'static>, &mut usize) -> bool,
    ) -> Result<Duration, Box<dyn Error>> {
        let buffer = || tcp::SocketBuffer::new(vec![0; GUEST_BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.connect(self.interface.context(), (SERVER, port), 40_000 + port)?;
        let handle = self.sockets.add(socket);
        self.run(handle, |socket| socket.state() == tcp::State::Established)?;
        let start = Instant::now();
        let mut count = 0;
        self.run(handle, |socket| done(socket, &mut count))?;
        let time = start.elapsed();
        self.sockets.get_mut::<tcp::Socket<'_>>(handle).close();
        self.run(handle, |socket| !socket.is_open())?;
        self.sockets.remove(handle);
        Ok(time)
    }

    fn run(
        &mut self,
        handle: SocketHandle,
        mut done: impl FnMut(&mut tcp::Socket<'static>) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        loop {
            let now = time::Instant::ZERO + time::Duration::from(self.started.elapsed());
            self.wire.flush();
            self.interface.poll(now, &mut self.wire, &mut self.sockets);
            let finished = done(self.sockets.get_mut(handle));
            while self
                .interface
                .poll_egress(now, &mut self.wire, &mut self.sockets)
                != smoltcp::iface::PollResult::None
            {}
            self.wire.flush();
            if finished {
                return Ok(());
            }
            let delay = self
                .interface
                .poll_delay(now, &self.sockets)
                .map(Duration::from);
            let delay = delay.map(Timespec::try_from).transpose()?;
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !self.wire.outgoing.is_empty());
            poll(
                &mut [PollFd::new(&self.wire.socket, events)],
                delay.as_ref(),
            )?;
        }
    }
}

impl Wire {
    fn flush(&mut self) {
        while let Some(frame) = self.outgoing.front() {
            if self.socket.send(frame).is_err() {
                return;
            }
            self.outgoing.pop_front();
        }
    }
}

impl phy::Device for Wire {
    type RxToken<'t> = Received<'t>;
    type TxToken<'t> = Sending<'t>;

    fn receive(&mut self, _now: time::Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let len = self.socket.recv(&mut self.buffer).ok()?;
        Some((
            Received(&self.buffer[..len]),
            Sending(&self.socket, &mut self.outgoing),
        ))
    }

    fn transmit(&mut self, _now: time::Instant) -> Option<Sending<'_>> {
        (self.outgoing.len() < 8).then_some(Sending(&self.socket, &mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MAX_FRAME;
        // Like the gateway: what comes is believed, what goes is right.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

struct Sending<'a>(&'a UnixDatagram, &'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        if !self.1.is_empty() || self.0.send(&frame).is_err() {
            self.1.push_back(frame);
        }
        result
    }
}
