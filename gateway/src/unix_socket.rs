//! Binding a unix socket so that nobody can connect before its mode is set, and so that what a killed
//! process left behind is not in the way.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Listens at `path` with permission bits `mode`; not blocking.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] where something else than a socket is there,
/// [`io::ErrorKind::AddrInUse`] where somebody answers on it, and whatever the system says.
pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if let Ok(metadata) = path.symlink_metadata() {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!(
                    "`{}` exists and is no socket; choose another path",
                    path.display()
                ),
            ));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another gateway already listens at `{}`", path.display()),
            ));
        }
        std::fs::remove_file(path)?;
    }
    // Bound under a private name and renamed, so that nobody can connect before the mode is set.
    let private = path.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&private)?;
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(&private, path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
