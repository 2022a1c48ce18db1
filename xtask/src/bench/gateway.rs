//! The gateway over a link beside no gateway (`outgate-link-bench`), and as an explicit proxy beside
//! other programs that intercept (`outgate-proxy-bench`), in release builds.
//!
//! Peers are installed if they are missing: nginx and squid as packages, mitmproxy into a folder of
//! its own, and a proxy on the library hudsucker is built from `bench/hudsucker`. One that can't be
//! had is named and left out.

use std::path::PathBuf;

use anyhow::Result;

use super::{Figure, read_figures};
use crate::place::{Place, Profile};
use crate::setup;
use crate::step::{must, output, step};

const PEERS: &[(&str, &str)] = &[("nginx-light", "nginx"), ("squid-openssl", "squid")];
/// Pinned: figures of another version are another comparison.
const MITMPROXY: &str = "mitmproxy==11.0.2";

pub(super) fn measure(place: &Place) -> Result<Vec<Figure>> {
    step("release build", || {
        setup::build(place, Profile::Release, &["outgate", "outgate-tests"])
    })?;
    let mut beside = place.command(place.program(Profile::Release, "outgate-proxy-bench"));
    beside.env("OUTGATE_BIN", place.program(Profile::Release, "outgate"));
    if let Err(error) = step("peers: nginx, squid", || setup::packages(PEERS)) {
        eprintln!("   {error:#}");
    }
    for (option, peer) in [
        ("--mitmproxy", step("peer: mitmproxy", || mitmproxy(place))),
        ("--hudsucker", step("peer: hudsucker", || hudsucker(place))),
    ] {
        match peer {
            Ok(program) => drop(beside.arg(option).arg(program)),
            Err(error) => eprintln!("   left out: {error:#}"),
        }
    }
    let mut lines = step("measure as an explicit proxy", || output(&mut beside))?;
    lines += &step("measure over a link", || {
        let mut bench = place.command(place.program(Profile::Release, "outgate-link-bench"));
        bench.env("OUTGATE_BIN", place.program(Profile::Release, "outgate"));
        output(&mut bench)
    })?;
    read_figures(&lines)
}

fn mitmproxy(place: &Place) -> Result<PathBuf> {
    let folder = place.cache().join("mitmproxy");
    let program = folder.join("bin/mitmdump");
    if !program.exists() {
        must(place.command("python3").args(["-m", "venv"]).arg(&folder))?;
        must(
            place
                .command(folder.join("bin/pip"))
                .args(["install", "--quiet", MITMPROXY]),
        )?;
    }
    Ok(program)
}

fn hudsucker(place: &Place) -> Result<PathBuf> {
    let target = place.own_target("bench-hudsucker");
    let mut cargo = place.cargo(["build", "--release", "--locked"]);
    cargo
        .arg("--manifest-path")
        .arg(place.workspace().join("bench/hudsucker/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target);
    must(&mut cargo)?;
    Ok(target.join("release/outgate-bench-hudsucker"))
}
