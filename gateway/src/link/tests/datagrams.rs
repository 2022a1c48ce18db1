//! UDP by rule, as a guest meets it.

use smoltcp::wire::{EthernetFrame, Ipv4Packet, UdpPacket};

use super::raw::{RawGuest, udp_from, udp_payload};
use super::*;

const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const TO: (Ipv4Addr, u16) = (SERVER, DATAGRAM_PORT);

/// Accepts every flow and lets `relay` have it.
fn relaying<F>(relay: impl Fn(DatagramFlow) -> F + Clone + Send + Sync + 'static) -> Arc<Recorder>
where
    F: Future<Output = ()> + Send + 'static,
{
    Recorder::new(|to| panic!("asked about {to}")).with_datagrams(move |_| {
        let relay = relay.clone();
        let deliver = move |flow| {
            tokio::spawn(relay(flow));
        };
        Box::pin(async move { DatagramOpening::Accept(Box::new(deliver)) })
    })
}

/// Sends back what comes.
async fn mirror(mut flow: DatagramFlow) {
    while let Some(datagram) = flow.receive().await {
        flow.send(&datagram);
    }
}

fn ends(frame: &[u8]) -> ((Ipv4Addr, u16), u16) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    assert_eq!(packet.dst_addr(), GUEST_IP);
    let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
    (
        (packet.src_addr(), datagram.src_port()),
        datagram.dst_port(),
    )
}

#[tokio::test]
async fn b111_datagrams_of_any_size_go_both_ways() {
    let recorder = relaying(mirror);
    let (guest, _stack) = RawGuest::start(&recorder);
    let largest = vec![7; usize::from(MTU) - 28];
    for data in [&b"ping"[..], b"", &largest, b"pong"] {
        guest.send(&udp_from(5000, TO, data)).await;
        let answer = guest.receive().await;
        assert_eq!(ends(&answer), (TO, 5000));
        assert_eq!(udp_payload(&answer), data);
    }
    // Another port of the guest is another flow.
    guest.send(&udp_from(5001, TO, b"x")).await;
    assert_eq!(ends(&guest.receive().await), (TO, 5001));
}

#[tokio::test]
async fn what_comes_while_it_is_decided_waits_and_is_asked_about_once() {
    let (release, gate) = tokio::sync::oneshot::channel::<()>();
    let gate = Arc::new(Mutex::new(Some(gate)));
    let recorder = Recorder::refusing().with_datagrams(move |_| {
        let gate = lock(&gate).take().expect("asked once");
        Box::pin(async move {
            gate.await.unwrap();
            DatagramOpening::Accept(Box::new(|flow| {
                tokio::spawn(mirror(flow));
            }))
        })
    });
    let (guest, _stack) = RawGuest::start(&recorder);
    for data in [b"1", b"2", b"3"] {
        guest.send(&udp_from(5000, TO, data)).await;
    }
    assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
    release.send(()).unwrap();
    for data in [b"1", b"2", b"3"] {
        assert_eq!(udp_payload(&guest.receive().await), data);
    }
}

#[tokio::test]
async fn b114_a_refused_flow_is_dropped_and_counted_and_asked_about_again() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    guest.send(&udp_from(5000, TO, b"x")).await;
    recorder.until_dropped(Dropped::Udp, 1).await;
    guest.send(&udp_from(5000, TO, b"y")).await;
    recorder.until_dropped(Dropped::Udp, 2).await;
    assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn b110_a_flow_that_has_ended_is_opened_anew() {
    let recorder = relaying(async |mut flow: DatagramFlow| {
        let datagram = flow.receive().await.unwrap();
        flow.send(&datagram);
    });
    let (guest, _stack) = RawGuest::start(&recorder);
    for _ in 0..3 * MAX_DATAGRAM_FLOWS {
        // The relay may not yet have ended when the next datagram comes; that one is lost then.
        loop {
            guest.send(&udp_from(5000, TO, b"again")).await;
            if !guest.drain().await.is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn c18_more_flows_than_the_cap_are_dropped_and_counted() {
    let recorder = relaying(mirror);
    let (guest, _stack) = RawGuest::start(&recorder);
    let flows = u16::try_from(MAX_DATAGRAM_FLOWS).unwrap();
    for port in 1..=flows {
        guest.send(&udp_from(port, TO, b"x")).await;
        assert_eq!(ends(&guest.receive().await), (TO, port));
    }
    guest.send(&udp_from(flows + 1, TO, b"x")).await;
    recorder.until_dropped(Dropped::DatagramFlows, 1).await;
    // The others go on.
    guest.send(&udp_from(1, TO, b"y")).await;
    assert_eq!(udp_payload(&guest.receive().await), b"y");
}

#[tokio::test]
async fn a_reply_that_does_not_fit_the_link_is_dropped_and_counted() {
    let recorder = relaying(async |mut flow: DatagramFlow| {
        while let Some(datagram) = flow.receive().await {
            flow.send(&datagram.repeat(2));
        }
    });
    let config = LinkConfig {
        mtu: MIN_MTU,
        ..LinkConfig::default()
    };
    let (guest, _stack) = RawGuest::start_with(&recorder, config);
    guest.send(&udp_from(5000, TO, &[1; 1000])).await;
    recorder.until_dropped(Dropped::DatagramSize, 1).await;
    guest.send(&udp_from(5000, TO, &[1; 736])).await;
    assert_eq!(udp_payload(&guest.receive().await).len(), 1472);
    // Longer than the link's MTU, this is no frame of an honest guest.
    guest.send(&udp_from(5000, TO, &[1; 1473])).await;
    recorder.until_dropped(Dropped::Oversize, 1).await;
}

#[tokio::test]
async fn a_flood_of_replies_that_nobody_reads_stops_nothing_else() {
    let recorder = relaying(async |mut flow: DatagramFlow| {
        let datagram = flow.receive().await.unwrap();
        // Until the guest's queue is full and something is dropped.
        while flow.send(&datagram.repeat(60)) {
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    });
    let (guest, _stack) = RawGuest::start(&recorder);
    guest.send(&udp_from(5000, TO, &[1; 1000])).await;
    // Every frame that was queued comes in order, and then the pong.
    let before = guest.drain().await;
    assert!(before.iter().all(|frame| ends(frame) == (TO, 5000)));
}
