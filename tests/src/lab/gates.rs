//! Named counters that hold an upstream until a test lets it go on: a test that wants "the first
//! event arrived while the second was not even sent" needs an order, not a pause.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// All gates of one lab; a gate exists from its first mention, closed.
#[derive(Debug, Clone, Default)]
pub struct Gates {
    gates: Arc<Mutex<HashMap<String, watch::Sender<u64>>>>,
}

impl Gates {
    /// Lets `steps` more steps through the gate.
    pub fn release(&self, gate: &str, steps: u64) {
        self.sender(gate).send_modify(|released| *released += steps);
    }

    /// Waits until at least `step` steps have been released.
    pub(super) async fn pass(&self, gate: &str, step: u64) {
        let mut released = self.sender(gate).subscribe();
        // The sender lives in the map for as long as `self`, so waiting cannot fail.
        let _ = released.wait_for(|released| *released >= step).await;
    }

    fn sender(&self, gate: &str) -> watch::Sender<u64> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates
            .entry(gate.to_owned())
            .or_insert_with(|| watch::Sender::new(0))
            .clone()
    }
}
