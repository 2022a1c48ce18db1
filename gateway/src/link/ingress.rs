//! What a frame from the guest is, decided before anything acts on it.
//!
//! A pure function over hostile bytes. Only seven things come out alive; everything else is a
//! [`Dropped`] to count. There is no reassembly: the MTU fits every packet that is served here, so
//! a fragment is either a mistake or an attempt to hide a header.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, IpProtocol, Ipv4Packet, TcpPacket, UdpPacket,
};

use super::datagram::Datagram;
use super::{DNS_PORT, Dropped, GATEWAY_IP, GATEWAY_MAC, GUEST_IP, GUEST_MAC, max_frame};

pub(super) const DHCP_SERVER_PORT: u16 = 67;
pub(super) const DHCP_CLIENT_PORT: u16 = 68;
const DNS_OVER_TLS_PORT: u16 = 853;
/// An IPv4 header without options, in bytes.
const PLAIN_HEADER: u8 = 20;

/// A frame worth an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ingress<'f> {
    /// Who has the gateway's address? Asked by the holder of the given address.
    ArpRequest { sender: Ipv4Addr },
    /// An ICMP echo request to the gateway: the whole ICMP message.
    Echo(&'f [u8]),
    /// A DHCP message.
    Dhcp(&'f [u8]),
    /// A DNS question over UDP to the gateway.
    Dns { port: u16, question: &'f [u8] },
    /// Any other datagram to anybody but the gateway.
    Datagram(Datagram<'f>),
    /// A TCP segment to anybody.
    Tcp(Segment<'f>),
    /// Talk among neighbours that needs no answer and is no attempt at anything.
    Chatter,
}

/// A TCP segment and what of it decides where it goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segment<'f> {
    /// The IP packet.
    pub(super) packet: &'f [u8],
    pub(super) flow: FlowKey,
    pub(super) kind: SegmentKind,
    /// Bytes of IP and TCP header.
    pub(super) header_len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// A SYN without ACK, with its initial sequence number.
    Open(i32),
    Reset,
    Other,
}

/// A flow's 4-tuple; the guest's address is the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowKey {
    pub(super) guest_port: u16,
    pub(super) to: SocketAddrV4,
}

/// Says what a frame on a link of this MTU is.
pub(super) fn judge(frame: &[u8], mtu: u16) -> Result<Ingress<'_>, Dropped> {
    if frame.len() > max_frame(mtu) {
        return Err(Dropped::Oversize);
    }
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| Dropped::Malformed)?;
    if ethernet.src_addr() != GUEST_MAC {
        return Err(Dropped::SpoofedMac);
    }
    match ethernet.ethertype() {
        EthernetProtocol::Arp => judge_arp(ethernet.payload()),
        EthernetProtocol::Ipv4 => judge_ipv4(ethernet.dst_addr(), ethernet.payload()),
        EthernetProtocol::Ipv6 => Err(Dropped::Ipv6),
        EthernetProtocol::Unknown(_) => Err(Dropped::EtherType),
    }
}

fn judge_arp(packet: &[u8]) -> Result<Ingress<'_>, Dropped> {
    let packet = ArpPacket::new_checked(packet).map_err(|_| Dropped::Malformed)?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr: sender,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).map_err(|_| Dropped::Malformed)?
    else {
        return Err(Dropped::Malformed);
    };
    if source_hardware_addr != GUEST_MAC {
        return Err(Dropped::SpoofedMac);
    }
    // An unspecified sender probes whether an address is taken (RFC 5227).
    if sender != GUEST_IP && !sender.is_unspecified() {
        return Err(Dropped::SpoofedAddress);
    }
    match operation {
        ArpOperation::Request if target == GATEWAY_IP => Ok(Ingress::ArpRequest { sender }),
        _ if target == GUEST_IP => Ok(Ingress::Chatter),
        _ => Err(Dropped::Arp),
    }
}

fn judge_ipv4(to_mac: EthernetAddress, payload: &[u8]) -> Result<Ingress<'_>, Dropped> {
    let packet = Ipv4Packet::new_checked(payload).map_err(|_| Dropped::Malformed)?;
    if packet.version() != 4 || !packet.verify_checksum() {
        return Err(Dropped::Malformed);
    }
    if packet.header_len() > PLAIN_HEADER {
        return Err(Dropped::IpOptions);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(Dropped::Fragment);
    }
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    if packet.next_header() == IpProtocol::Udp
        && let Some(message) = dhcp_request(from, to, packet.payload())
    {
        return Ok(Ingress::Dhcp(message));
    }
    if from != GUEST_IP {
        return Err(Dropped::SpoofedAddress);
    }
    if to_mac != GATEWAY_MAC || is_nobody(to) {
        return Err(Dropped::Destination);
    }
    match packet.next_header() {
        IpProtocol::Tcp => {
            let end = usize::from(packet.total_len());
            judge_tcp(to, payload.get(..end).ok_or(Dropped::Malformed)?)
        }
        IpProtocol::Udp => judge_udp(to, packet.payload()),
        IpProtocol::Icmp => judge_icmp(to, packet.payload()),
        _ => Err(Dropped::IpProtocol),
    }
}

/// A message to the DHCP server, from a guest with or without its address.
fn dhcp_request(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Option<&[u8]> {
    let ours =
        (from.is_unspecified() || from == GUEST_IP) && (to.is_broadcast() || to == GATEWAY_IP);
    let datagram = UdpPacket::new_checked(payload).ok().filter(|_| ours)?;
    let ports = (datagram.src_port(), datagram.dst_port());
    (ports == (DHCP_CLIENT_PORT, DHCP_SERVER_PORT)).then(|| datagram.payload())
}

fn judge_tcp(to: Ipv4Addr, packet: &[u8]) -> Result<Ingress<'_>, Dropped> {
    let payload = &packet[usize::from(PLAIN_HEADER)..];
    let segment = TcpPacket::new_checked(payload).map_err(|_| Dropped::Malformed)?;
    let flow = FlowKey {
        guest_port: segment.src_port(),
        to: SocketAddrV4::new(to, segment.dst_port()),
    };
    if flow.guest_port == 0 || flow.to.port() == 0 {
        return Err(Dropped::Malformed);
    }
    let kind = if segment.rst() {
        SegmentKind::Reset
    } else if segment.syn() && !segment.ack() && !segment.fin() {
        SegmentKind::Open(segment.seq_number().0)
    } else {
        SegmentKind::Other
    };
    let header_len = usize::from(PLAIN_HEADER) + usize::from(segment.header_len());
    Ok(Ingress::Tcp(Segment {
        packet,
        flow,
        kind,
        header_len,
    }))
}

fn judge_udp(to: Ipv4Addr, payload: &[u8]) -> Result<Ingress<'_>, Dropped> {
    let datagram = UdpPacket::new_checked(payload).map_err(|_| Dropped::Malformed)?;
    match datagram.dst_port() {
        DNS_PORT if to == GATEWAY_IP && datagram.src_port() != 0 => Ok(Ingress::Dns {
            port: datagram.src_port(),
            question: datagram.payload(),
        }),
        // Whatever a rule says: names are asked of the gateway alone.
        DNS_PORT | DNS_OVER_TLS_PORT => Err(Dropped::ForeignDns),
        _ if to == GATEWAY_IP => Err(Dropped::Udp),
        port if port == 0 || datagram.src_port() == 0 => Err(Dropped::Malformed),
        port => Ok(Ingress::Datagram(Datagram {
            flow: FlowKey {
                guest_port: datagram.src_port(),
                to: SocketAddrV4::new(to, port),
            },
            payload: datagram.payload(),
        })),
    }
}

fn judge_icmp(to: Ipv4Addr, message: &[u8]) -> Result<Ingress<'_>, Dropped> {
    let packet = Icmpv4Packet::new_checked(message).map_err(|_| Dropped::Malformed)?;
    let echo = packet.msg_type() == Icmpv4Message::EchoRequest && packet.msg_code() == 0;
    if echo && to == GATEWAY_IP {
        Ok(Ingress::Echo(message))
    } else {
        Err(Dropped::Icmp)
    }
}

/// Whether no single other host can have this address.
fn is_nobody(address: Ipv4Addr) -> bool {
    let subnet_broadcast = Ipv4Addr::new(10, 0, 2, 255);
    address == GUEST_IP
        || address == subnet_broadcast
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_loopback()
        || address.octets()[0] == 0
}
