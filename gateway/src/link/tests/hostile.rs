//! Frames that no honest guest sends.

use proptest::prelude::*;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpControl,
};
use tokio::io::AsyncReadExt;

use super::raw::{self, RawGuest, Segment, ipv4, ping, syn, tcp, udp, with_header};
use super::*;

const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(203, 0, 113, 7), 443);
const OTHER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 0x10]);
const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);

/// What must vanish without an answer, and how it is counted.
type Forbidden = Vec<(&'static str, Vec<u8>, Dropped)>;

fn forbidden() -> Forbidden {
    [
        forged_sources(),
        impossible_destinations(),
        broken_headers(),
        other_protocols(),
    ]
    .concat()
}

fn forged_sources() -> Forbidden {
    let syn = || syn(1000, SERVER, 1);
    let other_ip = Ipv4Addr::new(10, 0, 2, 16);
    let from = |ip| with_header(syn(), |packet| packet.set_src_addr(ip));
    vec![
        (
            "another MAC",
            with_macs(syn(), GATEWAY_MAC, OTHER_MAC),
            Dropped::SpoofedMac,
        ),
        ("another sandbox", from(other_ip), Dropped::SpoofedAddress),
        ("the gateway", from(GATEWAY_IP), Dropped::SpoofedAddress),
        (
            "nobody",
            from(Ipv4Addr::UNSPECIFIED),
            Dropped::SpoofedAddress,
        ),
    ]
}

fn impossible_destinations() -> Forbidden {
    let syn = || syn(1000, SERVER, 1);
    let to = |a, b, c, d| {
        with_header(syn(), |packet| {
            packet.set_dst_addr(Ipv4Addr::new(a, b, c, d))
        })
    };
    let broadcast = EthernetAddress::BROADCAST;
    vec![
        (
            "another MAC",
            with_macs(syn(), OTHER_MAC, GUEST_MAC),
            Dropped::Destination,
        ),
        (
            "a broadcast frame",
            with_macs(syn(), broadcast, GUEST_MAC),
            Dropped::Destination,
        ),
        ("a multicast group", to(224, 0, 0, 1), Dropped::Destination),
        ("everybody", to(255, 255, 255, 255), Dropped::Destination),
        ("the subnet", to(10, 0, 2, 255), Dropped::Destination),
        ("the guest itself", to(10, 0, 2, 15), Dropped::Destination),
        ("loopback", to(127, 0, 0, 1), Dropped::Destination),
        ("C02 0.0.0.0", to(0, 0, 0, 0), Dropped::Destination),
    ]
}

fn broken_headers() -> Forbidden {
    let changed =
        |change: fn(&mut Ipv4Packet<&mut [u8]>)| with_header(syn(1000, SERVER, 1), change);
    vec![
        (
            "first fragment",
            changed(|packet| packet.set_more_frags(true)),
            Dropped::Fragment,
        ),
        (
            "later fragment",
            changed(|packet| packet.set_frag_offset(8)),
            Dropped::Fragment,
        ),
        ("IP options", ip_options(), Dropped::IpOptions),
        (
            "wrong IP version",
            changed(|packet| packet.set_version(6)),
            Dropped::Malformed,
        ),
        ("wrong header checksum", bad_checksum(), Dropped::Malformed),
        (
            "beyond the frame",
            changed(|packet| packet.set_total_len(9000)),
            Dropped::Malformed,
        ),
        (
            "TCP header cut",
            changed(|packet| packet.set_total_len(30)),
            Dropped::Malformed,
        ),
        ("port 0", syn(1000, (SERVER.0, 0), 1), Dropped::Malformed),
        ("half an Ethernet header", vec![0; 9], Dropped::Malformed),
        ("nothing", vec![], Dropped::Malformed),
        ("beyond the MTU", vec![0; MAX_FRAME + 1], Dropped::Oversize),
    ]
}

fn other_protocols() -> Forbidden {
    let ip = |protocol: u8| ipv4(GUEST_IP, SERVER.0, protocol.into(), 8, |_| {});
    let ether = |protocol: u16| raw::ethernet(protocol.into(), 40, |_| {});
    let udp = |ip, port, data| udp(GUEST_IP, (ip, port), data);
    vec![
        ("B113 QUIC", udp(SERVER.0, 443, b"hello"), Dropped::Quic),
        (
            "B093 a resolver",
            udp(RESOLVER, 53, b"question"),
            Dropped::ForeignDns,
        ),
        (
            "B093 DNS over QUIC",
            udp(RESOLVER, 853, b"question"),
            Dropped::ForeignDns,
        ),
        (
            "B114 UDP to an address",
            udp(SERVER.0, 4000, b"data"),
            Dropped::Udp,
        ),
        (
            "B111 an empty datagram",
            udp(SERVER.0, 4000, b""),
            Dropped::Udp,
        ),
        (
            "UDP to the gateway",
            udp(GATEWAY_IP, 123, b"time?"),
            Dropped::Udp,
        ),
        ("IGMP", ip(2), Dropped::IpProtocol),
        ("GRE", ip(47), Dropped::IpProtocol),
        ("SCTP", ip(132), Dropped::IpProtocol),
        ("IPv6", ether(0x86dd), Dropped::Ipv6),
        ("a VLAN tag", ether(0x8100), Dropped::EtherType),
    ]
}

fn with_macs(mut frame: Vec<u8>, to: EthernetAddress, from: EthernetAddress) -> Vec<u8> {
    let mut ethernet = EthernetFrame::new_unchecked(frame.as_mut_slice());
    ethernet.set_dst_addr(to);
    ethernet.set_src_addr(from);
    frame
}

fn ip_options() -> Vec<u8> {
    let frame = ipv4(GUEST_IP, SERVER.0, IpProtocol::Tcp, 24, |_| {});
    with_header(frame, |packet| packet.set_header_len(24))
}

fn bad_checksum() -> Vec<u8> {
    let mut frame = syn(1000, SERVER, 1);
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    packet.set_checksum(!packet.checksum());
    frame
}

#[test]
fn every_forbidden_frame_is_recognised() {
    for (what, frame, kind) in forbidden() {
        match ingress::judge(&frame, MTU) {
            // Which datagrams a rule lets out is not to be seen from a frame.
            Ok(ingress::Ingress::Datagram(_)) => {
                assert!(matches!(kind, Dropped::Quic | Dropped::Udp), "{what}");
            }
            judged => assert_eq!(judged, Err(kind), "{what}"),
        }
    }
}

#[tokio::test]
async fn forbidden_frames_get_no_answer_and_are_counted() {
    let recorder = Recorder::new(|to| panic!("asked about {to}"));
    let (guest, _stack) = RawGuest::start(&recorder);
    for (what, frame, kind) in forbidden() {
        let before = recorder.dropped(kind);
        guest.send(&frame).await;
        assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new(), "{what}");
        if before == 0 {
            recorder.until_dropped(kind, 1).await;
        }
    }
}

#[test]
fn drops_of_a_kind_are_reported_once_a_second_with_their_count() {
    let recorder = Recorder::refusing();
    let mut drops = drops::DropCounters::new();
    let now = tokio::time::Instant::now();
    for _ in 0..1000 {
        drops.add(Dropped::Udp);
        drops.report(now, recorder.as_ref());
    }
    assert_eq!(recorder.dropped(Dropped::Udp), 1);
    let next = drops.report(now, recorder.as_ref()).unwrap();
    assert_eq!(next, now + Duration::from_secs(1));
    assert_eq!(drops.report(next, recorder.as_ref()), None);
    assert_eq!(recorder.dropped(Dropped::Udp), 1000);
}

/// smoltcp takes the window of its own SYN-ACK for a scaled one; a segment far ahead of the first
/// would then be written behind the end of the receive buffer.
#[tokio::test]
async fn data_beyond_the_first_window_is_not_believed() {
    let recorder = Recorder::serving(echo);
    let (guest, _stack) = RawGuest::start(&recorder);
    guest.send(&syn(1000, SERVER, 0)).await;
    let answer = guest.receive_tcp().await;
    let ahead = |offset: usize, payload| Segment {
        to: SERVER,
        port: 1000,
        control: TcpControl::None,
        seq: 1 + i32::try_from(offset).unwrap(),
        ack: Some(answer.seq.wrapping_add(1)),
        payload,
    };
    let data = vec![0; 60_000];
    for offset in (0..2_000_000).step_by(50_000).rev() {
        guest.send(&tcp(&ahead(offset, &data))).await;
    }
    guest.drain().await;
}

#[tokio::test]
async fn a_guest_that_only_writes_fills_nothing() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    let data = vec![1; 60_000];
    let big_ping = raw::ping_to(GATEWAY_IP, 1, &data);
    while recorder.dropped(Dropped::Unread) == 0 {
        guest.send(&big_ping).await;
    }
    // Once it reads again, it is served again.
    let mut answer = guest.receive().await;
    while !raw::is_pong(&answer, 2) {
        guest.send(&ping(2)).await;
        answer = guest.receive().await;
    }
}

/// Segments that are right about the flow and wrong about everything else.
fn any_segment(isn: i32) -> impl Strategy<Value = Vec<u8>> {
    let near = prop_oneof![
        -3..3_i32,
        Just(65_535),
        Just(524_280),
        any::<i32>(),
        -70_000..600_000_i32,
    ];
    let control = prop_oneof![
        Just(TcpControl::None),
        Just(TcpControl::Psh),
        Just(TcpControl::Fin),
        Just(TcpControl::Syn),
        Just(TcpControl::Rst),
    ];
    let port = prop_oneof![4 => Just(1000_u16), 1 => 1000..1004_u16];
    (
        port,
        control,
        near.clone(),
        proptest::option::of(near),
        0..3000_usize,
    )
        .prop_map(move |(port, control, seq, ack, len)| {
            tcp(&Segment {
                to: SERVER,
                port,
                control,
                seq: seq.wrapping_add(1),
                ack: ack.map(|ack| ack.wrapping_add(isn)),
                payload: &vec![0; len],
            })
        })
}

/// Frames that are nearly right: real ones with some bytes changed.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let real = prop_oneof![
        Just(ping(3)),
        Just(syn(1000, SERVER, 1)),
        Just(udp(
            GUEST_IP,
            (GATEWAY_IP, 53),
            &[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1]
        )),
        Just(udp(
            Ipv4Addr::UNSPECIFIED,
            (Ipv4Addr::BROADCAST, 67),
            &[1; 300]
        )),
        any_segment(0),
        proptest::collection::vec(any::<u8>(), 0..200),
    ];
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (real, changes, any::<bool>()).prop_map(|(mut frame, changes, repair)| {
        for (index, byte) in changes {
            if !frame.is_empty() {
                let at = index.index(frame.len());
                frame[at] = byte;
            }
        }
        let header_fits = frame.len() >= ETHERNET_HEADER + 60;
        if repair && header_fits {
            with_header(frame, |_| {})
        } else {
            frame
        }
    })
}

/// Asserts that a frame goes from the gateway to the guest and nowhere else.
fn assert_for_the_guest(frame: &[u8]) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(
        (ethernet.src_addr(), ethernet.dst_addr()),
        (GATEWAY_MAC, GUEST_MAC)
    );
    if ethernet.ethertype() == EthernetProtocol::Ipv4 {
        let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!([GUEST_IP, Ipv4Addr::BROADCAST].contains(&packet.dst_addr()));
        assert!(packet.verify_checksum());
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn frames_of_any_kind_never_stop_the_stack(frames in proptest::collection::vec(any_frame(), 1..60)) {
        run(async {
            let recorder = Recorder::serving(echo);
            let (guest, _stack) = RawGuest::start(&recorder);
            for frame in &frames {
                guest.send(frame).await;
            }
            for frame in guest.drain().await {
                assert_for_the_guest(&frame);
            }
        });
    }

    #[test]
    fn segments_of_any_kind_never_stop_a_flow_s_stack(seed in any::<prop::sample::Index>(), segments in proptest::collection::vec(any_segment(0), 1..80)) {
        run(async {
            let reading = seed.index(2) == 0;
            let recorder = Recorder::serving(move |mut stream: FlowStream| async move {
                if reading {
                    echo(stream).await;
                } else {
                    let _first = stream.read_u8().await;
                    std::future::pending::<()>().await;
                }
            });
            let (guest, _stack) = RawGuest::start(&recorder);
            guest.send(&syn(1000, SERVER, 0)).await;
            let isn = guest.receive_tcp().await.seq;
            for segment in &segments {
                // Their acknowledgements are relative to the sequence number just learnt.
                guest.send(&shifted(segment, isn)).await;
                while let Ok(len) = guest.socket.try_recv(&mut [0; 1]) {
                    assert!(len > 0);
                }
            }
            for frame in guest.drain().await {
                assert_for_the_guest(&frame);
            }
        });
    }
}

/// Adds to a segment's acknowledgement number.
fn shifted(frame: &[u8], by: i32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let ack = &mut frame[ETHERNET_HEADER + 28..ETHERNET_HEADER + 32];
    let old = i32::from_be_bytes(ack.try_into().unwrap());
    ack.copy_from_slice(&old.wrapping_add(by).to_be_bytes());
    frame
}
