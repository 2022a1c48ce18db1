//! Names: no question leaves before a rule allowed the name, and the address that is dialled is
//! the one that was checked.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use outgate_tests::harness::{PUBLIC, World, eventually, lab};

const A_AND_C: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
  - id: c
    action: allow
    to: { hosts: ["*.c.test"], private: true }
"#;

#[test]
fn allowed_names_get_synthetic_addresses_without_a_query() {
    let world = World::new(A_AND_C);
    let a = world.guest().address_of("a.test").expect("an address");
    let IpAddr::V4(v4) = a else { panic!("{a}") };
    assert!(
        (18..=19).contains(&v4.octets()[1]) && v4.octets()[0] == 198,
        "198.18.0.0/15: {v4}"
    );
    assert_eq!(
        world.guest().address_of("A.Test.").expect("an address"),
        a,
        "one name, one address"
    );
    assert_ne!(world.guest().address_of("x.c.test").expect("an address"), a);
    assert_eq!(
        world.lab.dns.queries(),
        [],
        "the gateway asks only when it is about to dial"
    );
    world.audit().wait_for("the answer", |r| {
        r.text("kind") == "dns" && r.text("host") == "a.test" && r.text("verdict") == "allow"
    });
}

#[test]
fn b090_b091_b102_a_denied_name_is_never_asked_for() {
    let world = World::new(A_AND_C);
    for name in [
        "c2VjcmV0.evil.test",
        "evil.test",
        "c.test",
        "xa.test",
        "a.test.evil.test",
    ] {
        let reply = world
            .guest()
            .look_up(name, RecordType::A)
            .expect("an answer");
        assert_eq!(reply.code, ResponseCode::NXDomain, "{name}");
        assert_eq!(reply.addresses, [] as [IpAddr; 0]);
        world.audit().denial("dns_name_denied", name);
    }
    let getent = world
        .guest()
        .program("getent")
        .args(["hosts", "SECRET.evil.test"])
        .run();
    assert_eq!(getent.code, Some(2));
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn c12_only_address_records_are_answered() {
    let world = World::new(A_AND_C);
    for record_type in [
        RecordType::TXT,
        RecordType::MX,
        RecordType::NS,
        RecordType::NULL,
        RecordType::CNAME,
        RecordType::SVCB,
        RecordType::HTTPS,
        RecordType::SRV,
    ] {
        let reply = world
            .guest()
            .look_up("a.test", record_type)
            .expect("an answer");
        assert_eq!(reply.types, [], "{record_type}: {reply:?}");
    }
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn b103_no_aaaa_where_there_is_no_ipv6() {
    let world = World::new(A_AND_C);
    let reply = world
        .guest()
        .look_up("a.test", RecordType::AAAA)
        .expect("an answer");
    assert_eq!(
        (reply.code, reply.addresses.len()),
        (ResponseCode::NoError, 0)
    );
}

#[test]
fn b091_the_resolver_speaks_tcp_too_and_says_the_same() {
    let world = World::new(A_AND_C);
    let ask = |name: &str| {
        use hickory_proto::op::{Message, MessageType, OpCode, Query};
        let mut question = Message::new(77, MessageType::Query, OpCode::Query);
        let name = hickory_proto::rr::Name::from_ascii(name).expect("a name");
        question.add_query(Query::query(name, RecordType::A));
        let question = question.to_vec().expect("encodes");
        let mut stream = world
            .guest()
            .connect((world.guest().network().dns, 53))
            .expect("connects");
        let length = u16::try_from(question.len()).expect("short");
        stream.write_all(&length.to_be_bytes()).expect("written");
        stream.write_all(&question).expect("written");
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("answered");
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).expect("answered");
        Message::from_vec(&answer)
            .expect("decodes")
            .metadata
            .response_code
    };
    assert_eq!(ask("a.test."), ResponseCode::NoError);
    assert_eq!(ask("x.evil.test."), ResponseCode::NXDomain);
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn c12_a_name_that_moves_to_a_private_address_is_refused_when_it_is_dialled() {
    let lab = lab();
    // Public at first, then loopback: DNS rebinding.
    lab.dns.set_sequence(
        "a.test",
        vec![vec![PUBLIC.into()], vec![lab.origin_address().into()]],
    );
    lab.dns.set(
        "meta.test",
        &["169.254.169.254".parse().expect("an address")],
    );
    let world = World::in_lab(
        lab,
        r#"
rules:
  - id: public-only
    action: allow
    to: { hosts: [a.test] }
  - id: private-too
    action: allow
    to: { hosts: [meta.test], private: true }
"#,
    );
    let guest = world.guest();
    guest.curl("https://a.test/", [""; 0]).expect_status(200);
    // Another sandbox has no connection yet: it resolves anew, and that address is checked anew.
    let (late, _registration) = world.second_guest(
        "late",
        "rules:\n  - { id: public-only, action: allow, to: { hosts: [a.test] } }\n",
    );
    late.curl("https://a.test/", [""; 0])
        .expect_denied(403, "private_address");
    assert_eq!(world.lab.journal.all().len(), 1);
    // No rule can open a metadata address, not even one for private addresses.
    guest
        .curl("https://meta.test/", [""; 0])
        .expect_denied(403, "metadata_address");
}

#[test]
fn c12_every_form_of_a_private_address_is_private() {
    let lab = lab();
    let forms = [
        ("loopback.test", "127.0.0.1"),
        ("any.test", "0.0.0.0"),
        ("ten.test", "10.1.2.3"),
        ("cgnat.test", "100.64.0.1"),
        ("link-local.test", "169.254.10.10"),
        ("seventeen.test", "172.16.0.1"),
        ("home.test", "192.168.1.1"),
        ("benchmark.test", "198.18.0.1"),
        ("multicast.test", "224.0.0.1"),
        ("reserved.test", "240.0.0.1"),
        ("broadcast.test", "255.255.255.255"),
        ("loopback6.test", "::1"),
        ("unspecified6.test", "::"),
        ("mapped.test", "::ffff:127.0.0.1"),
        ("compatible.test", "::7f00:1"),
        ("nat64.test", "64:ff9b::7f00:1"),
        ("sixtofour.test", "2002:7f00:1::1"),
        ("teredo.test", "2001:0:7f00:1::1"),
        ("ula.test", "fd00::1"),
        ("link-local6.test", "fe80::1"),
    ];
    for (name, address) in forms {
        lab.dns.set(name, &[address.parse().expect("an address")]);
    }
    let world = World::in_lab(
        lab,
        "rules:\n  - { id: all, action: allow, to: { hosts: [any] } }\n",
    );
    for (name, address) in forms {
        let reply = world.guest().curl(&format!("https://{name}/"), [""; 0]);
        let body = reply.json();
        let reason = body["reason"].as_str().unwrap_or_default().to_owned();
        assert!(
            ["private_address", "gateway_address"].contains(&reason.as_str()),
            "{name} ({address}): {body}"
        );
    }
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn c12_of_a_mixed_answer_the_private_part_is_never_dialled() {
    let lab = lab();
    lab.dns
        .set("mixed.test", &[lab.sink_address().into(), PUBLIC.into()]);
    lab.dns.set(
        "private.test",
        &[lab.sink_address().into(), lab.origin_address().into()],
    );
    let world = World::in_lab(
        lab,
        "rules:\n  - { id: mixed, action: allow, to: { hosts: [mixed.test, private.test] } }\n",
    );
    let mixed = world.guest().curl("https://mixed.test/", [""; 0]);
    mixed.expect_status(200);
    world.audit().wait_for("the public one", |r| {
        r.text("kind") == "response" && r.text("peer") == format!("{PUBLIC}:443")
    });
    world
        .guest()
        .curl("https://private.test/", [""; 0])
        .expect_denied(403, "private_address");
    assert_eq!(world.lab.journal.all().len(), 1);
    assert_eq!(world.lab.sink.all(), []);
}

#[test]
fn names_that_do_not_exist_upstream_say_so() {
    let lab = lab();
    let world = World::in_lab(
        lab,
        "rules:\n  - { id: gone, action: allow, to: { hosts: [gone.test], private: true } }\n",
    );
    let reply = world.guest().curl("https://gone.test/", [""; 0]);
    reply.expect_denied(502, "name_not_found");
    assert!(
        world
            .lab
            .dns
            .queries()
            .iter()
            .all(|query| query.name == "gone.test")
    );
}

#[test]
fn b098_the_gateway_dials_its_own_resolution() {
    let lab = lab();
    lab.dns
        .set_sequence("a.test", vec![vec![lab.origin_address().into()]]);
    let world = World::in_lab(lab, A_AND_C);
    let url = "https://a.test/";
    world.guest().curl(url, [""; 0]).expect_status(200);
    // Whatever synthetic address the guest kept, the name decides where it leads.
    let address = world.guest().address_of("a.test").expect("an address");
    world
        .lab
        .dns
        .set("a.test", &[world.lab.origin_address().into()]);
    let at = format!("a.test:443:{address}");
    world
        .guest()
        .curl(url, ["--resolve", &at])
        .expect_status(200);
    assert_eq!(world.lab.journal.all().len(), 2);
}

#[test]
fn b099_b222_tcp_by_name_and_port() {
    let lab = lab();
    lab.dns.set("db.test", &[lab.sink_address().into()]);
    let world = World::in_lab(
        lab,
        r#"
rules:
  - id: database
    action: allow
    protocol: tcp
    to: { hosts: [db.test], ports: [5432], private: true }
"#,
    );
    let mut stream = world
        .guest()
        .connect_name("db.test", 5432)
        .expect("connects");
    stream.write_all(b"startup").expect("written");
    drop(stream);
    eventually("the bytes arrive", || {
        world
            .lab
            .sink
            .all()
            .iter()
            .any(|t| (t.port, &*t.bytes) == (5432, "startup"))
            .then_some(())
    });
    world.audit().wait_for("the flow", |r| {
        r.text("kind") == "flow" && r.text("rule.id") == "database" && r.number("port") == 5432
    });
    for port in [22, 443, 853, 2375, 6379, 8080] {
        assert!(
            world.guest().connect_name("db.test", port).is_err(),
            "port {port}"
        );
        world.audit().wait_for("the refusal", |r| {
            r.text("kind") == "flow"
                && r.text("verdict") == "deny"
                && r.number("port") == u64::from(port)
        });
    }
    assert_eq!(world.lab.sink.all().len(), 1);
}
