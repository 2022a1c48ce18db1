//! One connection of a client that was told to use a proxy.
//!
//! The client says where it wants to go, proves which sandbox it is, and only when the destination
//! was judged hears that it is connected. What then comes is served like a flow of a link: nothing is
//! passed on unread because it came through a proxy. Every head is judged by the strict
//! [`front`](super::front); nothing of a proxy's own fields goes upstream.

mod ahead;
mod answer;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::header::CONNECTION;
use http::{HeaderValue, Response};
use outgate_policy::{Reason, Reject, Verdict};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use self::ahead::Ahead;
use super::body::ResponseBody;
use super::denial::{Asker, Denial};
use super::front::connect::{self, ConnectHead};
use super::front::head;
use super::serve::linger;
use crate::audit::{Event, EventKind, Ingress};
use crate::listener::{Door, Guest, HalfOpen, Refused};
use crate::sandbox::Refusal;

/// How long a client may take for one head, and to read one answer.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Challenges that one connection gets. A client that has a credential needs one.
const MAX_CHALLENGES: u32 = 3;
/// Bytes asked from the stream at once while a head is read.
const READ_BYTES: usize = 8 * 1024;

/// Serves one connection until either side is done with it.
pub(crate) async fn serve<S>(stream: S, door: &Door, half_open: HalfOpen)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = Connection {
        stream,
        input: BytesMut::new(),
    };
    let Ok(only) = door.guest() else { return };
    let (head, guest) = match connection.introduced(door, only, &half_open).await {
        Ok(introduced) => introduced,
        Err(Parting::Silent) => return,
        Err(Parting::With(answer)) => return connection.part(answer).await,
    };
    drop(half_open);
    let Some(place) = guest.admit() else {
        let reject = Reject::new(
            Reason::LimitExceeded,
            "too many connections of this sandbox",
        );
        let answer = refuse(&guest, Some(head.target()), &reject, &asker(&head)).await;
        return connection.part(answer).await;
    };
    guest.while_served(tunnel(connection, &guest, &head)).await;
    drop::<OwnedSemaphorePermit>(place);
}

/// Opens the tunnel that `head` asks for and serves what comes through it.
async fn tunnel<S>(mut connection: Connection<S>, guest: &Guest, head: &ConnectHead)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let authority = match head.authority() {
        Ok(authority) => authority,
        Err(reject) => {
            let answer = refuse(guest, Some(head.target()), &reject, &asker(head)).await;
            return connection.part(answer).await;
        }
    };
    match guest.sandbox.open(Ingress::ExplicitProxy, authority).await {
        Ok(opened) => {
            if connection.write(answer::ESTABLISHED).await.is_ok() {
                let Connection { stream, input } = connection;
                opened.serve(Ahead::new(input, stream)).await;
            }
        }
        Err(refusal) => {
            let id = refusal.record;
            let answer = Denial::from(refusal).response(&asker(head), id);
            connection.part(answer).await;
        }
    }
}

fn asker(head: &ConnectHead) -> Asker {
    Asker::of_tunnel(&head.target(), &head.accepts)
}

/// Records what never became a flow, and gives the answer to it.
async fn refuse(
    guest: &Guest,
    target: Option<String>,
    reject: &Reject,
    asker: &Asker,
) -> Response<ResponseBody> {
    let event = Event {
        ingress: Some(Ingress::ExplicitProxy),
        verdict: Some(Verdict::Deny),
        reason: Some(reject.reason),
        host: target,
        detail: Some(reject.detail.clone()),
        ..guest.sandbox.event(EventKind::Reject)
    };
    if let Err(error) = guest.sandbox.services().audit.append(&event).await {
        tracing::error!(%error, sandbox = guest.sandbox.id(), "a reject could not be recorded");
    }
    Denial::from(reject.clone()).response(asker, event.id)
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.reason,
            rule: refusal.rule.map(|rule| rule.to_string()),
            message: refusal.message,
        }
    }
}

/// A client's stream, and what was read of it and not used yet.
struct Connection<S> {
    stream: S,
    input: BytesMut,
}

/// How a client without a sandbox is parted with.
enum Parting {
    Silent,
    With(Response<ResponseBody>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Reads heads until one comes with the credential of a sandbox, or from `only` that one.
    async fn introduced(
        &mut self,
        door: &Door,
        only: Option<Arc<Guest>>,
        half_open: &HalfOpen,
    ) -> Result<(ConnectHead, Arc<Guest>), Parting> {
        for _ in 0..MAX_CHALLENGES {
            let Ok(read) = timeout(HEAD_TIME, self.head()).await else {
                door.refuse(Refused::Slow, half_open, "");
                return Err(Parting::Silent);
            };
            let head = match read.and_then(|bytes| bytes.map(|bytes| parse(&bytes)).transpose()) {
                Ok(Some(head)) => head,
                Ok(None) => return Err(Parting::Silent),
                Err(reject) => {
                    return Err(malformed(door, only.as_deref(), half_open, &reject).await);
                }
            };
            if let Some(guest) = &only {
                return Ok((head, Arc::clone(guest)));
            }
            let refused = match &head.credentials {
                None => Refused::NoCredential,
                Some(value) => match door.prove_basic(value) {
                    Some(guest) => return Ok((head, guest)),
                    None => Refused::WrongCredential,
                },
            };
            door.refuse(refused, half_open, &format!("CONNECT {}", head.target()));
            let answer = answer::to_bytes(answer::challenge()).await;
            self.write(&answer).await.map_err(|_| Parting::Silent)?;
        }
        Err(Parting::Silent)
    }

    /// The next head, whole; `None` at the end of the stream.
    async fn head(&mut self) -> Result<Option<BytesMut>, Reject> {
        let mut seen = 0;
        loop {
            if let Some(end) = head::find_end(&self.input, &mut seen)? {
                return Ok(Some(self.input.split_to(end)));
            }
            self.input.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.input).await {
                Ok(1..) => {}
                Ok(0) if self.input.is_empty() => return Ok(None),
                Ok(_) => return Err(head::bad("the stream ends inside a head")),
                // Nobody is left to answer.
                Err(_) => return Ok(None),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        timeout(HEAD_TIME, written).await?
    }

    /// Answers for the last time, and lets the client read it.
    async fn part(mut self, answer: Response<ResponseBody>) {
        let bytes = answer::to_bytes(answer).await;
        if self.write(&bytes).await.is_ok() && self.stream.shutdown().await.is_ok() {
            linger(self.stream).await;
        }
    }
}

fn parse(bytes: &[u8]) -> Result<ConnectHead, Reject> {
    if connect::is_connect(bytes) {
        return connect::parse(bytes);
    }
    Err(Reject::new(
        Reason::BadRequest,
        "only CONNECT is understood here",
    ))
}

/// Says what was wrong with a head; on the record of the sandbox where there can be no other.
async fn malformed(
    door: &Door,
    only: Option<&Guest>,
    half_open: &HalfOpen,
    reject: &Reject,
) -> Parting {
    if let Some(guest) = only {
        return Parting::With(refuse(guest, None, reject, &Asker::unknown()).await);
    }
    door.refuse(Refused::Malformed, half_open, &reject.detail);
    let mut answer = answer::off_record(reject.reason, Some(&reject.detail));
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(CONNECTION, close);
    Parting::With(answer)
}
