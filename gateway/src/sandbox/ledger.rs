//! The closing record of one exchange or tunnel: counts while it runs, is written when it ends.
//!
//! Whoever still moves bytes holds the ledger. When the last one lets go, whatever the reason, the
//! record is written; so there is no way to end an exchange without one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use outgate_policy::{CanonicalRequest, Policy};
use tokio::sync::OwnedSemaphorePermit;

use crate::audit::Event;

use super::{Listed, SandboxContext};

/// Counts one exchange and records its end when dropped.
#[derive(Debug)]
pub(crate) struct Ledger {
    sandbox: Arc<SandboxContext>,
    closing: Mutex<Option<Event>>,
    started: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// The exchange's place in the sandbox.
    _place: OwnedSemaphorePermit,
}

impl Ledger {
    /// `closing` is what will be written, completed by what happens until then.
    pub(crate) fn new(
        sandbox: Arc<SandboxContext>,
        closing: Event,
        started: Instant,
        place: OwnedSemaphorePermit,
    ) -> Arc<Self> {
        Arc::new(Self {
            sandbox,
            closing: Mutex::new(Some(closing)),
            started,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            _place: place,
        })
    }

    /// Lists the exchange as let through by `policy`, for as long as the listing is held.
    pub(crate) fn list(
        &self,
        request: &Arc<CanonicalRequest>,
        policy: &Arc<Policy>,
    ) -> Arc<Listed> {
        Arc::new(Listed::enter(Arc::clone(&self.sandbox), request, policy))
    }

    /// Adds bytes that went from the guest to the upstream.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds bytes that went from the upstream to the guest.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Completes the record.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Event)) {
        if let Some(event) = &mut *self.closing.lock().unwrap_or_else(PoisonError::into_inner) {
            change(event);
        }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let closing = self
            .closing
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut event) = closing else { return };
        event.bytes_sent = Some(*self.sent.get_mut());
        event.bytes_received = Some(*self.received.get_mut());
        event.timings.total = Some(self.started.elapsed());
        if let Err(error) = self.sandbox.services().audit.append_later(&event) {
            let sandbox = self.sandbox.id();
            tracing::error!(%error, sandbox, "the end of an exchange could not be recorded");
        }
    }
}
