//! What a process under load costs: processor time and memory, as the kernel counts them.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Clock ticks of `/proc/PID/stat` in a second; fixed for programs by the kernel's interface.
const TICKS_PER_SECOND: u64 = 100;

/// User and system time of `pids` and their threads, and of children that they have waited for.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    let mut ticks = 0;
    for pid in family(pids)? {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        let times = fields.split_whitespace().skip(11).take(2);
        for time in times {
            ticks += time.parse::<u64>()?;
        }
    }
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Forgets the peaks, so that the next [`peak_kib`] is of what comes now.
pub(crate) fn reset_peak(pids: &[u32]) -> Result<()> {
    for pid in family(pids)? {
        fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    }
    Ok(())
}

/// Most resident memory since [`reset_peak`], all processes together.
pub(crate) fn peak_kib(pids: &[u32]) -> Result<u64> {
    let mut total = 0;
    for pid in family(pids)? {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.split_whitespace().next());
        total += kib.context("no VmHWM")?.parse::<u64>()?;
    }
    Ok(total)
}

/// The processes and those they started.
fn family(pids: &[u32]) -> Result<Vec<u32>> {
    let mut found = pids.to_vec();
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        for child in children.split_whitespace() {
            found.push(child.parse()?);
        }
        at += 1;
    }
    Ok(found)
}
