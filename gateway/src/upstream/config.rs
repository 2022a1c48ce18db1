//! How upstreams are reached, as an operator writes it down.
//!
//! Text is parsed into its final type here: what cannot work is refused at start, with every part
//! named. Servers are given by address, because there is no resolver yet that could look them up.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use outgate_policy::Host;
use rustls_pki_types::{CertificateDer, ServerName};
use serde::Deserialize;

use super::next_hop::NextHopConfig;

const DNS_PORT: u16 = 53;
const DNS_OVER_TLS_PORT: u16 = 853;
const DNS_OVER_HTTPS_PORT: u16 = 443;
/// Where RFC 8484 examples and most servers answer.
const DNS_OVER_HTTPS_PATH: &str = "/dns-query";

/// How origins are reached, for the whole gateway.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Who is asked for addresses.
    pub resolver: ResolverConfig,
    /// Static answers, which win over DNS. They are checked like any other answer.
    pub hosts: HashMap<Host, Vec<IpAddr>>,
    /// Roots trusted beside the platform's: for origins and for DNS servers.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Where the gateway itself listens: never dialled, whatever a policy says. Port 0 stands for
    /// every port, an unspecified address for every address of the machine.
    pub own_addresses: Vec<SocketAddr>,
    /// The organisation's own proxy, if connections have to go through one.
    pub next_hop: Option<NextHopConfig>,
    /// How long a TCP connection may take over all addresses of an answer.
    pub connect_timeout: Duration,
}

impl Default for UpstreamConfig {
    /// The system's resolver, the platform's roots, 10 s to connect.
    fn default() -> Self {
        Self {
            resolver: ResolverConfig::default(),
            hosts: HashMap::new(),
            extra_roots: Vec::new(),
            own_addresses: Vec::new(),
            next_hop: None,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// Who is asked for the addresses of origins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolverConfig {
    /// Any number of them. None means the system's resolver: its
    /// servers from `/etc/resolv.conf` and its hosts file, but never its search domains.
    #[serde(default)]
    pub servers: Vec<DnsServer>,
}

/// A DNS server, written as one of
///
/// - `192.0.2.1` or `192.0.2.1:5353`: over UDP, and over TCP where an answer does not fit;
/// - `tcp://192.0.2.1`: over TCP alone;
/// - `tls://192.0.2.1#dns.example`: over TLS (RFC 7858), port 853 unless given;
/// - `https://192.0.2.1/dns-query#dns.example`: over HTTP/2 (RFC 8484), port 443 unless given.
///
/// What follows `#` is the name that the server's certificate must be valid for; the address itself
/// if nothing does. An IPv6 address with a port is in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DnsServer {
    pub(super) address: SocketAddr,
    pub(super) transport: DnsTransport,
}

/// How a DNS server is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DnsTransport {
    /// UDP first.
    Plain,
    Tcp,
    Tls {
        name: String,
    },
    Https {
        name: String,
        path: String,
    },
}

/// Why a text names no DNS server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DnsServerError {
    /// The part before `://` is none of the four.
    #[error(
        "`{0}` is no way to reach a DNS server: use an address alone, `tcp://`, `tls://` or `https://`"
    )]
    Scheme(String),
    /// There is a name where an address belongs.
    #[error("`{0}` is no IP address with or without a port; a DNS server is given by its address")]
    Address(String),
    /// The name of the certificate can't be one.
    #[error("`{0}` is no name that a certificate could be valid for")]
    Name(String),
    /// A part that this transport has no use for.
    #[error(
        "`{0}` after the address means nothing here: only `https://` takes a path, and only `tls://` and `https://` a `#` with the certificate's name"
    )]
    Extra(String),
}

impl FromStr for DnsServer {
    type Err = DnsServerError;

    fn from_str(text: &str) -> Result<Self, DnsServerError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (rest, name) = match rest.split_once('#') {
            Some((rest, name)) => (rest, Some(name)),
            None => (rest, None),
        };
        let (place, path) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(&rest[at..])),
            None => (rest, None),
        };
        let is_https = scheme == "https";
        let is_encrypted = is_https || scheme == "tls";
        if let Some(path) = path.filter(|_| !is_https) {
            return Err(DnsServerError::Extra(path.to_owned()));
        }
        if let Some(name) = name.filter(|_| !is_encrypted) {
            return Err(DnsServerError::Extra(format!("#{name}")));
        }
        let port = match scheme {
            "" | "udp" | "tcp" => DNS_PORT,
            "tls" => DNS_OVER_TLS_PORT,
            "https" => DNS_OVER_HTTPS_PORT,
            _ => return Err(DnsServerError::Scheme(scheme.to_owned())),
        };
        let address = address(place, port)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => address.ip().to_string(),
        };
        if ServerName::try_from(name.as_str()).is_err() {
            return Err(DnsServerError::Name(name));
        }
        let transport = match scheme {
            "tcp" => DnsTransport::Tcp,
            "tls" => DnsTransport::Tls { name },
            "https" => DnsTransport::Https {
                name,
                path: path.unwrap_or(DNS_OVER_HTTPS_PATH).to_owned(),
            },
            _ => DnsTransport::Plain,
        };
        Ok(Self { address, transport })
    }
}

/// An address with a port or without.
fn address(text: &str, default_port: u16) -> Result<SocketAddr, DnsServerError> {
    let alone = || {
        let inner = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        inner.unwrap_or(text).parse::<IpAddr>()
    };
    text.parse()
        .or_else(|_| alone().map(|ip| SocketAddr::new(ip, default_port)))
        .map_err(|_| DnsServerError::Address(text.to_owned()))
}

impl TryFrom<String> for DnsServer {
    type Error = DnsServerError;

    fn try_from(text: String) -> Result<Self, DnsServerError> {
        text.parse()
    }
}

impl From<SocketAddr> for DnsServer {
    /// Over UDP, and over TCP where an answer does not fit.
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            transport: DnsTransport::Plain,
        }
    }
}

impl fmt::Display for DnsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match &self.transport {
            DnsTransport::Plain => write!(f, "{address}"),
            DnsTransport::Tcp => write!(f, "tcp://{address}"),
            DnsTransport::Tls { name } => write!(f, "tls://{address}#{name}"),
            DnsTransport::Https { name, path } => write!(f, "https://{address}{path}#{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_written() {
        for (text, full) in [
            ("192.0.2.1", "192.0.2.1:53"),
            ("udp://192.0.2.1:5353", "192.0.2.1:5353"),
            ("2001:db8::1", "[2001:db8::1]:53"),
            ("[2001:db8::1]:54", "[2001:db8::1]:54"),
            ("tcp://[2001:db8::1]", "tcp://[2001:db8::1]:53"),
            (
                "tls://192.0.2.1#dns.example",
                "tls://192.0.2.1:853#dns.example",
            ),
            ("tls://192.0.2.1", "tls://192.0.2.1:853#192.0.2.1"),
            (
                "https://192.0.2.1#dns.example",
                "https://192.0.2.1:443/dns-query#dns.example",
            ),
            (
                "https://[2001:db8::1]:8443/q#dns.example",
                "https://[2001:db8::1]:8443/q#dns.example",
            ),
        ] {
            let server: DnsServer = text.parse().unwrap();
            assert_eq!(server.to_string(), full, "{text}");
            assert_eq!(full.parse(), Ok(server), "{full}");
        }
    }

    #[test]
    fn what_names_no_server_says_which_part() {
        let error = |text: &str| text.parse::<DnsServer>().unwrap_err();
        assert_eq!(
            error("quic://192.0.2.1"),
            DnsServerError::Scheme("quic".into())
        );
        assert_eq!(
            error("dns.example"),
            DnsServerError::Address("dns.example".into())
        );
        assert_eq!(error(""), DnsServerError::Address(String::new()));
        assert_eq!(
            error("tls://192.0.2.1#"),
            DnsServerError::Name(String::new())
        );
        assert_eq!(
            error("tls://192.0.2.1#a b"),
            DnsServerError::Name("a b".into())
        );
        assert_eq!(
            error("192.0.2.1#dns.example"),
            DnsServerError::Extra("#dns.example".into())
        );
        assert_eq!(
            error("tls://192.0.2.1/q"),
            DnsServerError::Extra("/q".into())
        );
        assert_eq!(error("127.1"), DnsServerError::Address("127.1".into()));
        assert_eq!(
            error("192.0.2.1:99999"),
            DnsServerError::Address("192.0.2.1:99999".into())
        );
    }
}
