//! The lab's name server. It answers what it was told to and logs every query it gets, because
//! "no query left" is an assertion that half of the suite makes.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;

/// One question as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsQuery {
    /// Lower case, without the final dot.
    pub name: String,
    /// `A`, `AAAA`, …
    pub record_type: String,
}

/// The zone and the query log; clones share both.
#[derive(Debug, Clone, Default)]
pub struct LabDns {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    zone: HashMap<String, VecDeque<Vec<IpAddr>>>,
    queries: Vec<DnsQuery>,
}

impl LabDns {
    /// From now on `name` has these addresses. `*.` in front stands for any name below.
    pub fn set(&self, name: &str, addresses: &[IpAddr]) {
        self.set_sequence(name, vec![addresses.to_vec()]);
    }

    /// The first query is answered with the first set, and so on; the last set stays.
    pub fn set_sequence(&self, name: &str, answers: Vec<Vec<IpAddr>>) {
        self.with(|state| state.zone.insert(name.to_owned(), answers.into()));
    }

    /// Every query so far.
    pub fn queries(&self) -> Vec<DnsQuery> {
        self.with(|state| state.queries.clone())
    }

    pub(super) async fn serve(self, socket: UdpSocket) {
        let mut buffer = vec![0; 4096];
        while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
            if let Ok(answer) = self.answer(&buffer[..length]) {
                // A client that is gone by now needs no answer.
                let _ = socket.send_to(&answer, client).await;
            }
        }
    }

    fn answer(&self, question: &[u8]) -> Result<Vec<u8>> {
        let question = Message::from_vec(question)?;
        let mut answer = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
        answer.metadata.recursion_desired = question.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        for query in &question.queries {
            answer.add_query(query.clone());
            let name = query
                .name()
                .to_ascii()
                .trim_end_matches('.')
                .to_ascii_lowercase();
            let record_type = query.query_type();
            let Some(addresses) = self.look_up(&name, record_type) else {
                answer.metadata.response_code = ResponseCode::NXDomain;
                continue;
            };
            for address in addresses {
                let data = match (address, record_type) {
                    (IpAddr::V4(v4), RecordType::A) => RData::A(v4.into()),
                    (IpAddr::V6(v6), RecordType::AAAA) => RData::AAAA(v6.into()),
                    _ => continue,
                };
                answer.add_answer(Record::from_rdata(query.name().clone(), 0, data));
            }
        }
        Ok(answer.to_vec()?)
    }

    fn look_up(&self, name: &str, record_type: RecordType) -> Option<Vec<IpAddr>> {
        self.with(|state| {
            state.queries.push(DnsQuery {
                name: name.to_owned(),
                record_type: record_type.to_string(),
            });
            let parents = name
                .match_indices('.')
                .map(|(dot, _)| format!("*{}", &name[dot..]));
            let key = std::iter::once(name.to_owned())
                .chain(parents)
                .find(|key| state.zone.contains_key(key))?;
            let answers = state.zone.get_mut(&key)?;
            // Only address queries move a sequence on: AAAA is asked beside A.
            if answers.len() > 1 && record_type == RecordType::A {
                answers.pop_front()
            } else {
                answers.front().cloned()
            }
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the server.
pub(super) fn spawn(dns: &LabDns, at: SocketAddr) -> Result<()> {
    let socket = std::net::UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    tokio::spawn(dns.clone().serve(UdpSocket::from_std(socket)?));
    Ok(())
}
