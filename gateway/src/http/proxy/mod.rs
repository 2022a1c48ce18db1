//! One connection of a client that was told to use a proxy.
//!
//! The client says where it wants to go, proves which sandbox it is, and only when the destination
//! was judged hears that it is connected. What then comes is served like a flow of a link: nothing is
//! passed on unread because it came through a proxy. Every head is judged by the strict
//! [`front`](super::front); nothing of a proxy's own fields goes upstream.

mod answer;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod requests;

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use http::Response;
use outgate_policy::{Reason, Reject};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::answer::challenge;
use super::body::ResponseBody;
use super::denial::{Asker, Denial};
use super::front::connect::{self, ConnectHead};
use super::front::head;
use super::serve::linger;
use crate::ahead::Ahead;
use crate::audit::Ingress;
use crate::listener::{Client, FIRST_TIME, Guest, Presented, Transport, Unknown, record_reject};
use crate::sandbox::Refusal;

/// Bytes asked from the stream at once while a head is read.
const READ_BYTES: usize = 8 * 1024;

/// Serves one connection until either side is done with it.
pub(crate) async fn serve(stream: Ahead<Transport>, client: &Client<'_>) {
    let (input, stream) = stream.into_parts();
    let mut connection = Connection { stream, input };
    loop {
        let end = match connection.head_in_time(client).await {
            Some(Ok(end)) => end,
            Some(Err(reject)) => return connection.part_with(client, &reject).await,
            None => return,
        };
        if !connect::is_connect(&connection.input) {
            match requests::serve(connection, client).await {
                Some(goes_on) => connection = goes_on,
                None => return,
            }
            continue;
        }
        let head = match connect::parse(&connection.input.split_to(end)) {
            Ok(head) => head,
            Err(reject) => return connection.part_with(client, &reject).await,
        };
        let presented = head.credentials.as_deref();
        let presented = presented.map_or(Presented::Nothing, Presented::Basic);
        match client.identify(presented, &format!("CONNECT {}", head.target())) {
            Ok(guest) => {
                guest.while_served(tunnel(connection, guest, &head)).await;
                return;
            }
            Err(Unknown::Unproven { last: true }) => {
                return connection.part(challenge(true)).await;
            }
            Err(Unknown::Unproven { last: false }) => {
                let answer = answer::to_bytes(challenge(false)).await;
                if connection.write(&answer).await.is_err() {
                    return;
                }
            }
            Err(Unknown::Full(guest)) => {
                let answer = refuse(&guest, &head, &too_many_connections()).await;
                return connection.part(answer).await;
            }
        }
    }
}

/// Opens the tunnel that `head` asks for and serves what comes through it.
async fn tunnel(mut connection: Connection, guest: &Arc<Guest>, head: &ConnectHead) {
    let authority = match head.authority() {
        Ok(authority) => authority,
        Err(reject) => {
            let answer = refuse(guest, head, &reject).await;
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

/// Records what never became a flow, and gives the answer to it.
async fn refuse(guest: &Guest, head: &ConnectHead, reject: &Reject) -> Response<ResponseBody> {
    let id = record_reject(guest, Ingress::ExplicitProxy, reject, Some(head.target())).await;
    Denial::from(reject.clone()).response(&asker(head), id)
}

fn asker(head: &ConnectHead) -> Asker {
    Asker::of_tunnel(&head.target(), &head.accepts)
}

fn too_many_connections() -> Reject {
    let detail = "the sandbox has as many connections to listeners as it may have";
    Reject::new(Reason::LimitExceeded, detail)
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
struct Connection {
    stream: Transport,
    input: BytesMut,
}

impl Connection {
    /// Waits for a whole head and gives its length; `None` at the end of the stream, or when it took
    /// too long.
    async fn head_in_time(&mut self, client: &Client<'_>) -> Option<Result<usize, Reject>> {
        match timeout(FIRST_TIME, self.head()).await {
            Ok(read) => read.transpose(),
            Err(_) => {
                client.count_slow();
                None
            }
        }
    }

    async fn head(&mut self) -> Result<Option<usize>, Reject> {
        let mut seen = 0;
        loop {
            if let Some(end) = head::find_end(&self.input, &mut seen)? {
                return Ok(Some(end));
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
        timeout(FIRST_TIME, written).await?
    }

    /// Says what was wrong with a head.
    async fn part_with(self, client: &Client<'_>, reject: &Reject) {
        let answer = answer::to_reject(client, reject).await;
        self.part(answer).await;
    }

    /// Answers for the last time, and lets the client read it.
    async fn part(mut self, answer: Response<ResponseBody>) {
        let bytes = answer::to_bytes(answer).await;
        if self.write(&bytes).await.is_ok() && self.stream.shutdown().await.is_ok() {
            linger(self.stream).await;
        }
    }
}
