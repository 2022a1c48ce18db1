//! Records of what the stack does by itself: drops and name queries.
//!
//! The stack can't wait, the log may have to. Between them is a bounded queue with one writer; what
//! finds it full is counted, and the count becomes a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::audit::{Event, EventKind};

use super::SandboxContext;

/// Events that wait for the log: several seconds of the most that the stack reports.
const MAX_WAITING: usize = 1024;

/// Where events go that nobody can wait for.
#[derive(Debug)]
pub(super) struct Notes {
    waiting: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
}

impl Notes {
    /// Starts the writer; it ends when this is dropped and everything is written.
    pub(super) fn spawn(sandbox: Arc<SandboxContext>) -> Self {
        let (waiting, mut events) = mpsc::channel(MAX_WAITING);
        let missed = Arc::new(AtomicU64::new(0));
        let uncounted = Arc::clone(&missed);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                write(&sandbox, &event).await;
                let missed = uncounted.swap(0, Ordering::Relaxed);
                if missed > 0 {
                    let detail =
                        "drops and name queries that came faster than they could be written";
                    let event = Event {
                        count: Some(missed),
                        detail: Some(detail.to_owned()),
                        ..sandbox.event(EventKind::Drop)
                    };
                    write(&sandbox, &event).await;
                }
            }
        });
        Self { waiting, missed }
    }

    pub(super) fn add(&self, event: Event) {
        if self.waiting.try_send(event).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn write(sandbox: &SandboxContext, event: &Event) {
    if let Err(error) = sandbox.services().audit.append(event).await {
        tracing::error!(%error, sandbox = sandbox.id(), "a `{}` event could not be recorded", event.kind);
    }
}
