//! The strict HTTP/1 reader in front of the server: nothing malformed gets past it.
//!
//! [`Front`] wraps the guest's stream and frames each message itself. A head is released only after
//! [`head`] judged every byte of it, a body only as [`chunked`] or `Content-Length` lets it; so the
//! server behind reads exactly what was judged. For each head there is one [`Verdict`], taken by
//! the service when the server hands it the request. A rejected head is replaced by a harmless one
//! and the end of the stream: its answer then follows those of earlier pipelined requests.

mod chunked;
pub(super) mod connect;
pub(super) mod head;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BufMut, BytesMut};
use outgate_policy::Reject;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use self::chunked::Chunked;
pub(super) use self::chunked::is_forbidden_trailer;
use self::head::{Framing, Head, MAX_HEAD_BYTES, bad};

/// Bytes asked from the guest's stream at once: within a body, and where a head is to come, most of
/// which are small.
const READ_BYTES: usize = 32 * 1024;
const READ_HEAD_BYTES: usize = 4 * 1024;
/// What the server reads in place of a rejected head. It answers the verdict, never this.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nHost: rejected\r\nConnection: close\r\n\r\n";

/// The `Host` of the request that `input` begins with, as text; `None` in it for a head that is not
/// well formed, whose reader will say why. `None` when more is needed; `seen` bytes were looked at.
pub(crate) fn host_of_head(input: &[u8], seen: &mut usize) -> Option<Option<String>> {
    match head::find_end(input, seen) {
        Ok(None) => None,
        Ok(Some(end)) => {
            let parsed = head::parse(input.get(..end)?, Role::Origin);
            Some(parsed.ok().map(|head| head.host))
        }
        Err(_) => Some(None),
    }
}

/// What the front found in one head.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The server reads this request next.
    Accepted(Head),
    /// The server reads a stand-in, and then the end of the stream.
    Rejected(Reject),
}

/// The guest's stream as the server may see it: one well-formed request after the other.
#[derive(Debug)]
pub(super) struct Front<S> {
    stream: S,
    /// Read, not judged.
    input: BytesMut,
    /// Judged, not read by the server.
    output: BytesMut,
    state: State,
    verdicts: Verdicts,
    role: Role,
}

/// Who reads the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The origin, as far as the client knows.
    Origin,
    /// A proxy, to whom targets are absolute, and at whose place another reader begins with a
    /// CONNECT: the server reads the end of the stream in front of one.
    Proxy,
}

#[derive(Debug)]
enum State {
    /// Bytes of the head that were looked at already.
    Head(usize),
    /// Bytes of the body still to come.
    Length(u64),
    Chunked(Chunked),
    /// A CONNECT to a proxy is next. The stream goes on without the server.
    Connect,
    /// Nothing is read any more.
    Closed,
}

impl<S> Front<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            state: State::Head(0),
            verdicts: Verdicts::default(),
            role: Role::Origin,
        }
    }

    /// A front for a proxy's requests, of which `input` was read already.
    pub(super) fn of_proxy(stream: S, input: BytesMut) -> Self {
        Self {
            input,
            role: Role::Proxy,
            ..Self::new(stream)
        }
    }

    /// The stream and what was read of it, if a CONNECT is next.
    pub(super) fn into_connect(self) -> Result<(S, BytesMut), S> {
        match self.state {
            State::Connect => Ok((self.stream, self.input)),
            _ => Err(self.stream),
        }
    }

    /// Where the verdicts come out, in the order of the requests.
    pub(super) fn verdicts(&self) -> Verdicts {
        self.verdicts.clone()
    }

    /// The stream itself; what was read from it and not judged is lost.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    fn begin(&mut self, head: BytesMut) {
        match head::parse(&head, self.role) {
            Ok(parsed) => {
                self.output = head;
                self.state = match parsed.framing {
                    Framing::Length(0) => State::Head(0),
                    Framing::Length(length) => State::Length(length),
                    Framing::Chunked => State::Chunked(Chunked::SizeLine),
                };
                self.verdicts.put(Verdict::Accepted(parsed));
            }
            Err(reject) => self.reject(reject),
        }
    }

    fn reject(&mut self, reject: Reject) {
        self.output.extend_from_slice(STAND_IN);
        self.state = State::Closed;
        self.verdicts.put(Verdict::Rejected(reject));
    }
}

impl<S: AsyncRead + Unpin> Front<S> {
    /// Moves judged bytes to `output` as far as the input goes.
    fn judge(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.output.is_empty() {
            match &mut self.state {
                State::Connect | State::Closed => return Poll::Ready(Ok(())),
                State::Head(seen) => {
                    // One verdict at a time: the server takes it before the next head is looked
                    // at, so a guest can't pile up requests by pipelining.
                    ready!(self.verdicts.poll_taken(cx));
                    match head::find_end(&self.input, seen) {
                        Ok(Some(_))
                            if self.role == Role::Proxy && connect::is_connect(&self.input) =>
                        {
                            self.state = State::Connect;
                        }
                        Ok(Some(end)) => {
                            let head = self.input.split_to(end);
                            self.begin(head);
                        }
                        Ok(None) => ready!(self.poll_fill_head(cx))?,
                        Err(reject) => self.reject(reject),
                    }
                }
                State::Length(left) => {
                    if self.input.is_empty()
                        && ready!(poll_fill(&mut self.stream, &mut self.input, READ_BYTES, cx))?
                            == 0
                    {
                        return Poll::Ready(Err(truncated()));
                    }
                    let now = self
                        .input
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= now as u64;
                    if *left == 0 {
                        self.state = State::Head(0);
                    }
                    self.output.unsplit(self.input.split_to(now));
                }
                State::Chunked(body) => {
                    body.advance(&mut self.input, &mut self.output)
                        .map_err(violation)?;
                    if matches!(body, Chunked::Done) {
                        self.state = State::Head(0);
                    } else if self.output.is_empty()
                        && ready!(poll_fill(&mut self.stream, &mut self.input, READ_BYTES, cx))?
                            == 0
                    {
                        return Poll::Ready(Err(truncated()));
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fill_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if ready!(poll_fill(
            &mut self.stream,
            &mut self.input,
            READ_HEAD_BYTES,
            cx
        ))? == 0
        {
            if self.input.is_empty() {
                self.state = State::Closed;
            } else {
                self.reject(bad("the stream ends inside a head"));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Front<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Err(error) = ready!(this.judge(cx)) {
            this.state = State::Closed;
            return Poll::Ready(Err(error));
        }
        let now = this.output.len().min(buf.remaining());
        buf.put_slice(&this.output[..now]);
        this.output.advance(now);
        if this.output.is_empty() {
            // Lets go of its part of the input's memory, which can then be used again.
            this.output = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Front<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.state, State::Connect) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Reads up to `bytes` more input; 0 is the end of the stream.
fn poll_fill<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut BytesMut,
    bytes: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    debug_assert!(
        input.len() < MAX_HEAD_BYTES,
        "a head bounds what is read and not judged"
    );
    input.reserve(bytes);
    poll_read_buf(Pin::new(stream), cx, &mut input.limit(bytes))
}

/// A slot between the front and the service: holds the verdict on the request that the server reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts(Arc<Mutex<Slot>>);

#[derive(Debug, Default)]
struct Slot {
    verdict: Option<Verdict>,
    waiting: Option<Waker>,
}

impl Verdicts {
    /// The verdict on the request that the server just read.
    pub(super) fn take(&self) -> Option<Verdict> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = slot.waiting.take() {
            waiting.wake();
        }
        slot.verdict.take()
    }

    fn put(&self, verdict: Verdict) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .verdict = Some(verdict);
    }

    fn poll_taken(&self, cx: &Context<'_>) -> Poll<()> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.verdict.is_none() {
            return Poll::Ready(());
        }
        slot.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A body that broke its framing, as it comes out of the server's body stream.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.detail)]
pub(super) struct Violation(pub(super) Reject);

fn violation(reject: Reject) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Violation(reject))
}

fn truncated() -> io::Error {
    violation(bad("the stream ends inside a body"))
}
