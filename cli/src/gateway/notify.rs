//! Telling systemd (or whoever speaks its protocol) that the gateway serves: `sd_notify(3)`.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names where to tell it.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Says `state`, as in `READY=1`; does nothing where nobody asked.
pub(super) fn say(state: &str) {
    if let Some(path) = std::env::var_os(SOCKET).filter(|path| !path.is_empty())
        && let Err(error) = send(path.as_bytes(), state)
    {
        tracing::warn!(%error, "`{state}` could not be told to `{SOCKET}`");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    // `@` stands for the byte 0 of an abstract address.
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(path)))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
