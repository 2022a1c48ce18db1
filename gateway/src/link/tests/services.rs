//! What the gateway's own address answers.

use std::str::FromStr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use smoltcp::socket::{dhcpv4, tcp};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Ipv4Address,
};

use super::guest::Guest;
use super::raw::{self, RawGuest, udp, udp_payload};
use super::*;

#[tokio::test]
async fn dhcp_leases_the_fixed_address() {
    let (mut guest, _stack) = Guest::start(&Recorder::refusing());
    guest
        .interface
        .update_ip_addrs(|addresses| addresses.clear());
    let handle = guest.sockets.add(dhcpv4::Socket::new());
    let config = guest
        .until(
            |sockets| match sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll()? {
                dhcpv4::Event::Configured(config) => {
                    Some((config.address, config.router, config.dns_servers.to_vec()))
                }
                dhcpv4::Event::Deconfigured => None,
            },
        )
        .await;
    let (address, router, dns) = config;
    assert_eq!(
        (address.address(), address.prefix_len()),
        (GUEST_IP, PREFIX_LEN)
    );
    assert_eq!(router, Some(GATEWAY_IP));
    assert_eq!(dns, [GATEWAY_IP]);
}

#[tokio::test]
async fn arp_is_answered_for_the_gateway_alone() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    guest.send(&arp(GUEST_MAC, GUEST_IP, GATEWAY_IP)).await;
    let answer = guest.receive().await;
    let frame = EthernetFrame::new_checked(answer.as_slice()).unwrap();
    let reply = ArpRepr::parse(&ArpPacket::new_checked(frame.payload()).unwrap()).unwrap();
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        ..
    } = reply
    else {
        panic!("{reply:?}")
    };
    assert_eq!(operation, ArpOperation::Reply);
    assert_eq!(
        (source_hardware_addr, source_protocol_addr),
        (GATEWAY_MAC, GATEWAY_IP)
    );

    let neighbour = Ipv4Addr::new(10, 0, 2, 16);
    guest.send(&arp(GUEST_MAC, GUEST_IP, neighbour)).await;
    guest.send(&arp(GUEST_MAC, neighbour, GATEWAY_IP)).await;
    guest
        .send(&arp(
            EthernetAddress([2, 0, 0, 0, 0, 0x10]),
            GUEST_IP,
            GATEWAY_IP,
        ))
        .await;
    // A probe for its own address and an announcement are a booting guest's good manners.
    guest
        .send(&arp(GUEST_MAC, Ipv4Addr::UNSPECIFIED, GUEST_IP))
        .await;
    guest.send(&arp(GUEST_MAC, GUEST_IP, GUEST_IP)).await;
    assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
    recorder.until_dropped(Dropped::Arp, 1).await;
    recorder.until_dropped(Dropped::SpoofedAddress, 1).await;
    recorder.until_dropped(Dropped::SpoofedMac, 1).await;
}

#[tokio::test]
async fn the_largest_ping_comes_back_and_only_from_the_gateway() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    let data = vec![5; usize::from(MTU) - 28];
    guest.send(&raw::ping_to(GATEWAY_IP, 9, &data)).await;
    let answer = guest.receive().await;
    assert!(raw::is_pong(&answer, 9));
    assert!(answer.ends_with(&data));
    guest
        .send(&raw::ping_to(
            Ipv4Addr::new(8, 8, 8, 8),
            9,
            b"C11: data in a ping",
        ))
        .await;
    assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
    recorder.until_dropped(Dropped::Icmp, 1).await;
}

#[tokio::test]
async fn names_are_answered_by_policy_and_never_resolved() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    let allowed = ask(&guest, "a.test.", RecordType::A).await;
    let address = address_of(&allowed);
    assert!(names::is_synthetic(address), "{address}");
    assert_eq!(
        allowed.queries[0].name(),
        &Name::from_str("a.test.").unwrap()
    );
    assert!(allowed.answers[0].ttl <= 60, "names are evicted");
    assert_eq!(
        address_of(&ask(&guest, "A.tEsT.", RecordType::A).await),
        address
    );
    assert_ne!(
        address_of(&ask(&guest, "b.test.", RecordType::A).await),
        address
    );
    let own = ask(&guest, "outgate.internal.", RecordType::A).await;
    assert_eq!(address_of(&own), GATEWAY_IP);

    let kinds = [
        RecordType::AAAA,
        RecordType::HTTPS,
        RecordType::SVCB,
        RecordType::TXT,
        RecordType::MX,
    ];
    for kind in kinds {
        let nothing = ask(&guest, "a.test.", kind).await;
        assert_eq!(
            nothing.metadata.response_code,
            ResponseCode::NoError,
            "B103 {kind}"
        );
        assert_eq!(nothing.answers, [], "{kind}");
        let denied = ask(&guest, "SECRET.evil.test.", kind).await;
        assert_eq!(
            denied.metadata.response_code,
            ResponseCode::NXDomain,
            "B091 {kind}"
        );
    }
    for odd in ["evil.test.", "_x.a.test.", "test."] {
        let denied = ask(&guest, odd, RecordType::A).await;
        assert_eq!(
            denied.metadata.response_code,
            ResponseCode::NXDomain,
            "{odd}"
        );
    }
    let queries = lock(&recorder.queries);
    assert!(queries.contains(&("a.test".to_owned(), NameAnswer::Allowed)));
    assert!(queries.contains(&("SECRET.evil.test".to_owned(), NameAnswer::Denied)));
    assert_eq!(
        queries.len(),
        4 + 2 * kinds.len() + 3,
        "every question is reported"
    );
}

#[tokio::test]
async fn odd_dns_messages_get_an_error_or_nothing() {
    let (guest, _stack) = RawGuest::start(&Recorder::refusing());
    let mut two = question("a.test.", RecordType::A);
    two.add_query(two.queries[0].clone());
    assert_eq!(code_for(&guest, &two).await, ResponseCode::FormErr);
    let none = Message::new(7, MessageType::Query, OpCode::Query);
    assert_eq!(code_for(&guest, &none).await, ResponseCode::FormErr);
    let update = Message::new(7, MessageType::Query, OpCode::Update);
    assert_eq!(code_for(&guest, &update).await, ResponseCode::NotImp);
    let mut chaos = question("version.bind.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(code_for(&guest, &chaos).await, ResponseCode::Refused);

    let mut cut = question("a.test.", RecordType::A).to_vec().unwrap();
    cut.truncate(20);
    let answer = exchange(&guest, &cut).await;
    assert_eq!(
        (answer.metadata.id, answer.metadata.response_code),
        (7, ResponseCode::FormErr)
    );

    let mut response = question("a.test.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    for silence in [response.to_vec().unwrap(), vec![], vec![1; 11]] {
        guest.send(&udp(GUEST_IP, (GATEWAY_IP, 53), &silence)).await;
        assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
    }

    let mut modern = question("a.test.", RecordType::A);
    modern.edns = Some(Edns::new());
    let answer = exchange(&guest, &modern.to_vec().unwrap()).await;
    assert!(
        answer.edns.is_some(),
        "RFC 6891: an OPT record is answered with one"
    );
}

#[tokio::test]
async fn b005_control_bytes_in_a_name_match_no_rule() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    let name = question("evilQmany.test.", RecordType::A).to_vec().unwrap();
    for byte in *b"\0\t\r\x7f%" {
        let odd: Vec<u8> = name
            .iter()
            .map(|&b| if b == b'Q' { byte } else { b })
            .collect();
        let denied = exchange(&guest, &odd).await;
        assert_eq!(
            denied.metadata.response_code,
            ResponseCode::NXDomain,
            "{byte:#x}"
        );
    }
    let queries = lock(&recorder.queries);
    assert!(
        queries
            .iter()
            .all(|(name, answer)| *answer == NameAnswer::Denied && name.is_ascii()),
        "{queries:?}"
    );
    assert!(
        !queries
            .iter()
            .any(|(name, _)| name.contains(char::is_control)),
        "{queries:?}"
    );
}

#[tokio::test]
async fn a_dns_flood_is_cut_to_its_rate() {
    let recorder = Recorder::refusing();
    let (guest, _stack) = RawGuest::start(&recorder);
    let message = question("a.test.", RecordType::A).to_vec().unwrap();
    let frame = udp(GUEST_IP, (GATEWAY_IP, 53), &message);
    while recorder.dropped(Dropped::DnsRate) == 0 {
        guest.send(&frame).await;
        while guest.socket.try_recv(&mut [0; 2048]).is_ok() {}
        tokio::task::yield_now().await;
    }
    assert!(lock(&recorder.queries).len() < 3000);
}

#[tokio::test]
async fn dns_over_tcp_answers_several_questions_on_one_connection() {
    let (mut guest, _stack) = Guest::start(&Recorder::refusing());
    let handle = guest.connect((GATEWAY_IP, 53));
    guest.until_established(handle).await;
    for name in ["a.test.", "b.test."] {
        let message = question(name, RecordType::A).to_vec().unwrap();
        let len = u16::try_from(message.len()).unwrap();
        guest.tcp(handle).send_slice(&len.to_be_bytes()).unwrap();
        guest.tcp(handle).send_slice(&message).unwrap();
        let mut received = Vec::new();
        let answer = guest
            .until(|sockets| {
                let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
                socket
                    .recv(|data| (data.len(), received.extend_from_slice(data)))
                    .unwrap();
                Message::from_vec(received.get(2..)?).ok()
            })
            .await;
        assert!(names::is_synthetic(address_of(&answer)));
    }
    guest.tcp(handle).close();
    guest.until_state(handle, tcp::State::TimeWait).await;
}

#[tokio::test]
async fn a_flow_to_a_synthetic_address_has_its_name() {
    let (asked, mut questions) = tokio::sync::mpsc::channel(8);
    let recorder = Recorder::new(move |to| {
        let asked = asked.clone();
        Box::pin(async move {
            asked.send(to).await.unwrap();
            Opening::Refuse
        })
    });
    let (guest, _stack) = RawGuest::start(&recorder);
    let address = address_of(&ask(&guest, "a.test.", RecordType::A).await);
    for (to, name) in [
        ((address, 443), Some("a.test")),
        ((GATEWAY_IP, 80), Some("outgate.internal")),
        ((Ipv4Addr::new(192, 0, 2, 1), 22), None),
    ] {
        guest.send(&raw::syn(1000, to, 1)).await;
        let asked = in_time(questions.recv()).await.unwrap();
        let name = name.map(|name| Host::parse(name).unwrap());
        assert_eq!(
            asked,
            FlowDestination {
                ip: to.0.into(),
                port: to.1,
                name
            }
        );
        assert_eq!(
            guest.receive_tcp().await.control,
            smoltcp::wire::TcpControl::Rst
        );
    }
}

#[tokio::test]
async fn an_address_without_a_name_and_other_gateway_ports_are_reset() {
    let recorder = Recorder::new(|to| panic!("asked about {to}"));
    let (guest, _stack) = RawGuest::start(&recorder);
    let nobody = Ipv4Addr::new(198, 18, 77, 7);
    for (to, kind) in [
        ((nobody, 443), Dropped::UnknownName),
        ((GATEWAY_IP, 443), Dropped::GatewayPort),
        ((GATEWAY_IP, 22), Dropped::GatewayPort),
    ] {
        guest.send(&raw::syn(1000, to, 1)).await;
        let answer = guest.receive_tcp().await;
        assert_eq!(
            (answer.from, answer.control),
            (to, smoltcp::wire::TcpControl::Rst)
        );
        recorder.until_dropped(kind, 1).await;
    }
    recorder.until_dropped(Dropped::GatewayPort, 2).await;
}

fn arp(mac: EthernetAddress, sender: Ipv4Address, target: Ipv4Address) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: sender,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    };
    raw::ethernet(EthernetProtocol::Arp, repr.buffer_len(), |payload| {
        repr.emit(&mut ArpPacket::new_unchecked(payload));
    })
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

async fn ask(guest: &RawGuest, name: &str, kind: RecordType) -> Message {
    exchange(guest, &question(name, kind).to_vec().unwrap()).await
}

async fn code_for(guest: &RawGuest, message: &Message) -> ResponseCode {
    exchange(guest, &message.to_vec().unwrap())
        .await
        .metadata
        .response_code
}

async fn exchange(guest: &RawGuest, message: &[u8]) -> Message {
    guest.send(&udp(GUEST_IP, (GATEWAY_IP, 53), message)).await;
    let answer = Message::from_vec(&udp_payload(&guest.receive().await)).unwrap();
    assert_eq!(answer.metadata.id, 7);
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    answer
}

fn address_of(answer: &Message) -> Ipv4Addr {
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    match answer.answers.as_slice() {
        [record] => match &record.data {
            RData::A(address) => address.0,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}
