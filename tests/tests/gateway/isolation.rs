//! Several sandboxes at one gateway: each has its own policy, placeholders, connections and limits,
//! and none can hurt another.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use outgate_tests::guest::link;
use outgate_tests::harness::{World, eventually, policy, register, sandbox};

const WITH_CREDENTIAL: &str = r#"
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

#[test]
fn c08_upstream_connections_are_never_shared_between_sandboxes() {
    let world = World::new(WITH_CREDENTIAL);
    let (second, _registration) = world.second_guest("sandbox-2", WITH_CREDENTIAL);
    let url = "https://a.test/who";
    for _ in 0..3 {
        world
            .guest()
            .curl(url, ["-H", "X-Sandbox: 1"])
            .expect_status(200);
        second.curl(url, ["-H", "X-Sandbox: 2"]).expect_status(200);
    }
    let connections = |sandbox: &str| -> BTreeSet<u64> {
        let received = world.lab.journal.all();
        let of = received
            .iter()
            .filter(|r| r.header("x-sandbox") == [sandbox]);
        of.map(|r| r.connection).collect()
    };
    assert!(connections("1").is_disjoint(&connections("2")));
}

#[test]
fn c21_placeholders_belong_to_one_sandbox() {
    let world = World::new(WITH_CREDENTIAL);
    let (second, registration) = world.second_guest("sandbox-2", WITH_CREDENTIAL);
    let first = &world.registration().granted.env["API_TOKEN"];
    let other = &registration.granted.env["API_TOKEN"];
    assert_ne!(first, other);
    second.curl("https://a.test/x", ["-H", &format!("X-Mine: {other}")]);
    assert!(
        !world
            .lab
            .journal
            .all()
            .iter()
            .any(|r| r.headers.iter().any(|(_, v)| v.contains(first.as_str())))
    );
}

#[test]
fn each_sandbox_has_its_own_policy() {
    let world = World::new(
        "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n",
    );
    let (second, _registration) = world.second_guest(
        "sandbox-2",
        "rules:\n  - { id: b, action: allow, to: { hosts: [b.test], private: true } }\n",
    );
    world
        .guest()
        .curl("https://a.test/", [""; 0])
        .expect_status(200);
    second.curl("https://b.test/", [""; 0]).expect_status(200);
    assert_eq!(world.guest().curl("https://b.test/", [""; 0]).curl, 6);
    assert_eq!(second.curl("https://a.test/", [""; 0]).curl, 6);
    for record in world.audit().requests() {
        let expected = if record.text("host") == "a.test" {
            "sandbox-1"
        } else {
            "sandbox-2"
        };
        assert_eq!(record.text("sandbox.id"), expected);
    }
}

#[test]
fn an_id_names_one_sandbox_at_a_time() {
    let world = World::new("rules: []\n");
    let (_guest_end, gateway_end) = link().expect("a link");
    let again = sandbox("sandbox-1", &policy("rules: []\n"));
    let refused = register(&world.home.admin(), &again, gateway_end.as_fd())
        .expect("the gateway answers")
        .expect_err("the id is taken");
    assert_eq!(refused.code, "id_in_use", "{refused:?}");
}

#[test]
fn layers_intersect() {
    let world = World::new("rules: []\n");
    let allow = |id: &str, paths: &str| {
        policy(&format!(
            "rules:\n  - id: {id}\n    action: allow\n    to: {{ hosts: [a.test], private: true }}\n    \
                 http: {{ paths: [{paths}] }}\n"
        ))
    };
    let mut spec = sandbox("layered", "");
    spec.policy = vec![
        (
            "baseline.yaml".to_owned(),
            allow("baseline", "\"/both\", \"/baseline\""),
        ),
        ("own.yaml".to_owned(), allow("own", "\"/both\", \"/own\"")),
    ];
    let (guest_end, gateway_end) = link().expect("a link");
    let registration = register(&world.home.admin(), &spec, gateway_end.as_fd())
        .expect("the gateway answers")
        .expect("two layers");
    let granted = &registration.granted;
    let guest = outgate_tests::guest::Guest::start(
        guest_end,
        granted.network.clone(),
        &granted.ca_pem,
        &granted.env,
    )
    .expect("the guest starts");
    guest
        .curl("https://a.test/both", [""; 0])
        .expect_status(200);
    for path in ["/baseline", "/own", "/neither"] {
        guest
            .curl(&format!("https://a.test{path}"), [""; 0])
            .expect_denied(403, "default_deny");
    }
    assert_eq!(world.lab.journal.all().len(), 1);
}

#[test]
fn c18_a_flood_by_one_sandbox_leaves_the_others_alone() {
    let world = World::new(
        "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n",
    );
    let (hostile, _registration) = world.second_guest(
        "hostile",
        "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n",
    );
    // Connections that say nothing, as many as a process may have, and questions without end.
    let address = hostile.address_of("a.test").expect("an address");
    let idle: Vec<_> = (0..700)
        .map_while(|_| hostile.connect((address, 443)).ok())
        .collect();
    let socket = hostile.udp().expect("a socket");
    let dns = (hostile.network().dns, 53);
    for n in 0..5000_u32 {
        // A full queue is the guest's own problem.
        let _ = socket.send_to(&n.to_be_bytes(), dns);
    }
    let url = "https://a.test/well";
    let start = std::time::Instant::now();
    world.guest().curl(url, [""; 0]).expect_status(200);
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    assert!(idle.len() > 10, "the flood was one: {}", idle.len());
}

#[test]
fn b189_a_gateway_gives_back_what_a_sandbox_took() {
    let world = World::new("rules: []\n");
    let descriptors = |pid: u32| {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("it runs")
            .count()
    };
    let pid = world.gateway().pid();
    let before = descriptors(pid);
    for n in 0..5 {
        let (guest, registration) = world.second_guest(
            &format!("passing-{n}"),
            "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n",
        );
        guest.curl("https://a.test/", [""; 0]).expect_status(200);
        drop(registration);
    }
    eventually("descriptors are closed", || {
        (descriptors(pid) <= before + 2).then_some(())
    });
}
