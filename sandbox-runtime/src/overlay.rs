//! The writable disk of one sandbox: an empty ext4 that has no name on the host.
//!
//! The file is anonymous from the start, so that its space comes back when the last process that
//! holds it ends, however it ends. It lies in the cache and not in the run folder, which is in
//! memory on most hosts.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::RuntimeError;
use crate::paths::{Paths, private_dir};
use crate::tool;

/// Smallest disk, MiB, on which ext4 leaves room to work.
pub(crate) const MIN_DISK_MIB: u32 = 64;

/// An anonymous disk of `size_mib`, formatted and sparse.
///
/// # Errors
/// [`RuntimeError::File`] when the cache can't be written, [`RuntimeError::Environment`] without
/// mkfs.ext4.
pub(crate) fn writable_disk(paths: &Paths, size_mib: u32) -> Result<File, RuntimeError> {
    let folder = paths.disks();
    private_dir(&folder)?;
    let template = template(&folder, size_mib)?;
    let problem = |error| RuntimeError::file("make a disk in", &folder, error);
    let disk = tempfile::tempfile_in(&folder).map_err(problem)?;
    let template = File::open(template).map_err(problem)?;
    copy_sparse(&template, &disk).map_err(problem)?;
    Ok(disk)
}

/// An empty file system of that size. Formatting costs 50 ms, copying what it wrote less than one.
fn template(folder: &Path, size_mib: u32) -> Result<PathBuf, RuntimeError> {
    let path = folder.join(format!("ext4-{size_mib}.template"));
    if path.is_file() {
        return Ok(path);
    }
    let problem = |error| RuntimeError::file("write", &path, error);
    let fresh = tempfile::NamedTempFile::new_in(folder).map_err(problem)?;
    fresh
        .as_file()
        .set_len(u64::from(size_mib) << 20)
        .map_err(problem)?;
    let program = tool::find("mkfs.ext4").unwrap_or_else(|| "mkfs.ext4".into());
    // No journal: the disk is thrown away after a crash. All blocks are the guest's.
    tool::run(
        Command::new(program)
            .args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-E"])
            .arg("lazy_itable_init=1,nodiscard")
            .arg(fresh.path()),
    )?;
    fresh.as_file().sync_all().map_err(problem)?;
    fresh.persist(&path).map_err(|error| problem(error.error))?;
    Ok(path)
}

/// Copies the written parts of `from` to the empty file `to`; shares them where the file system can.
pub(crate) fn copy_sparse(from: &File, to: &File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to.as_fd(), from.as_fd()).is_ok() {
        return Ok(());
    }
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut position = 0;
    loop {
        let start = match rustix::fs::seek(from, SeekFrom::Data(position)) {
            Err(Errno::NXIO) => return Ok(()),
            result => result?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        copy_range(from, to, start, end)?;
        position = end;
    }
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut chunk = vec![0; 1 << 20];
    let mut position = start;
    while position < end {
        let left = usize::try_from(end - position).unwrap_or(usize::MAX);
        let length = left.min(chunk.len());
        let part = chunk.get_mut(..length).unwrap_or_default();
        let length = from.read_at(part, position)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all_at(part.get(..length).unwrap_or_default(), position)?;
        position += u64::try_from(length).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn a_copy_is_equal_and_as_sparse() {
        let from = tempfile::tempfile().unwrap();
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(b"middle", 40 << 20).unwrap();
        let to = tempfile::tempfile().unwrap();
        copy_sparse(&from, &to).unwrap();
        let mut found = [0; 6];
        to.read_exact_at(&mut found, 40 << 20).unwrap();
        assert_eq!(&found, b"middle");
        assert_eq!(to.metadata().unwrap().len(), 64 << 20);
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn a_disk_is_formatted_nameless_and_small() {
        if !tool::is_installed("mkfs.ext4") {
            return;
        }
        let cache = tempfile::tempdir().unwrap();
        let paths = Paths::new(cache.path(), cache.path().join("run"));
        let disk = writable_disk(&paths, 1024).unwrap();
        let mut magic = [0; 2];
        disk.read_exact_at(&mut magic, 1024 + 56).unwrap();
        assert_eq!(magic, [0x53, 0xef]);
        assert_eq!(disk.metadata().unwrap().len(), 1024 << 20);
        assert!(disk.metadata().unwrap().blocks() * 512 < 16 << 20);
        assert_eq!(disk.metadata().unwrap().nlink(), 0);
    }
}
