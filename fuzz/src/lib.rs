//! What the targets share: a limit on the time that one input may take, and an oracle for globs.

pub mod glob;

use std::time::Duration;

/// Does the work, and fails when it took more processor time than `limit`. Time that the machine
/// gave to others doesn't count.
pub fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = spent();
    let result = work();
    let taken = spent().saturating_sub(start);
    assert!(taken <= limit, "{what} took {taken:?} of processor time");
    result
}

/// Processor time of this thread.
fn spent() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The input as text, cut where it stops being UTF-8: a mutation in the middle should not make the
/// front of it useless.
pub fn text(data: &[u8]) -> &str {
    let valid = match std::str::from_utf8(data) {
        Ok(text) => return text,
        Err(error) => error.valid_up_to(),
    };
    std::str::from_utf8(&data[..valid]).unwrap_or_default()
}
