//! Where things are: the workspace, the cache that the user can name, and the programs built in
//! it. The inner cargo builds into the cache too, so that a fresh clone starts warm.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

/// The folders of one run.
#[derive(Debug)]
pub(crate) struct Place {
    workspace: PathBuf,
    cache: PathBuf,
    target: PathBuf,
}

/// How programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

impl Place {
    /// `cache` as given, else `~/.cache/outgate`.
    pub(crate) fn new(cache: Option<PathBuf>) -> Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask has no parent folder")?
            .to_owned();
        let cache = match cache {
            Some(cache) => cache,
            None => {
                let home = std::env::var_os("HOME").context("HOME is not set: name a --cache")?;
                Path::new(&home).join(".cache/outgate")
            }
        };
        std::fs::create_dir_all(&cache)
            .with_context(|| format!("cannot create the cache folder `{}`", cache.display()))?;
        let cache = cache.canonicalize()?;
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| cache.join("target"), PathBuf::from);
        Ok(Self {
            workspace,
            cache,
            target,
        })
    }

    pub(crate) fn workspace(&self) -> &Path {
        &self.workspace
    }

    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// Where cargo builds.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// A folder for what cargo builds of a workspace of its own: another one would wait for its lock.
    pub(crate) fn own_target(&self, name: &str) -> PathBuf {
        self.target.join(name)
    }

    /// A program that cargo built.
    pub(crate) fn program(&self, profile: Profile, name: &str) -> PathBuf {
        let folder = match profile {
            Profile::Dev => "debug",
            Profile::Release => "release",
        };
        self.target.join(folder).join(name)
    }

    /// `cargo ARGUMENTS` in the workspace.
    pub(crate) fn cargo<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut cargo = self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(arguments).env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// Any program, told where the cache and the program under test are.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.workspace)
            .env("OUTGATE_CACHE", &self.cache)
            .env("OUTGATE_BIN", self.program(Profile::Dev, "outgate"));
        command
    }

    /// `outgate ARGUMENTS`.
    pub(crate) fn outgate<S: AsRef<std::ffi::OsStr>>(
        &self,
        profile: Profile,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut outgate = self.command(self.program(profile, "outgate"));
        outgate.args(arguments);
        outgate
    }
}

/// Whether `program` is on the path or where administrators' programs are.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .map(|folder| folder.join(program))
        .any(|candidate| candidate.is_file())
}
