//! Which addresses a name may lead to.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_proto::op::Message;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use outgate_policy::{Protocol, Reason};
use tokio::net::UdpSocket;

use super::lab::{Origin, config, get, permit, send};
use crate::tls::client::OriginTls;
use crate::upstream::resolve::Resolver;
use crate::upstream::{ResolverConfig, Upstream, UpstreamConfig, UpstreamError};

/// What a query is answered with: time to live and addresses.
type Answer = (u32, Vec<IpAddr>);

/// A DNS server that gives its answers in turn, the last one for ever, and notes what it was asked.
struct Dns {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Dns {
    async fn start(answers: &[(u32, &[&str])]) -> Self {
        let mut answers: Vec<Answer> = answers
            .iter()
            .map(|(ttl, addresses)| {
                (
                    *ttl,
                    addresses
                        .iter()
                        .map(|address| address.parse().unwrap())
                        .collect(),
                )
            })
            .collect();
        answers.reverse();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let dns = Self {
            address: socket.local_addr().unwrap(),
            asked: Arc::new(Mutex::new(Vec::new())),
        };
        let asked = dns.asked.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
                let query = Message::from_vec(&buffer[..length]).unwrap();
                let wanted = query.queries[0].clone();
                let is_a = wanted.query_type() == RecordType::A;
                let mut reply = query.into_response();
                let (ttl, addresses) = answers.last().unwrap();
                for address in addresses.iter().filter(|address| address.is_ipv4() == is_a) {
                    let data = RData::from(*address);
                    reply.add_answer(Record::from_rdata(wanted.name().clone(), *ttl, data));
                }
                // A record for another name, which nobody asked about.
                let stray = RData::from(IpAddr::from([169, 254, 169, 254]));
                let stray_name = Name::from_ascii("stray.test.").unwrap();
                reply.add_additional(Record::from_rdata(stray_name, 60, stray));
                if is_a {
                    asked.lock().unwrap().push(wanted.name().to_string());
                    if answers.len() > 1 {
                        answers.pop();
                    }
                }
                socket
                    .send_to(&reply.to_vec().unwrap(), client)
                    .await
                    .unwrap();
            }
        });
        dns
    }

    fn resolver(&self) -> Resolver {
        resolver_of(&UpstreamConfig {
            resolver: ResolverConfig {
                servers: vec![self.address.into()],
            },
            ..UpstreamConfig::default()
        })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The resolver of an upstream with this configuration.
pub(super) fn resolver_of(config: &UpstreamConfig) -> Resolver {
    let tls = OriginTls::new(&config.extra_roots).unwrap();
    Resolver::new(config, tls.client_config()).unwrap()
}

/// How many addresses a rule for `authority` may dial.
pub(super) async fn outcome(
    resolver: &Resolver,
    authority: &str,
    private: bool,
) -> Result<usize, Reason> {
    let permit = permit(Protocol::Https, authority, private);
    match resolver.resolve(&permit).all().await {
        Ok(addresses) => Ok(addresses.len()),
        Err(error) => Err(error.reason()),
    }
}

#[tokio::test]
async fn b017_a_private_answer_is_refused_unless_the_rule_opens_it() {
    let resolver = Dns::start(&[(0, &["10.9.0.7"])]).await.resolver();
    assert_eq!(
        outcome(&resolver, "in.test:443", false).await,
        Err(Reason::PrivateAddress)
    );
    assert_eq!(outcome(&resolver, "in.test:443", true).await, Ok(1));
}

#[tokio::test]
async fn c12_of_a_mixed_answer_only_what_the_rule_opens_is_used() {
    for (answer, used) in [
        (&["1.1.1.1", "10.9.0.7"][..], Ok(1)),
        (&["10.9.0.7", "1.1.1.1", "1.0.0.1"], Ok(2)),
        (&["2606:4700::1111", "::1"], Ok(1)),
        (&["1.1.1.1", "fd00::1"], Ok(1)),
        (&["169.254.169.254", "1.1.1.1"], Ok(1)),
        (&["10.9.0.7", "fd00::1"], Err(Reason::PrivateAddress)),
    ] {
        let resolver = Dns::start(&[(0, answer)]).await.resolver();
        let outcome = outcome(&resolver, "in.test:443", false).await;
        assert_eq!(outcome, used, "{answer:?}");
    }
    // A rule that opens private addresses still opens no metadata service and not the gateway.
    let dns = Dns::start(&[(0, &["169.254.169.254", "10.9.0.7", "10.9.0.8"])]).await;
    let resolver = resolver_of(&UpstreamConfig {
        own_addresses: vec!["10.9.0.8:443".parse().unwrap()],
        resolver: ResolverConfig {
            servers: vec![dns.address.into()],
        },
        ..UpstreamConfig::default()
    });
    assert_eq!(outcome(&resolver, "in.test:443", true).await, Ok(1));
}

#[tokio::test]
async fn a_metadata_answer_is_refused_whatever_the_rule_says() {
    for answer in [
        "169.254.169.254",
        "168.63.129.16",
        "64:ff9b::a9fe:a9fe",
        "fd00:ec2::254",
    ] {
        let resolver = Dns::start(&[(0, &[answer])]).await.resolver();
        let outcome = outcome(&resolver, "in.test:443", true).await;
        assert_eq!(outcome, Err(Reason::MetadataAddress), "{answer}");
    }
}

#[tokio::test]
async fn c12_a_rebinding_name_is_checked_each_time() {
    let dns = Dns::start(&[(0, &["1.1.1.1"]), (0, &["127.0.0.1"])]).await;
    let resolver = dns.resolver();
    assert_eq!(outcome(&resolver, "in.test:443", false).await, Ok(1));
    assert_eq!(
        outcome(&resolver, "in.test:443", false).await,
        Err(Reason::PrivateAddress)
    );
}

#[tokio::test]
async fn an_answer_is_kept_for_its_time_to_live_and_judged_again_all_the_same() {
    let dns = Dns::start(&[(600, &["10.9.0.7"])]).await;
    let resolver = dns.resolver();
    assert_eq!(outcome(&resolver, "in.test:443", true).await, Ok(1));
    assert_eq!(
        outcome(&resolver, "in.test:443", false).await,
        Err(Reason::PrivateAddress)
    );
    assert_eq!(dns.asked(), ["in.test."]);
}

#[tokio::test]
async fn a_name_is_absolute() {
    let dns = Dns::start(&[(0, &[])]).await;
    assert_eq!(
        outcome(&dns.resolver(), "toolsrv:443", true).await,
        Err(Reason::DnsFailure)
    );
    assert!(
        dns.asked().iter().all(|name| name == "toolsrv."),
        "{:?}",
        dns.asked()
    );
}

#[tokio::test]
async fn static_answers_and_literal_addresses_are_checked_like_any_other() {
    let resolver = resolver_of(&config(None));
    assert_eq!(
        outcome(&resolver, "a.test:443", false).await,
        Err(Reason::PrivateAddress)
    );
    assert_eq!(outcome(&resolver, "a.test:443", true).await, Ok(1));
}

#[tokio::test]
async fn c02_the_gateway_itself_is_never_dialled() {
    for (own, authority, own_too) in [
        ("127.0.0.1:8443", "a.test:8443", true),
        ("127.0.0.1:8443", "a.test:8444", false),
        ("127.0.0.1:0", "a.test:8444", true),
        ("0.0.0.0:8443", "a.test:8443", true),
        ("[::]:8443", "a.test:8443", true),
        ("0.0.0.0:8443", "a.test:8444", false),
        ("[::ffff:127.0.0.1]:8443", "a.test:8443", true),
    ] {
        let own_addresses = vec![own.parse().unwrap()];
        let resolver = resolver_of(&UpstreamConfig {
            own_addresses,
            ..config(None)
        });
        let expected = if own_too {
            Err(Reason::GatewayAddress)
        } else {
            Ok(1)
        };
        assert_eq!(
            outcome(&resolver, authority, true).await,
            expected,
            "{own} {authority}"
        );
    }
}

#[tokio::test]
async fn a_raw_connection_goes_through_the_same_checks() {
    let origin = Origin::raw(async |stream| drop(stream)).await;
    let sandbox = Upstream::new(config(None)).unwrap().for_sandbox();
    let authority = format!("a.test:{}", origin.address.port());
    let open = permit(Protocol::Tcp, &authority, true);
    let connected = sandbox.connect_tcp(&open).await.unwrap();
    assert_eq!(connected.peer, origin.address);
    assert!(connected.stream.socket().nodelay().unwrap());
    let shut = permit(Protocol::Tcp, &authority, false);
    let error = sandbox.connect_tcp(&shut).await.unwrap_err();
    assert_eq!(error.reason(), Reason::PrivateAddress);
    assert_eq!(error.peer(), Some(origin.address));
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let origin = Origin::http().await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    assert_ne!(address, origin.address);
    let sandbox = Upstream::new(config(None)).unwrap().for_sandbox();
    let permit = permit(Protocol::Http, &format!("a.test:{}", address.port()), true);
    let error = send(&sandbox, &permit, get("/")).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Connect { .. }), "{error}");
    assert_eq!(
        (error.reason(), error.peer()),
        (Reason::UpstreamUnreachable, Some(address))
    );
}
