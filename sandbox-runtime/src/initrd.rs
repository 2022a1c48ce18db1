//! The initial RAM disk: PID 1 and the kernel modules that it needs to find its disks.
//!
//! It holds nothing of one sandbox, so that all of them share one cached file. Format: "newc" cpio
//! (`Documentation/driver-api/early-userspace/buffer-format.rst` of the kernel), uncompressed, since
//! unpacking costs an emulated guest more than reading.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::RuntimeError;
use crate::fingerprint::Fingerprint;
use crate::kernel::Kernel;
use crate::paths::{Paths, private_dir};

/// Cached disks that are kept; each is some megabytes, and one is used per kernel and PID 1.
const KEPT: usize = 4;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const REGULAR: u32 = 0o100_644;

/// The static binary that becomes PID 1: `OUTGATE_PID1`, else `outgate-pid1` beside this program,
/// else the one in the cache.
///
/// # Errors
/// [`RuntimeError::Environment`] when there is none.
pub(crate) fn find_pid1(paths: &Paths) -> Result<PathBuf, RuntimeError> {
    let beside = std::env::current_exe()
        .ok()
        .map(|exe| exe.with_file_name("outgate-pid1"));
    let named = std::env::var_os("OUTGATE_PID1").map(PathBuf::from);
    named.into_iter().chain(beside).chain([paths.installed_pid1()]).find(|path| path.is_file()).ok_or_else(
        || {
            RuntimeError::environment(
                "the guest's first program `outgate-pid1` is not found",
                format!(
                    "run `cargo xtask setup`, or put the static binary at `{}` or name it in OUTGATE_PID1",
                    paths.installed_pid1().display()
                ),
            )
        },
    )
}

/// The initial RAM disk for `kernel` and `pid1`, made when it isn't cached.
///
/// # Errors
/// [`RuntimeError::File`] when a part can't be read or the disk can't be written.
pub(crate) fn ensure(paths: &Paths, kernel: &Kernel, pid1: &Path) -> Result<PathBuf, RuntimeError> {
    let mut fingerprint = Fingerprint::default();
    fingerprint.add(kernel.fingerprint().as_bytes());
    fingerprint.add_file(pid1)?;
    let folder = paths.initrds();
    let path = folder.join(format!("{}.cpio", fingerprint.finish()));
    if path.is_file() {
        return Ok(path);
    }
    private_dir(&folder)?;
    remove_old(&folder);
    let problem = |source| RuntimeError::file("write", &path, source);
    let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(problem)?;
    write(file.as_file_mut(), kernel, pid1).map_err(problem)?;
    // QEMU reads it under a uid of its own, through a descriptor.
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))
        .map_err(problem)?;
    file.persist(&path).map_err(|error| problem(error.error))?;
    Ok(path)
}

fn write(to: &mut File, kernel: &Kernel, pid1: &Path) -> io::Result<()> {
    let mut archive = Archive::new(io::BufWriter::new(to));
    archive.entry("init", EXECUTABLE, &fs::read(pid1)?)?;
    archive.entry("modules", DIRECTORY, &[])?;
    for module in kernel.modules() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.entry(&format!("modules/{name}"), REGULAR, &fs::read(module)?)?;
    }
    archive.finish()?.flush()
}

/// Best effort: a disk that stays costs some megabytes.
fn remove_old(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut disks: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .filter(|(_, path)| {
            path.extension()
                .is_some_and(|extension| extension == "cpio")
        })
        .collect();
    disks.sort_unstable();
    let surplus = disks.len().saturating_sub(KEPT - 1);
    for (_, path) in disks.into_iter().take(surplus) {
        if let Err(error) = fs::remove_file(&path) {
            tracing::debug!(path = %path.display(), %error, "an old initial RAM disk stays");
        }
    }
}

/// Writes cpio entries: a header of ASCII hexadecimal numbers, the name, the content, each padded
/// to four bytes. All files belong to root and have no time, so that equal inputs give equal bytes.
struct Archive<W> {
    to: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    fn new(to: W) -> Self {
        Self { to, entries: 0 }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let size = length(content.len())?;
        let name_size = length(name.len() + 1)?;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(content)
    }

    fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.to)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.to.write_all(bytes)?;
        self.to.write_all([0; 3].get(..padding).unwrap_or_default())
    }
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::other("a file for the guest is over 4 GiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_byte_for_byte_newc() {
        let mut archive = Archive::new(Vec::new());
        archive.entry("init", EXECUTABLE, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let expected = [
            "070701",
            "00000001",
            "000081ed",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000005",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000005",
            "00000000",
            "init\0\0",
            "hello\0\0\0",
            "070701",
        ]
        .concat();
        assert!(text.starts_with(&expected), "{text:?}");
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"), "{text:?}");
        assert_eq!(text.len() % 4, 0);
    }

    #[test]
    fn only_the_newest_disks_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..6_u64 {
            let path = folder.path().join(format!("{number}.cpio"));
            let file = File::create(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number))
                .unwrap();
        }
        remove_old(folder.path());
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["3.cpio", "4.cpio", "5.cpio"]);
    }
}
