//! Entry points of the fuzz targets: bytes of a guest against the stack and the name server.
//!
//! Each runs the real thing over a real socketpair and panics when it lets something happen that
//! it was not told to: a handshake with a destination that nobody accepted, a datagram of a peer
//! that nobody accepted, an address for a name that nobody admitted, a frame for somebody else.

#![expect(clippy::panic, reason = "a panic is what a fuzz target has to say")]

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use outgate_policy::Host;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Message, Icmpv4Packet, IpProtocol, Ipv4Packet,
    TcpPacket, UdpPacket,
};
use tokio::net::UnixDatagram;

use super::dns::Resolver;
use super::names::{NameKey, Names, is_synthetic};
use super::{
    BoxFuture, DatagramOpening, DeniedNames, Dropped, ETHERNET_HEADER, FlowDestination,
    FlowHandler, GATEWAY_IP, GATEWAY_MAC, GUEST_IP, GUEST_MAC, Link, LinkConfig, MAX_FRAME,
    MIN_MTU, NameAdmission, NameAlarm, NameAnswer, Opening, Stack, lock,
};

/// Frames of one input.
const MAX_FRAMES: usize = 64;
/// Frames that are sent before what came back is looked at: few enough for every answer to fit.
const BATCH: usize = 8;
/// Far beyond what any step takes; only a hang gets here.
const PATIENCE: Duration = Duration::from_secs(20);
/// Largest UDP payload that every DNS client takes.
const PLAIN_UDP: usize = 512;
/// How the last frame of a batch is known again.
const MARK: u16 = 0xfade;

/// Says yes to half of what it is asked, and remembers to what.
#[derive(Default)]
struct Judge {
    accepted: Mutex<HashSet<SocketAddr>>,
}

impl Judge {
    fn accepts(&self, to: &FlowDestination) -> bool {
        let accepts = to.port.is_multiple_of(2);
        if accepts {
            lock(&self.accepted).insert((to.ip, to.port).into());
        }
        accepts
    }

    fn has_accepted(&self, from: Ipv4Addr, port: u16) -> bool {
        lock(&self.accepted).contains(&SocketAddrV4::new(from, port).into())
    }
}

impl FlowHandler for Judge {
    fn open(&self, to: FlowDestination) -> BoxFuture<'_, Opening> {
        let accepts = self.accepts(&to);
        Box::pin(async move {
            if !accepts {
                return Opening::Refuse;
            }
            Opening::Accept(Box::new(|stream| {
                tokio::spawn(async move {
                    let (mut from, mut to) = tokio::io::split(stream);
                    // How a flow ends is up to the input.
                    let _ended = tokio::io::copy(&mut from, &mut to).await;
                });
            }))
        })
    }

    fn admits_datagrams(&self, to: &FlowDestination) -> bool {
        to.port.is_multiple_of(2)
    }

    fn open_datagrams(&self, to: FlowDestination) -> BoxFuture<'_, DatagramOpening> {
        let accepts = self.accepts(&to);
        Box::pin(async move {
            if !accepts {
                return DatagramOpening::Refuse;
            }
            DatagramOpening::Accept(Box::new(|mut flow| {
                tokio::spawn(async move {
                    while let Some(datagram) = flow.receive().await {
                        flow.send(&datagram);
                    }
                });
            }))
        })
    }

    fn resolve(&self, name: &Host) -> NameAdmission {
        if name.as_str() == "a.test" {
            NameAdmission::Listed
        } else if name.as_str().ends_with(".c.test") {
            NameAdmission::Wildcard
        } else {
            NameAdmission::Denied
        }
    }

    fn dropped(&self, _what: Dropped, _count: u64) {}

    fn name_query(&self, _name: &str, _answer: NameAnswer) {}

    fn name_alarm(&self, _alarm: &NameAlarm) {}
}

/// A message to the name server: any bytes get an answer of a few bytes, or none.
///
/// # Panics
/// If an answer is not one that [`FlowHandler::resolve`] permits.
pub fn name_message(message: &[u8]) {
    let judge = Arc::new(Judge::default());
    let names = Arc::new(Mutex::new(Names::new(NameKey::new([7; 32]))));
    let handler: Arc<dyn FlowHandler> = Arc::<Judge>::clone(&judge);
    let resolver = Resolver::new(names, handler, DeniedNames::NxDomain);
    let Ok(reply) = resolver.answer(message) else {
        return;
    };
    assert!(reply.len() <= PLAIN_UDP, "{} bytes", reply.len());
    assert_eq!(reply.get(..2), message.get(..2), "the id");
    let Ok(reply) = Message::from_vec(&reply) else {
        panic!("an answer that nobody can read: {reply:?}");
    };
    for record in &reply.answers {
        let RData::A(address) = &record.data else {
            continue;
        };
        let is_local = address.0 == GATEWAY_IP || address.0.is_loopback();
        assert!(is_local || is_synthetic(address.0), "{record}");
        let text = record.name.to_ascii();
        let name = Host::parse(text.trim_end_matches('.'));
        let admitted = name.is_ok_and(|name| judge.resolve(&name) != NameAdmission::Denied);
        assert!(is_local || admitted, "{record}");
    }
}

/// Frames of a guest, each after two bytes that say how long it is (15 bits) and whether what
/// keeps it from being looked at (addresses, lengths and the checksum of its IP header) is mended.
///
/// # Panics
/// If the stack hangs, or answers what it must not.
pub fn frames(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        panic!("no runtime");
    };
    runtime.block_on(async {
        let outcome = tokio::time::timeout(PATIENCE, send_frames(data)).await;
        assert!(outcome.is_ok(), "the stack hangs");
    });
}

async fn send_frames(data: &[u8]) {
    let (guest, link) = match StdDatagram::pair() {
        Ok(pair) => pair,
        Err(error) => panic!("no socketpair: {error}"),
    };
    let mtu = if data.len().is_multiple_of(2) {
        MIN_MTU
    } else {
        super::MTU
    };
    let config = LinkConfig {
        mtu,
        name_key: NameKey::new([7; 32]),
        ..LinkConfig::default()
    };
    let guest = guest
        .set_nonblocking(true)
        .and_then(|()| UnixDatagram::from_std(guest));
    let (Ok(guest), Ok(link)) = (guest, Link::from_fd(link.into())) else {
        panic!("no link");
    };
    let judge = Arc::new(Judge::default());
    let handler: Arc<dyn FlowHandler> = Arc::<Judge>::clone(&judge);
    let _stack = Stack::spawn(link, handler, config);
    let mut rest = data;
    let mut frames = std::iter::from_fn(|| {
        let (head, more) = rest.split_first_chunk::<2>()?;
        let word = u16::from_be_bytes(*head);
        let (frame, more) = more.split_at(usize::from(word >> 1).min(more.len()));
        rest = more;
        let mut frame = frame.to_vec();
        if word & 1 == 1 {
            mend(&mut frame);
        }
        Some(frame)
    })
    .take(MAX_FRAMES)
    .peekable();
    while frames.peek().is_some() {
        for frame in frames.by_ref().take(BATCH) {
            send(&guest, &frame).await;
        }
        send(&guest, &mark()).await;
        until_marked(&guest, &judge).await;
    }
}

async fn send(guest: &UnixDatagram, frame: &[u8]) {
    if let Err(error) = guest.send(frame).await {
        panic!("the link broke: {error}");
    }
}

/// Reads what the stack sent, which answers the mark last.
async fn until_marked(guest: &UnixDatagram, judge: &Judge) {
    let mut buffer = vec![0; MAX_FRAME];
    loop {
        let len = match guest.recv(&mut buffer).await {
            Ok(len) => len,
            Err(error) => panic!("the link broke: {error}"),
        };
        if is_permitted(&buffer[..len], judge) {
            return;
        }
    }
}

/// Whether a frame answers the mark.
///
/// # Panics
/// If it may not be sent at all.
fn is_permitted(frame: &[u8], judge: &Judge) -> bool {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else {
        panic!("no frame: {frame:?}");
    };
    let ends = (ethernet.src_addr(), ethernet.dst_addr());
    assert_eq!(ends, (GATEWAY_MAC, GUEST_MAC));
    if ethernet.ethertype() != EthernetProtocol::Ipv4 {
        return false;
    }
    let Ok(packet) = Ipv4Packet::new_checked(ethernet.payload()) else {
        panic!("no packet: {frame:?}");
    };
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    assert!(packet.verify_checksum() && (to == GUEST_IP || to.is_broadcast()));
    match packet.next_header() {
        IpProtocol::Tcp => {
            let Ok(segment) = TcpPacket::new_checked(packet.payload()) else {
                panic!("no segment: {frame:?}");
            };
            let is_served = from == GATEWAY_IP && segment.src_port() == super::DNS_PORT;
            let accepted = is_served || judge.has_accepted(from, segment.src_port());
            assert!(accepted || segment.rst(), "nobody accepted {from}");
            false
        }
        IpProtocol::Udp => {
            let Ok(datagram) = UdpPacket::new_checked(packet.payload()) else {
                panic!("no datagram: {frame:?}");
            };
            let accepted = from == GATEWAY_IP || judge.has_accepted(from, datagram.src_port());
            assert!(accepted, "nobody accepted {from}");
            false
        }
        _ => {
            assert_eq!(from, GATEWAY_IP);
            let Ok(message) = Icmpv4Packet::new_checked(packet.payload()) else {
                panic!("no message: {frame:?}");
            };
            assert_eq!(message.msg_type(), Icmpv4Message::EchoReply);
            message.echo_ident() == MARK && message.data().is_empty()
        }
    }
}

/// A ping that no input sends: mended frames are no longer than their own payload.
fn mark() -> Vec<u8> {
    const LEN: usize = 8;
    let mut frame = vec![0; ETHERNET_HEADER + 20 + LEN];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[23] = IpProtocol::Icmp.into();
    mend(&mut frame);
    let message = &mut frame[ETHERNET_HEADER + 20..];
    let mut message = Icmpv4Packet::new_unchecked(message);
    message.set_msg_type(Icmpv4Message::EchoRequest);
    message.set_echo_ident(MARK);
    message.fill_checksum();
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    packet.set_dst_addr(GATEWAY_IP);
    packet.fill_checksum();
    frame
}

fn mend(frame: &mut [u8]) {
    const HEADERS: usize = ETHERNET_HEADER + 20;
    if frame.len() < HEADERS {
        return;
    }
    let mut ethernet = EthernetFrame::new_unchecked(&mut *frame);
    ethernet.set_src_addr(GUEST_MAC);
    ethernet.set_dst_addr(GATEWAY_MAC);
    if ethernet.ethertype() != EthernetProtocol::Ipv4 {
        return;
    }
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    let len = u16::try_from(packet.as_ref().len()).unwrap_or(u16::MAX);
    packet.set_version(4);
    packet.set_header_len(20);
    packet.set_total_len(len);
    packet.set_src_addr(GUEST_IP);
    packet.clear_flags();
    packet.set_frag_offset(0);
    packet.fill_checksum();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_get_far() {
        frames(&[]);
        frames(&[0, 1, 1, 2, 3]);
        let mut syn = mark();
        syn.resize(ETHERNET_HEADER + 40, 0);
        syn[23] = IpProtocol::Tcp.into();
        // To 203.0.113.7:8080, from port 4096.
        syn[30..34].copy_from_slice(&[203, 0, 113, 7]);
        syn[34..38].copy_from_slice(&[16, 0, 0x1f, 0x90]);
        syn[46..48].copy_from_slice(&[0x50, 2]);
        let word = u16::try_from(syn.len() << 1 | 1).unwrap();
        frames(&[word.to_be_bytes().as_slice(), &syn].concat());
        name_message(b"\x07\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01");
        name_message(b"x");
    }
}
