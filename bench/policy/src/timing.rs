//! Times of single calls. Each has a clock read before and after it, and the median of what two
//! reads with nothing between them show is taken off.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Times in ascending order.
#[derive(Debug)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The nearest-rank quantile, in parts of a thousand.
    pub(crate) fn per_mille(&self, parts: usize) -> Duration {
        let rank = (self.0.len() * parts).div_ceil(1000).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

/// How many calls are timed, and for how long at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) calls: usize,
    pub(crate) at_most: Duration,
}

/// What two reads of the clock cost.
pub(crate) fn clock() -> Duration {
    let reads = (0..100_000).map(|_| {
        let start = Instant::now();
        start.elapsed()
    });
    Times::new(reads.collect()).per_mille(500)
}

/// Times `call` with one item after the other, over and over. `prepare` is not timed.
pub(crate) fn each<T, R>(
    items: &[T],
    effort: Effort,
    clock: Duration,
    mut prepare: impl FnMut(&T),
    mut call: impl FnMut(&T) -> R,
) -> Times {
    let begin = Instant::now();
    let mut times = Vec::with_capacity(effort.calls);
    for item in items.iter().cycle().take(effort.calls) {
        prepare(item);
        let start = Instant::now();
        let result = black_box(call(black_box(item)));
        let time = start.elapsed();
        drop(result);
        times.push(time.saturating_sub(clock));
        if begin.elapsed() > effort.at_most {
            break;
        }
    }
    Times::new(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let times = Times::new((1..=1000).rev().map(Duration::from_nanos).collect());
        assert_eq!(times.per_mille(500), Duration::from_nanos(500));
        assert_eq!(times.per_mille(999), Duration::from_nanos(999));
        assert_eq!(Times::new(Vec::new()).per_mille(500), Duration::ZERO);
    }

    #[test]
    fn the_time_limit_ends_a_slow_measurement() {
        let effort = Effort {
            calls: 1_000_000,
            at_most: Duration::from_millis(20),
        };
        let slow = |(): &()| std::thread::sleep(Duration::from_millis(5));
        let times = each(&[()], effort, Duration::ZERO, |()| {}, slow);
        assert!((1..1000).contains(&times.len()), "{}", times.len());
    }
}
