//! The virtio-serial port as a byte stream.
//!
//! The port stays while hosts come and go. Without a host it reads as ended; then the connection on
//! it is over, and the next one starts when somebody is there again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::sys;

/// How long the port may take to appear after its driver is there.
const APPEAR_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two looks for the port, or for a host on it: the kernel only reports that there is
/// none, over and over.
const PAUSE: Duration = Duration::from_millis(20);

/// One end of the channel to the host.
#[derive(Debug)]
pub(crate) struct Port(AsyncFd<OwnedFd>);

impl Port {
    /// Waits for the port named `name` and opens it.
    pub(crate) async fn open(name: &str) -> io::Result<File> {
        let appear = async {
            loop {
                if let Some(path) = find(name) {
                    return path;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let path = tokio::time::timeout(APPEAR_TIMEOUT, appear)
            .await
            .map_err(|_| {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("no virtio port is named `{name}`"),
                )
            })?;
        File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
    }

    /// Waits for a host on the other side.
    pub(crate) async fn connected(port: &File) -> io::Result<Self> {
        loop {
            let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLOUT)];
            poll(&mut polled, PollTimeout::ZERO)?;
            let gone = polled.iter().any(|fd| {
                fd.revents()
                    .is_none_or(|events| events.contains(PollFlags::POLLHUP))
            });
            if !gone {
                return Ok(Self(sys::watched(port.try_clone()?.into())?));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn find(name: &str) -> Option<PathBuf> {
    fs::read_dir("/sys/class/virtio-ports")
        .ok()?
        .flatten()
        .find_map(|port| {
            let found = fs::read_to_string(port.path().join("name")).ok()?;
            (found.trim_end() == name).then(|| PathBuf::from("/dev").join(port.file_name()))
        })
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let into = buf.initialize_unfilled();
            match ready.try_io(|port| Ok(nix::unistd::read(port.get_ref(), into)?)) {
                Ok(read) => return Poll::Ready(read.map(|count| buf.advance(count))),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(cx))?;
            match ready.try_io(|port| Ok(nix::unistd::write(port.get_ref(), bytes)?)) {
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
