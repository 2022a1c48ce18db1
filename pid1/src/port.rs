//! The virtio-serial port as a byte stream.
//!
//! The port stays while hosts come and go. Without a host it reads as ended; then the connection on
//! it is over, and the next one starts when somebody is there again. A host that comes at once is
//! harder to tell: the kernel says nothing, and its bytes follow those of the one before. But they
//! are in a buffer of their own, of which a read takes no more than the rest, so that a read which
//! begins like an HTTP/2 connection (RFC 9113, section 3.4) is one.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
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

/// What every host says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Where the type of the frame after it is, and which it must be.
const FIRST_FRAME_TYPE: usize = PREFACE.len() + 3;
const SETTINGS: u8 = 4;

/// The port, whoever is on the other side.
#[derive(Debug)]
pub(crate) struct Port {
    file: File,
    /// What a host said that came while the one before was still being served.
    arrived: Arrived,
}

type Arrived = Arc<Mutex<BytesMut>>;

/// The port as long as one host is on the other side.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: AsyncFd<OwnedFd>,
    arrived: Arrived,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was read; what comes before a preface is left over from another host.
    New,
    Begun,
    /// The host has gone, and another may be there: nothing more is said to it here.
    Over,
}

impl Port {
    /// Waits for the port named `name` and opens it.
    pub(crate) async fn open(name: &str) -> io::Result<Self> {
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
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        let arrived = Arrived::default();
        Ok(Self { file, arrived })
    }

    /// Waits for a host on the other side.
    pub(crate) async fn connected(&self) -> io::Result<Connection> {
        while is_gone(&self.file)? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Connection {
            fd: sys::watched(self.file.try_clone()?.into())?,
            arrived: Arc::clone(&self.arrived),
            state: State::New,
        })
    }
}

fn is_gone(port: &impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLOUT)];
    poll(&mut polled, PollTimeout::ZERO)?;
    let hung_up = |fd: &PollFd<'_>| {
        fd.revents()
            .is_none_or(|it| it.contains(PollFlags::POLLHUP))
    };
    Ok(polled.iter().any(hung_up))
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

impl Connection {
    fn arrived(&self) -> MutexGuard<'_, BytesMut> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a host said early; none when there is nothing.
    fn take_arrived(&mut self, buf: &mut ReadBuf<'_>) -> Option<()> {
        let mut arrived = self.arrived();
        let count = arrived.len().min(buf.remaining());
        if count == 0 {
            return None;
        }
        buf.put_slice(&arrived.split_to(count));
        drop(arrived);
        self.state = State::Begun;
        Some(())
    }

    /// Whether `bytes`, of one read, are for this connection.
    fn accept(&mut self, bytes: &[u8]) -> bool {
        let starts = if self.state == State::New {
            PREFACE.starts_with(bytes) || bytes.starts_with(PREFACE)
        } else {
            let frame = bytes.get(FIRST_FRAME_TYPE);
            bytes.starts_with(PREFACE) && frame.is_none_or(|kind| *kind == SETTINGS)
        };
        match (self.state, starts) {
            (State::New, true) => self.state = State::Begun,
            (State::Begun, true) => {
                self.arrived().extend_from_slice(bytes);
                self.state = State::Over;
            }
            _ => {}
        }
        self.state == State::Begun
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        while connection.state != State::Over {
            if connection.take_arrived(buf).is_some() {
                break;
            }
            let mut ready = ready!(connection.fd.poll_read_ready(cx))?;
            let into = buf.initialize_unfilled();
            let read = ready.try_io(|port| Ok(nix::unistd::read(port.get_ref(), into)?));
            drop(ready);
            let Ok(read) = read else { continue };
            let count = read?;
            if count == 0 {
                connection.state = State::Over;
                break;
            }
            if connection.accept(into.get(..count).unwrap_or_default()) {
                buf.advance(count);
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.state == State::Over {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let mut ready = ready!(self.fd.poll_write_ready(cx))?;
            match ready.try_io(|port| Ok(nix::unistd::write(port.get_ref(), bytes)?)) {
                Ok(written) => return Poll::Ready(written),
                // Without a host the port is only said to be full; nobody will make room.
                Err(_would_block) if is_gone(&self.fd)? => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Like the port, datagrams come out as they went in.
    fn port() -> (UnixDatagram, Port) {
        let (host, guest) = UnixDatagram::pair().unwrap();
        guest.set_nonblocking(true).unwrap();
        let file = File::from(OwnedFd::from(guest));
        (
            host,
            Port {
                file,
                arrived: Arrived::default(),
            },
        )
    }

    async fn read(connection: &mut Connection) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let count = connection.read(&mut buffer).await.unwrap();
        buffer.get(..count).unwrap().to_vec()
    }

    #[tokio::test]
    async fn b211_a_host_that_comes_at_once_takes_over() {
        let (host, port) = port();
        let settings = [PREFACE, &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]].concat();
        for start in [PREFACE, &settings] {
            let mut first = port.connected().await.unwrap();
            host.send(PREFACE).unwrap();
            assert_eq!(read(&mut first).await, PREFACE);
            host.send(b"half a fra").unwrap();
            assert_eq!(read(&mut first).await, b"half a fra");
            host.send(start).unwrap();
            assert_eq!(read(&mut first).await, b"");
            assert_eq!(read(&mut first).await, b"");
            let mut second = port.connected().await.unwrap();
            assert_eq!(read(&mut second).await, start);
            host.send(b"more").unwrap();
            assert_eq!(read(&mut second).await, b"more");
        }
    }

    #[tokio::test]
    async fn nothing_is_said_to_the_next_host_by_the_connection_before() {
        let (host, port) = port();
        let mut first = port.connected().await.unwrap();
        host.send(PREFACE).unwrap();
        read(&mut first).await;
        first.write_all(b"to the first").await.unwrap();
        host.send(PREFACE).unwrap();
        read(&mut first).await;
        let error = first.write_all(b"a farewell").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn what_a_lost_host_left_is_not_the_start_of_the_next() {
        let (host, port) = port();
        let mut connection = port.connected().await.unwrap();
        host.send(b"the end of something").unwrap();
        let (bytes, ()) = tokio::join!(read(&mut connection), async {
            tokio::task::yield_now().await;
            host.send(PREFACE).unwrap();
        });
        assert_eq!(bytes, PREFACE);
    }

    #[tokio::test]
    async fn content_that_looks_like_a_start_stays_content() {
        let (host, port) = port();
        let mut connection = port.connected().await.unwrap();
        host.send(PREFACE).unwrap();
        read(&mut connection).await;
        for content in [[PREFACE, b"text"].concat(), [b"x", PREFACE].concat()] {
            host.send(&content).unwrap();
            assert_eq!(read(&mut connection).await, content);
        }
    }
}
