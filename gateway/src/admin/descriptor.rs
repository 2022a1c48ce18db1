//! A line of bytes with at most one file descriptor attached, over a unix stream socket.
//!
//! The descriptor rides on the first byte of the line (`unix(7)`, `SCM_RIGHTS`). More than one is a
//! protocol error, and every descriptor that arrived is closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::protocol::MAX_LINE_BYTES;

/// Bytes asked of the kernel at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// Sends `line` and a newline; the descriptor, when given, travels with the first byte.
pub(super) async fn send_line(
    stream: &UnixStream,
    line: &str,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = [line.as_bytes(), b"\n"].concat();
    let mut rest = bytes.as_slice();
    let mut descriptor = descriptor;
    while !rest.is_empty() {
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let attached = descriptor.as_ref().map(std::slice::from_ref);
                if let Some(fds) = attached
                    && !control.push(SendAncillaryMessage::ScmRights(fds))
                {
                    return Err(io::Error::other("the control buffer holds no descriptor"));
                }
                let flags = SendFlags::NOSIGNAL;
                Ok(sendmsg(stream, &[IoSlice::new(rest)], &mut control, flags)?)
            })
            .await?;
        descriptor = None;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Reads one line of at most [`MAX_LINE_BYTES`], and the descriptor that came with it.
pub(super) async fn receive_line(stream: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut line = Vec::new();
    let mut received = Vec::new();
    loop {
        let mut chunk = [0_u8; CHUNK_BYTES];
        let count = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let flags = RecvFlags::CMSG_CLOEXEC;
                let message = recvmsg(
                    stream,
                    &mut [IoSliceMut::new(&mut chunk)],
                    &mut control,
                    flags,
                )?;
                for part in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = part {
                        received.extend(fds);
                    }
                }
                Ok(message.bytes)
            })
            .await?;
        let bytes = chunk.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(bytes);
        if line.last() == Some(&b'\n') {
            break;
        }
        if line.len() > MAX_LINE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a line on the admin socket is longer than {MAX_LINE_BYTES} bytes"),
            ));
        }
    }
    line.pop();
    if received.len() > 1 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more than one descriptor came with a line on the admin socket",
        ));
    }
    let text = String::from_utf8(line)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok((text, received.pop()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[tokio::test]
    async fn a_long_line_and_its_descriptor_arrive_together() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let long = "x".repeat(300_000);
        let (sent, got) = tokio::join!(
            send_line(&left, &long, Some(writer.as_fd())),
            receive_line(&right)
        );
        sent.unwrap();
        let (line, descriptor) = got.unwrap();
        assert_eq!(line, long);
        drop(writer);
        File::from(descriptor.unwrap())
            .write_all(b"through the copy")
            .unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the copy");
    }

    #[tokio::test]
    async fn a_connection_that_ends_mid_line_is_an_error() {
        let (left, right) = UnixStream::pair().unwrap();
        left.try_write(b"{\"half\":").unwrap();
        drop(left);
        let error = receive_line(&right).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn an_endless_line_is_cut_off() {
        let (left, right) = UnixStream::pair().unwrap();
        let endless = "y".repeat(MAX_LINE_BYTES + CHUNK_BYTES + 1);
        let (_, got) = tokio::join!(
            async {
                let outcome = send_line(&left, &endless, None).await;
                drop(outcome);
            },
            async {
                let got = receive_line(&right).await;
                drop(right);
                got
            }
        );
        assert_eq!(got.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
