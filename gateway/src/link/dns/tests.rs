//! Messages in, messages out: what a guest's resolver is told, byte by byte where that matters.

use std::net::Ipv4Addr;

use hickory_proto::op::{EdnsFlags, MessageType};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{Name, RData};
use proptest::prelude::*;

use super::super::names::{NameKey, is_synthetic};
use super::super::tests::Recorder;
use super::super::{GATEWAY_IP, GATEWAY_NAME};
use super::*;

const PLAIN_UDP: usize = 512;

fn resolver(denied: DeniedNames) -> (Resolver, Arc<Recorder>) {
    let recorder = Recorder::refusing();
    let names = Arc::new(Mutex::new(Names::new(NameKey::new([7; 32]))));
    let handler: Arc<dyn FlowHandler> = Arc::<Recorder>::clone(&recorder);
    (Resolver::new(names, handler, denied), recorder)
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn send(resolver: &Resolver, message: &Message) -> Message {
    send_raw(resolver, &message.to_vec().unwrap())
}

fn send_raw(resolver: &Resolver, message: &[u8]) -> Message {
    let reply = resolver.reply(message).unwrap();
    assert!(reply.len() <= PLAIN_UDP, "{} bytes", reply.len());
    let reply = Message::from_vec(&reply).unwrap();
    assert_eq!(reply.metadata.message_type, MessageType::Response);
    assert!(!reply.metadata.truncation);
    reply
}

fn ask(resolver: &Resolver, name: &str, kind: RecordType) -> Message {
    send(resolver, &question(name, kind))
}

fn code(reply: &Message) -> ResponseCode {
    reply.metadata.response_code
}

/// That a resolver in the guest may keep a negative answer, and for how long (RFC 2308).
fn assert_negative(reply: &Message, expected: ResponseCode) {
    assert_eq!(code(reply), expected);
    assert_eq!(reply.answers, []);
    let [authority] = reply.authorities.as_slice() else {
        panic!("{reply:?}")
    };
    let RData::SOA(soa) = &authority.data else {
        panic!("{authority:?}")
    };
    assert!(authority.name.is_root());
    assert!(
        soa.minimum <= 30 && authority.ttl <= 30,
        "a policy may change"
    );
}

fn pointer(resolver: &Resolver, name: &str) -> Option<String> {
    let reply = ask(resolver, name, RecordType::PTR);
    match reply.answers.as_slice() {
        [] => {
            assert_negative(&reply, ResponseCode::NXDomain);
            None
        }
        [record] => match &record.data {
            RData::PTR(target) => Some(target.0.to_ascii()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn address(reply: &Message) -> Ipv4Addr {
    match reply.answers.as_slice() {
        [record] => match record.data {
            RData::A(address) => address.0,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn reverse(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{d}.{c}.{b}.{a}.in-addr.arpa.")
}

#[test]
fn b103_what_exists_is_nodata_and_what_does_not_is_nxdomain_for_every_type() {
    let (resolver, _) = resolver(DeniedNames::NxDomain);
    for kind in [
        RecordType::AAAA,
        RecordType::CAA,
        RecordType::CNAME,
        RecordType::DNSKEY,
        RecordType::DS,
        RecordType::HTTPS,
        RecordType::MX,
        RecordType::NAPTR,
        RecordType::NS,
        RecordType::NULL,
        RecordType::PTR,
        RecordType::SOA,
        RecordType::SRV,
        RecordType::SVCB,
        RecordType::TLSA,
        RecordType::TXT,
        RecordType::Unknown(65_280),
    ] {
        assert_negative(&ask(&resolver, "a.test.", kind), ResponseCode::NoError);
        assert_negative(&ask(&resolver, GATEWAY_NAME, kind), ResponseCode::NoError);
        assert_negative(
            &ask(&resolver, "x.evil.test.", kind),
            ResponseCode::NXDomain,
        );
    }
    assert_negative(
        &ask(&resolver, "x.evil.test.", RecordType::A),
        ResponseCode::NXDomain,
    );
    assert_negative(&ask(&resolver, ".", RecordType::NS), ResponseCode::NoError);
}

#[test]
fn c12_types_that_could_carry_data_are_recorded_as_denied() {
    let (resolver, recorder) = resolver(DeniedNames::NxDomain);
    for (kind, answer) in [
        (RecordType::A, NameAnswer::Allowed),
        (RecordType::AAAA, NameAnswer::Allowed),
        (RecordType::HTTPS, NameAnswer::Allowed),
        (RecordType::TXT, NameAnswer::TypeDenied),
        (RecordType::NULL, NameAnswer::TypeDenied),
        (RecordType::MX, NameAnswer::TypeDenied),
        (RecordType::AXFR, NameAnswer::TypeDenied),
    ] {
        ask(&resolver, "a.test.", kind);
        let told = lock(&recorder.queries).pop();
        assert_eq!(told, Some(("a.test".to_owned(), answer)), "{kind}");
    }
}

#[test]
fn any_is_answered_as_rfc_8482_says_and_transfers_are_refused() {
    let (resolver, _) = resolver(DeniedNames::NxDomain);
    let any = ask(&resolver, "a.test.", RecordType::ANY);
    let [record] = any.answers.as_slice() else {
        panic!("{any:?}")
    };
    let RData::HINFO(hinfo) = &record.data else {
        panic!("{record:?}")
    };
    assert_eq!((&*hinfo.cpu, &*hinfo.os), (&b"RFC8482"[..], &b""[..]));
    assert_negative(
        &ask(&resolver, "evil.test.", RecordType::ANY),
        ResponseCode::NXDomain,
    );
    for kind in [
        RecordType::AXFR,
        RecordType::IXFR,
        RecordType::Unknown(249),
        RecordType::Unknown(254),
    ] {
        assert_eq!(
            code(&ask(&resolver, "a.test.", kind)),
            ResponseCode::Refused,
            "{kind}"
        );
    }
    for class in [DNSClass::CH, DNSClass::HS, DNSClass::ANY, DNSClass::NONE] {
        let mut odd = question("version.bind.", RecordType::TXT);
        odd.queries[0].set_query_class(class);
        assert_eq!(
            code(&send(&resolver, &odd)),
            ResponseCode::Refused,
            "{class}"
        );
    }
}

#[test]
fn an_address_is_called_what_this_sandbox_calls_it() {
    let (resolver, recorder) = resolver(DeniedNames::NxDomain);
    let synthetic = address(&ask(&resolver, "a.test.", RecordType::A));
    assert!(is_synthetic(synthetic));
    assert_eq!(
        pointer(&resolver, &reverse(synthetic)).as_deref(),
        Some("a.test.")
    );
    assert_eq!(
        pointer(&resolver, &reverse(GATEWAY_IP)).as_deref(),
        Some("outgate.internal.")
    );
    let loopback = reverse(Ipv4Addr::LOCALHOST);
    assert_eq!(pointer(&resolver, &loopback).as_deref(), Some("localhost."));
    let nobody = [
        "9.77.18.198.in-addr.arpa.",
        "8.8.8.8.in-addr.arpa.",
        "18.198.in-addr.arpa.",
        "SECRET.in-addr.arpa.",
        "300.0.0.10.in-addr.arpa.",
        "1.0.0.0.ip6.arpa.",
        "in-addr.arpa.",
    ];
    for name in nobody {
        assert_eq!(pointer(&resolver, name), None, "{name}");
    }
    // Another sandbox's address says nothing here, and nothing says what it was.
    let names = Arc::new(Mutex::new(Names::new(NameKey::new([8; 32]))));
    let handler: Arc<dyn FlowHandler> = Arc::<Recorder>::clone(&recorder);
    let other = Resolver::new(names, handler, DeniedNames::NxDomain);
    assert_ne!(address(&ask(&other, "a.test.", RecordType::A)), synthetic);
    assert_eq!(pointer(&other, &reverse(synthetic)), None);
    assert_negative(
        &ask(&resolver, &reverse(synthetic), RecordType::A),
        ResponseCode::NoError,
    );
}

#[test]
fn localhost_is_the_guest_itself() {
    let (resolver, _) = resolver(DeniedNames::NxDomain);
    for name in ["localhost.", "LocalHost.", "app.localhost."] {
        assert_eq!(
            address(&ask(&resolver, name, RecordType::A)),
            Ipv4Addr::LOCALHOST
        );
        let six = ask(&resolver, name, RecordType::AAAA);
        assert!(matches!(six.answers[0].data, RData::AAAA(a) if a.0.is_loopback()));
    }
    assert_eq!(
        code(&ask(&resolver, "localhost.evil.test.", RecordType::A)),
        ResponseCode::NXDomain
    );
}

#[test]
fn letters_come_back_in_the_case_in_which_they_were_asked() {
    let (resolver, _) = resolver(DeniedNames::NxDomain);
    let reply = ask(&resolver, "A.tEsT.", RecordType::A);
    assert_eq!(reply.queries[0].name().to_ascii(), "A.tEsT.");
    assert_eq!(reply.answers[0].name.to_ascii(), "A.tEsT.");
    assert_eq!(
        address(&reply),
        address(&ask(&resolver, "a.test.", RecordType::A))
    );
    let denied = ask(&resolver, "eViL.test.", RecordType::A);
    assert_eq!(denied.queries[0].name().to_ascii(), "eViL.test.");
}

#[test]
fn denials_can_be_refusals() {
    let (resolver, recorder) = resolver(DeniedNames::Refused);
    assert_eq!(
        code(&ask(&resolver, "evil.test.", RecordType::A)),
        ResponseCode::Refused
    );
    assert_eq!(
        code(&ask(&resolver, "_x.a.test.", RecordType::A)),
        ResponseCode::Refused
    );
    assert_eq!(
        code(&ask(&resolver, "a.test.", RecordType::AAAA)),
        ResponseCode::NoError
    );
    assert_eq!(lock(&recorder.queries)[0].1, NameAnswer::Denied);
}

#[test]
fn edns_versions_and_options() {
    let (resolver, _) = resolver(DeniedNames::NxDomain);
    let with = |version: u8, options: &[EdnsOption], payload: u16| {
        let mut message = question("a.test.", RecordType::A);
        let mut edns = Edns::new();
        edns.set_version(version)
            .set_dnssec_ok(true)
            .set_max_payload(payload);
        for option in options {
            edns.options_mut().insert(option.clone());
        }
        message.edns = Some(edns);
        send(&resolver, &message)
    };
    let cookie = EdnsOption::Unknown(10, vec![1; 8]);
    let subnet = EdnsOption::Unknown(8, vec![0, 1, 24, 0, 10, 1, 2]);
    for payload in [0, 512, 4096, 65_535] {
        let reply = with(0, &[cookie.clone(), subnet.clone()], payload);
        assert!(is_synthetic(address(&reply)));
        let edns = reply.edns.unwrap();
        assert_eq!((edns.version(), edns.options().as_ref().len()), (0, 0));
        assert!(edns.option(EdnsCode::Cookie).is_none());
        assert_eq!(
            edns.flags(),
            &EdnsFlags {
                dnssec_ok: true,
                ..EdnsFlags::default()
            }
        );
    }
    let bad = with(1, &[], 1232);
    // BADVERS and BADSIG are one number.
    let bad_version = u16::from(ResponseCode::BADVERS);
    assert_eq!((u16::from(code(&bad)), bad.answers.len()), (bad_version, 0));
    assert_eq!(bad.edns.unwrap().version(), 0);
    assert!(
        ask(&resolver, "a.test.", RecordType::A).edns.is_none(),
        "only where asked"
    );

    let mut twice = question("a.test.", RecordType::A);
    twice.edns = Some(Edns::new());
    let mut bytes = twice.to_vec().unwrap();
    let record = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    bytes.extend(record);
    bytes[11] = 2;
    assert_eq!(code(&send_raw(&resolver, &bytes)), ResponseCode::FormErr);
}

#[test]
fn messages_that_are_no_question_cost_a_header_and_are_counted() {
    let (resolver, recorder) = resolver(DeniedNames::NxDomain);
    let plain = question("a.test.", RecordType::A).to_vec().unwrap();
    let patched = |at: usize, bytes: &[u8]| {
        let mut message = plain.clone();
        message[at..at + bytes.len()].copy_from_slice(bytes);
        message
    };
    // The name is a pointer to itself; then one to a byte in the middle of the header.
    let pointer = |to: u8| [&plain[..HEADER], &[0xc0, to, 0, 1, 0, 1]].concat();
    let two_that_point_at_each_other =
        [&plain[..HEADER], &[0xc0, 14, 0xc0, 12, 0, 1, 0, 1]].concat();
    let long_label = [&plain[..HEADER], &[0x40], &[b'a'; 64], &[0, 0, 1, 0, 1]].concat();
    let long_name = [&plain[..HEADER], &[63; 64].repeat(5), &[0, 0, 1, 0, 1]].concat();
    let malformed = [
        patched(4, &[0, 0]),
        patched(4, &[0, 2]),
        patched(4, &[0xff, 0xff]),
        patched(6, &[0, 1]),
        patched(8, &[0xff, 0xff]),
        patched(10, &[0, 1]),
        patched(10, &[0xff, 0xff]),
        pointer(12),
        pointer(200),
        two_that_point_at_each_other,
        long_label,
        long_name,
        plain[..plain.len() - 1].to_vec(),
        [plain.as_slice(), &[0; MAX_QUESTION]].concat(),
    ];
    for (number, message) in malformed.iter().enumerate() {
        let reply = send_raw(&resolver, message);
        assert_eq!(code(&reply), ResponseCode::FormErr, "{number}");
        assert_eq!(reply.metadata.id, 0x1234);
        assert!(reply.metadata.recursion_desired);
    }
    for op_code in [1, 2, 4, 5, 6, 15] {
        let reply = send_raw(&resolver, &patched(2, &[op_code << 3]));
        assert_eq!(code(&reply), ResponseCode::NotImp, "{op_code}");
        assert_eq!(u8::from(reply.metadata.op_code), op_code);
    }
    let counted = resolver.take_drops()[0];
    assert_eq!(counted, (Dropped::DnsMalformed, malformed.len() as u64));
    assert_eq!(resolver.take_drops()[0].1, 0);
    assert_eq!(*lock(&recorder.queries), [], "none of them was a question");
    for silence in [&[][..], &plain[..11], &patched(2, &[0x80])] {
        assert_eq!(resolver.reply(silence), Err(Dropped::Malformed));
    }
}

#[test]
fn the_longest_name_fits_into_the_smallest_datagram() {
    let (resolver, _) = resolver(DeniedNames::NxDomain);
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}.", "a".repeat(61));
    for kind in [RecordType::A, RecordType::TXT, RecordType::ANY] {
        let mut message = question(&longest, kind);
        message.edns = Some(Edns::new());
        assert_negative(&send(&resolver, &message), ResponseCode::NXDomain);
    }
    // The longest that policy allows here, with an answer.
    let allowed = format!("{label}.{label}.{label}.{}.many.test.", "a".repeat(46));
    let mut message = question(&allowed, RecordType::A);
    message.edns = Some(Edns::new());
    let synthetic = address(&send(&resolver, &message));
    let called = pointer(&resolver, &reverse(synthetic));
    assert_eq!(called.as_deref(), Some(allowed.as_str()));
}

#[test]
fn c12_names_of_a_wildcards_making_are_counted() {
    let (resolver, recorder) = resolver(DeniedNames::NxDomain);
    for n in 0..WILDCARD_NAMES {
        let reply = ask(&resolver, &format!("{n}.many.test."), RecordType::A);
        assert_eq!(code(&reply), ResponseCode::NoError, "{n}");
    }
    let over = ask(&resolver, "over.many.test.", RecordType::A);
    assert_eq!(
        (code(&over), over.authorities.len()),
        (ResponseCode::Refused, 0)
    );
    let told = lock(&recorder.queries).pop();
    assert_eq!(
        told,
        Some(("over.many.test".to_owned(), NameAnswer::OverBudget))
    );
    // What is known costs nothing, and a name that somebody wrote down never does.
    for name in ["7.many.test.", "a.test.", GATEWAY_NAME] {
        assert_eq!(
            code(&ask(&resolver, name, RecordType::A)),
            ResponseCode::NoError,
            "{name}"
        );
    }
    assert_eq!(
        code(&ask(&resolver, "evil.test.", RecordType::A)),
        ResponseCode::NXDomain
    );
}

#[test]
fn c12_data_in_names_raises_an_alarm() {
    let (resolver, recorder) = resolver(DeniedNames::NxDomain);
    for n in 0..20 {
        let data = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834_u128.rotate_left(7 * n);
        let name = format!("{data:032x}.evil.test.");
        ask(&resolver, &name, RecordType::TXT);
    }
    let alarms = lock(&recorder.alarms).clone();
    let [alarm] = alarms.as_slice() else {
        panic!("{alarms:?}")
    };
    assert_eq!(alarm.domain, "evil.test");
}

proptest! {
    #[test]
    fn no_message_is_too_odd(message in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (resolver, _) = resolver(DeniedNames::NxDomain);
        if let Ok(reply) = resolver.answer(&message) {
            prop_assert!(reply.len() <= PLAIN_UDP);
            prop_assert_eq!(&reply[..2], &message[..2]);
        }
    }

    /// Likelier to get past the header.
    #[test]
    fn no_tail_is_too_odd(
        tail in proptest::collection::vec(any::<u8>(), 0..600),
        additional in 0_u8..5,
    ) {
        let (resolver, _) = resolver(DeniedNames::NxDomain);
        let mut message = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, additional];
        message.extend(tail);
        let reply = resolver.answer(&message).unwrap();
        prop_assert!(reply.len() <= PLAIN_UDP);
    }
}
