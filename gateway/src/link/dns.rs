//! Answers to DNS questions, made up here: a name that policy may allow gets a synthetic address.
//!
//! No question ever leaves, so names carry nothing out (field cases B090, B091, B102). Only A
//! records exist: no AAAA for a network without IPv6, no HTTPS or SVCB that would offer encrypted
//! hellos or QUIC.

use std::io;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use outgate_policy::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Duration, Instant, timeout};

use super::names::Names;
use super::rate::Rate;
use super::{Dropped, FlowHandler, FlowStream, GATEWAY_IP, GATEWAY_NAME, lock};

/// Questions answered per second and sandbox, averaged; each can become an audit record.
pub const QUERIES_PER_SECOND: u32 = 500;
/// Questions that may come at once: a package manager that starts.
const QUERY_BURST: u32 = 1000;
/// How long a guest may keep an answer, in seconds. Short, because names are evicted.
const TTL: u32 = 30;
/// UDP payload that we announce to take (EDNS), in bytes; one question fits many times.
const UDP_PAYLOAD: u16 = 1232;
/// Largest question over TCP, in bytes.
const TCP_QUESTION: usize = 2048;
/// How long a DNS connection may be idle.
const TCP_IDLE: Duration = Duration::from_secs(10);
const HEADER: usize = 12;

/// The DNS server of one sandbox.
pub(super) struct Resolver {
    names: Arc<Mutex<Names>>,
    handler: Arc<dyn FlowHandler>,
    rate: Mutex<Rate>,
}

impl Resolver {
    pub(super) fn new(names: Arc<Mutex<Names>>, handler: Arc<dyn FlowHandler>) -> Self {
        Self {
            names,
            handler,
            rate: Mutex::new(Rate::new(QUERIES_PER_SECOND, QUERY_BURST)),
        }
    }

    /// Answers one message.
    pub(super) fn answer(&self, message: &[u8]) -> Result<Vec<u8>, Dropped> {
        let header: &[u8; HEADER] = message.first_chunk().ok_or(Dropped::Malformed)?;
        let id = u16::from_be_bytes([header[0], header[1]]);
        let is_response = header[2] & 0x80 != 0;
        if is_response {
            return Err(Dropped::Malformed);
        }
        if !lock(&self.rate).admit(Instant::now()) {
            return Err(Dropped::DnsRate);
        }
        let reply = match Message::from_vec(message) {
            Ok(question) => self.respond(&question),
            Err(_) => Message::error_msg(id, OpCode::Query, ResponseCode::FormErr),
        };
        reply.to_vec().map_err(|_| Dropped::Malformed)
    }

    fn respond(&self, question: &Message) -> Message {
        let metadata = question.metadata;
        let mut reply = Message::new(metadata.id, MessageType::Response, metadata.op_code);
        reply.metadata.recursion_desired = metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        if question.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD);
            reply.edns = Some(edns);
        }
        if metadata.op_code != OpCode::Query {
            reply.metadata.response_code = ResponseCode::NotImp;
            return reply;
        }
        // More than one question is a format error too (RFC 9619).
        let [query] = question.queries.as_slice() else {
            reply.metadata.response_code = ResponseCode::FormErr;
            return reply;
        };
        reply.add_query(query.clone());
        match self.resolve(query) {
            Ok(Some(record)) => {
                reply.add_answer(record);
            }
            Ok(None) => {}
            Err(code) => reply.metadata.response_code = code,
        }
        reply
    }

    /// The record that answers a question, none if the name has none of that type.
    fn resolve(&self, query: &Query) -> Result<Option<Record>, ResponseCode> {
        if query.query_class() != DNSClass::IN {
            return Err(ResponseCode::Refused);
        }
        let text = text(query.name());
        let host = Host::parse(&text).ok();
        let is_gateway = host
            .as_ref()
            .is_some_and(|host| host.as_str() == GATEWAY_NAME);
        let allowed = host.filter(|host| is_gateway || self.handler.resolve(host));
        self.handler.name_query(&text, allowed.is_some());
        let Some(host) = allowed else {
            return Err(ResponseCode::NXDomain);
        };
        if query.query_type() != RecordType::A {
            return Ok(None);
        }
        let address = if is_gateway {
            GATEWAY_IP
        } else {
            lock(&self.names)
                .address(&host)
                .ok_or(ResponseCode::ServFail)?
        };
        Ok(Some(Record::from_rdata(
            query.name().clone(),
            TTL,
            RData::A(A(address)),
        )))
    }
}

/// A name as text, without the root's dot; odd bytes are escaped.
fn text(name: &Name) -> String {
    let mut text = name.to_ascii();
    if text.len() > 1 && text.ends_with('.') && !text.ends_with("\\.") {
        text.pop();
    }
    text
}

/// Answers the questions of one TCP connection (RFC 7766), one after the other.
pub(super) async fn serve(mut stream: FlowStream, resolver: &Resolver) {
    // Whatever ends the exchange early, dropping the stream tells the guest by a reset.
    while let Ok(Ok(more)) = timeout(TCP_IDLE, serve_one(&mut stream, resolver)).await {
        if !more {
            // The guest is gone if this fails, which is what closing wants.
            let _closed = stream.shutdown().await;
            return;
        }
    }
}

async fn serve_one(stream: &mut FlowStream, resolver: &Resolver) -> io::Result<bool> {
    let len = match stream.read_u16().await {
        Ok(len) => usize::from(len),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    };
    if len > TCP_QUESTION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await?;
    let reply = resolver
        .answer(&message)
        .map_err(|dropped| io::Error::other(dropped.as_str()))?;
    let len = u16::try_from(reply.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[len.to_be_bytes().as_slice(), &reply].concat())
        .await?;
    Ok(true)
}
