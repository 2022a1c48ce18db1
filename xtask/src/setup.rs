//! Everything a fresh Debian or Ubuntu machine with Rust needs: system packages, the test runner,
//! a static PID 1, a guest kernel and a guest image. Only package registries are asked.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::place::{Place, Profile, installed};
use crate::step::{must, output, step};

/// A package and a program that tells whether it is there.
type Package = (&'static str, &'static str);

/// What running and testing needs.
const PACKAGES: &[Package] = &[
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("mmdebstrap", "mmdebstrap"),
    ("erofs-utils", "mkfs.erofs"),
    ("e2fsprogs", "mkfs.ext4"),
    ("curl", "curl"),
    ("git", "git"),
    ("python3", "python3"),
    ("openssl", "openssl"),
    // Resolvers that the guest's DNS has to please.
    ("bind9-dnsutils", "dig"),
    ("musl-tools", "musl-gcc"),
    // A next hop.
    ("tinyproxy-bin", "tinyproxy"),
    ("iproute2", "ip"),
    // What leads connections to a transparent listener.
    ("nftables", "nft"),
    ("socat", "socat"),
    ("ca-certificates", "update-ca-certificates"),
    // libFuzzer is C++.
    ("build-essential", "c++"),
];

/// The target of the static PID 1 and of the fuzz targets. Naming it keeps their flags away from
/// build scripts.
pub(crate) const NATIVE_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Another installation that is under way is waited for, up to five minutes.
const LOCK_WAIT: [&str; 2] = ["-o", "DPkg::Lock::Timeout=300"];

/// Everything, in order.
pub(crate) fn run(place: &Place) -> Result<()> {
    step("system packages", || packages(PACKAGES))?;
    step("test runner (cargo-nextest)", || {
        cargo_tool(place, "cargo-nextest")
    })?;
    step("PID 1 (static)", || pid1(place))?;
    step("outgate", || build(place, Profile::Dev, &["outgate"]))?;
    step("guest kernel", || guest_kernel(place))?;
    step("guest image", || outgate(place, ["image", "build"]))
}

/// Installs those packages whose program is missing.
pub(crate) fn packages(wanted: &[Package]) -> Result<()> {
    let missing: Vec<_> = wanted
        .iter()
        .filter(|(_, program)| !installed(program))
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !installed("apt-get") {
        bail!(
            "install these by hand, there is no apt-get here: {}",
            missing.join(" ")
        );
    }
    eprintln!("   installing {}", missing.join(" "));
    let install = || {
        let mut apt = as_root("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends"])
            .args(LOCK_WAIT)
            .args(&missing);
        must(&mut apt)
    };
    with_fresh_lists(install)
}

/// Tries with the package lists that are there; asking for new ones takes longer than installing.
fn with_fresh_lists(work: impl Fn() -> Result<()>) -> Result<()> {
    work().or_else(|_| {
        must(as_root("apt-get").arg("update").args(LOCK_WAIT))?;
        work()
    })
}

fn outgate<const N: usize>(place: &Place, arguments: [&str; N]) -> Result<()> {
    must(&mut place.outgate(Profile::Dev, arguments))
}

/// Installs a cargo subcommand that is missing; compiled once per machine.
pub(crate) fn cargo_tool(place: &Place, tool: &str) -> Result<()> {
    if installed(tool) {
        return Ok(());
    }
    must(&mut place.cargo(["install", "--locked", tool]))
}

/// Builds programs of the workspace.
pub(crate) fn build(place: &Place, profile: Profile, packages: &[&str]) -> Result<()> {
    let mut cargo = place.cargo(["build", "--bins"]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    must(&mut cargo)
}

/// Any kernel that guests can boot will do: the distribution's, or one built by `cargo xtask kernel`.
fn guest_kernel(place: &Place) -> Result<()> {
    if output(&mut place.outgate(Profile::Dev, ["kernel", "show"])).is_ok() {
        return Ok(());
    }
    with_fresh_lists(|| outgate(place, ["kernel", "install"]))
}

fn pid1(place: &Place) -> Result<()> {
    let target = place.cache().join("target-pid1");
    must(
        place
            .cargo(["build", "--package", "outgate-pid1", "--profile", "pid1"])
            .args(["--target", NATIVE_TARGET])
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .env("CARGO_TARGET_DIR", &target),
    )?;
    let built = target.join(NATIVE_TARGET).join("pid1/outgate-pid1");
    let program = std::fs::read(&built).with_context(|| format!("no `{}`", built.display()))?;
    let folder = place.cache().join("pid1");
    let installed = folder.join("outgate-pid1");
    // Left alone when it is the same, so that nothing downstream is rebuilt for a new date.
    if std::fs::read(&installed).is_ok_and(|present| present == program) {
        return Ok(());
    }
    std::fs::create_dir_all(&folder)?;
    let fresh = folder.join("outgate-pid1.new");
    std::fs::copy(&built, &fresh)?;
    std::fs::rename(&fresh, &installed)?;
    Ok(())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// A command with the rights to install packages.
fn as_root(program: &str) -> Command {
    let mut command = if is_root() {
        Command::new(program)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg(program);
        sudo
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
