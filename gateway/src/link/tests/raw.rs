//! A guest that writes its frames by hand.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet,
    Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};
use tokio::net::UnixDatagram;

use super::guest::pair;
use super::*;

pub(super) struct RawGuest {
    pub(super) socket: UnixDatagram,
}

impl RawGuest {
    pub(super) fn start(handler: &Arc<Recorder>) -> (Self, StackHandle) {
        Self::start_with(handler, LinkConfig::default())
    }

    pub(super) fn start_with(handler: &Arc<Recorder>, config: LinkConfig) -> (Self, StackHandle) {
        let (link, theirs) = pair();
        let handler: Arc<dyn FlowHandler> = Arc::<Recorder>::clone(handler);
        let stack = Stack::spawn(link, handler, config);
        theirs.set_nonblocking(true).unwrap();
        (
            Self {
                socket: UnixDatagram::from_std(theirs).unwrap(),
            },
            stack,
        )
    }

    pub(super) async fn send(&self, frame: &[u8]) {
        in_time(self.socket.send(frame)).await.unwrap();
    }

    pub(super) async fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; MAX_FRAME];
        let len = in_time(self.socket.recv(&mut buffer)).await.unwrap();
        buffer.truncate(len);
        buffer
    }

    /// Everything that the stack sent until now: it answers this ping last.
    pub(super) async fn drain(&self) -> Vec<Vec<u8>> {
        self.send(&ping(0xbeef)).await;
        let mut frames = Vec::new();
        loop {
            let frame = self.receive().await;
            if is_pong(&frame, 0xbeef) {
                return frames;
            }
            frames.push(frame);
        }
    }

    pub(super) async fn receive_tcp(&self) -> Tcp {
        tcp_of(&self.receive().await).expect("a TCP segment")
    }
}

/// The fields of a received segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tcp {
    pub(super) from: (Ipv4Addr, u16),
    pub(super) to_port: u16,
    pub(super) control: TcpControl,
    pub(super) seq: i32,
    pub(super) ack: Option<i32>,
    pub(super) payload: usize,
}

pub(super) fn tcp_of(frame: &[u8]) -> Option<Tcp> {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(
        (ethernet.src_addr(), ethernet.dst_addr()),
        (GATEWAY_MAC, GUEST_MAC)
    );
    let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
    assert!(packet.verify_checksum());
    if ethernet.ethertype() != EthernetProtocol::Ipv4 || packet.next_header() != IpProtocol::Tcp {
        return None;
    }
    let segment = TcpPacket::new_checked(packet.payload()).unwrap();
    let (from, to) = (
        IpAddress::Ipv4(packet.src_addr()),
        IpAddress::Ipv4(packet.dst_addr()),
    );
    let repr = TcpRepr::parse(&segment, &from, &to, &ChecksumCapabilities::default()).unwrap();
    Some(Tcp {
        from: (packet.src_addr(), repr.src_port),
        to_port: repr.dst_port,
        control: repr.control,
        seq: repr.seq_number.0,
        ack: repr.ack_number.map(|ack| ack.0),
        payload: repr.payload.len(),
    })
}

pub(super) struct Segment<'a> {
    pub(super) to: (Ipv4Addr, u16),
    pub(super) port: u16,
    pub(super) control: TcpControl,
    pub(super) seq: i32,
    pub(super) ack: Option<i32>,
    pub(super) payload: &'a [u8],
}

pub(super) fn syn(port: u16, to: (Ipv4Addr, u16), seq: i32) -> Vec<u8> {
    tcp(&Segment {
        to,
        port,
        control: TcpControl::Syn,
        seq,
        ack: None,
        payload: &[],
    })
}

pub(super) fn tcp(segment: &Segment<'_>) -> Vec<u8> {
    let is_syn = segment.control == TcpControl::Syn;
    let repr = TcpRepr {
        src_port: segment.port,
        dst_port: segment.to.1,
        control: segment.control,
        seq_number: TcpSeqNumber(segment.seq),
        ack_number: segment.ack.map(TcpSeqNumber),
        window_len: 65_535,
        window_scale: is_syn.then_some(4),
        max_seg_size: is_syn.then_some(65_480),
        sack_permitted: is_syn,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: segment.payload,
    };
    ipv4(
        GUEST_IP,
        segment.to.0,
        IpProtocol::Tcp,
        repr.buffer_len(),
        |payload| {
            repr.emit(
                &mut TcpPacket::new_unchecked(payload),
                &IpAddress::Ipv4(GUEST_IP),
                &IpAddress::Ipv4(segment.to.0),
                &ChecksumCapabilities::default(),
            );
        },
    )
}

pub(super) fn udp(from: Ipv4Addr, to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    datagram((from, 5000), to, data)
}

pub(super) fn udp_from(port: u16, to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    datagram((GUEST_IP, port), to, data)
}

fn datagram((from, port): (Ipv4Addr, u16), to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let repr = UdpRepr {
        src_port: port,
        dst_port: to.1,
    };
    ipv4(
        from,
        to.0,
        IpProtocol::Udp,
        repr.header_len() + data.len(),
        |payload| {
            repr.emit(
                &mut UdpPacket::new_unchecked(payload),
                &IpAddress::Ipv4(from),
                &IpAddress::Ipv4(to.0),
                data.len(),
                |body| body.copy_from_slice(data),
                &ChecksumCapabilities::default(),
            );
        },
    )
}

pub(super) fn udp_payload(frame: &[u8]) -> Vec<u8> {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
    let (from, to) = (
        IpAddress::Ipv4(packet.src_addr()),
        IpAddress::Ipv4(packet.dst_addr()),
    );
    assert!(
        datagram.verify_checksum(&from, &to),
        "B105: a resolver drops a bad checksum"
    );
    datagram.payload().to_vec()
}

pub(super) fn ping(ident: u16) -> Vec<u8> {
    ping_to(GATEWAY_IP, ident, b"are you there")
}

pub(super) fn ping_to(to: Ipv4Addr, ident: u16, data: &[u8]) -> Vec<u8> {
    let repr = Icmpv4Repr::EchoRequest {
        ident,
        seq_no: 1,
        data,
    };
    ipv4(
        GUEST_IP,
        to,
        IpProtocol::Icmp,
        repr.buffer_len(),
        |payload| {
            repr.emit(
                &mut Icmpv4Packet::new_unchecked(payload),
                &ChecksumCapabilities::default(),
            );
        },
    )
}

pub(super) fn is_pong(frame: &[u8], ident: u16) -> bool {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let Ok(packet) = Ipv4Packet::new_checked(ethernet.payload()) else {
        return false;
    };
    if packet.next_header() != IpProtocol::Icmp {
        return false;
    }
    let message = Icmpv4Packet::new_checked(packet.payload()).unwrap();
    let repr = Icmpv4Repr::parse(&message, &ChecksumCapabilities::default()).unwrap();
    matches!(repr, Icmpv4Repr::EchoReply { ident: got, .. } if got == ident)
}

pub(super) fn ipv4(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: IpProtocol,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let header = Ipv4Repr {
        src_addr: from,
        dst_addr: to,
        next_header: protocol,
        payload_len: len,
        hop_limit: 64,
    };
    ethernet(
        EthernetProtocol::Ipv4,
        header.buffer_len() + len,
        |packet| {
            header.emit(
                &mut Ipv4Packet::new_unchecked(&mut *packet),
                &ChecksumCapabilities::default(),
            );
            fill(&mut packet[header.buffer_len()..]);
        },
    )
}

pub(super) fn ethernet(
    protocol: EthernetProtocol,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let mut bytes = vec![0; ETHERNET_HEADER + len];
    let mut frame = EthernetFrame::new_unchecked(bytes.as_mut_slice());
    frame.set_src_addr(GUEST_MAC);
    frame.set_dst_addr(GATEWAY_MAC);
    frame.set_ethertype(protocol);
    fill(frame.payload_mut());
    bytes
}

/// Changes the IPv4 header of a frame and makes its checksum right again.
pub(super) fn with_header(
    mut frame: Vec<u8>,
    change: impl FnOnce(&mut Ipv4Packet<&mut [u8]>),
) -> Vec<u8> {
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    change(&mut packet);
    packet.fill_checksum();
    frame
}
