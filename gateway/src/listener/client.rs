//! Who is on the other side of one connection, as far as it is known.
//!
//! A connection belongs to the first sandbox that it proves, and to no other from then on. Until
//! then it is half open: its time and its number are bounded.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use outgate_policy::{Reject, Verdict};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;

use super::accept::{Door, HalfOpen};
use super::directory::Guest;
use super::refusals::Refused;
use crate::audit::{Event, EventKind, Ingress, RecordId};

/// How long a client may take to prove its sandbox, and for one head or answer of the way there.
pub(crate) const FIRST_TIME: Duration = Duration::from_secs(10);
/// Challenges that one connection gets. A client that has a credential needs one.
const MAX_CHALLENGES: u32 = 3;

/// What a client presents.
#[derive(Clone, Copy)]
pub(crate) enum Presented<'a> {
    Nothing,
    /// The value of `Proxy-Authorization`.
    Basic(&'a [u8]),
    /// Id and token.
    Password(&'a [u8], &'a [u8]),
}

/// Why a client may not go on.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// It proved nothing. With `last`, there is no other attempt on this connection.
    Unproven { last: bool },
    /// It is this sandbox, which has too many connections.
    Full(Arc<Guest>),
}

/// One connection's client.
pub(crate) struct Client<'d> {
    door: &'d Door,
    ingress: Ingress,
    /// The sandbox of everybody at this door.
    only: Option<Arc<Guest>>,
    known: OnceLock<(Arc<Guest>, OwnedSemaphorePermit)>,
    is_known: Notify,
    half_open: Mutex<Option<HalfOpen>>,
    /// Where it comes from, for the counts.
    source: Option<IpAddr>,
    challenges: AtomicU32,
}

impl<'d> Client<'d> {
    /// Nobody yet. `None`, and counted, where it can only belong to a sandbox that is not served.
    pub(crate) fn new(door: &'d Door, ingress: Ingress, half_open: HalfOpen) -> Option<Self> {
        let from = half_open.from();
        let Ok(only) = door.guest(from) else {
            door.count(Refused::Stranger, from, "");
            return None;
        };
        Some(Self {
            only,
            door,
            ingress,
            known: OnceLock::new(),
            is_known: Notify::new(),
            source: from,
            half_open: Mutex::new(Some(half_open)),
            challenges: AtomicU32::new(0),
        })
    }

    /// Whether who connects is known by that alone.
    pub(crate) fn needs_no_credential(&self) -> bool {
        self.only.is_some()
    }

    /// The sandbox that `presented` proves. `what` the client wants is for the record of a failure.
    ///
    /// # Errors
    /// See [`Unknown`]; a failure to prove anything is counted.
    pub(crate) fn identify(
        &self,
        presented: Presented<'_>,
        what: &str,
    ) -> Result<&Arc<Guest>, Unknown> {
        if let Some((guest, _)) = self.known.get() {
            // Another sandbox's credential is as wrong here as none.
            if self.only.is_some() || presented.proves(guest) {
                return Ok(guest);
            }
            return Err(self.unproven(presented, what, true));
        }
        let proven = match &self.only {
            Some(only) => Some(Arc::clone(only)),
            None => self.door.prove(presented),
        };
        let Some(guest) = proven else {
            return Err(self.unproven(presented, what, false));
        };
        let Some(place) = guest.admit() else {
            return Err(Unknown::Full(guest));
        };
        self.half_open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.is_known.notify_one();
        let (guest, _) = self.known.get_or_init(|| (guest, place));
        Ok(guest)
    }

    /// The sandbox, where it was proven.
    pub(crate) fn guest(&self) -> Option<&Arc<Guest>> {
        self.known.get().map(|(guest, _)| guest)
    }

    /// Waits until the sandbox is known; for [`FIRST_TIME`] at most, and then it is counted.
    pub(crate) async fn known_in_time(&self) -> Option<&Arc<Guest>> {
        if self.guest().is_none() {
            // Known or not, the guest itself tells.
            let _ = timeout(FIRST_TIME, self.is_known.notified()).await;
        }
        self.count_slow();
        self.guest()
    }

    /// Counts a client that was too slow, where nobody else could be told.
    pub(crate) fn count_slow(&self) {
        if self.guest().is_none() {
            self.count(Refused::Slow, "");
        }
    }

    /// Counts a client that is turned away. `detail` is escaped and holds no secret.
    pub(super) fn count(&self, refused: Refused, detail: &str) {
        self.door.count(refused, self.source, detail);
    }

    /// Records what could not be read as something to judge: on the record of the sandbox if it is
    /// known, among the counts of the listener if not, and then there is no id. `target` is escaped.
    pub(crate) async fn record_reject(
        &self,
        reject: &Reject,
        target: Option<String>,
    ) -> Option<RecordId> {
        let Some(guest) = self.guest().or(self.only.as_ref()) else {
            self.count(Refused::Malformed, &reject.detail);
            return None;
        };
        Some(record_reject(guest, self.ingress, reject, target).await)
    }

    fn unproven(&self, presented: Presented<'_>, what: &str, last: bool) -> Unknown {
        let refused = match presented {
            Presented::Nothing => Refused::NoCredential,
            Presented::Basic(_) | Presented::Password(..) => Refused::WrongCredential,
        };
        self.count(refused, what);
        let challenges = self.challenges.fetch_add(1, Ordering::Relaxed) + 1;
        Unknown::Unproven {
            last: last || challenges >= MAX_CHALLENGES,
        }
    }
}

/// Records that something of a sandbox never became a flow or a request. Failing to is logged: it is
/// refused anyway.
pub(crate) async fn record_reject(
    guest: &Guest,
    ingress: Ingress,
    reject: &Reject,
    target: Option<String>,
) -> RecordId {
    let event = Event {
        ingress: Some(ingress),
        verdict: Some(Verdict::Deny),
        reason: Some(reject.reason),
        host: target,
        detail: Some(reject.detail.clone()),
        ..guest.sandbox.event(EventKind::Reject)
    };
    if let Err(error) = guest.sandbox.services().audit.append(&event).await {
        tracing::error!(%error, sandbox = guest.sandbox.id(), "a reject could not be recorded");
    }
    event.id
}
