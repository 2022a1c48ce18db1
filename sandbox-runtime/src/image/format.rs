//! Which file system an image holds, told from its superblock alone.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::{Deserialize, Serialize};

/// A read-only root file system that guests can mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ImageFormat {
    /// EROFS, uncompressed when we build it: fastest to read.
    Erofs,
    /// ext4, mounted read-only.
    Ext4,
    /// SquashFS.
    Squashfs,
}

impl ImageFormat {
    /// Looks for a superblock at the place that each file system has it; `None` when there is none.
    ///
    /// # Errors
    /// When the file can't be read.
    pub(crate) fn detect(file: &File) -> io::Result<Option<Self>> {
        // Magic numbers as in the kernel's `include/uapi/linux/magic.h`, little endian.
        let superblocks: [(Self, u64, &[u8]); 3] = [
            (Self::Erofs, 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
            (Self::Ext4, 1024 + 56, &[0x53, 0xef]),
            (Self::Squashfs, 0, b"hsqs"),
        ];
        for (format, offset, magic) in superblocks {
            let mut found = vec![0; magic.len()];
            match file.read_exact_at(&mut found, offset) {
                Ok(()) if found == magic => return Ok(Some(format)),
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Erofs => "erofs",
            Self::Ext4 => "ext4",
            Self::Squashfs => "squashfs",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(offset: u64, magic: &[u8]) -> Option<ImageFormat> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(magic, offset).unwrap();
        ImageFormat::detect(&file).unwrap()
    }

    #[test]
    fn superblocks_are_told_apart() {
        assert_eq!(
            detect(1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
            Some(ImageFormat::Erofs)
        );
        assert_eq!(detect(1080, &[0x53, 0xef]), Some(ImageFormat::Ext4));
        assert_eq!(detect(0, b"hsqs"), Some(ImageFormat::Squashfs));
    }

    #[test]
    fn a_short_or_foreign_file_is_no_image() {
        assert_eq!(detect(0, b""), None);
        assert_eq!(detect(0, b"#!/bin/sh\n"), None);
        assert_eq!(detect(2000, b"hsqs"), None);
    }
}
