//! The body of a guest's request, kept until the answer is delivered.
//!
//! An answer may come before the body was read to its end: a denial, an upstream that is not
//! interested. To drop the body then would reset an HTTP/2 stream with CANCEL, and the guest would
//! lose the answer with it. Kept until the answer is complete, the stream ends with NO_ERROR
//! (RFC 9113, section 8.1), and until then flow control holds the guest back. Clients that can't
//! take even that while they still send (curl before 8) get to send a bounded rest, which is thrown
//! away. An HTTP/1 connection lingers as a whole instead.
//!
//! Where a rule has to see the body, its first bytes are read ahead and passed on later as they came.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::body::ResponseBody;
use super::serve::{LINGER_BYTES, LINGER_TIME};
use crate::upstream::BodyError;

/// Clones are the same body. Only one of them may be read.
#[derive(Clone)]
pub(super) struct GuestBody {
    body: Arc<Mutex<Held>>,
    is_stream: bool,
}

/// A body, and what was read of it ahead.
struct Held {
    ahead: VecDeque<Frame<Bytes>>,
    rest: Incoming,
}

/// What a body begins with.
pub(super) struct Prefix {
    pub(super) bytes: Vec<u8>,
    /// There is no more.
    pub(super) complete: bool,
}

impl GuestBody {
    pub(super) fn new(body: Incoming, version: Version) -> Self {
        Self {
            body: Arc::new(Mutex::new(Held {
                ahead: VecDeque::new(),
                rest: body,
            })),
            is_stream: version == Version::HTTP_2,
        }
    }

    /// Keeps the body as long as `response` is on its way.
    pub(super) fn until_delivered(
        self,
        response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        if self.is_end_stream() {
            return response;
        }
        response.map(|answer| {
            Delivery {
                answer,
                request: self,
            }
            .boxed()
        })
    }

    /// Reads at least `most` bytes ahead, or all of a shorter body. At most one frame more is held.
    pub(super) async fn peek(&mut self, most: usize) -> Result<Prefix, hyper::Error> {
        let mut prefix = Prefix {
            bytes: Vec::new(),
            complete: false,
        };
        while prefix.bytes.len() < most {
            let frame = poll_fn(|cx| Pin::new(&mut self.lock().rest).poll_frame(cx)).await;
            let Some(frame) = frame.transpose()? else {
                prefix.complete = true;
                return Ok(prefix);
            };
            match frame.data_ref() {
                Some(data) => prefix.bytes.extend_from_slice(data),
                None => prefix.complete = true,
            }
            self.lock().ahead.push_back(frame);
            if prefix.complete {
                return Ok(prefix);
            }
        }
        prefix.complete = self.lock().rest.is_end_stream();
        Ok(prefix)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for GuestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut held = self.lock();
        match held.ahead.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut held.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        let held = self.lock();
        held.ahead.is_empty() && held.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.lock();
        let ahead = held.ahead.iter().filter_map(Frame::data_ref);
        let ahead: u64 = ahead.map(|data| data.len() as u64).sum();
        let rest = held.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + ahead);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + ahead);
        }
        hint
    }
}

/// An answer and the request that it answers.
struct Delivery {
    answer: ResponseBody,
    request: GuestBody,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.request.is_stream && !self.request.is_end_stream() {
            // At most one for each stream that is open, and it ends by itself.
            tokio::spawn(throw_away(self.request.clone()));
        }
    }
}

/// Reads what the guest still sends, within the bounds of a lingering connection.
async fn throw_away(mut body: GuestBody) {
    let rest = async {
        let mut left = LINGER_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // Whatever ended it: the answer is as delivered as it can be.
    let _ = timeout(LINGER_TIME, rest).await;
}

impl Body for Delivery {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.answer).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}
