//! What is true of a name inside a sandbox, for every record type.
//!
//! The gateway is the whole world's name server here. A name that exists has one A record and
//! nothing else: no AAAA for a network without IPv6, no HTTPS or SVCB that would offer encrypted
//! hellos or QUIC. What has no record of a type is NODATA, never NXDOMAIN, because libraries ask for
//! A and AAAA at once and give up on the first NXDOMAIN. Both come with a SOA, so that a resolver in
//! the guest keeps them no longer than it should (RFC 2308).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use hickory_proto::op::Query;
use hickory_proto::rr::rdata::{A, AAAA, HINFO, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use outgate_policy::Host;

use super::super::names::{Names, is_synthetic};
use super::super::{GATEWAY_IP, GATEWAY_NAME, lock};

/// How long a guest may keep an address, in seconds. Short, because names are evicted.
const TTL: u32 = 30;
/// How long a guest may keep that there is nothing, in seconds. A new policy may change that.
const NEGATIVE_TTL: u32 = 5;
/// How long the answer to ANY may be kept, in seconds (RFC 8482, section 4.2: a day or so).
const ANY_TTL: u32 = 3600;

/// What a question finds.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Record(Box<Record>),
    /// The name exists, but not with this type.
    NoData,
    NoName,
    Refused,
    Failure,
}

/// The names of one sandbox.
#[derive(Debug)]
pub(super) struct Zone {
    names: Arc<Mutex<Names>>,
}

impl Zone {
    pub(super) fn new(names: Arc<Mutex<Names>>) -> Self {
        Self { names }
    }

    /// The synthetic address of a name.
    pub(super) fn address(&self, name: &Host) -> Option<Ipv4Addr> {
        lock(&self.names).address(name)
    }

    /// Whether the name has a synthetic address already.
    pub(super) fn holds(&self, name: &Host) -> bool {
        lock(&self.names).holds(name)
    }

    /// The answer to a question that no policy is asked about: the gateway's own name, `localhost`
    /// (RFC 6761), the root, and what an address is called.
    pub(super) fn local(&self, query: &Query, admits: impl Fn(&Host) -> bool) -> Option<Found> {
        let name = query.name();
        if is_reverse(name) {
            return Some(self.reverse(query, admits));
        }
        let text = text(name);
        if text.eq_ignore_ascii_case(GATEWAY_NAME) {
            Some(of_host(query, GATEWAY_IP))
        } else if is_localhost(&text) {
            Some(match query.query_type() {
                RecordType::AAAA => record(query, TTL, RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))),
                _ => of_host(query, Ipv4Addr::LOCALHOST),
            })
        } else if name.is_root() {
            Some(Found::NoData)
        } else {
            None
        }
    }

    fn reverse(&self, query: &Query, admits: impl Fn(&Host) -> bool) -> Found {
        let Some(host) = address_in(query.name()).and_then(|address| self.called(address, admits))
        else {
            return Found::NoName;
        };
        let target = Name::from_ascii(&host).map(|mut target| {
            target.set_fqdn(true);
            target
        });
        match (query.query_type(), target) {
            (RecordType::PTR, Ok(target)) => record(query, TTL, RData::PTR(PTR(target))),
            (RecordType::ANY, _) => any(query),
            _ => Found::NoData,
        }
    }

    /// What an address is called; a name that policy no longer admits is none.
    fn called(&self, address: IpAddr, admits: impl Fn(&Host) -> bool) -> Option<String> {
        match address {
            IpAddr::V4(GATEWAY_IP) => Some(GATEWAY_NAME.to_owned()),
            address if address.is_loopback() => Some("localhost".to_owned()),
            IpAddr::V4(address) if is_synthetic(address) => {
                let name = lock(&self.names).at(address)?;
                admits(&name).then(|| name.as_str().to_owned())
            }
            _ => None,
        }
    }
}

/// The answer for a host that has one IPv4 address and nothing else.
pub(super) fn of_host(query: &Query, address: Ipv4Addr) -> Found {
    match query.query_type() {
        RecordType::A => record(query, TTL, RData::A(A(address))),
        RecordType::ANY => any(query),
        _ => Found::NoData,
    }
}

/// The record by which a server says that it does not list everything (RFC 8482, section 4.2).
fn any(query: &Query) -> Found {
    let refusal = HINFO::new("RFC8482".to_owned(), String::new());
    record(query, ANY_TTL, RData::HINFO(refusal))
}

fn record(query: &Query, ttl: u32, data: RData) -> Found {
    Found::Record(Box::new(Record::from_rdata(
        query.name().clone(),
        ttl,
        data,
    )))
}

/// What comes with a negative answer. The zone is the root: there is no other.
pub(super) fn start_of_authority() -> Record {
    let own = |name: &str| {
        // A constant that parses; the root says as little if it ever did not.
        let mut name = Name::from_ascii(name).unwrap_or_default();
        name.set_fqdn(true);
        name
    };
    let hour = 3600;
    let soa = SOA::new(
        own(GATEWAY_NAME),
        own("nobody.outgate.internal"),
        1,
        hour,
        hour,
        hour,
        NEGATIVE_TTL,
    );
    Record::from_rdata(Name::root(), NEGATIVE_TTL, RData::SOA(soa))
}

/// Whether a name is answered without asking the policy.
pub(super) fn is_local(name: &Name) -> bool {
    let text = text(name);
    is_reverse(name)
        || name.is_root()
        || is_localhost(&text)
        || text.eq_ignore_ascii_case(GATEWAY_NAME)
}

fn is_localhost(text: &str) -> bool {
    let last = text.rsplit_once('.').map_or(text, |(_, last)| last);
    last.eq_ignore_ascii_case("localhost")
}

/// Whether a name is in one of the two trees that addresses are looked up in.
fn is_reverse(name: &Name) -> bool {
    let mut labels = name.iter().rev();
    let (top, tree) = (labels.next(), labels.next());
    top.is_some_and(|label| label.eq_ignore_ascii_case(b"arpa"))
        && tree.is_some_and(|label| {
            label.eq_ignore_ascii_case(b"in-addr") || label.eq_ignore_ascii_case(b"ip6")
        })
}

/// The single address that a reverse name stands for.
fn address_in(name: &Name) -> Option<IpAddr> {
    let network = name.parse_arpa_name().ok()?;
    (network.prefix_len() == network.max_prefix_len()).then(|| network.addr())
}

/// A name as text, without the root's dot; odd bytes are escaped.
pub(super) fn text(name: &Name) -> String {
    let mut text = name.to_ascii();
    if text.len() > 1 && text.ends_with('.') && !text.ends_with("\\.") {
        text.pop();
    }
    text
}
