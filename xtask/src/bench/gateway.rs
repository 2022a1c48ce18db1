//! The gateway over a link, measured by `outgate-link-bench` in release build.

use anyhow::Result;

use super::{Figure, read_figures};
use crate::place::{Place, Profile};
use crate::setup;
use crate::step::{output, step};

pub(super) fn measure(place: &Place) -> Result<Vec<Figure>> {
    step("release build", || {
        setup::build(place, Profile::Release, &["outgate", "outgate-tests"])
    })?;
    let lines = step("measure", || {
        let mut bench = place.command(place.program(Profile::Release, "outgate-link-bench"));
        bench.env("OUTGATE_BIN", place.program(Profile::Release, "outgate"));
        output(&mut bench)
    })?;
    read_figures(&lines)
}
