//! Cheap identities of files, for cache keys.
//!
//! A fingerprint changes whenever a file is replaced or written: it is made of path, size, inode and
//! modification time, not of the content. It proves nothing about integrity and is never used so.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::error::RuntimeError;

/// A fingerprint that is being made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fingerprint(Sha256);

impl Fingerprint {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // The length keeps `ab`, `c` apart from `a`, `bc`.
        self.0.update(bytes.len().to_le_bytes());
        self.0.update(bytes);
    }

    pub(crate) fn add_file(&mut self, path: &Path) -> Result<(), RuntimeError> {
        let file = fs::metadata(path).map_err(|error| RuntimeError::file("read", path, error))?;
        self.add(path.as_os_str().as_encoded_bytes());
        for number in [file.size(), file.ino(), file.dev()] {
            self.add(&number.to_le_bytes());
        }
        self.add(&file.mtime().to_le_bytes());
        self.add(&file.mtime_nsec().to_le_bytes());
        Ok(())
    }

    /// 64 hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
