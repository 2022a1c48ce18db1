//! How often a guest may do what costs us more than it costs the guest.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Rate {
    /// Admits `burst` at once and `per_second` on average.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let burst = f64::from(burst);
        Self {
            per_second: per_second.into(),
            burst,
            tokens: burst,
            filled: Instant::now(),
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        let gained = now.duration_since(self.filled).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + gained).min(self.burst);
        self.filled = now;
        let admitted = self.tokens >= 1.0;
        if admitted {
            self.tokens -= 1.0;
        }
        admitted
    }

    /// How long until there is a token again, if there is none now.
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_secs_f64((1.0 - self.tokens).max(0.0) / self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_average() {
        let mut rate = Rate::new(10, 3);
        let start = rate.filled;
        let admitted = (0..100).filter(|_| rate.admit(start)).count();
        assert_eq!(admitted, 3);
        assert!(!rate.admit(start + Duration::from_millis(50)));
        assert!(rate.admit(start + Duration::from_millis(160)));
        assert!(!rate.admit(start + Duration::from_millis(170)));
        assert!(rate.admit(start + Duration::from_millis(170) + rate.wait()));
    }
}
