//! Where a request goes: protocol, destination and port, read strictly.
//!
//! Nothing here resolves a name. An IPv6 form that only wraps an IPv4 address is that IPv4 address,
//! so that a rule about one speaks about both.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Host, HostError, Reason, Reject};

/// What is spoken to the destination.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP over TLS that the gateway intercepts.
    Https,
    /// HTTP in clear text.
    Http,
    /// A byte stream that the gateway passes on unread.
    Tcp,
    /// Datagrams that the gateway passes on unread.
    Udp,
    /// TLS that the gateway passes on undecrypted after checking the server name; in a policy file
    /// `tls: passthrough` of an https rule.
    Tls,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Self; 5] = [Self::Https, Self::Http, Self::Tcp, Self::Udp, Self::Tls];

    /// 443 for https and tls, 80 for http; the others have none.
    #[must_use]
    pub const fn default_port(self) -> Option<u16> {
        match self {
            Self::Https | Self::Tls => Some(443),
            Self::Http => Some(80),
            Self::Tcp | Self::Udp => None,
        }
    }

    /// The lower-case name, as in a policy file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Tls => "tls",
        }
    }

    /// Whether requests of this protocol have a method and a path.
    #[must_use]
    pub const fn is_http(self) -> bool {
        matches!(self, Self::Https | Self::Http)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A canonical name or address, before any resolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// A DNS name.
    Name(Host),
    /// An address; never an IPv4 address wrapped in IPv6.
    Ip(IpAddr),
}

impl Destination {
    /// Reads `name`, `1.2.3.4` or `[2001:db8::1]`, without port.
    ///
    /// # Errors
    /// [`Reason::BadHost`] for anything else, with what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Reject> {
        let bad_host = |why: String| Reject::new(Reason::BadHost, why);
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner
                .strip_suffix(']')
                .and_then(|inner| inner.parse::<Ipv6Addr>().ok());
            let address = address.ok_or_else(|| {
                bad_host(format!(
                    "`{}` is no IPv6 address in brackets",
                    text.escape_default()
                ))
            })?;
            return Ok(Self::from(IpAddr::V6(address)));
        }
        match Host::parse(text) {
            Ok(host) => Ok(Self::Name(host)),
            Err(HostError::IpAddress(address)) => Ok(Self::Ip(IpAddr::V4(address))),
            Err(error) => Err(bad_host(format!("`{}`: {error}", text.escape_default()))),
        }
    }

    /// The name, unless it is an address.
    #[must_use]
    pub const fn name(&self) -> Option<&Host> {
        match self {
            Self::Name(host) => Some(host),
            Self::Ip(_) => None,
        }
    }
}

impl From<IpAddr> for Destination {
    fn from(address: IpAddr) -> Self {
        Self::Ip(address.to_canonical())
    }
}

impl From<Ipv4Addr> for Destination {
    fn from(address: Ipv4Addr) -> Self {
        Self::Ip(address.into())
    }
}

impl From<Host> for Destination {
    fn from(host: Host) -> Self {
        Self::Name(host)
    }
}

/// IPv6 in brackets, so that a port may follow.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(host) => host.fmt(f),
            Self::Ip(IpAddr::V4(address)) => address.fmt(f),
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// A destination and a port. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Authority {
    /// Name or address.
    pub destination: Destination,
    /// Port, never 0 when parsed.
    pub port: u16,
}

impl Authority {
    /// Reads `host`, `host:port`, `1.2.3.4:port`, `[v6]:port`. Without a port in the text it is
    /// `default_port` (usually [`Protocol::default_port`]).
    ///
    /// # Errors
    /// [`Reason::BadHost`] for a bad host or port, a missing port without default, or userinfo.
    pub fn parse(text: &str, default_port: impl Into<Option<u16>>) -> Result<Self, Reject> {
        // Told apart from other mistakes, and not quoted: what stands there may be a password.
        if text.contains('@') {
            let detail = "a user name or password in front of the host (`user:password@host`); a request has \
                          none, send it in a header";
            return Err(Reject::new(Reason::BadHost, detail));
        }
        let (host, port) = split_port(text);
        let destination = Destination::parse(host)?;
        let port = match port {
            Some(port) => parse_port(port).ok_or_else(|| {
                let port = port.escape_default();
                Reject::new(
                    Reason::BadHost,
                    format!("`{port}` is no port from 1 to 65535"),
                )
            })?,
            None => default_port.into().ok_or_else(|| {
                Reject::new(
                    Reason::BadHost,
                    format!("`{destination}` needs a port: `host:port`"),
                )
            })?,
        };
        Ok(Self { destination, port })
    }
}

/// Omits nothing: the port is always there.
impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.destination, self.port)
    }
}

/// Splits at the first colon outside of brackets; a second colon stays in the port and spoils it.
fn split_port(text: &str) -> (&str, Option<&str>) {
    let after_bracket = if text.starts_with('[') {
        text.find(']').unwrap_or(0)
    } else {
        0
    };
    let colon = text.get(after_bracket..).and_then(|rest| rest.find(':'));
    match colon.and_then(|colon| text.split_at_checked(after_bracket + colon)) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => (text, None),
    }
}

/// Plain decimal, 1 to 65535: no sign, no leading zero, no space.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    let plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, Reason> {
        Authority::parse(text, 443)
            .map(|a| a.to_string())
            .map_err(|reject| reject.reason)
    }

    #[test]
    fn reads_the_four_forms() {
        assert_eq!(shown("A.test.").unwrap(), "a.test:443");
        assert_eq!(shown("toolsrv:8080").unwrap(), "toolsrv:8080");
        assert_eq!(shown("10.9.8.7:80").unwrap(), "10.9.8.7:80");
        assert_eq!(shown("[2001:DB8::1]").unwrap(), "[2001:db8::1]:443");
        assert_eq!(shown("[::1]:8443").unwrap(), "[::1]:8443");
    }

    #[test]
    fn c02_wrapped_ipv4_is_ipv4() {
        assert_eq!(shown("[::ffff:10.9.1.5]").unwrap(), "10.9.1.5:443");
        assert_eq!(shown("[::ffff:a9fe:a9fe]").unwrap(), "169.254.169.254:443");
    }

    #[test]
    fn c06_everything_else_is_a_bad_host() {
        for text in [
            "",
            ":443",
            "a.test:",
            "a.test:0",
            "a.test:0443",
            "a.test:+443",
            "a.test:65536",
            "a.test:443:443",
            "user@a.test",
            "user:pass@a.test",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]x:4",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]",
            "a.test, b.test",
            "[1.2.3.4]",
            "[]",
            "a.test:44 3",
            "a.test/",
            "http://a.test",
            "a.test:٤٤٣",
            "1.2.3.4.:80",
            " a.test",
        ] {
            assert_eq!(shown(text), Err(Reason::BadHost), "{text}");
        }
    }

    #[test]
    fn a_password_is_not_quoted() {
        for text in ["user:s3cr3t@a.test", "s3cr3t@a.test:80", ":s3cr3t@a.test"] {
            let reject = Authority::parse(text, 443).unwrap_err();
            assert!(
                reject.detail.starts_with("a user name or password"),
                "{text}"
            );
            assert!(!reject.to_string().contains("s3cr3t"), "{text}");
        }
    }

    #[test]
    fn tcp_has_no_default_port() {
        let reject = Authority::parse("db.test", Protocol::Tcp.default_port()).unwrap_err();
        assert_eq!(reject.detail, "`db.test` needs a port: `host:port`");
    }
}
