//! Refusals of clients that no sandbox is known for: counted, and told to the log once a second.
//!
//! Whoever can reach a listener can fail as often as it likes. So each failure counts, the counts
//! become records at most once a second and kind, and no count is lost.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outgate_policy::{Reason, Verdict};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::audit::{AuditLog, Event, EventKind};

/// How often one kind of refusal is told to the log at most.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why a client without a sandbox was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It presented no credential.
    NoCredential,
    /// What it presented proves nothing.
    WrongCredential,
    /// It sent something that could not be read.
    Malformed,
    /// It was too slow to say who it is.
    Slow,
    /// There were too many like it.
    TooMany,
    /// Its address, or its listener, belongs to no sandbox that is served.
    Stranger,
}

impl Refused {
    const ALL: [Self; 6] = [
        Self::NoCredential,
        Self::WrongCredential,
        Self::Malformed,
        Self::Slow,
        Self::TooMany,
        Self::Stranger,
    ];

    const fn reason(self) -> Reason {
        match self {
            Self::NoCredential | Self::WrongCredential => Reason::ProxyAuthRequired,
            Self::Malformed => Reason::BadRequest,
            Self::Slow => Reason::ConnectionIdle,
            Self::TooMany => Reason::LimitExceeded,
            Self::Stranger => Reason::NoPolicy,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::NoCredential => "no credential was presented",
            Self::WrongCredential => "a credential was presented that proves no sandbox",
            Self::Malformed => "what was sent could not be read",
            Self::Slow => "nothing whole was sent in time",
            Self::TooMany => "there were too many connections without a known sandbox, or in all",
            Self::Stranger => "the connection belongs to no sandbox that is served",
        }
    }
}

/// The counts of one listener. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Refusals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    counts: [Count; Refused::ALL.len()],
    news: Notify,
}

#[derive(Debug, Default)]
struct Count {
    since_told: AtomicU64,
    /// The latest of them, for people.
    latest: Mutex<Option<(Option<IpAddr>, String)>>,
}

impl Refusals {
    /// Starts the writer, which tells the rest and ends when `stop` is cancelled.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(super) fn spawn(
        audit: AuditLog,
        listener: &str,
        stop: CancellationToken,
    ) -> (Self, JoinHandle<()>) {
        let refusals = Self(Arc::default());
        let (shared, listener) = (Arc::clone(&refusals.0), listener.to_owned());
        let writer = tokio::spawn(async move {
            loop {
                let news = stop.run_until_cancelled(shared.news.notified()).await;
                for (refused, count) in Refused::ALL.iter().zip(&shared.counts) {
                    if let Some(event) = count.take(*refused, &listener) {
                        write(&audit, &event).await;
                    }
                }
                if news.is_none() {
                    return;
                }
                stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await;
            }
        });
        (refusals, writer)
    }

    /// Counts one. `detail` is escaped already, and holds nothing that was presented as a secret.
    pub(super) fn count(&self, refused: Refused, from: Option<IpAddr>, detail: &str) {
        let Some(count) = self.0.counts.get(refused as usize) else {
            return;
        };
        let mut latest = count.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some((from, detail.to_owned()));
        count.since_told.fetch_add(1, Ordering::Relaxed);
        drop(latest);
        self.0.news.notify_one();
    }
}

impl Count {
    fn take(&self, refused: Refused, listener: &str) -> Option<Event> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.since_told.swap(0, Ordering::Relaxed);
        let (from, detail) = latest.take()?;
        let from = from.map_or_else(|| "a local socket".to_owned(), |ip| ip.to_string());
        let detail = if detail.is_empty() {
            String::new()
        } else {
            format!(": {detail}")
        };
        Some(Event {
            verdict: Some(Verdict::Deny),
            reason: Some(refused.reason()),
            count: Some(count),
            detail: Some(format!(
                "listener `{listener}`: {}; the latest from {from}{detail}",
                refused.words()
            )),
            ..Event::new(EventKind::ClientRefused)
        })
    }
}

async fn write(audit: &AuditLog, event: &Event) {
    // Nothing was let through; the log itself says what it missed.
    if let Err(error) = audit.append(event).await {
        tracing::error!(%error, "refused clients could not be recorded");
    }
}
