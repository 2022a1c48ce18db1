//! Guest kernels: finding one, and making one ready from the distribution's package.
//!
//! A kernel is a folder `<cache>/kernel/<name>/` with `vmlinux` or `vmlinuz` and, when it isn't built
//! in one piece, `modules/NN-name.ko` in the order of loading. A kernel of one piece in the folder
//! `custom` boots three times faster and is preferred.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::RuntimeError;
use crate::fingerprint::Fingerprint;
use crate::paths::{Paths, private_dir};
use crate::progress::Progress;
use crate::tool::{self, run};

/// What a guest needs to see its disks, its link and its control channel, and to mount images.
/// A name without a module file is built in.
const WANTED: [&str; 10] = [
    "virtio_mmio",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "crc32c_generic",
    "ext4",
    "erofs",
    "squashfs",
    "overlay",
];

/// The package that always depends on the newest kernel for virtual machines.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

const STEP: &str = "install kernel";

/// A kernel that guests can boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    name: String,
    image: PathBuf,
    modules: Vec<PathBuf>,
    fingerprint: String,
}

impl Kernel {
    /// The kernel to use: `custom` when it is there, else the newest of the installed ones.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when there is none.
    pub fn find(paths: &Paths) -> Result<Self, RuntimeError> {
        let folder = paths.kernels();
        if let Ok(kernel) = Self::load(&folder.join("custom")) {
            return Ok(kernel);
        }
        let mut installed: Vec<Self> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
            .filter_map(|entry| Self::load(&entry.path()).ok())
            .collect();
        installed.sort_by_cached_key(|kernel| {
            fs::metadata(&kernel.image)
                .and_then(|file| file.modified())
                .ok()
        });
        installed.pop().ok_or_else(|| {
            RuntimeError::environment(
                format!("there is no guest kernel in `{}`", folder.display()),
                "run `outgate kernel install`",
            )
        })
    }

    /// The kernel in one folder.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when there is no kernel, [`RuntimeError::File`] when it can't
    /// be read.
    pub fn load(folder: &Path) -> Result<Self, RuntimeError> {
        let image = ["vmlinux", "vmlinuz"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|path| path.is_file())
            .ok_or_else(|| {
                RuntimeError::environment(
                    format!("`{}` holds neither vmlinux nor vmlinuz", folder.display()),
                    "run `outgate kernel install`",
                )
            })?;
        let mut modules: Vec<PathBuf> = fs::read_dir(folder.join("modules"))
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .collect();
        modules.sort_unstable();
        let mut fingerprint = Fingerprint::default();
        for path in std::iter::once(&image).chain(&modules) {
            fingerprint.add_file(path)?;
        }
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            name,
            image,
            modules,
            fingerprint: fingerprint.finish(),
        })
    }

    /// Its folder's name, such as `custom` or `6.1.0-57-cloud-amd64`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that QEMU boots.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Modules in the order of loading; none for a kernel of one piece.
    pub fn modules(&self) -> &[PathBuf] {
        &self.modules
    }

    /// Changes whenever one of the files is replaced; 64 hexadecimal digits.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Fetches Debian's kernel for virtual machines by the machine's own apt and makes it ready.
/// Blocks for seconds; a second call replaces nothing that is in use.
///
/// # Errors
/// [`RuntimeError::Environment`] when apt or dpkg-deb is missing or fails, [`RuntimeError::File`]
/// when the cache can't be written.
pub fn install_debian_kernel(paths: &Paths, progress: &Progress) -> Result<Kernel, RuntimeError> {
    let kernels = paths.kernels();
    private_dir(&kernels)?;
    let scratch = tempfile::Builder::new()
        .prefix(".install-")
        .tempdir_in(&kernels)
        .map_err(|error| RuntimeError::file("write in", &kernels, error))?;
    let package = concrete_package()?;
    progress.step(STEP, format!("download {package}"));
    // apt's own download user can't enter a private folder.
    run(Command::new("apt-get")
        .args(["download", "-q", "-o", "APT::Sandbox::User=root", &package])
        .current_dir(scratch.path()))?;
    let archive = find(scratch.path(), |name| name.ends_with(".deb"))?;
    progress.step(STEP, format!("unpack {package}"));
    let tree = scratch.path().join("tree");
    run(Command::new("dpkg-deb").arg("-x").args([&archive, &tree]))?;
    let ready = scratch.path().join("ready");
    lay(&tree, &ready)?;
    let name = package.strip_prefix("linux-image-").unwrap_or(&package);
    let target = kernels.join(name);
    if target.exists() {
        // Renamed first: a reader sees the old folder, the new one or none, never a mixture.
        let old = scratch.path().join("old");
        fs::rename(&target, &old).map_err(|error| RuntimeError::file("replace", &target, error))?;
    }
    fs::rename(&ready, &target).map_err(|error| RuntimeError::file("make", &target, error))?;
    progress.step(STEP, format!("ready in {}", target.display()));
    Kernel::load(&target)
}

fn concrete_package() -> Result<String, RuntimeError> {
    let listing = tool::output(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    listing
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .ok_or_else(|| {
            RuntimeError::environment(
                format!("apt knows no package `{META_PACKAGE}`"),
                "run `apt-get update`, or put a kernel of your own at `<cache>/kernel/custom/vmlinux`",
            )
        })
}

/// Copies from an unpacked package what a guest needs.
fn lay(tree: &Path, to: &Path) -> Result<(), RuntimeError> {
    let modules_folder = to.join("modules");
    private_dir(&modules_folder)?;
    let image = find(&tree.join("boot"), |name| name.starts_with("vmlinuz"))?;
    copy(&image, &to.join("vmlinuz"))?;
    let library = tree.join("lib/modules");
    let release = find(&library, |_| true)?;
    decompress(&release)?;
    let mut all = BTreeMap::new();
    collect(&release, &mut all)?;
    let order = load_order(&WANTED, |name| {
        all.get(name)
            .map(|path| Ok(depends(&fs::read(path)?)))
            .transpose()
    })
    .map_err(|error| RuntimeError::file("read the modules in", &release, error))?;
    for (number, name) in order.iter().enumerate() {
        if let Some(path) = all.get(name) {
            copy(path, &modules_folder.join(format!("{number:02}-{name}.ko")))?;
        }
    }
    Ok(())
}

/// Newer releases compress their modules, which the guest's kernel may not read from memory.
fn decompress(folder: &Path) -> Result<(), RuntimeError> {
    for (suffix, program) in [("*.ko.xz", "xz"), ("*.ko.zst", "zstd")] {
        let files = tool::output(Command::new("find").arg(folder).args(["-name", suffix]))?;
        for file in files.lines() {
            run(Command::new(program).args(["-dqf", file]))?;
        }
    }
    Ok(())
}

/// Files of modules by name. File names have `-` where module names have `_`.
fn collect(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<(), RuntimeError> {
    let problem = |error| RuntimeError::file("read", folder, error);
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() && !path.is_symlink() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .replace('-', "_");
            found.insert(name, path);
        }
    }
    Ok(())
}

/// Every wanted module after those that it depends on. `depends` gives `None` for a name without
/// a module, which is then built in.
fn load_order(
    wanted: &[&str],
    depends: impl Fn(&str) -> io::Result<Option<Vec<String>>>,
) -> io::Result<Vec<String>> {
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    // Depth first with an explicit stack; the flag says that the dependencies have been visited.
    let mut stack: Vec<(String, bool)> = wanted
        .iter()
        .rev()
        .map(|name| ((*name).to_owned(), false))
        .collect();
    while let Some((name, complete)) = stack.pop() {
        if complete {
            order.push(name);
        } else if seen.insert(name.clone())
            && let Some(needed) = depends(&name)?
        {
            stack.push((name, true));
            stack.extend(needed.into_iter().rev().map(|name| (name, false)));
        }
    }
    Ok(order)
}

/// The `depends=` entry of a module's `.modinfo`: NUL-terminated `key=value` strings. The package has
/// no `modules.dep`; it is made from these when a kernel is installed.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module.get(start + KEY.len()..).unwrap_or_default();
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf, RuntimeError> {
    let problem = |error| RuntimeError::file("read", folder, error);
    for entry in fs::read_dir(folder).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        if entry.file_name().to_str().is_some_and(&wanted) {
            return Ok(entry.path());
        }
    }
    Err(problem(io::ErrorKind::NotFound.into()))
}

/// QEMU reads the copy under a uid of its own, through a descriptor.
fn copy(from: &Path, to: &Path) -> Result<(), RuntimeError> {
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(0o644)))
        .map_err(|error| RuntimeError::file("write", to, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(wanted: &[&str], graph: &[(&str, &[&str])]) -> Vec<String> {
        let graph: BTreeMap<&str, Vec<String>> = graph
            .iter()
            .map(|(name, needs)| (*name, needs.iter().map(|name| (*name).to_owned()).collect()))
            .collect();
        load_order(wanted, |name| Ok(graph.get(name).cloned())).unwrap()
    }

    #[test]
    fn a_module_comes_after_all_that_it_needs_and_once() {
        let graph: &[(&str, &[&str])] = &[
            ("virtio", &[]),
            ("virtio_ring", &["virtio"]),
            ("virtio_mmio", &["virtio_ring", "virtio"]),
            ("virtio_net", &["virtio", "virtio_ring", "net_failover"]),
            ("net_failover", &["failover"]),
            ("failover", &[]),
        ];
        assert_eq!(
            order(&["virtio_mmio", "virtio_net"], graph),
            [
                "virtio",
                "virtio_ring",
                "virtio_mmio",
                "failover",
                "net_failover",
                "virtio_net"
            ]
        );
    }

    #[test]
    fn what_is_built_in_is_left_out() {
        assert_eq!(
            order(&["ext4", "erofs"], &[("erofs", &["libcrc32c"])]),
            ["erofs"]
        );
    }

    #[test]
    fn a_circle_ends() {
        assert_eq!(order(&["a"], &[("a", &["b"]), ("b", &["a"])]), ["b", "a"]);
    }

    #[test]
    fn dependencies_are_read_from_the_module() {
        let module = b"\x7fELF...\0license=GPL\0depends=virtio_ring,virtio-x\0retpoline=Y\0";
        assert_eq!(depends(module), ["virtio_ring", "virtio_x"]);
        assert!(depends(b"\0license=GPL\0depends=\0").is_empty());
        assert!(depends(b"").is_empty());
    }

    #[test]
    fn the_custom_kernel_is_preferred_and_half_an_install_is_not_seen() {
        let cache = tempfile::tempdir().unwrap();
        let paths = Paths::new(cache.path(), cache.path().join("run"));
        assert!(Kernel::find(&paths).is_err());
        for name in [".install-x", "6.1.0-1-cloud-amd64"] {
            let folder = paths.kernels().join(name);
            fs::create_dir_all(folder.join("modules")).unwrap();
            fs::write(folder.join("vmlinuz"), "k").unwrap();
            fs::write(folder.join("modules/01-b.ko"), "").unwrap();
            fs::write(folder.join("modules/00-a.ko"), "").unwrap();
        }
        let found = Kernel::find(&paths).unwrap();
        assert_eq!(found.name(), "6.1.0-1-cloud-amd64");
        assert!(found.modules()[0].ends_with("00-a.ko"));
        fs::create_dir_all(paths.kernels().join("custom")).unwrap();
        fs::write(paths.kernels().join("custom/vmlinux"), "k").unwrap();
        assert_eq!(Kernel::find(&paths).unwrap().name(), "custom");
    }
}
