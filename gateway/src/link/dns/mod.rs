//! The DNS server of one sandbox: answers are made up here, no question ever leaves.
//!
//! A name that policy may allow gets a synthetic address; every other name does not exist. So names
//! carry nothing out (field cases B090, B091, B102). What is true of a name is in [`zone`], how a
//! guest that spells data in names is noticed in [`alarm`]; this file reads a message, bounds what
//! it may cost, and writes the reply (RFC 1035, 6891, 8482, 9619). An answer never exceeds the
//! 512 bytes that every client takes, so none is ever truncated.

mod alarm;
mod tcp;
mod zone;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};
use outgate_policy::Host;
use tokio::sync::Semaphore;
use tokio::time::{Duration, Instant};

use super::names::Names;
use super::{DeniedNames, Dropped, FlowHandler, NameAdmission, NameAnswer, lock};
use crate::rate::Rate;
use alarm::Alarm;
use zone::{Found, Zone};

pub(super) use tcp::serve;

/// Questions answered per second and sandbox, averaged; each can become an audit record.
pub const QUERIES_PER_SECOND: u32 = 500;
/// Questions that may come at once: a package manager that starts.
const QUERY_BURST: u32 = 1000;
/// Names that only a wildcard matches and that a sandbox may ask for at once. A name that it holds
/// already costs nothing.
pub const WILDCARD_NAMES: u32 = 1000;
/// How many of them come back per second: more than a person browses, 3600 an hour for one who
/// writes data into names.
const WILDCARD_NAMES_PER_SECOND: u32 = 1;
/// Largest question, in bytes: the longest name with any EDNS options that a resolver sends.
const MAX_QUESTION: usize = 2048;
/// Records beside the question (EDNS and a signature) that are read at most.
const MAX_ADDITIONAL: u16 = 4;
/// UDP payload that we announce to take (EDNS), in bytes.
const UDP_PAYLOAD: u16 = 1232;
/// The EDNS version that we speak (RFC 6891).
const EDNS_VERSION: u8 = 0;
const HEADER: usize = 12;

/// The DNS server of one sandbox.
pub(super) struct Resolver {
    zone: Zone,
    handler: Arc<dyn FlowHandler>,
    denied: DeniedNames,
    rate: Mutex<Rate>,
    budget: Mutex<Rate>,
    alarm: Mutex<Alarm>,
    connections: Arc<Semaphore>,
    malformed: AtomicU64,
    refused_connections: AtomicU64,
}

impl Resolver {
    pub(super) fn new(
        names: Arc<Mutex<Names>>,
        handler: Arc<dyn FlowHandler>,
        denied: DeniedNames,
    ) -> Self {
        Self {
            zone: Zone::new(names),
            handler,
            denied,
            rate: Mutex::new(Rate::new(QUERIES_PER_SECOND, QUERY_BURST)),
            budget: Mutex::new(Rate::new(WILDCARD_NAMES_PER_SECOND, WILDCARD_NAMES)),
            alarm: Mutex::default(),
            connections: Arc::new(Semaphore::new(tcp::MAX_CONNECTIONS)),
            malformed: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
        }
    }

    /// Answers one datagram.
    pub(super) fn answer(&self, message: &[u8]) -> Result<Vec<u8>, Dropped> {
        if !lock(&self.rate).admit(Instant::now()) {
            return Err(Dropped::DnsRate);
        }
        self.reply(message)
    }

    /// What was turned down since the last call, for the counters of the link.
    pub(super) fn take_drops(&self) -> [(Dropped, u64); 2] {
        [
            (Dropped::DnsMalformed, &self.malformed),
            (Dropped::DnsConnections, &self.refused_connections),
        ]
        .map(|(what, count)| (what, count.swap(0, Ordering::Relaxed)))
    }

    /// When the next question may be answered; none if that is now, and one is taken.
    fn admit(&self) -> Option<Duration> {
        let mut rate = lock(&self.rate);
        let now = Instant::now();
        (!rate.admit(now)).then(|| rate.wait())
    }

    /// The reply to a message, whatever came before it.
    fn reply(&self, message: &[u8]) -> Result<Vec<u8>, Dropped> {
        let header = Header::read(message).ok_or(Dropped::Malformed)?;
        if header.is_response {
            return Err(Dropped::Malformed);
        }
        let reply = if header.op_code != OpCode::Query {
            header.error(ResponseCode::NotImp)
        } else if !header.is_plain() || message.len() > MAX_QUESTION {
            self.malformed(&header)
        } else {
            match Message::from_vec(message) {
                Ok(question) => self.respond(&question),
                Err(_) => self.malformed(&header),
            }
        };
        reply.to_vec().map_err(|_| Dropped::Malformed)
    }

    fn malformed(&self, header: &Header) -> Message {
        self.malformed.fetch_add(1, Ordering::Relaxed);
        header.error(ResponseCode::FormErr)
    }

    fn respond(&self, question: &Message) -> Message {
        let asked = question.metadata;
        let mut reply = Message::new(asked.id, MessageType::Response, asked.op_code);
        reply.metadata.recursion_desired = asked.recursion_desired;
        reply.metadata.checking_disabled = asked.checking_disabled;
        reply.metadata.recursion_available = true;
        if let Some(theirs) = &question.edns {
            // Options are neither used nor sent back: no cookie, no client subnet.
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD);
            edns.set_version(EDNS_VERSION);
            edns.set_dnssec_ok(theirs.flags().dnssec_ok);
            reply.edns = Some(edns);
            if theirs.version() > EDNS_VERSION {
                reply.metadata.response_code = ResponseCode::BADVERS;
                return reply;
            }
        }
        // The question goes back as it came, letter case included: a resolver may have hidden
        // a nonce in it.
        let [query] = question.queries.as_slice() else {
            reply.metadata.response_code = ResponseCode::FormErr;
            return reply;
        };
        reply.add_query(query.clone());
        match self.resolve(query) {
            Found::Record(record) => {
                reply.add_answer(*record);
            }
            Found::NoData => {
                reply.add_authority(zone::start_of_authority());
            }
            Found::NoName => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                reply.add_authority(zone::start_of_authority());
            }
            Found::Refused => reply.metadata.response_code = ResponseCode::Refused,
            Found::Failure => reply.metadata.response_code = ResponseCode::ServFail,
        }
        reply
    }

    /// What there is to say to a question. Every question is reported, whatever the answer.
    fn resolve(&self, query: &Query) -> Found {
        let text = zone::text(query.name());
        let (answer, found) = self.judge(query, &text);
        self.handler.name_query(&text, answer);
        if !zone::is_local(query.name())
            && let Some(raised) = lock(&self.alarm).observe(query.name(), Instant::now())
        {
            self.handler.name_alarm(&raised);
        }
        found
    }

    fn judge(&self, query: &Query, text: &str) -> (NameAnswer, Found) {
        let kind = query.query_type();
        if query.query_class() != DNSClass::IN || is_transfer(kind) {
            return (NameAnswer::TypeDenied, Found::Refused);
        }
        if let Some(found) = self.zone.local(query, |name| self.admits(name)) {
            let answer = match found {
                Found::NoName => NameAnswer::Denied,
                _ => NameAnswer::Allowed,
            };
            return (answer, found);
        }
        let Ok(host) = Host::parse(text) else {
            return (NameAnswer::Denied, self.denied());
        };
        match self.handler.resolve(&host) {
            NameAdmission::Denied => return (NameAnswer::Denied, self.denied()),
            NameAdmission::Listed => {}
            NameAdmission::Wildcard => {
                let costs = !self.zone.holds(&host);
                if costs && !lock(&self.budget).admit(Instant::now()) {
                    // Not that the name does not exist: only not now.
                    return (NameAnswer::OverBudget, Found::Refused);
                }
            }
        }
        // The name is held from here on, so that asking for its other types costs nothing more.
        let Some(address) = self.zone.address(&host) else {
            return (NameAnswer::Allowed, Found::Failure);
        };
        let answer = if could_carry_data(kind) {
            NameAnswer::TypeDenied
        } else {
            NameAnswer::Allowed
        };
        (answer, zone::of_host(query, address))
    }

    fn admits(&self, name: &Host) -> bool {
        self.handler.resolve(name) != NameAdmission::Denied
    }

    fn denied(&self) -> Found {
        match self.denied {
            DeniedNames::NxDomain => Found::NoName,
            DeniedNames::Refused => Found::Refused,
        }
    }
}

/// Whole zones and transactions: nobody's business here, over no transport.
fn is_transfer(kind: RecordType) -> bool {
    // TKEY, MAILB, MAILA (RFC 2930, RFC 1035 section 3.2.3).
    matches!(
        kind,
        RecordType::AXFR
            | RecordType::IXFR
            | RecordType::OPT
            | RecordType::TSIG
            | RecordType::Unknown(249 | 253 | 254)
    )
}

/// Types that a real resolver would have to ask for, and whose answers could carry anything. Those
/// that every client asks beside an address are left out: their absence is no denial to look into.
fn could_carry_data(kind: RecordType) -> bool {
    !matches!(
        kind,
        RecordType::A
            | RecordType::AAAA
            | RecordType::ANY
            | RecordType::CNAME
            | RecordType::HTTPS
            | RecordType::SOA
            | RecordType::SVCB
    )
}

/// The fixed part of a message, read before anything else is: what it says of the rest decides
/// whether the rest is worth reading.
struct Header {
    id: u16,
    is_response: bool,
    op_code: OpCode,
    recursion_desired: bool,
    counts: [u16; 4],
}

impl Header {
    fn read(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = message.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            id: word(0),
            is_response: bytes[2] & 0x80 != 0,
            op_code: OpCode::from_u8(bytes[2] >> 3 & 0x0f),
            recursion_desired: bytes[2] & 1 != 0,
            counts: [word(4), word(6), word(8), word(10)],
        })
    }

    /// One question (RFC 9619), no answer, and no more of the rest than a client has to say.
    fn is_plain(&self) -> bool {
        let [questions, answers, authorities, additional] = self.counts;
        questions == 1 && answers == 0 && authorities <= 1 && additional <= MAX_ADDITIONAL
    }

    fn error(&self, code: ResponseCode) -> Message {
        let mut reply = Message::error_msg(self.id, self.op_code, code);
        reply.metadata.recursion_desired = self.recursion_desired;
        reply
    }
}

#[cfg(test)]
mod tests;
