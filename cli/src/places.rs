//! Where `outgate` keeps what outlives a run.
//!
//! State (audit logs, certificate authorities) is apart from the cache, which may be deleted at any
//! time. `OUTGATE_STATE` names it; else `/var/lib/outgate` for root, `$XDG_STATE_HOME/outgate` or
//! `~/.local/state/outgate` for everyone else.

use std::io;
use std::path::{Path, PathBuf};

/// The folder for state.
pub(crate) fn state_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("OUTGATE_STATE").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    if rustix::process::geteuid().is_root() {
        return "/var/lib/outgate".into();
    }
    let base = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".local/state")
        });
    base.join("outgate")
}

/// The audit log of one run. Runs don't share a log: each has one writer and one chain.
pub(crate) fn audit_dir_of(sandbox: &str) -> PathBuf {
    state_dir().join("audit").join(sandbox)
}

/// The audit log of the newest run, for `outgate audit` without `--dir`.
pub(crate) fn latest_audit_dir() -> PathBuf {
    state_dir().join("audit").join("latest")
}

/// Points `latest` at `dir`, atomically.
pub(crate) fn remember_latest(dir: &Path) -> io::Result<()> {
    let latest = latest_audit_dir();
    let fresh = latest.with_extension(std::process::id().to_string());
    std::os::unix::fs::symlink(dir, &fresh)?;
    std::fs::rename(&fresh, &latest)
}
