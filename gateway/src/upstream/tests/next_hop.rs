//! Connections through an organisation's own proxy, and proxies that do not do what they should.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use outgate_policy::{Protocol, Reason};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::lab::{self, LabRoot, Origin, get, https, permit, read_head, send, text};
use crate::upstream::{
    NextHopConfig, NextHopFailure, ProxyCredentials, SandboxUpstream, Upstream, UpstreamConfig,
    UpstreamError,
};

/// A CONNECT proxy that notes what it was asked.
struct Proxy {
    origin: Origin,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Connects to the address that it is asked for, or to `elsewhere` for a name.
    async fn start(elsewhere: SocketAddr) -> Self {
        Self::answering(elsewhere, "HTTP/1.1 200 Connection established\r\n\r\n").await
    }

    async fn answering(elsewhere: SocketAddr, answer: &'static str) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let origin = Origin::raw(move |mut stream: TcpStream| {
            let seen = Arc::clone(&seen);
            async move {
                let head = read_head(&mut stream).await.unwrap();
                let target = head.split(' ').nth(1).unwrap().parse();
                seen.lock().unwrap().push(head);
                stream.write_all(answer.as_bytes()).await.unwrap();
                let mut far = TcpStream::connect(target.unwrap_or(elsewhere))
                    .await
                    .unwrap();
                // How it ends is for the two at the ends to say.
                let _ended = copy_bidirectional(&mut stream, &mut far).await;
            }
        });
        let origin = origin.await;
        Self { origin, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn next_hop(address: SocketAddr) -> NextHopConfig {
    NextHopConfig {
        proxy: format!("http://{address}").parse().unwrap(),
        credentials: None,
        no_proxy: Vec::new(),
        danger_proxy_resolves: false,
    }
}

fn behind(hop: NextHopConfig, root: Option<&LabRoot>) -> SandboxUpstream {
    let config = UpstreamConfig {
        next_hop: Some(hop),
        ..lab::config(root)
    };
    Upstream::new(config).unwrap().for_sandbox()
}

/// Why no connection came about.
async fn failure(hop: NextHopConfig) -> NextHopFailure {
    let sandbox = behind(hop, None);
    let permit = permit(Protocol::Tcp, "a.test:4444", true);
    let error = sandbox.connect_tcp(&permit).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NextHopFailed, "{error}");
    match error {
        UpstreamError::NextHop { failure, .. } => failure,
        other => panic!("{other}"),
    }
}

async fn failure_of(answer: &'static str) -> NextHopFailure {
    let nowhere = Origin::raw(async |stream| drop(stream)).await;
    let proxy = Proxy::answering(nowhere.address, answer).await;
    failure(next_hop(proxy.origin.address)).await
}

#[tokio::test]
async fn f06_b115_a_request_goes_through_the_proxy_to_the_checked_address() {
    let root = LabRoot::new();
    let origin = Origin::https(root.server("a.test", &["h2"], |_| {})).await;
    let proxy = Proxy::start(origin.address).await;
    let sandbox = behind(next_hop(proxy.origin.address), Some(&root));
    let sent = send(&sandbox, &https(&origin), get("/x")).await.unwrap();
    assert_eq!(sent.peer, origin.address);
    assert!(text(sent).await.starts_with("HTTP/2.0 GET a.test"));
    let target = origin.address;
    let expected = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    assert_eq!(proxy.asked(), [expected]);
}

#[tokio::test]
async fn f06_policy_and_address_check_come_before_the_proxy() {
    let proxy = Proxy::start(([127, 0, 0, 1], 1).into()).await;
    let sandbox = behind(next_hop(proxy.origin.address), None);
    let shut = permit(Protocol::Tcp, "a.test:4444", false);
    let error = sandbox.connect_tcp(&shut).await.unwrap_err();
    assert_eq!(error.reason(), Reason::PrivateAddress);
    assert_eq!(proxy.origin.connections(), 0);
}

#[tokio::test]
async fn f06_a_proxy_that_resolves_is_asked_for_the_name() {
    let origin = Origin::http().await;
    let proxy = Proxy::start(origin.address).await;
    let hop = NextHopConfig {
        danger_proxy_resolves: true,
        ..next_hop(proxy.origin.address)
    };
    let sandbox = behind(hop, None);
    let unknown = permit(Protocol::Http, "only-the-proxy-knows.test:8080", false);
    let sent = send(&sandbox, &unknown, get("/")).await.unwrap();
    assert_eq!(sent.peer, proxy.origin.address);
    assert_eq!(sent.response.status(), 200);
    assert!(proxy.asked()[0].starts_with("CONNECT only-the-proxy-knows.test:8080 HTTP/1.1\r\n"));
    // A destination that is an address is still checked here.
    let address = permit(Protocol::Tcp, "10.9.0.7:80", true);
    let _whatever = sandbox.connect_tcp(&address).await;
    assert!(proxy.asked()[1].starts_with("CONNECT 10.9.0.7:80 "));
}

#[tokio::test]
async fn f06_what_no_proxy_names_is_dialled_past_it() {
    let origin = Origin::http().await;
    let proxy = Proxy::start(origin.address).await;
    let a = format!("a.test:{}", origin.address.port());
    let here = format!("127.0.0.1:{}", origin.address.port());
    for (rule, authority) in [
        ("a.test", &a),
        ("*.test", &a),
        ("127.0.0.0/8", &a),
        ("127.0.0.1", &here),
    ] {
        for danger_proxy_resolves in [false, true] {
            if danger_proxy_resolves && rule.starts_with("127") && authority == &a {
                continue;
            }
            let hop = NextHopConfig {
                no_proxy: vec![rule.parse().unwrap()],
                danger_proxy_resolves,
                ..next_hop(proxy.origin.address)
            };
            let permit = permit(Protocol::Http, authority, true);
            let sent = send(&behind(hop, None), &permit, get("/")).await.unwrap();
            assert_eq!(sent.peer, origin.address, "{rule}");
        }
    }
    assert_eq!(proxy.origin.connections(), 0);
}

#[tokio::test]
async fn f06_credentials_are_shown_to_the_proxy_alone() {
    let origin = Origin::http().await;
    let proxy = Proxy::start(origin.address).await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "outgate:s3cret:with-colon").unwrap();
    let hop = NextHopConfig {
        credentials: Some(ProxyCredentials::File(file.path().into())),
        ..next_hop(proxy.origin.address)
    };
    let sandbox = behind(hop, None);
    assert!(!format!("{sandbox:?}").contains("s3cret"));
    let sent = send(&sandbox, &lab::http(&origin), get("/")).await.unwrap();
    assert_eq!(sent.response.status(), 200);
    let expected = "\r\nProxy-Authorization: Basic b3V0Z2F0ZTpzM2NyZXQ6d2l0aC1jb2xvbg==\r\n\r\n";
    assert!(proxy.asked()[0].ends_with(expected), "{:?}", proxy.asked());

    for wrong in ["", "no-colon", "two\nlines:x"] {
        std::fs::write(file.path(), wrong).unwrap();
        let config = UpstreamConfig {
            next_hop: Some(NextHopConfig {
                credentials: Some(ProxyCredentials::File(file.path().into())),
                ..next_hop(proxy.origin.address)
            }),
            ..lab::config(None)
        };
        let error = Upstream::new(config).unwrap_err();
        assert!(
            matches!(error, UpstreamError::NextHopCredentials { .. }),
            "{error}"
        );
        assert!(!error.to_string().contains("lines"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard_through_a_proxy() {
    let answer =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nSSH-2.0-x";
    let quiet = Origin::raw(async |mut stream| {
        stream.write_all(b" and more").await.unwrap();
    })
    .await;
    let proxy = Proxy::answering(quiet.address, answer).await;
    let sandbox = behind(next_hop(proxy.origin.address), None);
    let permit = permit(
        Protocol::Tcp,
        &format!("a.test:{}", quiet.address.port()),
        true,
    );
    let mut stream = sandbox.connect_tcp(&permit).await.unwrap().stream;
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "SSH-2.0-x and more");
}

#[tokio::test]
async fn a_proxy_in_tls_has_to_show_who_it_is() {
    let root = LabRoot::new();
    let origin = Origin::http().await;
    let config = root.server("b.test", &["http/1.1"], |_| {});
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let to = origin.address;
    let proxy = Origin::raw(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut far = TcpStream::connect(to).await.unwrap();
            let _ended = copy_bidirectional(&mut stream, &mut far).await;
        }
    })
    .await;
    let hop = |name: &str| NextHopConfig {
        proxy: format!("https://{name}:{}", proxy.address.port())
            .parse()
            .unwrap(),
        ..next_hop(proxy.address)
    };
    let sent = send(
        &behind(hop("b.test"), Some(&root)),
        &lab::http(&origin),
        get("/"),
    )
    .await;
    assert!(text(sent.unwrap()).await.starts_with("HTTP/1.1 GET a.test"));
    let error = send(
        &behind(hop("a.test"), Some(&root)),
        &lab::http(&origin),
        get("/"),
    )
    .await;
    assert!(
        matches!(
            error,
            Err(UpstreamError::NextHop {
                failure: NextHopFailure::Tls(_),
                ..
            })
        ),
        "{error:?}"
    );
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn answers_that_are_no_tunnel_are_told_apart() {
    let unauthorised =
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n";
    let long = Box::leak(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(20_000)).into_boxed_str());
    type IsIt = fn(&NextHopFailure) -> bool;
    let answers: [(&'static str, IsIt); 7] = [
        (unauthorised, |f| matches!(f, NextHopFailure::Unauthorised)),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", |f| {
            matches!(f, NextHopFailure::Refused(403))
        }),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", |f| {
            matches!(f, NextHopFailure::Refused(502))
        }),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\n\r\n",
            |f| matches!(f, NextHopFailure::Refused(302)),
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", |f| {
            matches!(f, NextHopFailure::Garbage(_))
        }),
        ("HTTP/1.1 101 Switching\r\n\r\n", |f| {
            matches!(f, NextHopFailure::Refused(101))
        }),
        (long, |f| matches!(f, NextHopFailure::Garbage(_))),
    ];
    for (answer, is_it) in answers {
        let failure = failure_of(answer).await;
        assert!(is_it(&failure), "{answer:.40}: {failure}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_gone_silent_or_ourselves_is_told_apart() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    let found = failure(next_hop(nobody)).await;
    assert!(matches!(found, NextHopFailure::Unreachable(_)), "{found}");

    let leaving = Origin::raw(async |mut stream| drop(read_head(&mut stream).await)).await;
    let found = failure(next_hop(leaving.address)).await;
    assert!(matches!(found, NextHopFailure::Closed), "{found}");

    let silent = Origin::raw(async |stream| {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let config = UpstreamConfig {
        next_hop: Some(next_hop(silent.address)),
        connect_timeout: std::time::Duration::from_millis(50),
        ..lab::config(None)
    };
    let sandbox = Upstream::new(config).unwrap().for_sandbox();
    let permit = permit(Protocol::Tcp, "a.test:4444", true);
    let error = sandbox.connect_tcp(&permit).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");

    // B118, C16: a gateway whose next hop is itself would ask itself for ever.
    for own in [silent.address, ([0, 0, 0, 0], silent.address.port()).into()] {
        let config = UpstreamConfig {
            next_hop: Some(next_hop(silent.address)),
            own_addresses: vec![own],
            ..lab::config(None)
        };
        let sandbox = Upstream::new(config).unwrap().for_sandbox();
        let error = sandbox.connect_tcp(&permit).await.unwrap_err();
        assert!(error.to_string().contains("the gateway itself"), "{error}");
    }
}

#[tokio::test]
async fn datagrams_never_go_past_a_proxy_unless_it_is_told_so() {
    let proxy = Proxy::start(([127, 0, 0, 1], 1).into()).await;
    let permit = permit(Protocol::Udp, "a.test:4444", true);
    let error = behind(next_hop(proxy.origin.address), None)
        .connect_udp(&permit)
        .await;
    assert!(
        matches!(error, Err(UpstreamError::NoDatagrams { .. })),
        "{error:?}"
    );
    let hop = NextHopConfig {
        no_proxy: vec!["127.0.0.0/8".parse().unwrap()],
        ..next_hop(proxy.origin.address)
    };
    let connected = behind(hop, None).connect_udp(&permit).await.unwrap();
    assert_eq!(connected.peer, ([127, 0, 0, 1], 4444).into());
    assert_eq!(proxy.origin.connections(), 0);
}
