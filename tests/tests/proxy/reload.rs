//! Changing what is in force while a gateway serves: by signal, by the command line, and by nobody
//! noticing when the new one is no good. And the end, in order.

use std::io::{Read as _, Write as _};
use std::path::Path;

use outgate_tests::guest::{Finished, TlsStream, read_response};
use outgate_tests::harness::{ProxyWorld, SANDBOX, authorization, eventually, outgate, policy};

const RULES: &str =
    "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n";
const LESS: &str = "rules:\n  - { id: b, action: allow, to: { hosts: [b.test], private: true } }\n";

/// A TLS connection to a.test through the proxy.
fn tunnel(world: &ProxyWorld) -> TlsStream {
    let mut stream = world.connect().expect("a connection");
    let head = format!(
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{}\r\n",
        authorization()
    );
    stream.write_all(head.as_bytes()).expect("written");
    let (head, _) = read_response(&mut stream).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    world
        .handshake(stream, Some("a.test"), "a.test", &["http/1.1"])
        .expect("TLS")
}

fn write_policy(world: &ProxyWorld, rules: &str) {
    std::fs::write(world.home.folder().join("policy.yaml"), policy(rules)).expect("written");
}

/// `outgate gateway WHAT --admin … MORE`.
fn ask(world: &ProxyWorld, what: &str, more: &[&str]) -> Finished {
    let admin = world.home.admin();
    let mut arguments = vec!["gateway", what, "--admin", path(&admin)];
    arguments.extend(more);
    world.run(path(&outgate().expect("built")), &arguments)
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

/// Opens a stream of events and reads the first.
fn stream_of_events(world: &ProxyWorld) -> TlsStream {
    let mut stream = tunnel(world);
    stream
        .write_all(b"GET /sse?n=3&gate=events HTTP/1.1\r\nHost: a.test\r\n\r\n")
        .expect("written");
    world.lab.gates.release("events", 1);
    read_until(&mut stream, "data: {\"event\":1}");
    stream
}

fn read_until(stream: &mut TlsStream, text: &str) {
    let mut read = Vec::new();
    while outgate_tests::lab::find(&read, text.as_bytes()).is_none() {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).expect("more to read");
        assert!(length > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..length]);
    }
}

/// The sandbox does not get to a.test any more.
#[track_caller]
fn denied(world: &ProxyWorld) {
    // curl does not show the body of a refused CONNECT; the record says why.
    assert_eq!(world.curl("https://a.test/x", [""; 0]).status, Some(403));
    world.audit().denial("default_deny", "a.test");
}

#[test]
fn b178_a_stream_and_a_kept_connection_are_under_the_new_policy_at_once() {
    let world = ProxyWorld::new(RULES);
    let mut events = stream_of_events(&world);
    let mut kept = tunnel(&world);
    let request = "GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n";
    kept.write_all(request.as_bytes()).expect("written");
    let (head, _) = read_response(&mut kept).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");

    write_policy(&world, LESS);
    let said = ask(&world, "reload", &[]).succeeded();
    assert!(said.text().contains("is in force"), "{}", said.text());

    // The stream ends without its end, and no event after that.
    let mut rest = Vec::new();
    let ended = events.read_to_end(&mut rest);
    assert!(
        ended.is_err() || !rest.ends_with(b"0\r\n\r\n"),
        "it ended like a whole one"
    );
    assert_eq!(outgate_tests::lab::find(&rest, b"\"event\":2"), None);
    let cut = world.audit().wait_for("the stream's end", |record| {
        record.text("kind") == "response" && record.text("reason") == "default_deny"
    });
    assert!(cut.text("detail").contains("new policy"), "{cut:?}");

    world.lab.journal.clear();
    kept.write_all(request.as_bytes()).expect("written");
    let (head, _) = read_response(&mut kept).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(world.lab.journal.all(), []);
}

#[test]
fn b179_what_is_in_force_is_named_and_what_does_not_load_changes_nothing() {
    let world = ProxyWorld::new(RULES);
    let in_force = ask(&world, "reload", &[]).succeeded().text();

    write_policy(&world, "rules:\n  - { id: a, action: alow }\n");
    let refused = ask(&world, "reload", &[]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("alow"), "{}", refused.stderr);
    world.curl("https://a.test/x", [""; 0]).expect_status(200);

    // The same by signal, where only the log can tell.
    world.gateway().hang_up();
    eventually("the gateway says that nothing changed", || {
        world
            .home
            .output()
            .contains("the configuration was not changed")
            .then_some(())
    });
    world.curl("https://a.test/x", [""; 0]).expect_status(200);

    write_policy(&world, RULES);
    assert_eq!(ask(&world, "reload", &[]).succeeded().text(), in_force);
    write_policy(&world, LESS);
    assert_ne!(ask(&world, "reload", &[]).succeeded().text(), in_force);
    denied(&world);
}

#[test]
fn a_signal_reloads_and_sandboxes_come_and_go() {
    let world = ProxyWorld::new(RULES);
    let file = world.home.folder().join("gateway.yaml");
    let with_one = std::fs::read_to_string(&file).expect("the configuration");
    let with_two = format!(
        "{with_one}  - id: s2\n    policies: [policy.yaml]\n    token: {{ env: PROXY_TOKEN }}\n"
    );
    std::fs::write(&file, &with_two).expect("written");
    world.gateway().hang_up();
    world.audit().wait_for("the second sandbox", |record| {
        record.text("kind") == "sandbox_register" && record.text("sandbox.id") == "s2"
    });
    let mut events = stream_of_events(&world);
    let second = format!(
        "http://s2:{}@{}",
        outgate_tests::harness::TOKEN,
        outgate_tests::harness::PROXY
    );
    let by_second = || world.curl_by(&["--proxy", &second], "https://a.test/x", [""; 0]);
    by_second().expect_status(200);

    std::fs::write(&file, &with_one).expect("written");
    let said = ask(&world, "reload", &[]).succeeded();
    assert!(said.text().contains("removed: s2"), "{}", said.text());
    assert_eq!(by_second().status, Some(407));
    // The other one has noticed nothing.
    world.lab.gates.release("events", 2);
    read_until(&mut events, "data: {\"event\":3}");
}

#[test]
fn one_policy_of_one_sandbox_can_be_set() {
    let world = ProxyWorld::new(RULES);
    let less = world.home.folder().join("less.yaml");
    std::fs::write(&less, policy(LESS)).expect("written");
    let said = ask(&world, "set-policy", &[SANDBOX, path(&less)]).succeeded();
    assert!(
        said.text().starts_with(&format!("{SANDBOX}: policy ")),
        "{}",
        said.text()
    );
    denied(&world);
    let loaded = world
        .audit()
        .wait_for("the change", |record| record.text("kind") == "policy_load");
    assert_eq!(loaded.text("verdict"), "allow");

    let unknown = ask(&world, "set-policy", &["nobody", path(&less)]);
    assert_ne!(unknown.code, Some(0));
    assert!(
        unknown.stderr.contains("no sandbox `nobody`"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn an_answer_under_way_is_whole_when_the_gateway_is_told_to_end() {
    let world = ProxyWorld::new(RULES);
    let mut events = stream_of_events(&world);
    world.gateway().ask_to_end();
    eventually("nobody new is taken", || {
        world.connect().is_err().then_some(())
    });
    world.lab.gates.release("events", 2);
    read_until(&mut events, "data: {\"event\":3}\n\n");
    let (code, home, _lab) = world.terminate();
    assert_eq!(code, Some(0));
    let end = home
        .audit()
        .wait_for("the end", |record| record.text("kind") == "gateway_stop");
    assert!(end.number("seq") > 0);
    home.audit().verify().succeeded();
}
