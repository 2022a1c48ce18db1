//! DNS servers of every kind, and what a client of theirs makes of odd answers.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outgate_policy::{Protocol, Reason};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio_rustls::TlsAcceptor;

use super::lab::{LabRoot, Origin, permit};
use super::names::{outcome, resolver_of};
use crate::upstream::{DnsServer, Upstream, UpstreamConfig, UpstreamError};

/// Completes a reply to one question; false is silence.
type Answerer = dyn Fn(RecordType, &Name, &mut Message) -> bool + Send + Sync;

/// What all the servers of a test do, and how often they were asked.
#[derive(Clone)]
struct Zone {
    answer: Arc<Answerer>,
    asked: Arc<AtomicUsize>,
}

impl Zone {
    fn new(
        answer: impl Fn(RecordType, &Name, &mut Message) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            answer: Arc::new(answer),
            asked: Arc::default(),
        }
    }

    /// Every name has this address.
    fn of(address: &str) -> Self {
        let address: IpAddr = address.parse().unwrap();
        Self::new(move |kind, name, reply| {
            if address.is_ipv4() == (kind == RecordType::A) {
                reply.add_answer(record(name, address));
            }
            true
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn reply(&self, question: &[u8]) -> Option<Vec<u8>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let question = Message::from_vec(question).unwrap();
        let query = question.queries[0].clone();
        let mut reply = question.into_response();
        (self.answer)(query.query_type(), query.name(), &mut reply).then(|| reply.to_vec().unwrap())
    }

    async fn over_udp(&self) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let zone = self.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (len, client) = socket.recv_from(&mut buffer).await.unwrap();
                if let Some(reply) = zone.reply(&buffer[..len]) {
                    socket.send_to(&reply, client).await.unwrap();
                }
            }
        });
        address
    }

    async fn over_tcp(&self) -> SocketAddr {
        let zone = self.clone();
        let server = Origin::raw(move |stream| {
            let zone = zone.clone();
            async move { zone.serve(stream).await }
        });
        server.await.address
    }

    /// Over TLS, for `dns.test`; HTTP/2 where that is asked for.
    async fn over_tls(&self, root: &LabRoot) -> SocketAddr {
        let config = root.server("dns.test", &["h2"], |_| {});
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let zone = self.clone();
        let server = Origin::raw(move |stream| {
            let (acceptor, zone) = (acceptor.clone(), zone.clone());
            async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    zone.serve_http(stream).await;
                } else {
                    zone.serve(stream).await;
                }
            }
        });
        server.await.address
    }

    /// Messages with their length in front.
    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        while let Ok(len) = stream.read_u16().await {
            let mut question = vec![0; len.into()];
            stream.read_exact(&mut question).await.unwrap();
            let reply = self.reply(&question).unwrap();
            stream
                .write_u16(u16::try_from(reply.len()).unwrap())
                .await
                .unwrap();
            stream.write_all(&reply).await.unwrap();
        }
    }

    /// RFC 8484, at `/dns-query` alone.
    async fn serve_http(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let zone = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let zone = zone.clone();
            async move {
                assert_eq!(request.uri().path(), "/dns-query");
                let question = request.into_body().collect().await.unwrap().to_bytes();
                let reply = Bytes::from(zone.reply(&question).unwrap());
                let response = Response::builder()
                    .header("content-type", "application/dns-message")
                    .header("content-length", reply.len())
                    .body(Full::new(reply))
                    .unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        // How a connection ends is the client's business here.
        let _ended = server.serve_connection(TokioIo::new(stream), service).await;
    }
}

fn record(name: &Name, address: IpAddr) -> Record {
    Record::from_rdata(name.clone(), 0, RData::from(address))
}

fn config(root: &LabRoot, servers: &[String]) -> UpstreamConfig {
    let mut config = UpstreamConfig {
        extra_roots: vec![root.certificate()],
        ..UpstreamConfig::default()
    };
    config.resolver.servers = servers
        .iter()
        .map(|text| text.parse::<DnsServer>().unwrap())
        .collect();
    config
}

#[tokio::test]
async fn servers_over_udp_tcp_tls_and_https_are_asked() {
    let root = LabRoot::new();
    let zone = Zone::of("10.9.0.7");
    let (udp, tcp, tls) = (
        zone.over_udp().await,
        zone.over_tcp().await,
        zone.over_tls(&root).await,
    );
    for server in [
        udp.to_string(),
        format!("tcp://{tcp}"),
        format!("tls://{tls}#dns.test"),
        format!("https://{tls}#dns.test"),
    ] {
        let before = zone.asked();
        let resolver = resolver_of(&config(&root, std::slice::from_ref(&server)));
        let found = outcome(&resolver, "in.test:443", true).await;
        assert_eq!(found, Ok(1), "{server}");
        assert!(zone.asked() > before, "{server}");
    }
}

#[tokio::test]
async fn an_encrypted_server_has_to_show_who_it_is() {
    let root = LabRoot::new();
    let zone = Zone::of("10.9.0.7");
    let tls = zone.over_tls(&root).await;
    for server in [
        format!("tls://{tls}#other.test"),
        format!("https://{tls}#other.test"),
        format!("tls://{tls}"),
    ] {
        let resolver = resolver_of(&config(&root, std::slice::from_ref(&server)));
        let found = outcome(&resolver, "in.test:443", true).await;
        assert_eq!(found, Err(Reason::DnsFailure), "{server}");
    }
    let stranger = resolver_of(&config(&LabRoot::new(), &[format!("tls://{tls}#dns.test")]));
    let found = outcome(&stranger, "in.test:443", true).await;
    assert_eq!(found, Err(Reason::DnsFailure), "a root that is not trusted");
    assert_eq!(zone.asked(), 0, "no name was told to a stranger");
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_told_from_a_server_that_fails() {
    let root = LabRoot::new();
    for (code, reason) in [
        (ResponseCode::NXDomain, Reason::NameNotFound),
        (ResponseCode::ServFail, Reason::DnsFailure),
        (ResponseCode::Refused, Reason::DnsFailure),
        (ResponseCode::NoError, Reason::DnsFailure),
    ] {
        let zone = Zone::new(move |_, _, reply| {
            reply.metadata.response_code = code;
            true
        });
        let resolver = resolver_of(&config(&root, &[zone.over_udp().await.to_string()]));
        let found = outcome(&resolver, "in.test:443", true).await;
        assert_eq!(found, Err(reason), "{code}");
    }
}

#[tokio::test]
async fn c12_an_alias_is_followed_and_its_end_is_checked() {
    let root = LabRoot::new();
    let other = Name::from_ascii("other.test.").unwrap();
    let zone = Zone::new(move |kind, name, reply| {
        if kind == RecordType::A {
            // The end of the chain first, and a record that nobody asked for.
            reply.add_answer(record(&other, [10, 9, 0, 7].into()));
            reply.add_answer(record(
                &Name::from_ascii("stray.test.").unwrap(),
                [1, 1, 1, 1].into(),
            ));
            let alias = RData::CNAME(CNAME(other.clone()));
            reply.add_answer(Record::from_rdata(name.clone(), 0, alias));
        }
        true
    });
    let server = zone.over_udp().await.to_string();
    let resolver = resolver_of(&config(&root, &[server]));
    assert_eq!(outcome(&resolver, "in.test:443", true).await, Ok(1));
    assert_eq!(
        outcome(&resolver, "in.test:443", false).await,
        Err(Reason::PrivateAddress),
        "the stray address is not taken for the name's"
    );
}

#[tokio::test]
async fn a_family_that_is_never_answered_holds_up_nothing() {
    let root = LabRoot::new();
    let origin = Origin::raw(async |stream| drop(stream)).await;
    for answered in [RecordType::A, RecordType::AAAA] {
        let zone = Zone::new(move |kind, name, reply| {
            let address = match answered {
                RecordType::A => IpAddr::from([127, 0, 0, 1]),
                // IPv4 in IPv6 dress: this machine may have no other.
                _ => "::ffff:127.0.0.1".parse().unwrap(),
            };
            if kind == answered {
                reply.add_answer(record(name, address));
            }
            kind == answered
        });
        let server = zone.over_udp().await.to_string();
        let sandbox = Upstream::new(config(&root, &[server]))
            .unwrap()
            .for_sandbox();
        let authority = format!("in.test:{}", origin.address.port());
        let connected = sandbox
            .connect_tcp(&permit(Protocol::Tcp, &authority, true))
            .await
            .unwrap();
        assert_eq!(connected.peer, origin.address, "{answered}");
    }
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_passed_over() {
    let root = LabRoot::new();
    let origin = Origin::raw(async |stream| drop(stream)).await;
    let zone = Zone::new(|kind, name, reply| {
        let addresses: &[&str] = match kind {
            RecordType::A => &["127.0.0.9", "127.0.0.8", "127.0.0.1"],
            _ => &["::1", "fe80::1"],
        };
        for address in addresses {
            reply.add_answer(record(name, address.parse().unwrap()));
        }
        true
    });
    let server = zone.over_udp().await.to_string();
    let sandbox = Upstream::new(config(&root, &[server]))
        .unwrap()
        .for_sandbox();
    let authority = format!("in.test:{}", origin.address.port());
    let permit = permit(Protocol::Tcp, &authority, true);
    let connected = sandbox.connect_tcp(&permit).await.unwrap();
    assert_eq!(connected.peer, origin.address);
}

#[tokio::test]
async fn c18_a_sandbox_that_dials_without_end_is_slowed_down_and_others_are_not() {
    let root = LabRoot::new();
    let upstream = Upstream::new(super::lab::config(Some(&root))).unwrap();
    let busy = upstream.for_sandbox();
    // Refused for its address before a packet leaves: dialling costs nothing here.
    let permit = permit(Protocol::Tcp, "a.test:1", false);
    let refused = loop {
        match busy.connect_tcp(&permit).await.unwrap_err() {
            UpstreamError::Forbidden { .. } => {}
            other => break other,
        }
    };
    assert!(
        matches!(refused, UpstreamError::TooManyDials { .. }),
        "{refused}"
    );
    assert_eq!(refused.reason(), Reason::LimitExceeded);
    let other = upstream
        .for_sandbox()
        .connect_tcp(&permit)
        .await
        .unwrap_err();
    assert!(matches!(other, UpstreamError::Forbidden { .. }), "{other}");
}
