//! What the upstreams received, in the order it came. Tests assert on this and on the audit log,
//! never on what a client or a gateway says about itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// One request as an upstream understood it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Which upstream TCP connection carried it; equal numbers mean a reused connection.
    pub connection: u64,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    /// The server name of the ClientHello; `None` for plain HTTP and for clients that sent none.
    pub sni: Option<String>,
    /// `:authority` or `Host`.
    pub authority: Option<String>,
    pub method: String,
    /// The request target, byte for byte.
    pub target: String,
    /// In wire order; names as they were spelled where the protocol is HTTP/1.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body, after transfer coding was removed.
    pub body_length: u64,
    /// Lower-case hex, over the whole body.
    pub body_sha256: String,
    /// The body as text, where it is short UTF-8.
    pub body_text: Option<String>,
    pub trailers: Vec<(String, String)>,
    /// The body arrived to its end. False while it is arriving and when it was cut short.
    pub complete: bool,
    /// What became of a streamed response.
    pub response: ResponseState,
}

/// Headers whose values a client may not be shown again, even by an origin that echoes.
const CREDENTIAL_HEADERS: [&str; 3] = ["authorization", "proxy-authorization", "x-api-key"];

impl Received {
    /// What an echo shows the client: everything but the credentials, which stay with the origin.
    pub fn without_credentials(mut self) -> Self {
        for (name, value) in &mut self.headers {
            if CREDENTIAL_HEADERS
                .iter()
                .any(|header| name.eq_ignore_ascii_case(header))
            {
                *value = format!("({} bytes, kept by the origin)", value.len());
            }
        }
        self
    }

    /// The values of one header, compared without case.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let named = self
            .headers
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }
}

/// How far a response got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseState {
    #[default]
    Pending,
    Sent,
    /// The client side went away before the body ended.
    Aborted,
}

/// The shared list of what was received.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    entries: Arc<Mutex<Vec<Received>>>,
}

impl Journal {
    /// Everything so far.
    pub fn all(&self) -> Vec<Received> {
        self.lock().clone()
    }

    /// Forgets everything so far, for tests that reuse one lab.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub(super) fn push(&self, received: Received) -> Entry {
        let mut entries = self.lock();
        entries.push(received);
        Entry {
            journal: self.clone(),
            index: entries.len() - 1,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Received>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is still arriving.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    journal: Journal,
    index: usize,
}

impl Entry {
    pub(super) fn update(&self, change: impl FnOnce(&mut Received)) {
        if let Some(entry) = self.journal.lock().get_mut(self.index) {
            change(entry);
        }
    }

    pub(super) fn snapshot(&self) -> Received {
        self.journal
            .lock()
            .get(self.index)
            .cloned()
            .unwrap_or_default()
    }
}
