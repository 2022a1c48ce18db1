//! How fast the host's time-stamp counter runs.
//!
//! A software-emulated guest sees the host's counter and has no clock on this machine type to
//! calibrate it against: half of all boots hang until the kernel is told the frequency. A wrong
//! number makes guest time run wrong, so it is measured, never assumed.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sys::time_stamp_counter;

/// Length of one sample. At 20 ms the error of reading two clocks (below 1 µs) is under 50 ppm.
const SAMPLE: Duration = Duration::from_millis(20);

/// Where the frequency is remembered, in the cache.
const FILE: &str = "tsc-khz";

/// The middle of this many samples is taken: one of them may be preempted between two reads.
const SAMPLES: usize = 5;

/// Length of the sample that a remembered number is held against; its error is under 0.1 ‰.
const GLANCE: Duration = Duration::from_millis(5);

/// The counter's frequency in kHz; `None` where the processor has no such counter. Measured once
/// and remembered in `cache`; a host that was moved to another machine is noticed.
pub(crate) fn host_tsc_khz(cache: &Path) -> Option<u64> {
    static KHZ: OnceLock<Option<u64>> = OnceLock::new();
    *KHZ.get_or_init(|| remembered(cache).or_else(|| measure_and_remember(cache)))
}

fn remembered(cache: &Path) -> Option<u64> {
    let khz: u64 = fs::read_to_string(cache.join(FILE))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    agree(khz, sample(GLANCE)?).then_some(khz)
}

fn measure_and_remember(cache: &Path) -> Option<u64> {
    let khz = measure()?;
    if let Err(error) = write(cache, khz) {
        tracing::debug!(%error, "the frequency is measured again next time");
    }
    Some(khz)
}

fn write(cache: &Path, khz: u64) -> io::Result<()> {
    let fresh = tempfile::NamedTempFile::new_in(cache)?;
    fs::write(fresh.path(), khz.to_string())?;
    fresh.persist(cache.join(FILE))?;
    Ok(())
}

/// Within half a thousandth: far more than two measurements differ by, far less than two machines do.
fn agree(one: u64, other: u64) -> bool {
    one.abs_diff(other).saturating_mul(2000) < one
}

fn measure() -> Option<u64> {
    let mut samples: Vec<u64> = (0..SAMPLES).filter_map(|_| sample(SAMPLE)).collect();
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

fn sample(length: Duration) -> Option<u64> {
    let (start_ns, start) = read_both();
    std::thread::sleep(length);
    let (end_ns, end) = read_both();
    khz(end.checked_sub(start)?, end_ns.checked_sub(start_ns)?)
}

/// One reading of both clocks. Of three tries the one with the shortest gap counts.
fn read_both() -> (u64, u64) {
    let tries = std::array::from_fn::<_, 3, _>(|_| {
        let before = time_stamp_counter();
        let now = clock_gettime(ClockId::MonotonicRaw);
        let gap = time_stamp_counter().wrapping_sub(before);
        let nanos = u64::try_from(now.tv_sec)
            .unwrap_or_default()
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default());
        (gap, nanos, before.wrapping_add(gap / 2))
    });
    let [first, second, third] = tries;
    let (_, nanos, ticks) = first.min(second).min(third);
    (nanos, ticks)
}

fn khz(ticks: u64, nanos: u64) -> Option<u64> {
    let khz = u128::from(ticks)
        .checked_mul(1_000_000)?
        .checked_div(u128::from(nanos))?;
    u64::try_from(khz).ok().filter(|khz| *khz > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_is_ticks_per_millisecond() {
        assert_eq!(khz(40_000_000, 20_000_000), Some(2_000_000));
        assert_eq!(khz(0, 20_000_000), None);
        assert_eq!(khz(1, 0), None);
    }

    #[test]
    fn a_remembered_number_that_is_wrong_is_measured_again() {
        let Some(khz) = measure() else { return };
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(remembered(cache.path()), None);
        write(cache.path(), khz).unwrap();
        assert_eq!(remembered(cache.path()), Some(khz));
        write(cache.path(), khz + khz / 100).unwrap();
        assert_eq!(remembered(cache.path()), None);
    }

    #[test]
    fn two_measurements_agree_within_a_thousandth() {
        let (Some(first), Some(second)) = (measure(), measure()) else {
            return;
        };
        assert!(
            first.abs_diff(second) * 1000 < first,
            "{first} kHz, then {second} kHz"
        );
    }
}
