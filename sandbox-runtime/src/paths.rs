//! Where the runtime keeps its files.
//!
//! The cache holds what can be made again (kernels, images, probe results, disks of running
//! sandboxes); the run folder holds one small folder per live sandbox. Neither holds a secret.

use std::env;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::error::RuntimeError;

/// The folders that one runtime works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    cache: PathBuf,
    run: PathBuf,
}

impl Paths {
    /// Uses these two folders, whatever the environment says. They are made when first needed.
    pub fn new(cache: impl Into<PathBuf>, run: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            run: run.into(),
        }
    }

    /// Cache: `OUTGATE_CACHE`, else `$XDG_CACHE_HOME/outgate`, else `~/.cache/outgate`.
    /// Run folder: `OUTGATE_RUN`, else `/run/outgate` for root, else `$XDG_RUNTIME_DIR/outgate`,
    /// else `<cache>/run`.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when no variable says where the cache is.
    pub fn from_env() -> Result<Self, RuntimeError> {
        let cache = folder("OUTGATE_CACHE")
            .or_else(|| folder("XDG_CACHE_HOME").map(|dir| dir.join("outgate")))
            .or_else(|| folder("HOME").map(|dir| dir.join(".cache/outgate")))
            .ok_or_else(|| {
                RuntimeError::environment(
                    "there is no folder for the cache: neither HOME nor XDG_CACHE_HOME is set",
                    "set OUTGATE_CACHE to a folder with some gigabytes of space",
                )
            })?;
        let run = folder("OUTGATE_RUN").unwrap_or_else(|| {
            if rustix::process::geteuid().is_root() {
                return "/run/outgate".into();
            }
            folder("XDG_RUNTIME_DIR").map_or_else(|| cache.join("run"), |dir| dir.join("outgate"))
        });
        Ok(Self { cache, run })
    }

    /// The cache's root.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The folder of live sandboxes.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Guest kernels, one folder each.
    pub fn kernels(&self) -> PathBuf {
        self.cache.join("kernel")
    }

    /// The image store.
    pub fn images(&self) -> PathBuf {
        self.cache.join("images")
    }

    pub(crate) fn initrds(&self) -> PathBuf {
        self.cache.join("initrd")
    }

    pub(crate) fn disks(&self) -> PathBuf {
        self.cache.join("disk")
    }

    pub(crate) fn probes(&self) -> PathBuf {
        self.cache.join("probe")
    }

    pub(crate) fn installed_pid1(&self) -> PathBuf {
        self.cache.join("pid1/outgate-pid1")
    }
}

/// Makes `dir` and its parents, private to the owner.
pub(crate) fn private_dir(dir: &Path) -> Result<(), RuntimeError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| RuntimeError::file("make the folder", dir, source))
}

/// The folder that a variable names; an empty value counts as none, a relative one too (XDG
/// base directory specification, version 0.8).
fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}
