//! Reading and writing regular files of the guest for the host.
//!
//! A write is whole or not at all: bytes go to a new file beside the target, which takes its place
//! at the end. Bodies stream in both directions. Whatever is no regular file is refused before it is
//! opened: opening a FIFO waits, and opening a device does something. Links are followed when
//! reading; a write replaces the link itself.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nix::libc;

use crate::console;
use crate::exec::io_error;
use crate::range::Range;
use outgate_pid1::api::{ApiError, ErrorCode};

/// Bytes read from a file at a time.
const CHUNK: usize = 256 * 1024;
/// Mode of a new file that nobody gave one.
const DEFAULT_MODE: u32 = 0o644;

/// A part of a file that is going to be sent.
#[derive(Debug)]
pub(crate) struct Part {
    file: Option<File>,
    /// Bytes still to be sent; none to send until the end, wherever it is.
    left: Option<u64>,
    /// Offset of the first byte, bytes in this part, bytes in the whole file. None for a file that
    /// does not know its size, as those of `/proc`.
    pub(crate) extent: Option<Extent>,
}

/// See [`Part::extent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) size: u64,
}

impl Part {
    /// Opens `path`, at `range` when there is one.
    pub(crate) async fn open(path: &str, range: Option<Range>) -> Result<Self, ApiError> {
        let path = absolute(path)?;
        blocking(move || {
            let mut file = open_regular(&path)?;
            let size = file.metadata().map_err(|error| io_error(&error))?.len();
            let Some(range) = range else {
                let extent = (size > 0).then_some(Extent {
                    start: 0,
                    length: size,
                    size,
                });
                return Ok(Self {
                    file: Some(file),
                    left: extent.map(|it| it.length),
                    extent,
                });
            };
            let (start, length) = range.of(size).ok_or_else(|| {
                ApiError::new(
                    ErrorCode::RangeNotSatisfiable,
                    format!("the file has {size} bytes"),
                    "ask for a range within it",
                )
            })?;
            file.seek(SeekFrom::Start(start))
                .map_err(|error| io_error(&error))?;
            let extent = Some(Extent {
                start,
                length,
                size,
            });
            Ok(Self {
                file: Some(file),
                left: Some(length),
                extent,
            })
        })
        .await
    }

    /// The next bytes; none at the end.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let left = self.left.unwrap_or(u64::MAX);
        let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let Some(mut file) = self.file.take().filter(|_| wanted > 0) else {
            return Ok(None);
        };
        let (file, buffer) = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; wanted];
            let count = file.read(&mut buffer)?;
            buffer.truncate(count);
            io::Result::Ok((file, buffer))
        })
        .await??;
        self.file = Some(file);
        match &mut self.left {
            Some(_) if buffer.is_empty() => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the file was cut short",
            )),
            None if buffer.is_empty() => Ok(None),
            left => {
                *left = left.map(|left| left - buffer.len() as u64);
                Ok(Some(buffer.into()))
            }
        }
    }
}

/// How a file is to be written. What isn't said stays as it is, if there is a file already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    /// Permission bits.
    pub(crate) mode: Option<u32>,
    /// User and group.
    pub(crate) owner: Option<(u32, u32)>,
    /// Refuse to make the folders above the file.
    pub(crate) parents_must_exist: bool,
}

/// Puts `body` in the place of `path`; returns its length in bytes.
pub(crate) async fn write(
    path: &str,
    attributes: Attributes,
    mut body: Incoming,
) -> Result<u64, ApiError> {
    let path = absolute(path)?;
    let (mut draft, old) = blocking(move || {
        let old = replaceable(&path)?;
        if let Some(parent) = path.parent().filter(|_| !attributes.parents_must_exist) {
            std::fs::create_dir_all(parent).map_err(|error| io_error(&error))?;
        }
        Ok((Draft::beside(path).map_err(|error| io_error(&error))?, old))
    })
    .await?;
    let mut count = 0;
    loop {
        let piece = next_piece(&mut body).await?;
        if piece.is_empty() {
            break;
        }
        count += piece.len() as u64;
        draft = blocking(move || {
            let written = draft.file.write_all(&piece);
            written.map(|()| draft).map_err(|error| io_error(&error))
        })
        .await?;
    }
    blocking(move || {
        let published = draft.publish(attributes, old.as_ref());
        published.map_err(|error| io_error(&error))
    })
    .await?;
    Ok(count)
}

/// Collects frames of the connection, which are small, to pieces that are worth a write. Empty at
/// the end.
async fn next_piece(body: &mut Incoming) -> Result<BytesMut, ApiError> {
    let mut piece = BytesMut::new();
    while piece.len() < CHUNK {
        let Some(frame) = body.frame().await else {
            break;
        };
        let frame = frame.map_err(|error| {
            let message = format!("the upload broke off: {error}");
            ApiError::new(ErrorCode::Io, message, "try again")
        })?;
        if let Ok(bytes) = frame.into_data() {
            piece.extend_from_slice(&bytes);
        }
    }
    Ok(piece)
}

/// The new content of a file, under a name of its own until it is whole. Dropping it removes it,
/// also when nobody waits for the request any more.
#[derive(Debug)]
struct Draft {
    file: File,
    path: PathBuf,
    target: PathBuf,
    published: bool,
}

impl Draft {
    fn beside(target: PathBuf) -> io::Result<Self> {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
            let path = target.with_file_name(format!(".outgate-{number}"));
            match File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
            {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        path,
                        target,
                        published: false,
                    });
                }
                // Somebody's, or left by a guest that lost its power.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn publish(mut self, attributes: Attributes, old: Option<&Metadata>) -> io::Result<()> {
        let owner = attributes
            .owner
            .or_else(|| old.map(|old| (old.uid(), old.gid())));
        if let Some((uid, gid)) = owner {
            fchown(&self.file, Some(uid), Some(gid))?;
        }
        let mode = attributes
            .mode
            .or_else(|| old.map(|old| old.permissions().mode()));
        let mode = mode.unwrap_or(DEFAULT_MODE) & 0o7777;
        self.file.set_permissions(Permissions::from_mode(mode))?;
        std::fs::rename(&self.path, &self.target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            console::say(format_args!(
                "outgate-pid1: {:?} stays behind: {error}",
                self.path
            ));
        }
    }
}

/// What a write would replace: a regular file, whose attributes are returned, a link, or nothing.
fn replaceable(path: &Path) -> Result<Option<Metadata>, ApiError> {
    match path.symlink_metadata() {
        Ok(found) if found.is_file() => Ok(Some(found)),
        Ok(found) if found.is_symlink() => Ok(None),
        Ok(_) => Err(no_regular_file(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(&error)),
    }
}

/// Looks at what `path` names before it opens that same thing.
fn open_regular(path: &Path) -> Result<File, ApiError> {
    let seen = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path);
    let seen = seen.map_err(|error| io_error(&error))?;
    if !seen.metadata().map_err(|error| io_error(&error))?.is_file() {
        return Err(no_regular_file(path));
    }
    File::open(format!("/proc/self/fd/{}", seen.as_raw_fd())).map_err(|error| io_error(&error))
}

fn no_regular_file(path: &Path) -> ApiError {
    ApiError::new(
        ErrorCode::Conflict,
        format!(
            "`{}` is no regular file",
            path.display().to_string().escape_debug()
        ),
        "name a regular file",
    )
}

fn absolute(path: &str) -> Result<PathBuf, ApiError> {
    let file = Path::new(path);
    if file.is_absolute() && file.file_name().is_some() && !path.contains('\0') {
        return Ok(file.to_owned());
    }
    Err(ApiError::new(
        ErrorCode::BadRequest,
        format!("`{}` is no absolute path of a file", path.escape_debug()),
        "start it with a `/`",
    ))
}

/// Does what may wait for a disk beside the thread that serves.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io_error(&error.into())))
}
