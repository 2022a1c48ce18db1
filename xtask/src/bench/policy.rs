//! Decisions of the policy language beside Cedar's, and random policies that both must decide alike.
//!
//! The program is `bench/policy`, a workspace of its own: nothing else needs Cedar.

use anyhow::Result;

use super::{Figure, read_figures};
use crate::place::Place;
use crate::step::{must, output, step};

/// Random policies to compare.
const CASES: &str = "20000";
/// Any would do; one that stays makes a difference repeatable.
const SEED: &str = "1";

pub(super) fn measure(place: &Place) -> Result<Vec<Figure>> {
    let target = place.own_target("bench-policy");
    step("release build", || {
        let mut cargo = place.cargo(["build", "--release", "--locked"]);
        cargo
            .arg("--manifest-path")
            .arg(place.workspace().join("bench/policy/Cargo.toml"))
            .env("CARGO_TARGET_DIR", &target);
        must(&mut cargo)
    })?;
    let program = target.join("release/outgate-bench-policy");
    let mut lines = step("measure", || output(place.command(&program).arg("measure")))?;
    lines += &step("compare random policies", || {
        let mut oracle = place.command(&program);
        output(oracle.args(["oracle", "--cases", CASES, "--seed", SEED]))
    })?;
    read_figures(&lines)
}
