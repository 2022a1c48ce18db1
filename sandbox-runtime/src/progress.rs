//! What long work tells whoever waits for it.
//!
//! Events are facts, not text for a terminal: the caller chooses the voice. Reporting can't fail and
//! must not block, so a slow terminal never slows a boot.

use std::fmt;
use std::sync::Arc;

/// One step of long work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgressEvent {
    /// A short name that is stable over releases, such as `build image`.
    pub step: &'static str,
    /// What is done right now; may be empty.
    pub detail: String,
    /// How many of `total` are done, where that is known.
    pub done: Option<u64>,
    /// How many there are, where that is known.
    pub total: Option<u64>,
}

type Listener = dyn Fn(ProgressEvent) + Send + Sync;

/// Where progress goes. Cheap to clone.
#[derive(Clone)]
pub struct Progress(Arc<Listener>);

impl Progress {
    /// Calls `listener` for every event, from any thread.
    pub fn new(listener: impl Fn(ProgressEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Tells nobody.
    pub fn silent() -> Self {
        Self::new(|_| {})
    }

    pub(crate) fn step(&self, step: &'static str, detail: impl Into<String>) {
        (self.0)(ProgressEvent {
            step,
            detail: detail.into(),
            done: None,
            total: None,
        });
    }

    pub(crate) fn count(
        &self,
        step: &'static str,
        detail: impl Into<String>,
        done: u64,
        total: u64,
    ) {
        let (done, total) = (Some(done), Some(total));
        (self.0)(ProgressEvent {
            step,
            detail: detail.into(),
            done,
            total,
        });
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}
