//! Bodies on their way through: passed on frame by frame, counted, never held.
//!
//! A frame goes on when it comes and the next one is asked for when there is room, so a stream
//! keeps its pace and an upload or download of any size needs the memory of one frame. Content is
//! not looked at; trailers are, since they are header fields.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use outgate_policy::{Reason, Reject};

use crate::sandbox::{Direction, Ledger, Listed};
use crate::upstream::BodyError;

use super::front::{Violation, is_forbidden_trailer};
use super::guest_body::GuestBody;
use super::placeholder::Scope;

/// What the record of an exchange says that was cut.
pub(super) const NEW_POLICY: &str = "a new policy denies what was under way";

/// The body of an answer to the guest.
pub(super) type ResponseBody = BoxBody<Bytes, BodyError>;

/// A body that is there already, or none.
pub(super) fn full(content: impl Into<Bytes>) -> ResponseBody {
    http_body_util::Full::new(content.into())
        .map_err(|never| match never {})
        .boxed()
}

/// A request's body on its way to the upstream.
pub(super) struct Upload {
    pub(super) body: GuestBody,
    pub(super) ledger: Arc<Ledger>,
    /// Which placeholders may be in the trailers.
    pub(super) scope: Scope,
    /// Bytes that the rule still takes; `None` is no end of them.
    pub(super) left: Option<u64>,
    pub(super) listed: Arc<Listed>,
}

impl Upload {
    fn check_trailers(&self, trailers: &HeaderMap) -> Result<(), Reject> {
        if let Some(name) = trailers
            .keys()
            .find(|name| is_forbidden_trailer(name.as_str()))
        {
            let detail = format!("`{name}` is not allowed as a trailer");
            return Err(Reject::new(Reason::BadRequest, detail));
        }
        self.scope.check_headers(trailers)
    }

    /// The body ends here, without its end: the upstream can't take it for a whole one.
    fn fail(&self, reject: Reject) -> BodyError {
        self.ledger.note(|event| {
            event.reason = Some(reject.reason);
            event.detail = Some(reject.detail.clone());
        });
        io::Error::new(io::ErrorKind::InvalidData, Violation(reject)).into()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(reason) = self.listed.poll_cut(Direction::Up, cx) {
            let reject = Reject::new(reason, NEW_POLICY);
            return Poll::Ready(Some(Err(self.fail(reject))));
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let reject = broken(&error);
                return Poll::Ready(Some(Err(self.fail(reject))));
            }
            None => return Poll::Ready(None),
        };
        if let Some(data) = frame.data_ref() {
            if let Some(left) = self.left {
                let Some(left) = left.checked_sub(data.len() as u64) else {
                    let detail = "the body is larger than the rule takes";
                    let reject = Reject::new(Reason::RequestTooLarge, detail);
                    return Poll::Ready(Some(Err(self.fail(reject))));
                };
                self.left = Some(left);
            }
            self.ledger.sent(data.len());
        }
        if let Some(Err(reject)) = frame
            .trailers_ref()
            .map(|fields| self.check_trailers(fields))
        {
            return Poll::Ready(Some(Err(self.fail(reject))));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body on its way to the guest.
pub(super) struct Download {
    body: Incoming,
    ledger: Arc<Ledger>,
    listed: Arc<Listed>,
    ended: bool,
}

impl Download {
    pub(super) fn new(body: Incoming, ledger: Arc<Ledger>, listed: Arc<Listed>) -> Self {
        Self {
            ended: body.is_end_stream(),
            body,
            ledger,
            listed,
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(reason) = self.listed.poll_cut(Direction::Down, cx) {
            self.ended = true;
            self.ledger.note(|event| {
                event.reason = Some(reason);
                event.detail = Some(NEW_POLICY.to_owned());
            });
            return Poll::Ready(Some(Err(NEW_POLICY.into())));
        }
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => {
                self.ledger.received(frame.data_ref().map_or(0, Bytes::len));
                self.ended = self.body.is_end_stream();
            }
            Some(Err(error)) => {
                self.ended = true;
                self.ledger.note(|event| {
                    event.reason = Some(Reason::UpstreamClosed);
                    event.detail = Some(format!("the upstream's body broke off: {error}"));
                });
            }
            None => self.ended = true,
        }
        Poll::Ready(polled.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // With a length and no trailers, a server stops asking at the last byte.
        if !self.ended && self.body.size_hint().exact() != Some(0) {
            self.ledger.note(|event| {
                event.detail = Some("the guest left before the end of the response".to_owned());
            });
        }
    }
}

/// Why a guest's body can't be read on.
pub(super) fn broken(error: &hyper::Error) -> Reject {
    violation(error).unwrap_or_else(|| {
        let detail = format!("the guest's body broke off: {error}");
        Reject::new(Reason::BadRequest, detail)
    })
}

/// What the strict front found in a body, if it is the cause of `error`.
fn violation(error: &hyper::Error) -> Option<Reject> {
    causes(error).find_map(|cause| {
        let violation = cause
            .downcast_ref::<io::Error>()?
            .get_ref()?
            .downcast_ref::<Violation>()?;
        Some(violation.0.clone())
    })
}

/// `error` and what caused it, the outermost first.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
