//! The files of a log: their names, their lines, and the few things a writer does to them.
//!
//! A folder holds `audit-000001.jsonl`, `audit-000002.jsonl`, … and `audit.lock`. Anything else in
//! it is none of the log's business. Files are found by name only; what is in them is believed only
//! after [`chain`](super::chain) has read it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::error::AuditError;
use super::record::MAX_RECORD_BYTES;

/// Readable by the group, so that an auditor's account needs no root.
const FILE_MODE: u32 = 0o640;
const DIR_MODE: u32 = 0o750;
const LOCK_FILE: &str = "audit.lock";
/// For files that are opened by a fixed name: a link there would point our writing elsewhere.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// One segment by number and path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentPath {
    pub(super) index: u64,
    pub(super) path: PathBuf,
}

impl SegmentPath {
    pub(super) fn new(dir: &Path, index: u64) -> Self {
        Self {
            index,
            path: dir.join(file_name(index)),
        }
    }

    /// The file's name, for reports.
    pub(super) fn name(&self) -> String {
        file_name(self.index)
    }

    /// The segments in `dir`, in order.
    ///
    /// # Errors
    /// The folder can't be read, or something with a segment's name is no regular file: opening a
    /// FIFO would hang, and a link would be somebody else's log.
    pub(super) fn list(dir: &Path) -> Result<Vec<Self>, AuditError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(AuditError::file(dir))? {
            let entry = entry.map_err(AuditError::file(dir))?;
            let Some(index) = entry.file_name().to_str().and_then(index_of) else {
                continue;
            };
            let path = entry.path();
            if !entry
                .file_type()
                .map_err(AuditError::file(&path))?
                .is_file()
            {
                let not_a_file = io::Error::other("a segment must be a regular file");
                return Err(AuditError::file(&path)(not_a_file));
            }
            found.push(Self { index, path });
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn file_name(index: u64) -> String {
    format!("audit-{index:06}.jsonl")
}

fn index_of(name: &str) -> Option<u64> {
    let index = name
        .strip_prefix("audit-")?
        .strip_suffix(".jsonl")?
        .parse()
        .ok()?;
    (file_name(index) == name).then_some(index)
}

/// Reads a segment line by line, never more than one record into memory.
#[derive(Debug)]
pub(super) struct Lines {
    reader: BufReader<File>,
    /// Where the next line begins.
    offset: u64,
}

/// What [`Lines::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line; its newline is taken off.
    Whole,
    /// Text without a newline: the file ends within it, or it is beyond [`MAX_RECORD_BYTES`].
    Cut,
    /// Nothing more.
    End,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, AuditError> {
        let file = File::open(path).map_err(AuditError::file(path))?;
        Ok(Self {
            reader: BufReader::new(file),
            offset: 0,
        })
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> io::Result<Line> {
        line.clear();
        let limit = MAX_RECORD_BYTES as u64 + 1;
        let read = self.reader.by_ref().take(limit).read_until(b'\n', line)?;
        self.offset += read as u64;
        Ok(match line.last() {
            None => Line::End,
            Some(b'\n') => {
                line.pop();
                Line::Whole
            }
            Some(_) => Line::Cut,
        })
    }

    /// Goes (back) to `offset`, and sees what was written there meanwhile.
    pub(super) fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.offset = self.reader.seek(SeekFrom::Start(offset))?;
        Ok(())
    }

    /// The file's size now.
    pub(super) fn file_bytes(&self) -> io::Result<u64> {
        Ok(self.reader.get_ref().metadata()?.len())
    }
}

/// A segment as its writer needs it. A trait, so that tests can fill the disk.
pub(super) trait Segment: Send {
    /// Writes some of `bytes` at `offset`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts the file to `bytes`.
    fn set_len(&mut self, bytes: u64) -> io::Result<()>;
    /// Waits until the disk has it.
    fn sync(&mut self) -> io::Result<()>;
    /// Fails unless the file is still the one that readers find, `len` bytes long.
    fn check(&self, len: u64) -> io::Result<()>;
}

/// Where segments are made.
pub(super) trait Store: Send {
    /// Makes segment `index`, which must not exist.
    fn create(&mut self, index: u64) -> io::Result<Box<dyn Segment>>;
}

/// A segment in its folder.
#[derive(Debug)]
pub(super) struct SegmentFile {
    path: PathBuf,
    file: File,
    inode: u64,
}

impl SegmentFile {
    fn new(path: PathBuf, file: File) -> io::Result<Self> {
        let inode = file.metadata()?.ino();
        Ok(Self { path, file, inode })
    }
}

impl Segment for SegmentFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn check(&self, len: u64) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.ino() == self.inode && found.len() == len => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Err(io::Error::other(format!(
                "`{}` was moved, cut or replaced while it was written; put the log away and restart \
                 the gateway",
                self.path.display()
            ))),
        }
    }
}

/// The folder of a log, locked for one writer until dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Makes the folder if it is missing and takes its lock.
    ///
    /// # Errors
    /// [`AuditError::Locked`] names the process that has it.
    pub(super) fn lock(path: &Path) -> Result<Self, AuditError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(path);
        made.map_err(AuditError::file(path))?;
        let lock_path = path.join(LOCK_FILE);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(FILE_MODE)
            .custom_flags(NO_FOLLOW)
            .open(&lock_path)
            .map_err(AuditError::file(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(AuditError::Locked {
                    dir: path.to_owned(),
                    holder: holder_of(&lock),
                });
            }
            Err(TryLockError::Error(error)) => return Err(AuditError::file(&lock_path)(error)),
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(AuditError::file(&lock_path))?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Opens an existing segment for writing.
    pub(super) fn open(&self, segment: &SegmentPath) -> io::Result<SegmentFile> {
        let path = segment.path.clone();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(NO_FOLLOW)
            .open(&path)?;
        SegmentFile::new(path, file)
    }

    /// Moves what `segment` holds from `len` on to the file beside it that keeps torn tails. The
    /// disk has the copy before the segment is cut.
    pub(super) fn put_torn_aside(&self, segment: &mut SegmentFile, len: u64) -> io::Result<Torn> {
        let mut path = segment.path.clone();
        path.add_extension("torn");
        let mut kept = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(FILE_MODE)
            .custom_flags(NO_FOLLOW)
            .open(&path)?;
        let at = kept.metadata()?.len();
        segment.file.seek(SeekFrom::Start(len))?;
        let bytes = io::copy(&mut segment.file, &mut kept)?;
        kept.sync_all()?;
        self.sync()?;
        segment.set_len(len)?;
        Ok(Torn { at, bytes })
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// A torn tail in the `.torn` file of its segment.
#[derive(Debug)]
pub(super) struct Torn {
    /// Where it begins there.
    pub(super) at: u64,
    /// Its size.
    pub(super) bytes: u64,
}

impl Store for Directory {
    fn create(&mut self, index: u64) -> io::Result<Box<dyn Segment>> {
        let path = SegmentPath::new(&self.path, index).path;
        let mut new = OpenOptions::new();
        let file = new
            .create_new(true)
            .read(true)
            .write(true)
            .mode(FILE_MODE)
            .open(&path)?;
        if let Err(error) = self.sync() {
            // Left behind, it would stand in the way of the next try.
            fs::remove_file(&path)?;
            return Err(error);
        }
        Ok(Box::new(SegmentFile::new(path, file)?))
    }
}

fn holder_of(lock: &File) -> String {
    let mut pid = String::new();
    match lock.take(32).read_to_string(&mut pid) {
        Ok(_) if pid.trim().parse::<u32>().is_ok() => format!("process {}", pid.trim()),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_segments() {
        assert_eq!(index_of("audit-000001.jsonl"), Some(1));
        assert_eq!(index_of("audit-1000000.jsonl"), Some(1_000_000));
        for other in [
            "audit-1.jsonl",
            "audit-0000001.jsonl",
            "audit-+00001.jsonl",
            "audit-000001.jsonl.torn",
            "audit-000001.json",
            "audit.lock",
        ] {
            assert_eq!(index_of(other), None, "{other}");
        }
    }

    #[test]
    fn segments_are_listed_by_number_and_links_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for index in [1_000_000, 2, 999_999, 1] {
            fs::write(SegmentPath::new(dir.path(), index).path, "").unwrap();
        }
        let listed: Vec<u64> = SegmentPath::list(dir.path())
            .unwrap()
            .into_iter()
            .map(|s| s.index)
            .collect();
        assert_eq!(listed, [1, 2, 999_999, 1_000_000]);
        let link = SegmentPath::new(dir.path(), 3).path;
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let refused = SegmentPath::list(dir.path()).unwrap_err();
        assert!(matches!(refused, AuditError::File { path, .. } if path == link));
    }

    #[test]
    fn a_link_in_the_place_of_the_lock_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let log = dir.path().join("log");
        fs::create_dir(&log).unwrap();
        std::os::unix::fs::symlink(&victim, log.join(LOCK_FILE)).unwrap();
        assert!(matches!(
            Directory::lock(&log),
            Err(AuditError::File { .. })
        ));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }
}
