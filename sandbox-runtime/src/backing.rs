//! What backs a guest's memory and writable disk: anonymous files that the owner of the sandbox
//! holds too.
//!
//! So they can be copied without QEMU's help, which must not be trusted with paths of the host.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::MemfdFlags;

use crate::error::RuntimeError;
use crate::overlay::copy_sparse;

/// The memory or the disk of one guest. What it never wrote costs nothing.
#[derive(Debug)]
pub(crate) struct Backing(File);

impl Backing {
    /// Memory of `mib` MiB.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when the host gives no memory file of that size.
    pub(crate) fn memory(mib: u32) -> Result<Self, RuntimeError> {
        let make = || {
            let file = File::from(rustix::fs::memfd_create(
                "outgate-ram",
                MemfdFlags::CLOEXEC,
            )?);
            file.set_len(u64::from(mib) << 20)?;
            Ok(file)
        };
        make().map(Self).map_err(|error: std::io::Error| {
            RuntimeError::environment(
                format!("the host gives no {mib} MiB of memory: {error}"),
                "ask for less memory, or free some",
            )
        })
    }

    pub(crate) fn try_clone(&self) -> Result<Self, RuntimeError> {
        self.0.try_clone().map(Self).map_err(|error| {
            RuntimeError::environment(
                format!("no file descriptor is left: {error}"),
                "raise `ulimit -n`",
            )
        })
    }

    /// Writes the content to a new private file; what the guest never wrote stays a hole.
    ///
    /// # Errors
    /// [`RuntimeError::File`] when the file exists or can't be written.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<(), RuntimeError> {
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|file| copy_sparse(&self.0, &file))
            .map_err(|error| RuntimeError::file("write", path, error))
    }
}

impl From<File> for Backing {
    fn from(file: File) -> Self {
        Self(file)
    }
}

impl From<Backing> for OwnedFd {
    fn from(backing: Backing) -> Self {
        backing.0.into()
    }
}
