//! Waiting for something that happens in another process. A test never pauses and hopes: it says
//! what it waits for, goes on the moment that it holds, and fails by name when it never does.

use std::time::{Duration, Instant};

/// Far longer than anything here takes on a busy machine of two cores.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often the condition is looked at: often enough not to be what a test waits for.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` gives a value.
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain: {what}"
        );
        std::thread::sleep(INTERVAL);
    }
}
