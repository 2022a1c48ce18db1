//! The organisation's own proxy, a real one: tinyproxy.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use outgate_tests::harness::{World, eventually, lab};
use outgate_tests::lab::Lab;
use tempfile::TempDir;

const RULES: &str = r#"
rules:
  - id: a
    action: allow
    to: { hosts: [a.test], private: true }
"#;

/// A running tinyproxy, ended when dropped.
struct Tinyproxy {
    process: Child,
    folder: TempDir,
    address: SocketAddr,
}

impl Tinyproxy {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = reserved.local_addr().expect("bound");
        drop(reserved);
        let configuration = folder.path().join("tinyproxy.conf");
        let log = folder.path().join("log");
        let text = format!(
            "Port {}\nListen 127.0.0.1\nTimeout 60\nMaxClients 50\nLogFile \"{}\"\nLogLevel Connect\n{more}\n",
            address.port(),
            log.display()
        );
        std::fs::write(&configuration, text).expect("written");
        let process = Command::new("tinyproxy")
            .arg("-d")
            .arg("-c")
            .arg(&configuration)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tinyproxy is installed: cargo xtask setup");
        eventually("the proxy listens", || TcpStream::connect(address).ok());
        Self {
            process,
            folder,
            address,
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Tinyproxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn world(lab: Lab, arguments: &[&str]) -> World {
    World::with_arguments(lab, arguments, RULES)
}

#[test]
fn f06_b115_requests_go_through_the_organisations_proxy() {
    let lab = lab();
    let proxy = Tinyproxy::start("");
    let origin = lab.origin_address();
    let world = world(lab, &["--next-hop", &proxy.url()]);
    let reply = world.guest().curl("https://a.test/x", [""; 0]);
    reply.expect_status(200);
    assert!(
        proxy
            .log()
            .contains(&format!("CONNECT {origin}:443 HTTP/1.1")),
        "{}",
        proxy.log()
    );
    assert!(!proxy.log().contains("a.test"), "the proxy learns no name");
    world.audit().wait_for("the peer", |r| {
        r.text("kind") == "response" && r.text("peer") == format!("{origin}:443")
    });
    // Policy first: nothing is asked of the proxy for what is denied.
    let before = proxy.log().matches("CONNECT").count();
    world.guest().curl("https://evil.test/", [""; 0]);
    assert_eq!(proxy.log().matches("CONNECT").count(), before);
}

#[test]
fn f06_by_name_only_if_the_operator_says_so() {
    let lab = lab();
    // The proxy has this machine's resolver, which knows no lab name: what it is asked is enough.
    let proxy = Tinyproxy::start("");
    let url = proxy.url();
    let world = world(lab, &["--next-hop", &url, "--danger-next-hop-resolves"]);
    let queries = world.lab.dns.queries().len();
    let reply = world.guest().curl("https://a.test/", [""; 0]);
    reply.expect_denied(502, "next_hop_failed");
    assert!(
        proxy.log().contains("CONNECT a.test:443 HTTP/1.1"),
        "{}",
        proxy.log()
    );
    assert_eq!(
        world.lab.dns.queries().len(),
        queries,
        "nobody here resolves"
    );
}

#[test]
fn f06_a_proxy_that_wants_credentials_gets_them() {
    let lab = lab();
    let proxy = Tinyproxy::start("BasicAuth outgate s3cret-of-the-proxy");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("proxy");
    std::fs::write(&file, "outgate:s3cret-of-the-proxy\n").expect("written");
    let place = format!("file:{}", file.display());
    let url = proxy.url();
    let world = world(lab, &["--next-hop", &url, "--next-hop-credentials", &place]);
    world
        .guest()
        .curl("https://a.test/", [""; 0])
        .expect_status(200);
    let seen = &world.lab.journal.all()[0];
    assert!(
        !format!("{seen:?}")
            .to_lowercase()
            .contains("proxy-authorization")
    );
    assert!(!world.home.output().contains("s3cret-of-the-proxy"));
    let log = format!("{:?}", world.audit().records());
    assert!(!log.contains("s3cret-of-the-proxy"));
}

#[test]
fn f06_a_proxy_that_refuses_or_is_gone_lets_nothing_out() {
    let lab = lab();
    let mut proxy = Tinyproxy::start("BasicAuth outgate s3cret-of-the-proxy");
    let url = proxy.url();
    let world = world(lab, &["--next-hop", &url]);
    let refused = world.guest().curl("https://a.test/", [""; 0]);
    refused.expect_denied(502, "next_hop_failed");
    world
        .audit()
        .wait_for("the reason", |r| r.text("detail").contains("407"));
    proxy.process.kill().expect("killed");
    proxy.process.wait().expect("ended");
    let gone = world.guest().curl("https://a.test/", [""; 0]);
    gone.expect_denied(502, "next_hop_failed");
    assert_eq!(world.lab.journal.all(), [], "never past it");
}
