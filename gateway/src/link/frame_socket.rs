//! The file descriptor that carries a sandbox's Ethernet frames.
//!
//! One `read` is one frame and one `write` is one frame: a datagram socket whose other end QEMU
//! holds, or a TAP. It never blocks and never queues; what does not fit now is the caller's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Wanted socket buffer, in bytes each way: 64 of the largest frames. The default of most kernels
/// holds three, which makes two CPUs wait for each other.
const SOCKET_BUFFER: usize = 4 << 20;

/// A link's descriptor. The node may hold duplicates; they share the non-blocking flag.
#[derive(Debug)]
pub struct Link {
    fd: AsyncFd<OwnedFd>,
}

/// Why a descriptor can't be a link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A byte stream has no frame borders.
    #[error("the link is not a datagram socket or a TAP; pass one end of a SOCK_DGRAM socketpair")]
    NotFrames,
    /// The descriptor can't be used without blocking.
    #[error("the link can't be watched for frames; pass an open socket or TAP")]
    Watch(#[source] io::Error),
}

impl Link {
    /// Takes a descriptor and makes it non-blocking. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If it does not carry frames, or can't be polled.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, LinkError> {
        match sockopt::socket_type(&fd) {
            Ok(SocketType::DGRAM) => enlarge_buffers(&fd),
            Err(Errno::NOTSOCK) if is_character_device(&fd) => {}
            _ => return Err(LinkError::NotFrames),
        }
        rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| LinkError::Watch(errno.into()))?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that may close their descriptor; an `OwnedFd` can't"
        )]
        let fd = AsyncFd::with_interest(fd, interest).map_err(LinkError::Watch)?;
        Ok(Self { fd })
    }

    /// Reads one frame. A frame longer than `buffer` fills it.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.try_io(Interest::READABLE, |fd| {
            Ok(rustix::io::read(fd, &mut *buffer)?)
        })
    }

    /// Writes one frame.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.fd
            .try_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, frame)?))
            .map(|_| ())
    }

    /// Resolves when [`Link::receive`] is worth a try.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    /// Resolves when [`Link::send`] is worth a try.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.fd.writable().await.map(drop)
    }
}

/// Beyond the system's limit only a privileged process may go; less works too, only slower.
fn enlarge_buffers(fd: &OwnedFd) {
    let send = sockopt::set_socket_send_buffer_size_force(fd, SOCKET_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER));
    let receive = sockopt::set_socket_recv_buffer_size_force(fd, SOCKET_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER));
    if let Err(error) = send.and(receive) {
        tracing::debug!(%error, "link keeps its small socket buffers");
    }
}

fn is_character_device(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[tokio::test]
    async fn a_byte_stream_is_no_link() {
        let (stream, _peer) = UnixStream::pair().unwrap();
        let refused = Link::from_fd(stream.into()).unwrap_err();
        assert!(matches!(refused, LinkError::NotFrames), "{refused:?}");
    }

    #[tokio::test]
    async fn a_datagram_is_a_frame_and_an_empty_socket_would_block() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let link = Link::from_fd(ours.into()).unwrap();
        theirs.send(b"frame").unwrap();
        link.readable().await.unwrap();
        let mut buffer = [0; 16];
        assert_eq!(link.receive(&mut buffer).unwrap(), 5);
        let empty = link.receive(&mut buffer).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        link.send(b"reply").unwrap();
        assert_eq!(theirs.recv(&mut buffer).unwrap(), 5);
    }
}
