//! The guest's DNS in the eyes of real resolvers: the C libraries that programs use, and the tools
//! that people look with.

use std::net::IpAddr;

use outgate_tests::guest::{Finished, Guest};
use outgate_tests::harness::World;

const A_AND_C: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
  - id: c
    action: allow
    to: { hosts: ["*.c.test"], private: true }
"#;

/// Prints every address of a name, or the resolver's error.
const LOOK_UP: &str = r#"
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    struct addrinfo hints, *found, *each;
    char text[64];
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(argv[1], "443", &hints, &found);
    if (error) { printf("%s\n", error == EAI_NONAME ? "no name" : error == EAI_AGAIN ? "again" : "other"); return 2; }
    for (each = found; each; each = each->ai_next) {
        void *address = each->ai_family == AF_INET
            ? (void *)&((struct sockaddr_in *)each->ai_addr)->sin_addr
            : (void *)&((struct sockaddr_in6 *)each->ai_addr)->sin6_addr;
        printf("%s\n", inet_ntop(each->ai_family, address, text, sizeof text));
    }
    return 0;
}
"#;

fn build(guest: &Guest, compiler: &str) -> String {
    let source = guest.folder().join("look_up.c");
    std::fs::write(&source, LOOK_UP).expect("written");
    let program = guest.folder().join(format!("look_up_{compiler}"));
    let program = program.to_str().expect("UTF-8").to_owned();
    let source = source.to_str().expect("UTF-8");
    guest
        .program(compiler)
        .args(["-o", &program, source])
        .run()
        .succeeded();
    program
}

fn dig(guest: &Guest, arguments: &[&str]) -> Finished {
    let server = format!("@{}", guest.network().dns);
    guest
        .program("dig")
        .args([server.as_str(), "+tries=1", "+time=10"])
        .args(arguments)
        .run()
}

#[track_caller]
fn assert_says(output: &Finished, words: &[&str]) {
    for word in words {
        assert!(
            output.text().contains(word),
            "no `{word}` in:\n{}",
            output.text()
        );
    }
}

#[test]
fn b091_b099_glibc_and_musl_find_what_is_allowed_and_nothing_else() {
    let world = World::new(A_AND_C);
    let guest = world.guest();
    let expected = guest.address_of("a.test").expect("an address").to_string();
    for compiler in ["gcc", "musl-gcc"] {
        let look_up = build(guest, compiler);
        for name in ["a.test", "A.TEST", "a.test."] {
            let found = guest.program(&look_up).args([name]).run().succeeded();
            assert_eq!(found.text().trim(), expected, "{compiler} {name}");
        }
        for name in ["SECRET.evil.test", "c.test", "nx.a.test"] {
            let denied = guest.program(&look_up).args([name]).run();
            assert_eq!(
                (denied.code, denied.text().trim()),
                (Some(2), "no name"),
                "{compiler} {name}"
            );
        }
    }
    let hosts = guest
        .program("getent")
        .args(["ahosts", "a.test"])
        .run()
        .succeeded();
    assert!(hosts.text().contains(&expected), "{}", hosts.text());
    let six = guest.program("getent").args(["ahostsv6", "a.test"]).run();
    // The C library dresses the IPv4 address up by itself: there is no other.
    let is_mapped = |line: &str| line.starts_with("::ffff:198.1");
    assert!(six.text().lines().all(is_mapped), "B103: {}", six.text());
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn an_address_is_looked_up_backwards() {
    let world = World::new(A_AND_C);
    let guest = world.guest();
    let a = guest.address_of("a.test").expect("an address").to_string();
    let named = guest
        .program("getent")
        .args(["hosts", &a])
        .run()
        .succeeded();
    assert!(named.text().trim().ends_with("a.test"), "{}", named.text());
    assert_says(
        &dig(guest, &["-x", "10.0.2.2", "+short"]),
        &["outgate.internal."],
    );
    assert_says(
        &dig(guest, &["-x", "8.8.8.8"]),
        &["status: NXDOMAIN", "IN\tSOA"],
    );
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn c12_c17_dig_sees_one_address_and_nothing_that_could_carry_data() {
    let world = World::new(A_AND_C);
    let guest = world.guest();
    assert_says(
        &dig(guest, &["a.test", "A"]),
        &["status: NOERROR", "ANSWER: 1", "IN\tA\t198.1"],
    );
    // Hints to encrypted hellos and QUIC among them (B033).
    for kind in [
        "AAAA",
        "HTTPS",
        "SVCB",
        "TXT",
        "MX",
        "NS",
        "NULL",
        "SRV",
        "CAA",
        "TYPE65280",
    ] {
        let reply = dig(guest, &["a.test", kind]);
        assert_says(&reply, &["status: NOERROR", "ANSWER: 0", "IN\tSOA"]);
        assert_says(
            &dig(guest, &["DATA.evil.test", kind]),
            &["status: NXDOMAIN", "IN\tSOA"],
        );
    }
    assert_says(
        &dig(guest, &["a.test", "ANY"]),
        &["HINFO\t\"RFC8482\" \"\""],
    );
    assert_says(&dig(guest, &["a.test", "AXFR"]), &["Transfer failed"]);
    assert_says(
        &dig(guest, &["version.bind", "CH", "TXT"]),
        &["status: REFUSED"],
    );
    assert_says(
        &dig(guest, &["a.test", "+edns=1", "+noednsnegotiation"]),
        &["status: BADVERS"],
    );
    assert_says(
        &dig(guest, &["+opcode=notify", "a.test"]),
        &["status: NOTIMP"],
    );
    let options = dig(
        guest,
        &[
            "+subnet=10.1.2.0/24",
            "+cookie",
            "+dnssec",
            "+nsid",
            "a.test",
        ],
    );
    assert_says(&options, &["status: NOERROR", "ANSWER: 1", "flags: do"]);
    assert!(!options.text().contains("COOKIE"), "{}", options.text());
    assert_eq!(world.lab.dns.queries(), []);
    let audit = world.audit();
    audit.wait_for("the TXT question", |r| {
        r.text("kind") == "dns"
            && r.text("host") == "a.test"
            && r.text("reason") == "dns_type_denied"
    });
}

#[test]
fn dig_and_delv_over_tcp() {
    let world = World::new(A_AND_C);
    let guest = world.guest();
    let kept = dig(
        guest,
        &["+tcp", "+keepopen", "a.test", "x.c.test", "evil.test"],
    );
    assert_says(&kept, &["status: NOERROR", "status: NXDOMAIN"]);
    assert_eq!(
        kept.text().matches("ANSWER: 1").count(),
        2,
        "{}",
        kept.text()
    );
    let server = format!("@{}", guest.network().dns);
    // Without validation: nothing here is signed, and nobody could.
    let delv = guest
        .program("delv")
        .args([&server, "-i", "a.test", "A"])
        .run()
        .succeeded();
    assert_says(&delv, &["a.test.", "IN\tA\t198.1"]);
    assert_eq!(world.lab.dns.queries(), []);
}

#[test]
fn an_address_of_one_sandbox_means_nothing_to_another() {
    let world = World::new(A_AND_C);
    let first = world.guest().address_of("a.test").expect("an address");
    let (other, _registration) = world.second_guest("other", A_AND_C);
    let second = other.address_of("a.test").expect("an address");
    assert_ne!(first, second);
    let IpAddr::V4(_) = first else {
        panic!("{first}")
    };
    // What the first knows is nobody in the second's network: a clone has to ask anew.
    assert!(other.connect((first, 443)).is_err());
    world.audit().wait_for("the reset", |r| {
        r.text("kind") == "drop"
            && r.text("detail") == "unknown_name"
            && r.text("sandbox.id") == "other"
    });
}

#[test]
fn c12_a_flood_of_encoded_names_is_an_alarm() {
    let world = World::new(A_AND_C);
    let guest = world.guest();
    for n in 0..12_u32 {
        let data = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834_u128.rotate_left(7 * n);
        let name = format!("{data:032x}.evil.test");
        guest
            .look_up(&name, hickory_proto::rr::RecordType::A)
            .expect("an answer");
    }
    let alarm = world
        .audit()
        .wait_for("the alarm", |r| r.text("kind") == "alarm");
    assert_eq!(
        (alarm.text("host"), alarm.number("count")),
        ("evil.test", 8)
    );
    assert_eq!(world.lab.dns.queries(), []);
}
