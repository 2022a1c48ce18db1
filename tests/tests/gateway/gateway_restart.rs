//! Gateways come and go; the guest keeps its link, and while no gateway holds it, it has no
//! network at all.

use std::io::{Read as _, Write as _};

use outgate_tests::guest::{Ending, exchange, read_response};
use outgate_tests::harness::{SECRET, World, eventually};

const A: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
    credential: api
credentials:
  - name: api
    source: { env: LAB_SECRET }
    expose: { env: API_TOKEN, shape: "tok_{32}" }
    attach: [{ header: Authorization, format: "Bearer {}" }]
"#;

const NOTHING: &str = "rules: []\n";

#[test]
fn a_gateway_killed_mid_request_is_replaced_on_the_same_link() {
    let mut world = World::new(A);
    let placeholder = world.registration().granted.env["API_TOKEN"].clone();
    let url = "https://a.test/sse?n=2&gate=held";
    world.lab.gates.release("held", 1);
    let mut client = world
        .guest()
        .program("curl")
        .args(["-sSN", "--max-time", "30", url])
        .spawn();
    let mut first = [0; 25];
    client
        .stdout
        .as_mut()
        .expect("piped")
        .read_exact(&mut first)
        .expect("the first event");
    world.kill_gateway();
    world.start_gateway();

    // The interrupted request ends in an error, not in a body that looks whole.
    let interrupted = client.wait_with_output().expect("ends");
    assert!(!interrupted.status.success(), "{interrupted:?}");
    // The same guest, the same link, the same trust and the same placeholder go on.
    assert_eq!(world.registration().granted.env["API_TOKEN"], placeholder);
    let again = "https://a.test/after";
    let sent = format!("Authorization: Bearer {placeholder}");
    world.guest().curl(again, ["-H", &sent]).expect_status(200);
    let last = world.lab.journal.all().pop().expect("the request");
    assert_eq!(last.header("authorization"), [format!("Bearer {SECRET}")]);
    assert_eq!(
        world.audit().verify().code,
        Some(0),
        "the log survives a kill"
    );
}

#[test]
fn without_a_gateway_there_is_no_network() {
    let mut world = World::new(A);
    let address = world.guest().address_of("a.test").expect("an address");
    world.kill_gateway();
    let lookup = world
        .guest()
        .program("timeout")
        .args(["1", "getent", "hosts", "a.test"])
        .run();
    assert_ne!(lookup.code, Some(0));
    let url = "https://a.test/";
    let at = format!("a.test:443:{address}");
    let reply = world
        .guest()
        .curl(url, ["--resolve", &at, "--max-time", "1"]);
    assert_eq!((reply.curl, reply.status), (28, None), "silence: {reply:?}");
    assert_eq!(world.lab.journal.all(), []);
    world.start_gateway();
    world.guest().curl(url, [""; 0]).expect_status(200);
}

#[test]
fn c15_a_released_sandbox_reaches_nothing() {
    let world = World::new(A);
    let (guest, registration) = world.second_guest("sandbox-2", A);
    let url = "https://a.test/";
    guest.curl(url, [""; 0]).expect_status(200);
    drop(registration);
    world.audit().wait_for("the release", |r| {
        r.text("kind") == "sandbox_release" && r.text("sandbox.id") == "sandbox-2"
    });
    let reply = guest.curl(url, ["--max-time", "1"]);
    assert_eq!(reply.status, None);
    world.guest().curl(url, [""; 0]).expect_status(200);
    assert_eq!(world.lab.journal.all().len(), 2);
}

#[test]
fn b178_a_connection_opened_under_an_older_policy_is_worth_nothing() {
    let mut world = World::new(A);
    let mut tls = world
        .guest()
        .tls("a.test", 443, "http/1.1")
        .expect("a session");
    write!(tls, "GET /one HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
    let (head, _) = read_response(&mut tls).expect("answered");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");

    world.replace_policy(NOTHING);
    let (answer, ending) = exchange(&mut tls, b"GET /two HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(
        !answer.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_ne!(
        ending,
        Ending::Silent,
        "the old connection is ended, not forgotten"
    );
    let targets: Vec<_> = world
        .lab
        .journal
        .all()
        .into_iter()
        .map(|r| r.target)
        .collect();
    assert_eq!(targets, ["/one"]);
}

#[test]
fn a_gateway_ends_in_order_when_it_is_asked_to() {
    let mut world = World::new(A);
    world
        .guest()
        .curl("https://a.test/", [""; 0])
        .expect_status(200);
    assert_eq!(world.terminate_gateway(), Some(0));
    let kinds: Vec<_> = world
        .audit()
        .records()
        .iter()
        .map(|r| r.text("kind").to_owned())
        .collect();
    assert_eq!(kinds.first().map(String::as_str), Some("gateway_start"));
    assert_eq!(
        kinds.last().map(String::as_str),
        Some("gateway_stop"),
        "{kinds:?}"
    );
    assert!(!world.home.admin().exists(), "the admin socket is removed");
}

#[test]
fn a_stale_socket_and_a_second_gateway() {
    let world = World::new(A);
    // In force: the folder of the audit log has one writer, and the socket one owner.
    assert!(world.home.start().is_err(), "two gateways in one place");
    world
        .guest()
        .curl("https://a.test/", [""; 0])
        .expect_status(200);
    eventually("the second one said why", || {
        let output = world.home.output();
        (output.contains("audit") || output.contains("socket")).then_some(())
    });
}
