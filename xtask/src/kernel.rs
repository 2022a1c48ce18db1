//! The minimal guest kernel: built from the distribution's own kernel source with the
//! configuration in `config/kernel`, kept in the cache, and rebuilt only when either changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::place::Place;
use crate::setup;
use crate::step::{must, output, step};

/// What building a kernel needs. Libraries have no program to look for; a header stands for them.
const PACKAGES: &[(&str, &str)] = &[
    ("bc", "bc"),
    ("bison", "bison"),
    ("flex", "flex"),
    ("build-essential", "cc"),
    ("lz4", "lz4"),
    ("xz-utils", "xz"),
];

/// Development files, by a file that proves their presence.
const LIBRARIES: &[(&str, &str)] = &[
    ("libelf-dev", "/usr/include/libelf.h"),
    ("libssl-dev", "/usr/include/openssl/ssl.h"),
];

/// Builds `<cache>/kernel/custom/vmlinux` unless it is up to date.
pub(crate) fn run(place: &Place) -> Result<()> {
    let fragment = place.workspace().join("config/kernel/guest-kernel.config");
    let folder = place.cache().join("kernel/custom");
    step("build tools and kernel source", install)?;
    let archive = source_archive()?;
    let stamp = stamp(&archive, &fragment)?;
    let built = folder.join("vmlinux");
    if built.is_file() && std::fs::read_to_string(folder.join("stamp")).is_ok_and(|s| s == stamp) {
        eprintln!("   up to date: {}", built.display());
        return Ok(());
    }
    std::fs::create_dir_all(&folder)?;
    let source = folder.join("source");
    step("unpack the source", || unpack(&archive, &source))?;
    step("configure", || configure(&source, &fragment))?;
    let jobs = std::thread::available_parallelism()?.to_string();
    step("compile (about ten minutes on two free cores)", || {
        must(make(&source).args(["--jobs", &jobs, "vmlinux"]))
    })?;
    must(
        Command::new("strip")
            .arg("--strip-debug")
            .arg("-o")
            .arg(&built)
            .arg(source.join("vmlinux")),
    )?;
    std::fs::write(folder.join("stamp"), stamp)?;
    std::fs::remove_dir_all(&source)?;
    eprintln!("   built {}", built.display());
    Ok(())
}

fn install() -> Result<()> {
    setup::packages(PACKAGES)?;
    let missing = LIBRARIES
        .iter()
        .filter(|(_, header)| !Path::new(header).exists());
    let mut missing: Vec<_> = missing.map(|(package, _)| (*package, "absent")).collect();
    if source_archive().is_err() {
        missing.push(("linux-source", "absent"));
    }
    setup::packages(&missing)
}

/// The newest `/usr/src/linux-source-*.tar.xz`.
fn source_archive() -> Result<PathBuf> {
    let entries = std::fs::read_dir("/usr/src")?
        .flatten()
        .map(|entry| entry.path());
    let mut archives: Vec<_> = entries
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("linux-source-") && name.contains(".tar.")
        })
        .collect();
    archives.sort();
    archives
        .pop()
        .context("no /usr/src/linux-source-*.tar.xz: install linux-source")
}

/// Changes when the source or the configuration does.
fn stamp(archive: &Path, fragment: &Path) -> Result<String> {
    let sums = output(Command::new("sha256sum").args([archive, fragment]))?;
    Ok(sums)
}

fn unpack(archive: &Path, source: &Path) -> Result<()> {
    if source.exists() {
        std::fs::remove_dir_all(source)?;
    }
    std::fs::create_dir_all(source)?;
    must(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(source),
    )
}

fn configure(source: &Path, fragment: &Path) -> Result<()> {
    must(make(source).args(["--silent", "tinyconfig"]))?;
    must(
        Command::new("scripts/kconfig/merge_config.sh")
            .args(["-m", ".config"])
            .arg(fragment)
            .current_dir(source)
            .stdout(std::process::Stdio::null()),
    )?;
    must(make(source).args(["--silent", "olddefconfig"]))
}

fn make(source: &Path) -> Command {
    let mut make = Command::new("make");
    make.current_dir(source);
    // The date and the builder's name would make each build another kernel.
    make.envs([
        ("KBUILD_BUILD_TIMESTAMP", "1970-01-01"),
        ("KBUILD_BUILD_USER", "outgate"),
        ("KBUILD_BUILD_HOST", "outgate"),
    ]);
    make
}
