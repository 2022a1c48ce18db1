//! Boots: ten a kernel, each timed from the start of `outgate run` to the first byte that the
//! guest's command writes.

use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use super::Figure;
use crate::place::{Place, Profile};
use crate::setup;
use crate::step::{output, step};

/// Boots a case.
const BOOTS: usize = 10;

const MEMORY: &str = "256M";

pub(super) fn measure(place: &Place) -> Result<Vec<Figure>> {
    step("release build", || {
        setup::build(place, Profile::Release, &["outgate"])
    })?;
    let mut figures = Vec::new();
    if place.cache().join("kernel/custom/vmlinux").is_file() {
        figures.extend(case(place, "minimal kernel", place.cache())?);
    } else {
        eprintln!("── minimal kernel: skipped, `cargo xtask kernel` builds it");
    }
    let plain = cache_without_custom_kernel(place)?;
    figures.extend(case(place, "distribution's kernel", plain.path())?);
    Ok(figures)
}

fn case(place: &Place, kernel: &str, cache: &Path) -> Result<Vec<Figure>> {
    let conditions = conditions(place, cache)?;
    let folder = tempfile::tempdir()?;
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, "version: 1\nrules: []\n")?;
    let mut times = step(&format!("{BOOTS} boots, {kernel}"), || {
        // The first one fills caches that every later one finds filled.
        boot(place, cache, &policy)?;
        (0..BOOTS)
            .map(|_| boot(place, cache, &policy))
            .collect::<Result<Vec<_>>>()
    })?;
    times.sort();
    let figure = |metric: &str, value: Duration| Figure {
        bench: "boot".to_owned(),
        case: "first output of a command in a new guest".to_owned(),
        subject: format!("outgate, {kernel}"),
        metric: metric.to_owned(),
        value: value.as_secs_f64(),
        unit: "s".to_owned(),
        target: None,
        conditions: conditions.clone(),
    };
    Ok(vec![
        figure("p50", percentile(&times, 50)),
        figure("p95", percentile(&times, 95)),
    ])
}

fn boot(place: &Place, cache: &Path, policy: &Path) -> Result<Duration> {
    let start = Instant::now();
    let mut outgate = place
        .outgate(
            Profile::Release,
            ["run", "--quiet", "--memory", MEMORY, "--policy"],
        )
        .arg(policy)
        .args(["--", "echo", "up"])
        .env("OUTGATE_CACHE", cache)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start `outgate run`")?;
    let mut output = outgate.stdout.take().context("its output is piped")?;
    let mut first = [0; 1];
    let read = output.read(&mut first)?;
    let time = start.elapsed();
    let status = outgate.wait()?;
    ensure!(
        read == 1 && status.success(),
        "a boot failed: `outgate run` ended with {status}"
    );
    Ok(time)
}

/// The nearest-rank percentile of sorted times.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().unwrap_or_default()
}

/// A cache that shares everything with the real one but the custom kernel.
fn cache_without_custom_kernel(place: &Place) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    link_entries(place.cache(), folder.path(), "kernel")?;
    let kernels = folder.path().join("kernel");
    std::fs::create_dir(&kernels)?;
    link_entries(&place.cache().join("kernel"), &kernels, "custom")?;
    Ok(folder)
}

fn link_entries(from: &Path, to: &Path, except: &str) -> Result<()> {
    for entry in std::fs::read_dir(from)?.flatten() {
        if entry.file_name() != except {
            symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// What a figure depends on, in the words of `outgate doctor`.
fn conditions(place: &Place, cache: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Check {
        name: String,
        found: String,
    }
    let mut doctor = place.outgate(Profile::Release, ["doctor", "--json"]);
    let checks = output(doctor.env("OUTGATE_CACHE", cache))?;
    let checks: Vec<Check> = checks
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let found = |name: &str| {
        let check = checks.iter().find(|check| check.name == name);
        check
            .map_or("unknown", |check| {
                check.found.split(':').next().unwrap_or_default()
            })
            .to_owned()
    };
    Ok(format!(
        "{}; kernel {}; image {}; 1 vCPU, {MEMORY}, {} cores; n={BOOTS}",
        found("accelerator"),
        found("guest kernel"),
        found("default image"),
        std::thread::available_parallelism()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times: Vec<_> = (1..=10).map(Duration::from_secs).collect();
        assert_eq!(percentile(&times, 50), Duration::from_secs(5));
        assert_eq!(percentile(&times, 95), Duration::from_secs(10));
        assert_eq!(percentile(&times[..1], 50), Duration::from_secs(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
