//! The organisation's own proxy, as an operator writes it down.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use outgate_policy::{Authority, Host};
use serde::Deserialize;

/// The organisation's own proxy, which every connection goes through that `no_proxy` does not spare.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHopConfig {
    /// `http://HOST:PORT`, or `https://HOST:PORT` for TLS with the proxy itself.
    pub proxy: ProxyAddress,
    /// Who we are to the proxy, as `user:password` (basic authentication).
    #[serde(default)]
    pub credentials: Option<ProxyCredentials>,
    /// What is reached without it: `host.example`, `*.example` for all names below, `192.0.2.1` or
    /// `192.0.2.0/24`.
    #[serde(default)]
    pub no_proxy: Vec<NoProxy>,
    /// Ask the proxy for names instead of checked addresses. Needed where the gateway can't resolve
    /// the world's names, or where the proxy judges by name. Then **nobody here checks the address**
    /// that a name leads to: an allowed name that points into your network is a way into it, unless
    /// the proxy refuses that.
    #[serde(default)]
    pub danger_proxy_resolves: bool,
}

/// Where a proxy listens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ProxyAddress {
    pub(in super::super) tls: bool,
    pub(in super::super) authority: Authority,
}

/// Where the proxy's `user:password` is read from, once at start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyCredentials {
    /// A variable of the gateway's environment.
    Env(String),
    /// A file of one line.
    File(PathBuf),
}

/// One destination, or many, that the proxy is not used for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum NoProxy {
    /// One name.
    Name(Host),
    /// All names below one, but not itself.
    Below(Host),
    /// Addresses: of destinations that are addresses, and of names that lead to one.
    Network(IpNet),
}

/// Why a text is no part of a next hop's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NextHopError {
    /// Not a proxy's address.
    #[error(
        "`{0}` is no proxy: use `http://HOST:PORT` or `https://HOST:PORT`, and put credentials elsewhere"
    )]
    Proxy(String),
    /// Neither a name nor a network.
    #[error(
        "`{0}` is nothing to go to without a proxy: use `host.example`, `*.example`, `192.0.2.1` or `192.0.2.0/24`"
    )]
    NoProxy(String),
    /// Neither a variable nor a file.
    #[error("`{0}` is no place for credentials: use `env:VARIABLE` or `file:PATH`")]
    Credentials(String),
}

impl FromStr for ProxyAddress {
    type Err = NextHopError;

    fn from_str(text: &str) -> Result<Self, NextHopError> {
        let wrong = || NextHopError::Proxy(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        // Credentials in a URL end up in process lists and logs; the port is never guessed.
        let place = rest.strip_suffix('/').unwrap_or(rest);
        let authority = Authority::parse(place, None).map_err(|_| wrong())?;
        Ok(Self { tls, authority })
    }
}

impl fmt::Display for ProxyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl FromStr for ProxyCredentials {
    type Err = NextHopError;

    fn from_str(text: &str) -> Result<Self, NextHopError> {
        match text.split_once(':') {
            Some(("env", name)) if !name.is_empty() => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(NextHopError::Credentials(text.to_owned())),
        }
    }
}

impl fmt::Display for ProxyCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the variable `{name}`"),
            Self::File(path) => write!(f, "the file `{}`", path.display()),
        }
    }
}

impl FromStr for NoProxy {
    type Err = NextHopError;

    fn from_str(text: &str) -> Result<Self, NextHopError> {
        let wrong = || NextHopError::NoProxy(text.to_owned());
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network.trunc()));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Network(ip.into()));
        }
        match text.strip_prefix("*.") {
            Some(parent) => Host::parse(parent).map(Self::Below).map_err(|_| wrong()),
            None => Host::parse(text).map(Self::Name).map_err(|_| wrong()),
        }
    }
}

impl NoProxy {
    pub(super) fn has_name(&self, name: &Host) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Below(parent) => name
                .as_str()
                .strip_suffix(parent.as_str())
                .is_some_and(|rest| rest.ends_with('.')),
            Self::Network(_) => false,
        }
    }

    pub(super) fn has_address(&self, ip: IpAddr) -> bool {
        matches!(self, Self::Network(network) if network.contains(&ip.to_canonical()))
    }
}

impl TryFrom<String> for NoProxy {
    type Error = NextHopError;

    fn try_from(text: String) -> Result<Self, NextHopError> {
        text.parse()
    }
}

impl TryFrom<String> for ProxyAddress {
    type Error = NextHopError;

    fn try_from(text: String) -> Result<Self, NextHopError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_a_scheme_a_host_and_a_port_and_nothing_more() {
        for (text, shown) in [
            ("http://proxy.corp.test:3128", "http://proxy.corp.test:3128"),
            ("https://10.9.0.2:443/", "https://10.9.0.2:443"),
            ("http://[fd00::1]:3128", "http://[fd00::1]:3128"),
        ] {
            assert_eq!(text.parse::<ProxyAddress>().unwrap().to_string(), shown);
        }
        for wrong in [
            "proxy:3128",
            "http://proxy",
            "socks5://proxy:1080",
            "http://user:secret@proxy:3128",
            "http://proxy:3128/path",
            "http://",
        ] {
            let error = wrong.parse::<ProxyAddress>().unwrap_err();
            assert_eq!(error, NextHopError::Proxy(wrong.to_owned()));
        }
    }

    #[test]
    fn b022_no_proxy_matches_whole_labels_and_networks() {
        let matches = |rule: &str, name: &str| {
            let rule: NoProxy = rule.parse().unwrap();
            match name.parse() {
                Ok(ip) => rule.has_address(ip),
                Err(_) => rule.has_name(&Host::parse(name).unwrap()),
            }
        };
        for (rule, name, spared) in [
            ("c.test", "c.test", true),
            ("c.test", "x.c.test", false),
            ("*.c.test", "x.y.c.test", true),
            ("*.c.test", "c.test", false),
            ("*.c.test", "evilc.test", false),
            ("*.c.test", "c.test.evil.test", false),
            ("10.9.0.0/16", "10.9.255.1", true),
            ("10.9.0.0/16", "::ffff:10.9.0.1", true),
            ("10.9.0.7/16", "10.9.1.1", true),
            ("10.9.0.0/16", "10.10.0.1", false),
            ("10.9.0.7", "10.9.0.7", true),
            ("10.9.0.7", "10.9.0.8", false),
            ("fd00::/8", "fd12::1", true),
        ] {
            assert_eq!(matches(rule, name), spared, "{rule} {name}");
        }
        for wrong in ["", "*", ".c.test", "c.*", "*.", "a b"] {
            let error = wrong.parse::<NoProxy>().unwrap_err();
            assert_eq!(error, NextHopError::NoProxy(wrong.to_owned()));
        }
    }

    #[test]
    fn credentials_have_a_place() {
        assert_eq!(
            "env:PROXY".parse(),
            Ok(ProxyCredentials::Env("PROXY".into()))
        );
        assert_eq!(
            "file:/run/p".parse(),
            Ok(ProxyCredentials::File("/run/p".into()))
        );
        for wrong in ["user:secret", "env:", "file:", "PROXY"] {
            let error = wrong.parse::<ProxyCredentials>().unwrap_err();
            assert_eq!(error, NextHopError::Credentials(wrong.to_owned()));
        }
    }
}
