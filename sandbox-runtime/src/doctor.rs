//! What this machine can run, what is missing, and how to fix it.
//!
//! It looks and tries; it changes nothing but the cache of the accelerator probe.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::accelerator::{self, Accelerator, AcceleratorChoice};
use crate::cgroup::{Cgroup, Limits};
use crate::error::RuntimeError;
use crate::image::{ImageSource, ImageStore};
use crate::initrd;
use crate::kernel::Kernel;
use crate::machine::QEMU;
use crate::paths::Paths;
use crate::sys::{Confinement, spawn_confined};
use crate::tool;

/// Free space, MiB, below which a first image build is likely to fail.
const WANTED_SPACE_MIB: u64 = 3072;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do, unless all is well.
    pub fix: Option<String>,
}

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Sandboxes run, with less speed or fewer walls.
    Warning,
    /// No sandbox runs.
    Missing,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Missing => "missing",
        })
    }
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            found: found.into(),
            fix: None,
        }
    }

    fn bad(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    /// An error of ours already says what to do.
    fn failed(name: &'static str, state: State, error: &RuntimeError) -> Self {
        match error {
            RuntimeError::Environment { problem, advice } => {
                Self::bad(name, state, problem, advice)
            }
            other => Self::bad(name, state, other.to_string(), "see the message"),
        }
    }
}

/// Looks at everything that a sandbox needs. Takes some seconds when the accelerator has not been
/// probed yet.
pub async fn examine(paths: &Paths) -> Vec<Check> {
    let mut checks = vec![
        qemu(),
        kernel(paths),
        pid1(paths),
        image(paths),
        image_tools(),
    ];
    checks.extend([
        accelerator(paths).await,
        confinement(),
        cgroups(),
        space(paths),
    ]);
    checks
}

fn qemu() -> Check {
    const NAME: &str = "qemu";
    match tool::output(Command::new(QEMU).arg("--version")) {
        Ok(text) => Check::ok(NAME, text.lines().next().unwrap_or_default()),
        Err(error) => Check::failed(NAME, State::Missing, &error),
    }
}

fn kernel(paths: &Paths) -> Check {
    const NAME: &str = "guest kernel";
    match Kernel::find(paths) {
        Ok(kernel) if kernel.modules().is_empty() => {
            Check::ok(NAME, format!("{}, in one piece", kernel.name()))
        }
        Ok(kernel) => Check::ok(
            NAME,
            format!("{}, {} modules", kernel.name(), kernel.modules().len()),
        ),
        Err(error) => Check::failed(NAME, State::Missing, &error),
    }
}

fn pid1(paths: &Paths) -> Check {
    const NAME: &str = "guest program";
    match initrd::find_pid1(paths) {
        Ok(path) => Check::ok(NAME, path.display().to_string()),
        Err(error) => Check::failed(NAME, State::Missing, &error),
    }
}

fn image(paths: &Paths) -> Check {
    const NAME: &str = "default image";
    let source = ImageSource::default();
    match ImageStore::new(paths).list() {
        Ok(images) => match images
            .iter()
            .find(|image| image.source() == source.to_string())
        {
            Some(image) => Check::ok(NAME, format!("{source}, {} MiB", image.size() >> 20)),
            None => Check::bad(
                NAME,
                State::Warning,
                format!("{source} is not built yet"),
                "the first run builds it, or do it now: `outgate image build`",
            ),
        },
        Err(error) => Check::failed(NAME, State::Missing, &error),
    }
}

fn image_tools() -> Check {
    const NAME: &str = "image tools";
    let missing: Vec<&str> = ["mmdebstrap", "mkfs.erofs", "mkfs.ext4"]
        .into_iter()
        .filter(|program| !tool::is_installed(program))
        .collect();
    if missing.is_empty() {
        return Check::ok(NAME, "mmdebstrap, mkfs.erofs, mkfs.ext4");
    }
    let packages: Vec<&str> = missing
        .iter()
        .filter_map(|program| tool::package_of(program))
        .collect();
    // Images can come from elsewhere; the writable disk can't.
    let state = match missing.contains(&"mkfs.ext4") {
        true => State::Missing,
        false => State::Warning,
    };
    let fix = format!("`apt-get install {}`", packages.join(" "));
    Check::bad(
        NAME,
        state,
        format!("not found: {}", missing.join(", ")),
        fix,
    )
}

async fn accelerator(paths: &Paths) -> Check {
    const NAME: &str = "accelerator";
    let kernel = match Kernel::find(paths) {
        Ok(kernel) => kernel,
        Err(_) => {
            return Check::bad(
                NAME,
                State::Warning,
                "not probed: that takes a guest kernel",
                "run `outgate kernel install`, then this again",
            );
        }
    };
    match accelerator::choose(paths, &kernel, AcceleratorChoice::Auto).await {
        Ok(chosen) if chosen.accelerator == Accelerator::Kvm => Check::ok(NAME, chosen.reason),
        Ok(chosen) => Check::bad(
            NAME,
            State::Warning,
            format!("software emulation: {}", chosen.reason),
            "use a host with hardware virtualisation, and let this user open /dev/kvm \
             (`usermod -aG kvm USER`; for root, `chgrp kvm /dev/kvm; chmod 660 /dev/kvm`)",
        ),
        Err(error) => Check::failed(NAME, State::Missing, &error),
    }
}

/// Tries the real thing: a program that is cut off as QEMU will be.
fn confinement() -> Check {
    const NAME: &str = "confinement";
    let is_root = rustix::process::geteuid().is_root();
    let confinement = Confinement {
        uid: is_root.then_some(u32::from(u16::MAX) - 1),
        ..Confinement::default()
    };
    let outcome =
        spawn_confined(Command::new("true"), confinement).and_then(|mut child| child.wait());
    match outcome {
        Ok(_) if is_root => Check::ok(NAME, "namespaces, a user of its own per sandbox"),
        Ok(_) => Check::ok(NAME, "user namespaces"),
        Err(error) => Check::bad(
            NAME,
            State::Missing,
            format!("no namespaces: {error}"),
            if is_root {
                "run outside of a container, or give it CAP_SYS_ADMIN"
            } else {
                "allow unprivileged user namespaces, or run as root"
            },
        ),
    }
}

fn cgroups() -> Check {
    const NAME: &str = "resource limits";
    let id = format!("doctor-{}", std::process::id());
    let cgroup = Cgroup::create(
        &id,
        Limits {
            memory_mib: 64,
            vcpus: 1,
        },
    );
    for folder in &cgroup.folders {
        if let Err(error) = std::fs::remove_dir(folder) {
            tracing::debug!(folder = %folder.display(), %error, "an empty control group stays");
        }
    }
    if cgroup.warnings.is_empty() {
        return Check::ok(NAME, "memory, cpu, pids");
    }
    Check::bad(
        NAME,
        State::Warning,
        cgroup.warnings.join("; "),
        "run as root, or under `systemd-run --user --scope -p Delegate=yes`",
    )
}

fn space(paths: &Paths) -> Check {
    const NAME: &str = "disk space";
    // The cache itself may not exist yet.
    let existing = paths
        .cache()
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or_else(|| Path::new("/"));
    let free = File::open(existing).and_then(|folder| Ok(rustix::fs::fstatvfs(folder)?));
    match free.map(|space| space.f_bavail.saturating_mul(space.f_frsize) >> 20) {
        Ok(mib) if mib >= WANTED_SPACE_MIB => Check::ok(
            NAME,
            format!("{mib} MiB free for `{}`", paths.cache().display()),
        ),
        Ok(mib) => Check::bad(
            NAME,
            State::Warning,
            format!("{mib} MiB free for `{}`", paths.cache().display()),
            "free some gigabytes, or point OUTGATE_CACHE at a larger disk",
        ),
        Err(error) => Check::bad(
            NAME,
            State::Missing,
            format!("`{}` can't be looked at: {error}", existing.display()),
            "point OUTGATE_CACHE at a folder of yours",
        ),
    }
}

/// Nothing is missing: sandboxes can run.
pub fn is_ready(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.state != State::Missing)
}
