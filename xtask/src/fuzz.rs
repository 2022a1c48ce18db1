//! The fuzz targets of `fuzz/`: built with coverage counters by the same compiler as everything
//! else, and run for a short while. What a run finds interesting is kept in the cache, so that the
//! next one goes on from there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::place::Place;
use crate::setup::NATIVE_TARGET;
use crate::step::{must, step};
use crate::table::Table;

/// Options of `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub(crate) struct FuzzArguments {
    /// Only these targets [default: all]
    pub(crate) targets: Vec<String>,
    /// How long each target runs
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) seconds: u32,
}

/// The coverage that libFuzzer steers by. Its fourth level also counts edges.
const FLAGS: &str = "--cfg fuzzing -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table \
    -C llvm-args=-sanitizer-coverage-trace-compares";

/// Bytes of the largest input: enough for a policy with every key, several times.
const MAX_INPUT: u32 = 16 * 1024;
/// Seconds for one input, idle time of the machine included. The targets have limits of their own
/// in processor time; this one ends what hangs.
const MAX_SECONDS: u32 = 30;
/// Mebibytes of memory. A policy of 16 KiB takes a few.
const MAX_MEMORY: u32 = 1024;
/// Kept inputs from which on those that add nothing are removed first: each start runs all of them.
const MANY_INPUTS: usize = 6000;

/// Builds and runs the targets; fails on the first input that breaks one.
pub(crate) fn run(place: &Place, options: &FuzzArguments) -> Result<()> {
    let known = targets(place)?;
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(name)) {
        bail!(
            "there is no fuzz target `{unknown}`; there are {}",
            known.join(", ")
        );
    }
    let chosen = if options.targets.is_empty() {
        &known
    } else {
        &options.targets
    };
    step("fuzz targets", || must(&mut cargo(place, &["build"])))?;
    let mut table = Table::new(["target", "executions", "coverage", "features", "inputs"]);
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    for group in chosen.chunks(at_once) {
        let title = format!("fuzzing {} for {} s", group.join(", "), options.seconds);
        let reports = step(&title, || together(place, group, options.seconds))?;
        for (name, report) in group.iter().zip(reports) {
            table.row([
                name.clone(),
                report.executions.to_string(),
                report.coverage,
                report.features,
                report.inputs,
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

/// Formatting and lints of the targets, which are no part of the workspace.
pub(crate) fn lint(place: &Place) -> Result<()> {
    let manifest = manifest(place);
    let mut format = place.cargo(["fmt", "--check", "--manifest-path"]);
    must(format.arg(manifest))?;
    must(cargo(place, &["clippy"]).args(["--", "--deny", "warnings"]))
}

/// One program each.
fn targets(place: &Place) -> Result<Vec<String>> {
    let folder = place.workspace().join("fuzz/src/bin");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("no `{}`", folder.display()))? {
        let path = entry?.path();
        names.extend(
            path.file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

fn manifest(place: &Place) -> PathBuf {
    place.workspace().join("fuzz/Cargo.toml")
}

/// Naming the target keeps the counters away from build scripts and from other builds.
fn cargo(place: &Place, command: &[&str]) -> Command {
    let mut cargo = place.cargo(command);
    cargo
        .args(["--locked", "--target", NATIVE_TARGET, "--manifest-path"])
        .arg(manifest(place))
        .env("RUSTFLAGS", FLAGS);
    cargo
}

/// What a run did.
struct Report {
    executions: u64,
    coverage: String,
    features: String,
    inputs: String,
}

/// Runs several targets at the same time.
fn together(place: &Place, names: &[String], seconds: u32) -> Result<Vec<Report>> {
    let runs: Result<Vec<Run>> = names
        .iter()
        .map(|name| Run::start(place, name, seconds))
        .collect();
    // All are waited for before any is judged: none may be left running.
    let ended: Vec<_> = runs?.into_iter().map(Run::end).collect();
    ended.into_iter().collect()
}

/// A target that is running.
struct Run {
    name: String,
    child: Child,
    log: PathBuf,
    seeds: usize,
}

impl Run {
    fn start(place: &Place, name: &str, seconds: u32) -> Result<Self> {
        let folder = place.cache().join("fuzz").join(name);
        let kept = folder.join("kept");
        std::fs::create_dir_all(&kept)?;
        if count(&kept)? > MANY_INPUTS {
            shrink(place, name, &folder)?;
        }
        let seeds = seeds(place, name)?;
        let log = folder.join("log");
        let found = folder.join("found-");
        let mut program = program(place, name);
        program
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}", found.display()))
            .arg("-print_final_stats=1");
        let dictionary = place
            .workspace()
            .join(format!("fuzz/dictionaries/{name}.dict"));
        if dictionary.is_file() {
            program.arg(format!("-dict={}", dictionary.display()));
        }
        // What is new goes to the first folder.
        program.arg(&kept).args(&seeds).stderr(File::create(&log)?);
        let seeds = seeds
            .iter()
            .map(|folder| count(folder))
            .sum::<Result<usize>>()?;
        let child = program
            .spawn()
            .with_context(|| format!("the fuzz target `{name}` can't be started"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            seeds,
        })
    }

    fn end(mut self) -> Result<Report> {
        let status = self.child.wait()?;
        let log = std::fs::read(&self.log)?;
        let log = String::from_utf8_lossy(&log);
        let Self { name, .. } = &self;
        if !status.success() {
            bail!(
                "the fuzz target `{name}` found an input that breaks it ({status}); once it is \
                 mended, keep the input in fuzz/corpus/{name}:\n{}",
                finding(&log)
            );
        }
        let report = Report::read(&log).with_context(|| {
            format!(
                "the fuzz target `{name}` gave no account of itself; see `{}`",
                self.log.display()
            )
        })?;
        ensure!(
            report.executions > self.seeds as u64,
            "the fuzz target `{name}` ran nothing but its {} seeds",
            self.seeds
        );
        Ok(report)
    }
}

fn program(place: &Place, name: &str) -> Command {
    let path = place.target().join(NATIVE_TARGET).join("debug").join(name);
    let mut program = place.command(path);
    program
        .arg(format!("-max_len={MAX_INPUT}"))
        .arg(format!("-timeout={MAX_SECONDS}"))
        .arg(format!("-rss_limit_mb={MAX_MEMORY}"));
    program
}

/// Keeps only the inputs that together cover what all of them cover.
fn shrink(place: &Place, name: &str, folder: &Path) -> Result<()> {
    let (kept, all) = (folder.join("kept"), folder.join("all"));
    if all.exists() {
        std::fs::remove_dir_all(&all)?;
    }
    std::fs::rename(&kept, &all)?;
    std::fs::create_dir(&kept)?;
    let mut program = program(place, name);
    program.arg("-merge=1").arg(&kept).arg(&all);
    must(program.stderr(File::create(folder.join("log"))?))?;
    std::fs::remove_dir_all(&all)?;
    Ok(())
}

/// Where a target's own inputs are; what users start from is good for the loader, too.
fn seeds(place: &Place, name: &str) -> Result<Vec<PathBuf>> {
    let own = place.workspace().join("fuzz/corpus").join(name);
    ensure!(
        own.is_dir(),
        "the fuzz target `{name}` has no inputs: there is no `{}`",
        own.display()
    );
    let mut seeds = vec![own];
    if name == "loader" {
        let config = place.workspace().join("config");
        let folders = ["policies", "presets"].map(|folder| config.join(folder));
        seeds.extend(folders.into_iter().filter(|folder| folder.is_dir()));
    }
    Ok(seeds)
}

fn count(folder: &Path) -> Result<usize> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("no `{}`", folder.display()))?;
    Ok(entries.count())
}

/// The lines of a log that say what happened: the panic, and where the input is.
fn finding(log: &str) -> String {
    let marks = [
        "panicked at",
        "assertion",
        "  left:",
        " right:",
        "ERROR:",
        "Test unit written",
        "Base64:",
    ];
    let mut lines = Vec::new();
    let mut after_panic = 0_u32;
    for line in log.lines() {
        if line.contains("panicked at") {
            after_panic = 4;
        }
        if after_panic > 0 || marks.iter().any(|mark| line.contains(mark)) {
            lines.push(line);
        }
        after_panic = after_panic.saturating_sub(1);
    }
    lines.join("\n")
}

impl Report {
    /// Reads libFuzzer's last line of state, `#N DONE cov: C ft: F corp: I/…`, and its figures.
    fn read(log: &str) -> Option<Self> {
        let state = log
            .lines()
            .rfind(|line| line.starts_with('#') && line.contains("cov: "))?;
        let words: Vec<&str> = state.split_whitespace().collect();
        let after = |label: &str| {
            let at = words.iter().position(|word| *word == label)?;
            Some((*words.get(at + 1)?).to_owned())
        };
        let figure = "stat::number_of_executed_units:";
        let executions = log.lines().find_map(|line| line.strip_prefix(figure))?;
        Some(Self {
            executions: executions.trim().parse().ok()?,
            coverage: after("cov:")?,
            features: after("ft:")?,
            inputs: after("corp:")?.split('/').next()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let log = "#2\tINITED cov: 9 ft: 9 corp: 1/1b exec/s: 0 rss: 29Mb\n\
                   #60512\tDONE   cov: 3130 ft: 12345 corp: 1027/99Kb lim: 16384 exec/s: 1952 rss: 38Mb\n\
                   Done 60512 runs in 31 second(s)\n\
                   stat::number_of_executed_units: 60512\n";
        let report = Report::read(log).expect("is a log");
        assert_eq!(report.executions, 60512);
        assert_eq!(
            (&*report.coverage, &*report.features, &*report.inputs),
            ("3130", "12345", "1027")
        );
        assert!(Report::read("nothing").is_none());
    }

    #[test]
    fn a_finding_shows_the_panic_and_the_input() {
        let log = "INFO: x\nthread '<unnamed>' (1) panicked at src/bin/x.rs:1:1:\n\
                   it broke\nmore\nmore\nnot this\nartifact; Test unit written to /x/found-crash-1\n";
        let shown = finding(log);
        assert!(
            shown.contains("it broke") && shown.contains("found-crash-1"),
            "{shown}"
        );
        assert!(
            !shown.contains("INFO") && !shown.contains("not this"),
            "{shown}"
        );
    }
}
