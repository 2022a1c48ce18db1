//! Links of every MTU that a registration may ask for.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::dhcpv4;
use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, TcpPacket, TcpRepr};

use super::guest::Guest;
use super::raw::{self, RawGuest};
use super::*;

const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(203, 0, 113, 7), 443);
/// Headers of IPv4 and TCP, without options.
const HEADERS: u16 = 40;

fn link_of(mtu: u16) -> LinkConfig {
    LinkConfig {
        mtu,
        ..LinkConfig::default()
    }
}

/// The largest segment that a SYN-ACK says it takes.
fn max_segment(frame: &[u8]) -> Option<u16> {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    let segment = TcpPacket::new_checked(packet.payload()).unwrap();
    let (from, to) = (IpAddress::Ipv4(from), IpAddress::Ipv4(to));
    let checksums = ChecksumCapabilities::default();
    TcpRepr::parse(&segment, &from, &to, &checksums)
        .unwrap()
        .max_seg_size
}

#[tokio::test]
async fn segments_and_answers_keep_to_the_mtu() {
    for mtu in [MIN_MTU, 9000, MTU] {
        // A server that writes more than a segment at once.
        let recorder = Recorder::serving(async |mut stream: FlowStream| {
            let data = vec![1; 400_000];
            let _cut = tokio::io::AsyncWriteExt::write_all(&mut stream, &data).await;
            std::future::pending::<()>().await;
        });
        let (guest, _stack) = RawGuest::start_with(&recorder, link_of(mtu));
        guest.send(&raw::syn(1000, SERVER, 0)).await;
        let syn_ack = guest.receive().await;
        assert_eq!(max_segment(&syn_ack), Some(mtu - HEADERS), "{mtu}");
        let seq = raw::tcp_of(&syn_ack).unwrap().seq.wrapping_add(1);
        let ack = |ack: i32| {
            raw::tcp(&raw::Segment {
                to: SERVER,
                port: 1000,
                control: smoltcp::wire::TcpControl::None,
                seq: 1,
                ack: Some(ack),
                payload: &[],
            })
        };
        guest.send(&ack(seq)).await;
        let data = guest.receive().await;
        assert!(data.len() <= max_frame(mtu), "{mtu}: {} bytes", data.len());
        assert!(
            data.len() > max_frame(mtu) - 100,
            "{mtu}: {} bytes",
            data.len()
        );
    }
}

#[tokio::test]
async fn a_frame_beyond_the_mtu_is_dropped() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start_with(&recorder, link_of(MIN_MTU));
    let largest = vec![5; usize::from(MIN_MTU) - 28];
    guest.send(&raw::ping_to(GATEWAY_IP, 1, &largest)).await;
    assert!(raw::is_pong(&guest.receive().await, 1));
    let larger = vec![5; usize::from(MIN_MTU) - 27];
    guest.send(&raw::ping_to(GATEWAY_IP, 2, &larger)).await;
    recorder.until_dropped(Dropped::Oversize, 1).await;
}

#[tokio::test]
async fn an_echo_larger_than_all_buffers_comes_back_over_a_small_mtu() {
    let recorder = Recorder::serving(echo);
    let (mut guest, _stack) = Guest::start_with(&recorder, link_of(MIN_MTU));
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    guest.echo(handle, 4 << 20).await;
    assert_eq!(recorder.dropped(Dropped::Oversize), 0);
}

#[tokio::test]
async fn dhcp_tells_the_mtu() {
    let (mut guest, _stack) = Guest::start_with(&Recorder::refusing(), link_of(9000));
    guest
        .interface
        .update_ip_addrs(|addresses| addresses.clear());
    let mut socket = dhcpv4::Socket::new();
    let buffer = Box::leak(vec![0; 1024].into_boxed_slice());
    socket.set_receive_packet_buffer(buffer);
    let handle = guest.sockets.add(socket);
    let mtu = guest
        .until(
            |sockets| match sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll()? {
                dhcpv4::Event::Configured(config) => {
                    let packet = config.packet.unwrap();
                    let mut options = packet.options();
                    options
                        .find(|option| option.kind == 26)
                        .map(|option| option.data.to_vec())
                }
                dhcpv4::Event::Deconfigured => None,
            },
        )
        .await;
    assert_eq!(mtu, 9000_u16.to_be_bytes());
}
