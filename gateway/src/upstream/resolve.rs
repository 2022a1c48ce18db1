//! From a judged destination to addresses that may be dialled.
//!
//! The only maker of [`CheckedAddress`]: whoever dials has to come through here. Every address of
//! an answer is classified each time, cached or not. Those that the permit does not open are left
//! out, as if the answer did not hold them; if nothing is left, that is a refusal. Names are
//! absolute: no search domain is ever appended. Addresses in a static table and in literal
//! destinations are checked like any other.
//!
//! IPv6 and IPv4 are looked up side by side and handed out as they come (RFC 8305 section 3), so a
//! server that never answers for one family does not hold up the other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ProtocolConfig, ResolveHosts,
    ResolverConfig as ClientConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use outgate_policy::{AddressClass, Authority, Destination, Host, Permit};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::UpstreamConfig;
use super::config::{DnsServer, DnsTransport};
use super::error::{UpstreamError, with_causes};

/// Answers kept for all sandboxes; the cache drops the least useful ones. An answer lives as long
/// as its TTL says.
const CACHE_ANSWERS: u64 = 4096;
/// The longest an answer is kept whatever its TTL says, so that a moved service is found again.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// The longest that a name stays unknown after it was: a typo in a zone is mended sooner or later.
const LONGEST_NEGATIVE_TTL: Duration = Duration::from_secs(300);
/// How long one DNS server may take for one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a resolution may take with all its retries and servers.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses of one family that are looked at; answers for real services hold fewer than 20.
const MAX_ADDRESSES: usize = 64;
/// Aliases that are followed from a name to its addresses.
const MAX_ALIASES: usize = 16;

/// An address that a permit may dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedAddress(SocketAddr);

impl CheckedAddress {
    pub(super) fn get(self) -> SocketAddr {
        self.0
    }
}

/// Resolves and checks. Cheap to clone.
#[derive(Clone)]
pub(super) struct Resolver(Arc<Inner>);

struct Inner {
    dns: TokioResolver,
    hosts: HashMap<Host, Vec<IpAddr>>,
    own: OwnAddresses,
}

/// What the lookup of one family came to.
type Answer = Result<Vec<IpAddr>, Unanswered>;

enum Unanswered {
    /// A server says that there is no such name.
    NoName,
    /// No server gave an answer that can be used.
    Failed(String),
}

impl Resolver {
    pub(super) fn new(
        config: &UpstreamConfig,
        tls: rustls::ClientConfig,
    ) -> Result<Self, UpstreamError> {
        Ok(Self(Arc::new(Inner {
            dns: dns_client(&config.resolver.servers, tls)?,
            hosts: config.hosts.clone(),
            own: OwnAddresses(config.own_addresses.clone()),
        })))
    }

    /// Starts to look up the permitted authority. Dropping the result gives up.
    pub(super) fn resolve(&self, permit: &Permit) -> Resolution {
        let mut resolution = Resolution {
            resolver: self.clone(),
            authority: permit.authority().clone(),
            private: permit.allows_private(),
            at_hand: None,
            lookups: JoinSet::new(),
            refused: None,
            unanswered: None,
        };
        match &permit.authority().destination {
            Destination::Ip(ip) => resolution.at_hand = Some(vec![*ip]),
            Destination::Name(host) => match self.0.hosts.get(host) {
                Some(addresses) => resolution.at_hand = Some(addresses.clone()),
                None => {
                    for kind in [RecordType::AAAA, RecordType::A] {
                        let (resolver, host) = (self.clone(), host.clone());
                        resolution
                            .lookups
                            .spawn(async move { resolver.look_up(&host, kind).await });
                    }
                }
            },
        }
        resolution
    }

    /// The addresses of a server that the operator named, which no policy judges. IPv4 first: it
    /// is dialled one after the other.
    pub(super) async fn operators(&self, host: &Host) -> Result<Vec<IpAddr>, String> {
        if let Some(addresses) = self.0.hosts.get(host) {
            return Ok(addresses.clone());
        }
        let look_up = |kind| self.look_up(host, kind);
        let (v4, v6) = tokio::join!(look_up(RecordType::A), look_up(RecordType::AAAA));
        let mut found = Vec::new();
        let mut failure = "the answer holds no address".to_owned();
        for answer in [v4, v6] {
            match answer {
                Ok(addresses) => found.extend(addresses),
                Err(Unanswered::NoName) => "there is no such name".clone_into(&mut failure),
                Err(Unanswered::Failed(detail)) => failure = detail,
            }
        }
        if found.is_empty() {
            return Err(failure);
        }
        Ok(found)
    }

    /// Whether the gateway itself listens at `address`.
    pub(super) fn is_own(&self, address: SocketAddr) -> bool {
        self.0.own.contains(address)
    }

    /// Whether a socket connected from `local` to `peer` ended at the gateway itself, which only
    /// the connected socket can tell if the gateway listens on every address of its machine.
    pub(super) fn is_own_socket(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.0.own.is_own_socket(local, peer)
    }

    async fn look_up(&self, host: &Host, kind: RecordType) -> Answer {
        let failed = |detail: String| Unanswered::Failed(detail);
        let mut name =
            Name::from_ascii(host.as_str()).map_err(|error| failed(error.to_string()))?;
        name.set_fqdn(true);
        let lookup = timeout(RESOLVE_TIMEOUT, self.0.dns.lookup(name.clone(), kind))
            .await
            .map_err(|_| failed("no DNS server answered in time".to_owned()))?;
        match lookup {
            Ok(answer) => Ok(addresses_of(&name, answer.answers())),
            Err(NetError::Dns(DnsError::NoRecordsFound(nothing))) => match nothing.response_code {
                ResponseCode::NXDomain => Err(Unanswered::NoName),
                ResponseCode::NoError => Ok(Vec::new()),
                code => Err(failed(format!("the DNS server says: {code}"))),
            },
            Err(error) => Err(failed(with_causes(&error))),
        }
    }
}

/// The addresses that `name` leads to, by way of aliases. Records for other names are not looked
/// at: whoever answers could have put in anything.
fn addresses_of(name: &Name, records: &[Record]) -> Vec<IpAddr> {
    let mut names = vec![name.clone()];
    // An alias may come after the record it leads to; each pass finds one more or is the last.
    while names.len() <= MAX_ALIASES {
        let more = records.iter().find_map(|record| match &record.data {
            RData::CNAME(to) if names.contains(&record.name) && !names.contains(&to.0) => {
                Some(to.0.clone())
            }
            _ => None,
        });
        match more {
            Some(alias) => names.push(alias),
            None => break,
        }
    }
    let address = |record: &Record| match &record.data {
        RData::A(v4) => Some(IpAddr::V4(v4.0)),
        RData::AAAA(v6) => Some(IpAddr::V6(v6.0)),
        _ => None,
    };
    let of_the_name = records.iter().filter(|record| names.contains(&record.name));
    of_the_name
        .filter_map(address)
        .take(MAX_ADDRESSES)
        .collect()
}

/// A resolution under way.
pub(super) struct Resolution {
    resolver: Resolver,
    authority: Authority,
    private: bool,
    /// Addresses that needed no lookup.
    at_hand: Option<Vec<IpAddr>>,
    lookups: JoinSet<Answer>,
    /// The first address that was left out.
    refused: Option<UpstreamError>,
    unanswered: Option<Unanswered>,
}

impl Resolution {
    /// Those of the next family's addresses that may be dialled, maybe none; `None` once every
    /// lookup has ended. May be cancelled without losing any.
    pub(super) async fn next(&mut self) -> Option<Vec<CheckedAddress>> {
        if let Some(addresses) = self.at_hand.take() {
            return Some(self.check(addresses));
        }
        let answer = match self.lookups.join_next().await? {
            Ok(answer) => answer,
            Err(error) => Err(Unanswered::Failed(error.to_string())),
        };
        Some(match answer {
            Ok(addresses) => self.check(addresses),
            Err(unanswered) => {
                // That there is no such name is the better answer of the two.
                if !matches!(self.unanswered, Some(Unanswered::NoName)) {
                    self.unanswered = Some(unanswered);
                }
                Vec::new()
            }
        })
    }

    /// Whether there is nothing more to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.at_hand.is_none() && self.lookups.is_empty()
    }

    /// Every address that may be dialled. Never empty.
    pub(super) async fn all(mut self) -> Result<Vec<CheckedAddress>, UpstreamError> {
        let mut all = Vec::new();
        while let Some(more) = self.next().await {
            all.extend(more);
        }
        if all.is_empty() {
            return Err(self.into_error());
        }
        Ok(all)
    }

    /// Why there is no address.
    pub(super) fn into_error(self) -> UpstreamError {
        if let Some(refused) = self.refused {
            return refused;
        }
        let host = match self.authority.destination {
            Destination::Name(host) => host,
            Destination::Ip(_) => {
                return UpstreamError::Resolver(
                    "an address was neither let nor refused".to_owned(),
                );
            }
        };
        match self.unanswered {
            Some(Unanswered::NoName) => UpstreamError::NoSuchName { host },
            Some(Unanswered::Failed(detail)) => UpstreamError::Dns { host, detail },
            None => UpstreamError::Dns {
                host,
                detail: "the answer holds no address".to_owned(),
            },
        }
    }

    fn check(&mut self, addresses: Vec<IpAddr>) -> Vec<CheckedAddress> {
        let mut checked = Vec::new();
        for ip in addresses {
            match self.check_one(ip) {
                Ok(address) => checked.push(address),
                Err(error) => {
                    tracing::debug!(%error, "an address is left out");
                    self.refused.get_or_insert(error);
                }
            }
        }
        checked
    }

    fn check_one(&self, ip: IpAddr) -> Result<CheckedAddress, UpstreamError> {
        let address = SocketAddr::new(ip.to_canonical(), self.authority.port);
        let class = AddressClass::of(ip);
        if class != AddressClass::Metadata && self.resolver.is_own(address) {
            return Err(UpstreamError::OwnAddress {
                authority: self.authority.clone(),
                address,
            });
        }
        let is_open = match class {
            AddressClass::Public => true,
            AddressClass::Private => self.private,
            AddressClass::Metadata => false,
        };
        if !is_open {
            return Err(UpstreamError::Forbidden {
                authority: self.authority.clone(),
                address,
                class,
            });
        }
        Ok(CheckedAddress(address))
    }
}

/// Where the gateway itself listens. Port 0 stands for every port; the unspecified address for
/// every address of the machine.
struct OwnAddresses(Vec<SocketAddr>);

impl OwnAddresses {
    fn contains(&self, address: SocketAddr) -> bool {
        self.on_port(address.port()).any(|own| {
            let own = own.ip().to_canonical();
            own == address.ip() || own.is_unspecified() && address.ip().is_loopback()
        })
    }

    fn is_own_socket(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        local.ip() == peer.ip()
            && self
                .on_port(peer.port())
                .any(|own| own.ip().is_unspecified())
    }

    fn on_port(&self, port: u16) -> impl Iterator<Item = &SocketAddr> {
        self.0
            .iter()
            .filter(move |own| own.port() == port || own.port() == 0)
    }
}

/// A client of `servers`, or of the system's if none is named.
fn dns_client(
    servers: &[DnsServer],
    tls: rustls::ClientConfig,
) -> Result<TokioResolver, UpstreamError> {
    let failed = |error: NetError| UpstreamError::Resolver(with_causes(&error));
    let mut builder = if servers.is_empty() {
        TokioResolver::builder_tokio().map_err(failed)?
    } else {
        let servers = servers.iter().map(name_server).collect();
        TokioResolver::builder_with_config(
            ClientConfig::from_parts(None, Vec::new(), servers),
            TokioRuntimeProvider::default(),
        )
    }
    .with_tls_config(tls);
    let options: &mut ResolverOpts = builder.options_mut();
    options.cache_size = CACHE_ANSWERS;
    options.positive_max_ttl = Some(LONGEST_TTL);
    options.negative_max_ttl = Some(LONGEST_NEGATIVE_TTL);
    options.timeout = QUERY_TIMEOUT;
    // Aliases are followed here again, to see whose address an address is.
    options.preserve_intermediates = true;
    // A named DNS server is the whole truth; the system's own resolver includes its hosts file.
    options.use_hosts_file = if servers.is_empty() {
        ResolveHosts::Always
    } else {
        ResolveHosts::Never
    };
    builder.build().map_err(failed)
}

fn name_server(server: &DnsServer) -> NameServerConfig {
    let transports = match &server.transport {
        DnsTransport::Plain => vec![ProtocolConfig::Udp, ProtocolConfig::Tcp],
        DnsTransport::Tcp => vec![ProtocolConfig::Tcp],
        DnsTransport::Tls { name } => vec![ProtocolConfig::Tls {
            server_name: name.as_str().into(),
        }],
        DnsTransport::Https { name, path } => vec![ProtocolConfig::Https {
            server_name: name.as_str().into(),
            path: path.as_str().into(),
        }],
    };
    let port = server.address.port();
    let connections = transports.into_iter().map(|protocol| {
        let mut connection = ConnectionConfig::new(protocol);
        connection.port = port;
        connection
    });
    NameServerConfig::new(server.address.ip(), true, connections.collect())
}
