//! From a judged destination to addresses that may be dialled.
//!
//! The only maker of [`CheckedAddress`]: whoever dials has to come through here. Every address of
//! an answer is classified each time, cached or not, and one forbidden address spoils the answer.
//! Names are absolute: no search domain is ever appended. Addresses in a static table and in
//! literal destinations are checked like any other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Name;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ProtocolConfig, ResolveHosts,
    ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use outgate_policy::{AddressClass, Destination, Host, Permit};
use tokio::time::timeout;

use super::UpstreamConfig;
use super::error::{UpstreamError, with_causes};

/// Answers kept for all sandboxes; the cache drops the least useful ones. An answer lives as long
/// as its TTL says.
const CACHE_ANSWERS: u64 = 4096;
/// The longest an answer is kept whatever its TTL says, so that a moved service is found again.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// How long one DNS server may take for one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a resolution may take with all its retries.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

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

impl Resolver {
    pub(super) fn new(config: UpstreamConfig) -> Result<Self, UpstreamError> {
        Ok(Self(Arc::new(Inner {
            dns: dns_client(&config.dns)?,
            hosts: config.hosts,
            own: OwnAddresses(config.own_addresses),
        })))
    }

    /// Every address of the permitted authority, each of them allowed. Never empty.
    pub(super) async fn resolve(
        &self,
        permit: &Permit,
    ) -> Result<Vec<CheckedAddress>, UpstreamError> {
        match &permit.authority().destination {
            Destination::Ip(ip) => self.check(permit, [*ip]),
            Destination::Name(host) => {
                let addresses = self.look_up(host).await?;
                if addresses.is_empty() {
                    return Err(dns_error(host, "the answer holds no address"));
                }
                self.check(permit, addresses)
            }
        }
    }

    /// Whether a socket connected from `local` to `peer` ended at the gateway itself, which only
    /// the connected socket can tell if the gateway listens on every address of its machine.
    pub(super) fn is_own_socket(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.0.own.is_own_socket(local, peer)
    }

    async fn look_up(&self, host: &Host) -> Result<Vec<IpAddr>, UpstreamError> {
        if let Some(addresses) = self.0.hosts.get(host) {
            return Ok(addresses.clone());
        }
        let mut name =
            Name::from_ascii(host.as_str()).map_err(|error| dns_error(host, error.to_string()))?;
        name.set_fqdn(true);
        let answer = timeout(RESOLVE_TIMEOUT, self.0.dns.lookup_ip(name))
            .await
            .map_err(|_| dns_error(host, "no answer in time"))?
            .map_err(|error| dns_error(host, with_causes(&error)))?;
        Ok(answer.iter().collect())
    }

    fn check(
        &self,
        permit: &Permit,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Vec<CheckedAddress>, UpstreamError> {
        let check = |ip: IpAddr| {
            let address = SocketAddr::new(ip.to_canonical(), permit.authority().port);
            let authority = permit.authority().clone();
            let class = AddressClass::of(ip);
            if class != AddressClass::Metadata && self.0.own.contains(address) {
                return Err(UpstreamError::OwnAddress { authority, address });
            }
            let is_open = match class {
                AddressClass::Public => true,
                AddressClass::Private => permit.allows_private(),
                AddressClass::Metadata => false,
            };
            if !is_open {
                return Err(UpstreamError::Forbidden {
                    authority,
                    address,
                    class,
                });
            }
            Ok(CheckedAddress(address))
        };
        addresses.into_iter().map(check).collect()
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
fn dns_client(servers: &[SocketAddr]) -> Result<TokioResolver, UpstreamError> {
    let failed =
        |error: hickory_resolver::net::NetError| UpstreamError::Resolver(with_causes(&error));
    let mut builder = if servers.is_empty() {
        TokioResolver::builder_tokio().map_err(failed)?
    } else {
        let servers = servers.iter().map(name_server).collect();
        TokioResolver::builder_with_config(
            ResolverConfig::from_parts(None, Vec::new(), servers),
            TokioRuntimeProvider::default(),
        )
    };
    let options: &mut ResolverOpts = builder.options_mut();
    options.cache_size = CACHE_ANSWERS;
    options.positive_max_ttl = Some(LONGEST_TTL);
    options.negative_max_ttl = Some(LONGEST_TTL);
    options.timeout = QUERY_TIMEOUT;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // A named DNS server is the whole truth; the system's own resolver includes its hosts file.
    options.use_hosts_file = if servers.is_empty() {
        ResolveHosts::Always
    } else {
        ResolveHosts::Never
    };
    builder.build().map_err(failed)
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ProtocolConfig::Udp, ProtocolConfig::Tcp].map(|protocol| {
        let mut connection = ConnectionConfig::new(protocol);
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

fn dns_error(host: &Host, detail: impl Into<String>) -> UpstreamError {
    UpstreamError::Dns {
        host: host.clone(),
        detail: detail.into(),
    }
}
