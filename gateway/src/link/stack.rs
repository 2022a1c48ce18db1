//! The task behind one link: takes frames, answers them, moves the flows on.
//!
//! One task per sandbox and none per packet. It sleeps until the link can be read or written, a
//! stream has news, a decision is made or a timer is due. Reading never waits for writing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex};

use outgate_policy::Host;
use smoltcp::iface::{Config, Interface};
use smoltcp::time;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetProtocol, HardwareAddress, Icmpv4Message,
    Icmpv4Packet, IpAddress, IpCidr, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep_until};

use super::datagram::{self, Datagram, Datagrams, News};
use super::device::{TxQueue, Visit, checksums};
use super::dns::{self, Resolver};
use super::drops::DropCounters;
use super::flow::ReadyList;
use super::frame_socket::Link;
use super::ingress::{self, Ingress, Segment, SegmentKind};
use super::names::{self, NameLease, Names};
use super::openings::{Attempt, Openings};
use super::table::FlowTable;
use super::{
    DNS_PORT, Dropped, FlowDestination, FlowHandler, GATEWAY_IP, GATEWAY_MAC, GATEWAY_NAME,
    GUEST_IP, GUEST_MAC, HTTP_PORT, LinkConfig, MAX_FRAME, Opening, PREFIX_LEN, QUIC_PORT, dhcp,
    fill_random,
};
use crate::rate::Rate;

/// Flows of one sandbox, from their SYN until nobody holds them any more. With full buffers in
/// both directions they take 256 MiB; memory is only used as far as data waits in it.
pub const MAX_FLOWS: usize = 256;
/// Connection attempts of one sandbox that may wait for a decision or for the guest's ACK. Beyond
/// that SYNs are dropped like from a full backlog: the guest tries again a second later.
pub const MAX_OPENINGS: usize = 64;
/// Connection attempts per second and sandbox, averaged. Each one is a decision and a record.
pub const OPENINGS_PER_SECOND: u32 = 2000;
/// Attempts that may come at once.
const OPENING_BURST: u32 = 4000;
/// Frames read before the flows get to send. More make for fewer acknowledgements, fewer for a
/// smoother flow.
const BATCH: usize = 32;
/// When the stack started, as smoltcp counts time.
const EPOCH: time::Instant = time::Instant::ZERO;
/// Time to live of what the gateway sends.
const HOP_LIMIT: u8 = 64;

/// The stack at the gateway's end of a link.
#[derive(Debug)]
pub struct Stack;

impl Stack {
    /// Starts serving a link. Must be called inside a tokio runtime.
    pub fn spawn(link: Link, handler: Arc<dyn FlowHandler>, config: LinkConfig) -> StackHandle {
        StackHandle {
            task: Some(tokio::spawn(Driver::new(link, handler, config).run())),
        }
    }
}

/// A running stack. Dropping it stops the stack: every open flow ends with an error.
#[derive(Debug)]
pub struct StackHandle {
    /// Absent once its outcome was told.
    task: Option<JoinHandle<io::Error>>,
}

impl StackHandle {
    /// Resolves if the link breaks, which a guest can't make happen.
    pub async fn broken(&mut self) -> io::Error {
        let Some(task) = &mut self.task else {
            return io::ErrorKind::NotConnected.into();
        };
        let error = task.await.unwrap_or_else(io::Error::other);
        self.task = None;
        error
    }
}

impl Drop for StackHandle {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Driver {
    link: Link,
    handler: Arc<dyn FlowHandler>,
    tx: TxQueue,
    table: FlowTable,
    ready: Arc<ReadyList>,
    openings: Openings,
    permits: Arc<Semaphore>,
    opening_rate: Rate,
    names: Arc<Mutex<Names>>,
    resolver: Arc<Resolver>,
    datagrams: Datagrams,
    drops: DropCounters,
    started: Instant,
    buffer: Box<[u8]>,
}

impl Driver {
    fn new(link: Link, handler: Arc<dyn FlowHandler>, config: LinkConfig) -> Self {
        let names = Arc::new(Mutex::new(Names::new(config.name_key)));
        let mut tx = TxQueue::new(config.mtu);
        let table = FlowTable::new(interface(&mut tx));
        Self {
            link,
            tx,
            ready: table.ready(),
            table,
            openings: Openings::default(),
            permits: Arc::new(Semaphore::new(MAX_FLOWS)),
            opening_rate: Rate::new(OPENINGS_PER_SECOND, OPENING_BURST),
            resolver: Arc::new(Resolver::new(
                Arc::clone(&names),
                Arc::clone(&handler),
                config.denied_names,
            )),
            names,
            datagrams: Datagrams::new(),
            handler,
            drops: DropCounters::new(),
            started: Instant::now(),
            // One more than a frame may have, to tell an oversized one.
            buffer: vec![0; MAX_FRAME + 1].into_boxed_slice(),
        }
    }

    async fn run(mut self) -> io::Error {
        loop {
            let more = match self.receive() {
                Ok(more) => more,
                Err(error) => return error,
            };
            while let Some((attempt, opening)) = self.openings.try_next() {
                self.decided(attempt, opening);
            }
            while let Some(news) = self.datagrams.try_decided() {
                self.datagram_news(news);
            }
            while self.tx.has_room()
                && let Some(reply) = self.datagrams.try_reply()
            {
                self.datagram_news(News::Reply(reply));
            }
            let now = self.now();
            self.table.send(&mut self.tx, &self.link, now);
            self.tx.flush(&self.link);
            let next_report = self.report();
            if more || (self.table.has_work() && self.tx.has_room()) {
                tokio::task::yield_now().await;
            } else if let Err(error) = self.wait(next_report).await {
                return error;
            }
        }
    }

    /// Sleeps until there is something to do.
    async fn wait(&mut self, next_report: Option<Instant>) -> io::Result<()> {
        let timer = self
            .table
            .next_timer()
            .map(|at| self.started + Duration::from(at - EPOCH));
        let wake_at = [timer, next_report].into_iter().flatten().min();
        let has_room = self.tx.has_room();
        tokio::select! {
            readable = self.link.readable() => readable,
            writable = self.link.writable(), if !self.tx.is_empty() => writable,
            () = self.ready.changed() => Ok(()),
            (attempt, opening) = self.openings.next() => {
                self.decided(attempt, opening);
                Ok(())
            }
            news = self.datagrams.next(has_room) => {
                self.datagram_news(news);
                Ok(())
            }
            () = sleep_until(wake_at.unwrap_or(self.started)), if wake_at.is_some() => Ok(()),
        }
    }

    /// Reads a batch of frames. Says whether there may be more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut result = Ok(true);
        for _ in 0..BATCH {
            match self.link.receive(&mut buffer) {
                Ok(len) => self.frame(&buffer[..len]),
                Err(error) => {
                    result = match error.kind() {
                        io::ErrorKind::WouldBlock => Ok(false),
                        // The other end was closed or another process holds it now.
                        io::ErrorKind::Interrupted
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionRefused => continue,
                        _ => Err(error),
                    };
                    break;
                }
            }
        }
        self.buffer = buffer;
        result
    }

    fn frame(&mut self, frame: &[u8]) {
        let answered =
            ingress::judge(frame, self.tx.mtu()).and_then(|ingress| self.answer(ingress));
        if let Err(dropped) = answered {
            self.drops.add(dropped);
        }
    }

    fn answer(&mut self, ingress: Ingress<'_>) -> Result<(), Dropped> {
        match ingress {
            Ingress::Chatter => {}
            Ingress::ArpRequest { sender } => answer_arp(&mut self.tx, sender),
            Ingress::Echo(message) => answer_echo(&mut self.tx, message),
            Ingress::Dhcp(message) => {
                if let Some(reply) = dhcp::answer(message, self.tx.mtu())? {
                    let from = (GATEWAY_IP, ingress::DHCP_SERVER_PORT);
                    let to = (reply.to, ingress::DHCP_CLIENT_PORT);
                    push_udp(&mut self.tx, from, to, &reply.message);
                }
            }
            Ingress::Dns { port, question } => {
                let reply = self.resolver.answer(question)?;
                push_udp(
                    &mut self.tx,
                    (GATEWAY_IP, DNS_PORT),
                    (GUEST_IP, port),
                    &reply,
                );
            }
            Ingress::Datagram(datagram) => return self.datagram(&datagram),
            Ingress::Tcp(segment) => return self.segment(&segment),
        }
        Ok(())
    }

    /// A datagram to somewhere: to its flow, or to the policy.
    fn datagram(&mut self, datagram: &Datagram<'_>) -> Result<(), Dropped> {
        if self.datagrams.deliver(datagram)? {
            return Ok(());
        }
        let to = datagram.flow.to;
        let (lease, name) = self.name_of(to)?;
        let destination = FlowDestination {
            ip: IpAddr::V4(*to.ip()),
            port: to.port(),
            name,
        };
        if !self.handler.admits_datagrams(&destination) {
            return Err(match to.port() {
                QUIC_PORT => Dropped::Quic,
                _ => Dropped::Udp,
            });
        }
        self.datagrams
            .open(datagram, destination, lease, &self.handler)
    }

    fn datagram_news(&mut self, news: News) {
        match news {
            News::Reply(reply) if reply.payload.len() > datagram::max_payload(self.tx.mtu()) => {
                self.drops.add(Dropped::DatagramSize);
            }
            News::Reply(reply) => {
                let to = (GUEST_IP, reply.flow.guest_port);
                push_udp(&mut self.tx, datagram::source(&reply), to, &reply.payload);
            }
            News::Decided(dropped) => self.drops.add_many(Dropped::Udp, dropped as u64),
        }
    }

    fn segment(&mut self, segment: &Segment<'_>) -> Result<(), Dropped> {
        let now = self.now();
        if self.table.receive(segment, &mut self.tx, now) {
            return Ok(());
        }
        match segment.kind {
            SegmentKind::Open(isn) if self.openings.contains(&segment.flow) => {
                self.openings.repeat(segment, isn);
            }
            SegmentKind::Open(isn) => return self.open(segment, isn),
            SegmentKind::Reset => {
                self.openings.cancel(&segment.flow);
            }
            SegmentKind::Other => self.table.reset(segment.packet, &mut self.tx, now),
        }
        Ok(())
    }

    /// A new connection attempt.
    fn open(&mut self, segment: &Segment<'_>, isn: i32) -> Result<(), Dropped> {
        let now = self.now();
        let (name, host) = match self.name_of(segment.flow.to) {
            Ok(names) => names,
            Err(dropped) => {
                self.table.reset(segment.packet, &mut self.tx, now);
                return Err(dropped);
            }
        };
        let is_full = self.openings.len() + self.table.half_open() >= MAX_OPENINGS;
        if is_full || !self.opening_rate.admit(Instant::now()) {
            return Err(Dropped::SynBacklog);
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| Dropped::FlowLimit)?;
        let attempt = Attempt::new(segment, isn, name, permit);
        let to = segment.flow.to;
        if *to.ip() == GATEWAY_IP && to.port() == DNS_PORT {
            let resolver = Arc::clone(&self.resolver);
            // One task per flow, of which there are at most `MAX_FLOWS`; it ends with its flow.
            let serve = move |stream| {
                tokio::spawn(async move { dns::serve(stream, &resolver).await });
            };
            self.table
                .accept(attempt, Box::new(serve), &mut self.tx, now);
        } else {
            let to = FlowDestination {
                ip: IpAddr::V4(*to.ip()),
                port: to.port(),
                name: host,
            };
            self.openings.ask(attempt, to, &self.handler);
        }
        Ok(())
    }

    /// What a destination is called, and what keeps it called so.
    fn name_of(&self, to: SocketAddrV4) -> Result<(Option<NameLease>, Option<Host>), Dropped> {
        if *to.ip() == GATEWAY_IP {
            return match to.port() {
                DNS_PORT => Ok((None, None)),
                HTTP_PORT => {
                    let own = Host::parse(GATEWAY_NAME).map_err(|_| Dropped::GatewayPort)?;
                    Ok((None, Some(own)))
                }
                _ => Err(Dropped::GatewayPort),
            };
        }
        if !names::is_synthetic(*to.ip()) {
            return Ok((None, None));
        }
        let lease = NameLease::take(&self.names, *to.ip()).ok_or(Dropped::UnknownName)?;
        let host = lease.name().clone();
        Ok((Some(lease), Some(host)))
    }

    fn decided(&mut self, attempt: Attempt, opening: Opening) {
        let now = self.now();
        match opening {
            Opening::Accept(deliver) => self.table.accept(attempt, deliver, &mut self.tx, now),
            Opening::Refuse => self.table.reset(&attempt.syn, &mut self.tx, now),
        }
    }

    /// Reports what was dropped; returns when there is more to report.
    fn report(&mut self) -> Option<Instant> {
        self.drops.add_many(Dropped::Unread, self.tx.take_unread());
        for (what, count) in self.resolver.take_drops() {
            self.drops.add_many(what, count);
        }
        self.drops.report(Instant::now(), self.handler.as_ref())
    }

    /// The time as smoltcp counts it.
    fn now(&self) -> time::Instant {
        EPOCH + time::Duration::from(self.started.elapsed())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.drops.finish(self.handler.as_ref());
    }
}

fn interface(tx: &mut TxQueue) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    let mut seed = [0; 8];
    fill_random(&mut seed);
    config.random_seed = u64::from_ne_bytes(seed);
    let mut interface = Interface::new(config, &mut Visit { packet: None, tx }, EPOCH);
    interface.update_ip_addrs(|addresses| {
        // The first of the addresses that there is always room for.
        let _full = addresses.push(IpCidr::new(IpAddress::Ipv4(GATEWAY_IP), PREFIX_LEN));
    });
    interface.set_any_ip(true);
    interface
}

fn answer_arp(tx: &mut TxQueue, sender: Ipv4Addr) {
    let reply = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: GATEWAY_MAC,
        source_protocol_addr: GATEWAY_IP,
        target_hardware_addr: GUEST_MAC,
        target_protocol_addr: sender,
    };
    tx.push(EthernetProtocol::Arp, reply.buffer_len(), |payload| {
        reply.emit(&mut ArpPacket::new_unchecked(payload));
    });
}

fn answer_echo(tx: &mut TxQueue, request: &[u8]) {
    push_ipv4(
        tx,
        (GATEWAY_IP, GUEST_IP),
        IpProtocol::Icmp,
        request.len(),
        |payload| {
            payload.copy_from_slice(request);
            let mut reply = Icmpv4Packet::new_unchecked(payload);
            reply.set_msg_type(Icmpv4Message::EchoReply);
            reply.fill_checksum();
        },
    );
}

fn push_udp(tx: &mut TxQueue, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), data: &[u8]) {
    let header = UdpRepr {
        src_port: from.1,
        dst_port: to.1,
    };
    push_ipv4(
        tx,
        (from.0, to.0),
        IpProtocol::Udp,
        header.header_len() + data.len(),
        |payload| {
            header.emit(
                &mut UdpPacket::new_unchecked(payload),
                &IpAddress::Ipv4(from.0),
                &IpAddress::Ipv4(to.0),
                data.len(),
                |body| body.copy_from_slice(data),
                &checksums(),
            );
        },
    );
}

fn push_ipv4(
    tx: &mut TxQueue,
    (from, to): (Ipv4Addr, Ipv4Addr),
    protocol: IpProtocol,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    let header = Ipv4Repr {
        src_addr: from,
        dst_addr: to,
        next_header: protocol,
        payload_len: len,
        hop_limit: HOP_LIMIT,
    };
    tx.push(
        EthernetProtocol::Ipv4,
        header.buffer_len() + len,
        |packet| {
            header.emit(&mut Ipv4Packet::new_unchecked(&mut *packet), &checksums());
            fill(&mut packet[header.buffer_len()..]);
        },
    );
}
