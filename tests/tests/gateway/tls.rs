//! TLS on both legs: whom the gateway pretends to be, whom it believes, and what it refuses.

use std::io::{Read as _, Write as _};

use outgate_tests::guest::{Ending, exchange, read_to_end};
use outgate_tests::harness::World;
use outgate_tests::lab::BadTls;

const A_AND_B: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test, b.test], private: true }
"#;

#[track_caller]
fn nothing_left(world: &World) {
    assert_eq!(world.lab.journal.all(), [], "the origin received a request");
    assert_eq!(world.lab.dns.queries(), [], "a query left");
}

#[test]
fn b045_the_server_name_must_be_the_name_that_was_dialled() {
    let world = World::new(A_AND_B);
    // Also a name that is allowed by itself: the connection was opened for another one.
    for sni in ["evil.test", "b.test", "x.a.test"] {
        let stream = world.guest().connect_name("a.test", 443).expect("connects");
        let refused = world
            .guest()
            .handshake(stream, Some(sni), sni, &["http/1.1"]);
        assert!(refused.is_err(), "{sni}");
        world.audit().denial("sni_mismatch", "a.test");
    }
    nothing_left(&world);
}

#[test]
fn b001_a_hello_without_a_name_matches_no_name_rule() {
    let world = World::new(A_AND_B);
    let stream = world.guest().connect_name("a.test", 443).expect("connects");
    assert!(
        world
            .guest()
            .handshake(stream, None, "a.test", &["http/1.1"])
            .is_err()
    );
    world.audit().denial("sni_missing", "a.test");
    nothing_left(&world);
}

#[test]
fn b046_an_address_as_server_name_is_no_name() {
    let world = World::new(A_AND_B);
    let client = world
        .guest()
        .program("openssl")
        .args([
            "s_client",
            "-connect",
            "a.test:443",
            "-servername",
            "10.9.8.7",
            "-brief",
        ])
        .run();
    assert_ne!(client.code, Some(0), "{}", client.stderr);
    world.audit().wait_for("the refusal", |r| {
        r.text("verdict") == "deny"
            && r.text("host") == "a.test"
            && r.text("reason").starts_with("sni_")
    });
    nothing_left(&world);
}

#[test]
fn b047_a_trailing_dot_is_the_same_name() {
    let world = World::new(A_AND_B);
    world
        .guest()
        .curl("https://a.test./", [""; 0])
        .expect_status(200);
    let received = &world.lab.journal.all()[0];
    assert_eq!(received.sni.as_deref(), Some("a.test"));
    assert!(
        received
            .authority
            .as_deref()
            .is_some_and(|a| !a.contains("test.")),
        "{received:?}"
    );
}

#[test]
fn b042_the_upstream_is_asked_for_the_name_that_was_judged() {
    let world = World::new(A_AND_B);
    for name in ["a.test", "b.test"] {
        world
            .guest()
            .curl(&format!("https://{name}/"), [""; 0])
            .expect_status(200);
    }
    let names: Vec<_> = world
        .lab
        .journal
        .all()
        .into_iter()
        .filter_map(|r| r.sni)
        .collect();
    assert_eq!(names, ["a.test", "b.test"]);
}

#[test]
fn b037_b038_certificates_pass_a_strict_check_and_are_backdated() {
    let world = World::new(A_AND_B);
    let guest = world.guest();
    let shown = guest
        .program("openssl")
        .args([
            "s_client",
            "-connect",
            "a.test:443",
            "-servername",
            "a.test",
            "-showcerts",
        ])
        .run()
        .succeeded();
    let leaf = shown.text();
    let end = "-----END CERTIFICATE-----";
    let start = leaf
        .find("-----BEGIN CERTIFICATE-----")
        .expect("a certificate");
    let leaf = &leaf[start..leaf.find(end).expect("its end") + end.len()];
    std::fs::write(guest.folder().join("leaf.pem"), leaf).expect("writable");

    for (certificate, extra) in [
        ("ca.pem", None),
        ("leaf.pem", Some(["-verify_hostname", "a.test"])),
    ] {
        let strict = guest
            .program("openssl")
            .args([
                "verify",
                "-x509_strict",
                "-purpose",
                "sslserver",
                "-CAfile",
                "ca.pem",
            ])
            .args(extra.into_iter().flatten())
            .args([certificate])
            .run();
        // A CA is no server: for it only the chain and the form are checked.
        let strict = if certificate == "ca.pem" {
            guest
                .program("openssl")
                .args(["verify", "-x509_strict", "-CAfile", "ca.pem", "ca.pem"])
                .run()
        } else {
            strict
        };
        assert!(
            strict.text().contains(": OK"),
            "{certificate}: {} {}",
            strict.text(),
            strict.stderr
        );
    }
    let names = guest
        .program("openssl")
        .args([
            "x509",
            "-in",
            "leaf.pem",
            "-noout",
            "-ext",
            "subjectAltName,extendedKeyUsage",
            "-checkend",
            "3600",
        ])
        .run()
        .text();
    assert!(
        names.contains("DNS:a.test") && names.matches("DNS:").count() == 1,
        "{names}"
    );
    assert!(names.contains("TLS Web Server Authentication"), "{names}");
    // Valid an hour ago: a guest whose clock is behind accepts it. `-attime` takes a UNIX time.
    let past = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let past = (past - 3600).to_string();
    let ca = guest
        .program("openssl")
        .args(["verify", "-attime", &past, "-CAfile", "ca.pem", "leaf.pem"])
        .run();
    assert!(ca.text().contains(": OK"), "{} {}", ca.text(), ca.stderr);
}

#[test]
fn c08_leaves_have_one_name_each() {
    let world = World::new(A_AND_B);
    let tls = world.guest().tls("a.test", 443, "h2").expect("a session");
    drop(tls);
    // A certificate for a.test is no certificate for b.test, so nothing can be coalesced.
    let stream = world.guest().connect_name("a.test", 443).expect("connects");
    assert!(
        world
            .guest()
            .handshake(stream, Some("a.test"), "a.test", &["h2"])
            .is_ok()
    );
    let stream = world.guest().connect_name("b.test", 443).expect("connects");
    assert!(
        world
            .guest()
            .handshake(stream, Some("a.test"), "b.test", &["h2"])
            .is_err()
    );
}

#[test]
fn bad_upstreams_are_refused_and_the_guest_is_told_why() {
    let hosts: Vec<_> = BadTls::ALL.iter().map(|fault| fault.name()).collect();
    let rules = format!(
        "rules:\n  - {{ id: bad, action: allow, to: {{ hosts: [{}], private: true }} }}\n",
        hosts.join(", "),
    );
    let world = World::new(&rules);
    for fault in BadTls::ALL {
        let reply = world
            .guest()
            .curl(&format!("https://{}/", fault.name()), [""; 0]);
        let id = reply.expect_denied(502, "upstream_tls");
        let record = world.audit().wait_for("the failure", |r| {
            (r.text("id") == id || r.text("request") == id) && r.text("reason") == "upstream_tls"
        });
        assert_eq!(record.text("host"), fault.name(), "{fault:?}: {record:?}");
    }
    assert_eq!(
        world.lab.journal.all(),
        [],
        "nothing is sent over a session that is not verified"
    );
}

#[test]
fn c06_plain_text_on_the_tls_port_is_refused() {
    let world = World::new(A_AND_B);
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"\x16\x03\x01\x00\x05hello",
    ] {
        let mut stream = world.guest().connect_name("a.test", 443).expect("connects");
        let (_, ending) = exchange(&mut stream, bytes);
        assert_ne!(ending, Ending::Silent, "{bytes:?}");
    }
    world.audit().denial("not_tls", "a.test");
    nothing_left(&world);
}

#[test]
fn c11_a_hello_in_many_segments_is_one_hello() {
    let world = World::new(A_AND_B);
    // Record a real ClientHello by letting rustls write it, then deliver it byte by byte.
    let name = rustls_pki_types::ServerName::try_from("a.test").expect("a name");
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(trust(&world))
        .with_no_client_auth();
    // Many protocols make it long: more than one record and more than one segment.
    config.alpn_protocols = (0..3000)
        .map(|n| format!("padding/{n}").into_bytes())
        .collect();
    config.alpn_protocols.push(b"http/1.1".to_vec());
    let mut session = rustls::ClientConnection::new(config.into(), name).expect("a session");
    let mut hello = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut hello).expect("written to memory");
    }
    assert!(hello.len() > 32_768, "{}", hello.len());
    let mut stream = world.guest().connect_name("a.test", 443).expect("connects");
    for piece in hello.chunks(1100) {
        stream.write_all(piece).expect("written");
    }
    while session.is_handshaking() {
        session
            .complete_io(&mut stream)
            .expect("the handshake goes on");
    }
    assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut tls = rustls::StreamOwned::new(session, stream);
    write!(
        tls,
        "GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
    )
    .expect("written");
    let (answer, ending) = read_to_end(&mut tls);
    assert!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(ending, Ending::Closed);
}

fn trust(world: &World) -> rustls::RootCertStore {
    use rustls_pki_types::pem::PemObject as _;
    let pem = &world.registration().granted.ca_pem;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls_pki_types::CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("a root");
    }
    roots
}

#[test]
fn b049_close_notify_is_said_on_both_legs() {
    let world = World::new(
        "rules:\n  - { id: raw, action: allow, to: { hosts: [raw.test], private: true } }\n",
    );
    // No length: the end of the body is the end of the connection, so it must be a proper one.
    world
        .lab
        .raw
        .answer_with("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
    world.lab.raw.close_after_answer(true);
    let mut tls = world
        .guest()
        .tls("raw.test", 443, "http/1.1")
        .expect("a session");
    write!(
        tls,
        "GET / HTTP/1.1\r\nHost: raw.test\r\nConnection: close\r\n\r\n"
    )
    .expect("written");
    let mut answer = String::new();
    tls.read_to_string(&mut answer)
        .expect("rustls insists on close_notify");
    assert!(answer.contains("until the end"), "{answer}");
}

#[test]
fn c11_only_modern_tls_is_spoken() {
    let world = World::new(A_AND_B);
    let client = |version: &str| {
        world
            .guest()
            .program("openssl")
            .args([
                "s_client",
                "-connect",
                "a.test:443",
                "-servername",
                "a.test",
                version,
                "-brief",
            ])
            .args(["-cipher", "ALL:@SECLEVEL=0"])
            .run()
    };
    client("-tls1_3").succeeded();
    client("-tls1_2").succeeded();
    for old in ["-tls1_1", "-tls1"] {
        assert_ne!(client(old).code, Some(0), "{old}");
    }
}

#[test]
fn b173_text_from_an_upstreams_certificate_is_data() {
    let world = World::new(
        "rules:\n  - { id: bad, action: allow, to: { hosts: [wrong-host.test], private: true } }\n",
    );
    let reply = world
        .guest()
        .curl("https://wrong-host.test/", ["-H", "Accept: text/html"]);
    assert_eq!(reply.status, Some(502));
    assert!(
        !reply.text().contains("somebody-else.test"),
        "{}",
        reply.text()
    );
    assert!(
        reply
            .header("content-type")
            .is_some_and(|kind| !kind.contains("html")),
        "{reply:?}"
    );
    let failures = world.audit();
    failures.wait_for("the failure", |r| r.text("reason") == "upstream_tls");
    assert!(failures.verify().code == Some(0));
}
