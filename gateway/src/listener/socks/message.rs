//! The messages of SOCKS5 (RFC 1928) and of its user and password (RFC 1929), read from bytes.
//!
//! Every reader takes what has arrived so far and says how long the message is, that more is needed,
//! or that it can't be one. Lengths are one byte each, so a message has at most some 500 bytes. What
//! a message asks for is judged elsewhere; a domain is bytes until then.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use outgate_policy::{Authority, Destination, Host, HostError, Reason, Reject};

/// The version in the first byte of greeting, request and reply.
const VERSION: u8 = 5;
/// The version of the user and password exchange.
const PASSWORD_VERSION: u8 = 1;

/// A message, and the bytes behind it; `None` when more is needed.
pub(crate) type Parsed<'a, T> = Result<Option<(T, &'a [u8])>, Reject>;

/// Ways to authenticate that the gateway knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    None = 0,
    Password = 2,
    /// None of those on offer.
    Unacceptable = 0xff,
}

/// What a client can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) none: bool,
    pub(crate) password: bool,
}

/// Reads the greeting.
///
/// # Errors
/// Another version, or no method at all.
pub(crate) fn greeting(input: &[u8]) -> Parsed<'_, Greeting> {
    let Some(rest) = version(input, VERSION)? else {
        return Ok(None);
    };
    let Some((methods, rest)) = counted(rest) else {
        return Ok(None);
    };
    if methods.is_empty() {
        return Err(bad("a greeting without methods"));
    }
    let greeting = Greeting {
        none: methods.contains(&(Method::None as u8)),
        password: methods.contains(&(Method::Password as u8)),
    };
    Ok(Some((greeting, rest)))
}

/// A user and a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) password: &'a [u8],
}

/// Reads user and password.
///
/// # Errors
/// Another version.
pub(crate) fn credentials(input: &[u8]) -> Parsed<'_, Credentials<'_>> {
    let Some(rest) = version(input, PASSWORD_VERSION)? else {
        return Ok(None);
    };
    let Some((user, rest)) = counted(rest) else {
        return Ok(None);
    };
    let Some((password, rest)) = counted(rest) else {
        return Ok(None);
    };
    Ok(Some((Credentials { user, password }, rest)))
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    address: Address,
    port: u16,
}

/// The commands of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Connect,
    /// BIND, UDP ASSOCIATE or none that there is.
    Other(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Ip(IpAddr),
    Domain(Vec<u8>),
}

/// Why a request can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadRequest {
    /// It has a kind of address that there is not.
    AddressType(u8),
    /// It is no request.
    Malformed(Reject),
}

/// Reads a request.
///
/// # Errors
/// Another version, something reserved that is not zero, or an unknown kind of address.
pub(crate) fn request(input: &[u8]) -> Result<Option<(Request, &[u8])>, BadRequest> {
    let Some(rest) = version(input, VERSION).map_err(BadRequest::Malformed)? else {
        return Ok(None);
    };
    let &[command, reserved, kind, ref rest @ ..] = rest else {
        return Ok(None);
    };
    if reserved != 0 {
        return Err(BadRequest::Malformed(bad("the reserved byte is not zero")));
    }
    let command = match command {
        1 => Command::Connect,
        other => Command::Other(other),
    };
    let address = match kind {
        1 => rest
            .split_first_chunk::<4>()
            .map(|(ip, rest)| (Address::Ip(Ipv4Addr::from(*ip).into()), rest)),
        3 => counted(rest).map(|(name, rest)| (Address::Domain(name.to_vec()), rest)),
        4 => rest
            .split_first_chunk::<16>()
            .map(|(ip, rest)| (Address::Ip(Ipv6Addr::from(*ip).into()), rest)),
        other => return Err(BadRequest::AddressType(other)),
    };
    let Some((address, &[high, low, ref rest @ ..])) = address else {
        return Ok(None);
    };
    let request = Request {
        command,
        address,
        port: u16::from_be_bytes([high, low]),
    };
    Ok(Some((request, rest)))
}

impl Request {
    /// The target, escaped, for people and records.
    pub(crate) fn target(&self) -> String {
        match &self.address {
            Address::Ip(ip) => format!("{}:{}", Destination::from(*ip), self.port),
            Address::Domain(name) => format!("{}:{}", name.escape_ascii(), self.port),
        }
    }

    /// Where the client wants to go.
    ///
    /// # Errors
    /// [`Reason::BadHost`] for a domain that is no canonical name. Clients send an address as text
    /// too; it is the address then.
    pub(crate) fn authority(&self) -> Result<Authority, Reject> {
        let bad_host = |why: String| Reject::new(Reason::BadHost, why);
        if self.port == 0 {
            return Err(bad_host(format!("`{}` has no port", self.target())));
        }
        let destination = match &self.address {
            Address::Ip(ip) => Destination::from(*ip),
            Address::Domain(name) => {
                let shown = name.escape_ascii();
                let text = std::str::from_utf8(name)
                    .map_err(|_| bad_host(format!("`{shown}` is no host name")))?;
                match (Host::parse(text), text.parse::<Ipv6Addr>()) {
                    (Ok(host), _) => Destination::Name(host),
                    (Err(HostError::IpAddress(ip)), _) => Destination::from(ip),
                    (_, Ok(ip)) => Destination::from(IpAddr::V6(ip)),
                    (Err(error), Err(_)) => return Err(bad_host(format!("`{shown}`: {error}"))),
                }
            }
        };
        Ok(Authority {
            destination,
            port: self.port,
        })
    }
}

/// What a client is told of its request (RFC 1928 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reply {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl Reply {
    /// What comes nearest to `reason`; the record says it in full.
    pub(crate) const fn of(reason: Reason) -> Self {
        match reason {
            Reason::DnsFailure | Reason::UpstreamTimeout => Self::HostUnreachable,
            Reason::UpstreamUnreachable => Self::ConnectionRefused,
            Reason::LimitExceeded | Reason::AuditUnavailable | Reason::Internal => Self::Failed,
            _ => Self::NotAllowed,
        }
    }

    /// On the wire. The bound address is nobody's business.
    pub(crate) const fn bytes(self) -> [u8; 10] {
        [VERSION, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// The answer to a greeting.
pub(crate) const fn chosen(method: Method) -> [u8; 2] {
    [VERSION, method as u8]
}

/// The answer to user and password.
pub(crate) const fn proven(is_proven: bool) -> [u8; 2] {
    [PASSWORD_VERSION, if is_proven { 0 } else { 1 }]
}

fn version(input: &[u8], expected: u8) -> Result<Option<&[u8]>, Reject> {
    match input.split_first() {
        None => Ok(None),
        Some((&version, rest)) if version == expected => Ok(Some(rest)),
        Some((version, _)) => Err(bad(format!("version {version} instead of {expected}"))),
    }
}

/// Bytes behind their number.
fn counted(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&count, rest) = input.split_first()?;
    rest.split_at_checked(usize::from(count))
}

fn bad(detail: impl Into<String>) -> Reject {
    Reject::new(Reason::BadRequest, format!("SOCKS5: {}", detail.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(name: &[u8]) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        [&[5, 1, 0, 3, length], name, &443_u16.to_be_bytes()].concat()
    }

    fn target(bytes: &[u8]) -> Result<String, Reason> {
        let (request, rest) = request(bytes).unwrap().unwrap();
        assert_eq!(rest, b"");
        let authority = request.authority().map_err(|reject| reject.reason)?;
        Ok(authority.to_string())
    }

    #[test]
    fn messages_are_read_as_they_arrive() {
        for (whole, rest) in [(&[5, 2, 0, 2][..], &b""[..]), (&[5, 1, 2, 9, 9], &[9, 9])] {
            let end = whole.len() - rest.len();
            for short in 0..end {
                assert_eq!(greeting(&whole[..short]), Ok(None));
            }
            assert_eq!(greeting(whole).unwrap().unwrap().1, rest);
        }
        let bytes = domain(b"a.test");
        for short in 0..bytes.len() {
            assert_eq!(request(&bytes[..short]), Ok(None));
        }
        assert_eq!(target(&bytes).as_deref(), Ok("a.test:443"));
        let password = [&[1, 2], &b"s1"[..], &[3], b"tok", b"more"].concat();
        for short in 0..8 {
            assert!(credentials(&password[..short]).unwrap().is_none());
        }
        let (read, rest) = credentials(&password).unwrap().unwrap();
        assert_eq!(
            (read.user, read.password, rest),
            (&b"s1"[..], &b"tok"[..], &b"more"[..])
        );
    }

    #[test]
    fn a_greeting_offers_methods() {
        let offers = |bytes: &[u8]| {
            greeting(bytes).map(|read| read.map(|(read, _)| (read.none, read.password)))
        };
        assert_eq!(offers(&[5, 1, 0]), Ok(Some((true, false))));
        assert_eq!(offers(&[5, 3, 1, 2, 128]), Ok(Some((false, true))));
        assert_eq!(offers(&[5, 1, 1]), Ok(Some((false, false))));
        assert!(offers(&[5, 0]).is_err());
        assert!(offers(&[4, 1, 0]).is_err());
    }

    #[test]
    fn addresses_of_each_kind_are_destinations() {
        assert_eq!(
            target(&[5, 1, 0, 1, 10, 9, 8, 7, 1, 187]).as_deref(),
            Ok("10.9.8.7:443")
        );
        let mut v6 = vec![5, 1, 0, 4];
        v6.extend(Ipv6Addr::LOCALHOST.octets());
        v6.extend([0, 80]);
        assert_eq!(target(&v6).as_deref(), Ok("[::1]:80"));
        // An IPv4 address in IPv6 clothes, and addresses as text, are addresses.
        let mut mapped = vec![5, 1, 0, 4];
        mapped.extend(Ipv4Addr::new(10, 9, 8, 7).to_ipv6_mapped().octets());
        mapped.extend([0, 80]);
        assert_eq!(target(&mapped).as_deref(), Ok("10.9.8.7:80"));
        assert_eq!(target(&domain(b"10.9.8.7")).as_deref(), Ok("10.9.8.7:443"));
        assert_eq!(
            target(&domain(b"2001:db8::1")).as_deref(),
            Ok("[2001:db8::1]:443")
        );
        assert_eq!(target(&domain(b"A.Test.")).as_deref(), Ok("a.test:443"));
    }

    #[test]
    fn c03_b005_a_domain_is_a_canonical_name() {
        for bad in [
            &b"evil.test\0.c.test"[..],
            b"evil.test%00.c.test",
            b"evil.test\t.c.test",
            b"evil.test\r\n.c.test",
            b"evil.test .c.test",
            b"evil.test\x7f.c.test",
            b"a\xff.test",
            "ａ.test".as_bytes(),
            "a。test".as_bytes(),
            b"a..test",
            b".a.test",
            b"a.test..",
            b"a.test:443",
            b"user@a.test",
            b"[::1]",
            b"::1%eth0",
            b"0x7f.1",
            b"2130706433",
            b"127.1",
            b"",
            &[b'l'; 64],
            &[b'a'; 255],
        ] {
            assert_eq!(
                target(&domain(bad)),
                Err(Reason::BadHost),
                "{}",
                bad.escape_ascii()
            );
        }
        let (request, _) = request(&domain(b"evil.test\0.c.test")).unwrap().unwrap();
        assert_eq!(request.target(), r"evil.test\x00.c.test:443");
    }

    #[test]
    fn other_commands_and_kinds_are_told_apart() {
        for command in [0, 2, 3, 255] {
            let bytes = [5, command, 0, 1, 1, 2, 3, 4, 0, 80];
            let (read, _) = request(&bytes).unwrap().unwrap();
            assert_eq!(read.command, Command::Other(command));
        }
        assert_eq!(request(&[5, 1, 0, 2]), Err(BadRequest::AddressType(2)));
        assert!(matches!(
            request(&[5, 1, 1, 1]),
            Err(BadRequest::Malformed(_))
        ));
        assert!(matches!(
            request(&[4, 1, 0, 1]),
            Err(BadRequest::Malformed(_))
        ));
        assert_eq!(
            target(&[5, 1, 0, 1, 1, 2, 3, 4, 0, 0]),
            Err(Reason::BadHost)
        );
    }
}
