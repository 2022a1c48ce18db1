//! Guest images: read-only root file systems, made once and shared by every sandbox.
//!
//! An image is one file that the guest mounts below a writable layer. It never holds a secret: what
//! the host needs to reach a package mirror (proxy, credentials) stays out of it.

mod build;
mod format;
mod source;
mod store;

use std::path::{Path, PathBuf};

pub use format::ImageFormat;
pub use source::{DEFAULT_PACKAGES, ImageSource};
pub use store::ImageStore;

/// An image that is ready to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub(crate) source: String,
    pub(crate) path: PathBuf,
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) format: ImageFormat,
}

impl Image {
    /// What it was made from, such as `debian:bookworm`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the file, 64 hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its file system.
    pub fn format(&self) -> ImageFormat {
        self.format
    }
}
