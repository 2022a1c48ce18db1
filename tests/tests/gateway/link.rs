//! Everything on the link that is not a TCP connection to an allowed name: it gets no answer, goes
//! nowhere, and is counted.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use outgate_tests::guest::link;
use outgate_tests::harness::{PUBLIC, Registration, SandboxSpec, World, policy, register, sandbox};

const A: &str = "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n";

/// An address of nobody's (RFC 5737).
const NOBODY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);

#[test]
fn b093_b094_b113_b114_udp_goes_nowhere_but_to_the_resolver() {
    let world = World::new(A);
    let guest = world.guest();
    let a = guest.address_of("a.test").expect("an address");
    let socket = guest.udp().expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("set");
    let gateway = IpAddr::from(guest.network().gateway);
    for (to, port) in [
        (a, 443),
        (a, 53),
        (NOBODY.into(), 53),
        (NOBODY.into(), 443),
        (NOBODY.into(), 853),
        (gateway, 443),
        (gateway, 5353),
        (world.lab.sink_address().into(), 443),
    ] {
        // A destination that the guest itself cannot route says so at once, which is as good.
        let _ = socket.send_to(b"\xc3anything", (to, port));
    }
    let mut buffer = [0; 1500];
    let answer = socket.recv(&mut buffer).expect_err("nobody answers");
    assert!(matches!(
        answer.kind(),
        ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
    ));
    for what in ["quic", "foreign_dns", "udp"] {
        let record = world.audit().wait_for(what, |r| {
            r.text("kind") == "drop" && r.text("detail") == what
        });
        assert!(record.number("count") > 0, "{record:?}");
    }
    assert_eq!(world.lab.sink.all(), []);
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn b111_an_empty_datagram_is_only_a_datagram() {
    let world = World::new(A);
    let socket = world.guest().udp().expect("a socket");
    let dns = SocketAddr::from((world.guest().network().dns, 53));
    socket.send_to(b"", dns).expect("sent");
    socket.send_to(b"x", dns).expect("sent");
    assert!(
        world.guest().address_of("a.test").is_ok(),
        "the resolver goes on"
    );
}

#[test]
fn b001_b034_a_raw_address_needs_a_rule_for_that_address() {
    let world = World::new(A);
    let guest = world.guest();
    for port in [80, 443, 8080] {
        let refused = guest
            .connect((NOBODY, port))
            .expect_err("no rule names this address");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let record = world.audit().wait_for("the refusal", |r| {
            r.text("kind") == "flow"
                && r.text("host") == NOBODY.to_string()
                && r.number("port") == u64::from(port)
        });
        assert_eq!(record.text("reason"), "default_deny");
    }
    // Nor does the address at which an allowed name lives: rules are never matched by reverse
    // lookup. Nor a synthetic one that stands for no name.
    for address in [PUBLIC, Ipv4Addr::new(198, 19, 255, 254)] {
        assert!(guest.connect((address, 443)).is_err(), "{address}");
    }
    assert_eq!(world.lab.journal.all(), []);
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn b001_a_rule_for_an_address_opens_that_address_and_port() {
    let world = World::new(&format!(
        "rules:\n  - {{ id: address, action: allow, to: {{ ips: [{PUBLIC}] }} }}\n"
    ));
    let url = format!("https://{PUBLIC}/x");
    world.guest().curl(&url, [""; 0]).expect_status(200);
    let received = &world.lab.journal.all()[0];
    assert_eq!(
        (received.sni.as_deref(), received.authority.as_deref()),
        (None, Some(&*PUBLIC.to_string()))
    );
    let record = world
        .audit()
        .wait_for("the request", |r| r.text("kind") == "request");
    assert_eq!(
        (record.text("host"), record.text("rule.id")),
        (&*PUBLIC.to_string(), "address")
    );
    // A name on that address is another destination.
    let at = format!("a.test:443:{PUBLIC}");
    let named = world.guest().curl("https://a.test/", ["--resolve", &at]);
    assert_eq!(named.status, None, "{named:?}");
    assert!(world.guest().connect((PUBLIC, 80)).is_err());
    assert_eq!(world.lab.journal.all().len(), 1);
}

#[test]
fn b021_c16_the_gateways_own_address_is_no_destination() {
    let world = World::new(
        "rules:\n  - { id: lan, action: allow, protocol: tcp, to: { ips: [10.0.0.0/8], ports: [22, 443, 8080], private: true } }\n",
    );
    let gateway = world.guest().network().gateway;
    for port in [22, 443, 8080] {
        assert!(
            world.guest().connect((gateway, port)).is_err(),
            "port {port}"
        );
    }
    // What it does serve: names, and its own page for the sandbox.
    assert!(world.guest().connect((gateway, 53)).is_ok());
    assert!(world.guest().connect((gateway, 80)).is_ok());
}

#[test]
fn c11_ipv6_is_dropped_and_counted() {
    let world = World::new(A);
    // Linux itself asks for routers the moment the interface is up.
    let record = world.audit().wait_for("ipv6", |r| {
        r.text("kind") == "drop" && r.text("detail") == "ipv6"
    });
    assert!(record.number("count") > 0);
    let anywhere: SocketAddr = "[2001:db8::1]:443".parse().expect("an address");
    assert!(world.guest().connect(anywhere).is_err());
}

/// A link whose frames the test writes itself.
struct BareLink {
    ours: OwnedFd,
    _gateway_end: OwnedFd,
    _registration: Registration,
}

const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0f];
const GUEST: [u8; 4] = [10, 0, 2, 15];
const GATEWAY: [u8; 4] = [10, 0, 2, 2];
const BROADCAST: [u8; 6] = [0xff; 6];

impl BareLink {
    fn new(world: &World) -> Self {
        let (ours, gateway_end) = link().expect("a link");
        let spec = sandbox("bare", &policy(A));
        let registration = register(&world.home.admin(), &spec, gateway_end.as_fd())
            .expect("the gateway answers")
            .expect("the sandbox is accepted");
        rustix::net::sockopt::set_socket_timeout(
            &ours,
            rustix::net::sockopt::Timeout::Recv,
            Some(Duration::from_millis(500)),
        )
        .expect("set");
        Self {
            ours,
            _gateway_end: gateway_end,
            _registration: registration,
        }
    }

    fn send(&self, frame: &[u8]) {
        rustix::io::write(&self.ours, frame).expect("written");
    }

    /// The next frame, if one comes soon.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        let length = rustix::io::read(&self.ours, &mut frame[..]).ok()?;
        frame.truncate(length);
        Some(frame)
    }

    /// Sends an echo request to the gateway and says whether it was answered: the link lives.
    fn is_alive(&self) -> bool {
        self.send(&ipv4(GUEST_MAC, GUEST, GATEWAY, 1, &echo_request(1)));
        std::iter::from_fn(|| self.receive()).any(|frame| frame[12..14] == [8, 0] && frame[34] == 0)
    }
}

fn frame(to: [u8; 6], from: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

fn arp_request(from: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(from);
    arp.extend(sender);
    arp.extend([0; 6]);
    arp.extend(target);
    frame(BROADCAST, from, 0x0806, &arp)
}

/// An IPv4 packet to the gateway's MAC address.
fn ipv4(mac: [u8; 6], source: [u8; 4], target: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len())
        .expect("short")
        .to_be_bytes();
    let mut packet = vec![
        0x45, 0, length[0], length[1], 0, 7, 0x40, 0, 64, protocol, 0, 0,
    ];
    packet.extend(source);
    packet.extend(target);
    let sum = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(payload);
    frame([2, 0, 0, 0, 0, 2], mac, 0x0800, &packet)
}

fn echo_request(sequence: u16) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0, 1];
    icmp.extend(sequence.to_be_bytes());
    icmp.extend(b"payload that could carry data out");
    let sum = checksum(&icmp).to_be_bytes();
    icmp[2..4].copy_from_slice(&sum);
    icmp
}

/// The internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

#[test]
fn arp_is_answered_for_the_gateway_alone() {
    let world = World::new("");
    let link = BareLink::new(&world);
    link.send(&arp_request(GUEST_MAC, GUEST, GATEWAY));
    let reply = link.receive().expect("an ARP reply");
    assert_eq!(reply[..12], [GUEST_MAC, [2, 0, 0, 0, 0, 2]].concat());
    assert_eq!(
        (&reply[12..14], &reply[20..22], &reply[28..32]),
        (&[8, 6][..], &[0, 2][..], &GATEWAY[..])
    );
    link.send(&arp_request(GUEST_MAC, GUEST, [10, 0, 2, 99]));
    assert_eq!(link.receive(), None);
}

#[test]
fn dhcp_offers_the_address_that_the_registration_named() {
    let world = World::new("");
    let link = BareLink::new(&world);
    // A DISCOVER (RFC 2131): BOOTREQUEST over Ethernet with transaction id 0x4f475431.
    let mut discover = vec![1, 1, 6, 0, 0x4f, 0x47, 0x54, 0x31, 0, 0, 0x80, 0];
    discover.extend([0; 16]);
    discover.extend(GUEST_MAC);
    discover.extend([0; 10 + 64 + 128]);
    discover.extend([0x63, 0x82, 0x53, 0x63, 53, 1, 1, 55, 4, 1, 3, 6, 26, 255]);
    let mut udp = vec![0, 68, 0, 67];
    udp.extend(
        u16::try_from(8 + discover.len())
            .expect("short")
            .to_be_bytes(),
    );
    udp.extend([0, 0]);
    udp.extend(discover);
    let mut packet = ipv4(GUEST_MAC, [0; 4], [255; 4], 17, &udp);
    packet[..6].copy_from_slice(&BROADCAST);
    link.send(&packet);
    let offer = std::iter::from_fn(|| link.receive())
        .find(|frame| frame[23] == 17)
        .expect("an offer");
    // Behind Ethernet (14), IPv4 (20) and UDP (8): the address that is offered.
    let bootp = &offer[42..];
    assert_eq!((bootp[0], &bootp[4..8]), (2, &[0x4f, 0x47, 0x54, 0x31][..]));
    assert_eq!(bootp[16..20], GUEST);
    let options = &bootp[240..];
    for option in [[3, 4, 10, 0, 2, 2], [6, 4, 10, 0, 2, 2]] {
        assert!(
            options.windows(6).any(|window| window == option),
            "{option:?} in {options:?}"
        );
    }
}

#[test]
fn c11_spoofed_and_odd_frames_get_no_answer_and_are_counted() {
    let world = World::new("");
    let link = BareLink::new(&world);
    let echo = echo_request(9);
    let mut fragment = ipv4(GUEST_MAC, GUEST, GATEWAY, 1, &echo);
    fragment[20] = 0x20;
    let odd: [(&str, Vec<u8>); 8] = [
        (
            "spoofed_mac",
            ipv4([2, 0, 0, 0, 0, 0x10], GUEST, GATEWAY, 1, &echo),
        ),
        (
            "spoofed_address",
            ipv4(GUEST_MAC, [10, 0, 2, 16], GATEWAY, 1, &echo),
        ),
        ("arp", arp_request(GUEST_MAC, GUEST, [10, 0, 2, 77])),
        ("icmp", ipv4(GUEST_MAC, GUEST, NOBODY.octets(), 1, &echo)),
        ("ip_protocol", ipv4(GUEST_MAC, GUEST, GATEWAY, 47, &[0; 40])),
        (
            "destination",
            ipv4(GUEST_MAC, GUEST, [224, 0, 0, 1], 1, &echo),
        ),
        (
            "ether_type",
            frame([2, 0, 0, 0, 0, 2], GUEST_MAC, 0x88cc, &[0; 50]),
        ),
        (
            "malformed",
            frame([2, 0, 0, 0, 0, 2], GUEST_MAC, 0x0800, &[0x45, 0]),
        ),
    ];
    for (what, frame) in odd {
        link.send(&frame);
        assert_eq!(link.receive(), None, "{what}");
        world.audit().wait_for(what, |r| {
            r.text("kind") == "drop" && r.text("detail") == what && r.text("sandbox.id") == "bare"
        });
    }
    link.send(&fragment);
    link.send(&[]);
    link.send(&[0; 7]);
    assert!(link.is_alive());
    // No frame of one sandbox says anything about another.
    assert!(
        !world.audit().records().iter().any(|r| {
            r.text("detail") == "spoofed_address" && r.text("sandbox.id") == "sandbox-1"
        })
    );
}

#[test]
fn c18_random_frames_do_no_harm() {
    let world = World::new("");
    let link = BareLink::new(&world);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..4000 {
        let length = usize::try_from(random() % 1600).expect("small");
        let mut bytes: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
        // Half of them look right as far as the addresses go, so that deeper parsers see them.
        if round % 2 == 0 && length > 34 {
            bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0x0f, 8, 0]);
            bytes[14] = 0x45;
            bytes[26..30].copy_from_slice(&GUEST);
        }
        link.send(&bytes);
    }
    assert!(link.is_alive());
    assert!(
        world
            .guest()
            .look_up("a.test", hickory_proto::rr::RecordType::A)
            .is_ok()
    );
}

#[test]
fn a_link_has_the_mtu_that_its_registration_asks_for() {
    let world = World::new(A);
    for mtu in [1500, 9000, 65_520] {
        let spec = SandboxSpec {
            mtu: Some(mtu),
            ..sandbox(&format!("mtu-{mtu}"), &policy(A))
        };
        let (guest, _registration) = world.guest_of(&spec);
        assert_eq!(guest.network().mtu, u32::from(mtu));
        let reply = guest.curl("https://a.test/bytes/3000000", [""; 0]);
        assert_eq!(
            (reply.status, reply.body.len()),
            (Some(200), 3_000_000),
            "{mtu}"
        );
    }
    for mtu in [0, 1499, 65_521] {
        let spec = SandboxSpec {
            mtu: Some(mtu),
            ..sandbox("odd", &policy(A))
        };
        let (_guest_end, gateway_end) = link().expect("a link");
        let refused = register(&world.home.admin(), &spec, gateway_end.as_fd())
            .expect("the gateway answers")
            .expect_err("no link has this MTU");
        assert_eq!(refused.code, "bad_request", "{mtu}: {}", refused.message);
    }
}
