//! The checks and tests, in the order in which they fail soonest.

use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::fuzz::{self, FuzzArguments};
use crate::place::{Place, Profile, installed};
use crate::setup;
use crate::step::{human, must, step};

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct TestArguments {
    /// Only tests whose name contains this text
    filter: Option<String>,
}

/// Enough to meet again what was met before, and now and then something new.
const SHORT_FUZZING: FuzzArguments = FuzzArguments {
    targets: Vec::new(),
    seconds: 10,
};

/// Set-up and everything that must hold.
pub(crate) fn test(place: &Place, options: &TestArguments) -> Result<()> {
    let start = Instant::now();
    setup::run(place)?;
    if options.filter.is_none() {
        lint(place)?;
    }
    step("test programs", || {
        setup::build(place, Profile::Dev, &["outgate", "outgate-tests"])
    })?;
    step("tests", || run_tests(place, options.filter.as_deref()))?;
    if options.filter.is_none() {
        fuzz::run(place, &SHORT_FUZZING)?;
        step("documentation examples", || {
            must(&mut place.cargo(["test", "--workspace", "--doc"]))
        })?;
        step("documentation", || document(place))?;
        if installed("cargo-deny") {
            step("dependencies", || must(&mut place.cargo(["deny", "check"])))?;
        } else {
            eprintln!(
                "── dependencies: skipped, cargo-deny is not installed (`cargo xtask ci` does)"
            );
        }
    }
    eprintln!("\nall checks passed in {}", human(start.elapsed()));
    Ok(())
}

/// The same with the optional tools installed.
pub(crate) fn ci(place: &Place) -> Result<()> {
    step("dependency checker (cargo-deny)", || {
        setup::cargo_tool(place, "cargo-deny")
    })?;
    test(place, &TestArguments { filter: None })
}

/// Formatting and lints.
pub(crate) fn lint(place: &Place) -> Result<()> {
    step("formatting", || {
        must(&mut place.cargo(["fmt", "--all", "--check"]))
    })?;
    step("lints", || {
        must(&mut place.cargo([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ]))
    })?;
    step("formatting and lints of the fuzz targets", || {
        fuzz::lint(place)
    })
}

fn run_tests(place: &Place, filter: Option<&str>) -> Result<()> {
    let nextest = |selection: &[&str]| {
        let mut arguments = vec!["nextest", "run", "--workspace"];
        arguments.extend(selection);
        arguments.extend(filter);
        arguments.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    if setup::is_root() {
        return must(&mut place.cargo(nextest(&[])));
    }
    // The link suites make network namespaces; the virtual machines must not run as a mapped root.
    let cargo = place.cargo(nextest(&["--filterset", "not binary(microvm)"]));
    let mut unshare = place.command("unshare");
    unshare
        .args(["--user", "--map-root-user"])
        .arg(cargo.get_program())
        .args(cargo.get_args());
    for (name, value) in cargo.get_envs() {
        unshare.env(name, value.unwrap_or_default());
    }
    must(&mut unshare)?;
    must(&mut place.cargo(nextest(&["--filterset", "binary(microvm)"])))
}

fn document(place: &Place) -> Result<()> {
    let mut cargo = place.cargo(["doc", "--workspace", "--no-deps"]);
    must(cargo.env("RUSTDOCFLAGS", "--deny warnings"))
}
