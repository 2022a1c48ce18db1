//! UDP by rule: from a guest's socket to a server's, and nowhere else.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use outgate_tests::harness::{World, lab};

/// A rule for datagrams to `db.test`, and one for requests to `a.test`.
fn rules(port: u16) -> String {
    format!(
        r#"
rules:
  - id: datagrams
    action: allow
    protocol: udp
    to: {{ hosts: [db.test], ports: [{port}], private: true }}
  - id: a
    action: allow
    to: {{ hosts: [a.test], private: true }}
"#
    )
}

/// A world whose lab has a UDP server, and the server.
fn with_server() -> (World, UdpSocket, u16) {
    let lab = lab();
    let at = lab.sink_address();
    lab.dns.set("db.test", &[at.into()]);
    let server = UdpSocket::bind((at, 0)).expect("a server");
    server
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let port = server.local_addr().expect("bound").port();
    (World::in_lab(lab, &rules(port)), server, port)
}

fn is_silent(socket: &UdpSocket) -> bool {
    let mut buffer = [0; 16];
    let error = socket.recv(&mut buffer).expect_err("nothing comes");
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
    )
}

#[test]
fn b110_b111_b114_datagrams_by_name_and_port() {
    let (world, server, port) = with_server();
    let guest = world.guest();
    let db = guest.address_of("db.test").expect("an address");
    let socket = guest.udp().expect("a socket");
    let mut buffer = [0; 70_000];
    let large = vec![9; 60_000];
    for data in [&b"ping"[..], b"", &large, b"again"] {
        socket.send_to(data, (db, port)).expect("sent");
        let (len, gateway) = server.recv_from(&mut buffer).expect("arrives");
        assert_eq!(&buffer[..len], data);
        server.send_to(&buffer[..len], gateway).expect("sent");
        let (len, from) = socket.recv_from(&mut buffer).expect("comes back");
        assert_eq!((&buffer[..len], from), (data, (db, port).into()));
    }
    let opened = world.audit().wait_for("the flow", |r| {
        r.text("kind") == "flow" && r.text("protocol") == "udp"
    });
    assert_eq!(
        (opened.text("verdict"), opened.text("rule.id")),
        ("allow", "datagrams")
    );
    assert_eq!(opened.text("host"), "db.test");
    world.audit().verify().succeeded();
}

#[test]
fn b113_b114_no_other_port_name_or_address() {
    let (world, server, port) = with_server();
    let guest = world.guest();
    let db = guest.address_of("db.test").expect("an address");
    let a = guest.address_of("a.test").expect("an address");
    let socket = guest.udp().expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("set");
    let sink = world.lab.sink_address();
    for to in [
        (db, 443),
        (db, 53),
        (db, port.wrapping_add(1).max(1024)),
        (a, 443),
        (a, port),
        (sink.into(), port),
        (guest.network().gateway.into(), port),
    ] {
        // A destination that the guest itself cannot route says so at once, which is as good.
        let _ = socket.send_to(b"anything", to);
    }
    assert!(is_silent(&socket));
    server
        .set_read_timeout(Some(Duration::from_millis(1)))
        .expect("set");
    assert!(is_silent(&server), "not a byte arrived");
    for what in ["quic", "foreign_dns", "udp"] {
        world.audit().wait_for(what, |r| {
            r.text("kind") == "drop" && r.text("detail") == what
        });
    }
}

#[test]
fn a_rule_may_let_quic_out_and_says_so_itself() {
    let lab = lab();
    let at = Ipv4Addr::new(127, 9, 9, 9);
    lab.dns.set("db.test", &[at.into()]);
    let server = UdpSocket::bind((at, 443)).expect("a server");
    server
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let world = World::in_lab(lab, &rules(443));
    let db = world.guest().address_of("db.test").expect("an address");
    let socket = world.guest().udp().expect("a socket");
    socket.send_to(b"\xc3initial", (db, 443)).expect("sent");
    let mut buffer = [0; 64];
    let len = server.recv(&mut buffer).expect("arrives");
    assert_eq!(&buffer[..len], b"\xc3initial");
}

#[test]
fn a_metadata_service_gets_no_datagram_whatever_the_rule_says() {
    let lab = lab();
    let metadata = "169.254.169.254".parse().expect("an address");
    lab.dns.set("db.test", &[metadata]);
    let server = UdpSocket::bind((metadata, 5353)).expect("every address is this host's");
    server
        .set_read_timeout(Some(Duration::from_millis(1)))
        .expect("set");
    let world = World::in_lab(lab, &rules(5353));
    let db = world.guest().address_of("db.test").expect("an address");
    let socket = world.guest().udp().expect("a socket");
    socket.send_to(b"token?", (db, 5353)).expect("sent");
    world.audit().wait_for("the end", |r| {
        r.text("kind") == "flow_close" && r.text("reason") == "metadata_address"
    });
    assert!(is_silent(&server));
}
