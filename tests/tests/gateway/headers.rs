//! Header fields: those about one connection end at the gateway, all others pass unchanged.

use outgate_tests::harness::World;

/// What these tests may ask.
const A_PUBLIC: &str = r#"
rules:
  - id: a-public
    action: allow
    to: { hosts: [a.test], private: true }
    http: { methods: [GET, POST, PUT, HEAD], paths: ["/public/**"] }
"#;

#[test]
fn b025_hop_by_hop_headers_end_at_the_gateway() {
    let world = World::new(A_PUBLIC);
    let url = "https://a.test/public/x";
    let options = [
        "--http1.1",
        "-H",
        "Connection: notupgrade, x-private",
        "-H",
        "Upgrade: websocket",
        "-H",
        "X-Private: 1",
        "-H",
        "Keep-Alive: 7",
        "-H",
        "Proxy-Authorization: Basic eA==",
        "-H",
        "X-Kept: end to end",
    ];
    let reply = world.guest().curl(url, options).expect_status(200);
    let received = &world.lab.journal.all()[0];
    for gone in ["upgrade", "x-private", "keep-alive", "proxy-authorization"] {
        assert_eq!(received.header(gone), [""; 0], "{gone}: {}", reply.text());
    }
    assert_eq!(received.header("x-kept"), ["end to end"]);
}

#[test]
fn b061_end_to_end_headers_pass_in_order_and_unchanged() {
    let world = World::new(A_PUBLIC);
    let url = "https://a.test/public/x";
    let options = [
        "--http1.1",
        "-H",
        "X-B: 1",
        "-H",
        "X-A: two words",
        "-H",
        "x-b: 2",
        "-H",
        "Cookie: a=1; b=2",
    ];
    world.guest().curl(url, options).expect_status(200);
    let received = &world.lab.journal.all()[0];
    assert_eq!(received.header("x-b"), ["1", "2"]);
    assert_eq!(received.header("x-a"), ["two words"]);
    assert_eq!(received.header("cookie"), ["a=1; b=2"]);
    for header in ["via", "x-forwarded-for", "forwarded"] {
        assert_eq!(
            received.header(header),
            [""; 0],
            "the gateway adds no {header}"
        );
    }
}

#[test]
fn b081_response_headers_pass_unchanged() {
    let world = World::new(A_PUBLIC);
    let path = "/public/x?header.x-accel-buffering=no&header.cache-control=no-transform\
                &header.set-cookie=a%3D1&header.set-cookie=b%3D2";
    let reply = world
        .guest()
        .curl(&format!("https://a.test{path}"), [""; 0])
        .expect_status(200);
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    assert_eq!(reply.header("cache-control"), Some("no-transform"));
    let cookies = reply
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie");
    assert_eq!(
        cookies.map(|(_, value)| value.as_str()).collect::<Vec<_>>(),
        ["a=1", "b=2"]
    );
}

#[test]
fn c17_hints_to_other_protocols_are_removed() {
    let world = World::new(A_PUBLIC);
    let path = "/public/x?header.alt-svc=h3%3D%22%3A443%22";
    let reply = world
        .guest()
        .curl(&format!("https://a.test{path}"), [""; 0])
        .expect_status(200);
    assert_eq!(reply.header("alt-svc"), None);
}
