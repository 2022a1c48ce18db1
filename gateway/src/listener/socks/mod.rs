//! SOCKS5 on one connection: CONNECT by name or address, with user and password.
//!
//! A name is judged as a name, before anything is resolved; a reply of success comes when the flow is
//! open. BIND and UDP ASSOCIATE are refused: nothing comes in, and no datagram leaves.

pub(crate) mod message;

use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use outgate_policy::{Reason, Reject};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::message::{BadRequest, Command, Method, Reply, Request};
use super::client::{Client, FIRST_TIME, Presented, Unknown, record_reject};
use super::directory::Guest;
use super::transport::Transport;
use crate::ahead::Ahead;
use crate::audit::Ingress;

/// Bytes asked from the stream at once until the tunnel is open.
const READ_BYTES: usize = 1024;

/// Serves one connection until either side is done with it.
pub(super) async fn serve(stream: Ahead<Transport>, client: &Client<'_>) {
    let (input, stream) = stream.into_parts();
    let mut connection = Connection { stream, input };
    let introduced = timeout(FIRST_TIME, connection.introduced(client));
    let (guest, request) = match introduced.await {
        Ok(Some(introduced)) => introduced,
        Ok(None) => return,
        Err(_) => return client.count_slow(),
    };
    guest
        .while_served(tunnel(connection, &guest, &request))
        .await;
}

/// Opens the flow that `request` asks for and serves what comes through it.
async fn tunnel(mut connection: Connection, guest: &Arc<Guest>, request: &Request) {
    if let Command::Other(command) = request.command {
        let detail = format!("SOCKS5: command {command}, where only CONNECT is served");
        let reject = Reject::new(Reason::BadRequest, detail);
        record_reject(guest, Ingress::Socks5, &reject, Some(request.target())).await;
        return connection.part(&Reply::CommandNotSupported.bytes()).await;
    }
    let authority = match request.authority() {
        Ok(authority) => authority,
        Err(reject) => {
            record_reject(guest, Ingress::Socks5, &reject, Some(request.target())).await;
            return connection.part(&Reply::of(reject.reason).bytes()).await;
        }
    };
    match guest.sandbox.open(Ingress::Socks5, authority).await {
        Ok(opened) => {
            if connection.write(&Reply::Succeeded.bytes()).await.is_ok() {
                let Connection { stream, input } = connection;
                opened.serve(Ahead::new(input, stream)).await;
            }
        }
        Err(refusal) => connection.part(&Reply::of(refusal.reason).bytes()).await,
    }
}

struct Connection {
    stream: Transport,
    /// Read and not used yet.
    input: BytesMut,
}

/// Reads until `parse` has a whole message, and takes its bytes from the input. Ends the calling
/// function where there is none.
macro_rules! message {
    ($connection:ident, $parse:path, |$parsed:ident| $keep:expr) => {
        loop {
            match $parse(&$connection.input) {
                Ok(Some(($parsed, rest))) => {
                    let kept = $keep;
                    let used = $connection.input.len() - rest.len();
                    $connection.input.advance(used);
                    break Ok(kept);
                }
                Ok(None) => $connection.fill().await?,
                Err(error) => break Err(error),
            }
        }
    };
}

impl Connection {
    /// Greeting, credentials and request. `None` when the client was turned away, on record.
    async fn introduced(&mut self, client: &Client<'_>) -> Option<(Arc<Guest>, Request)> {
        let greeting = message!(self, message::greeting, |greeting| greeting);
        let greeting = match greeting {
            Ok(greeting) => greeting,
            Err(reject) => return turned_away(client, &reject).await,
        };
        let method = match (
            client.needs_no_credential(),
            greeting.none,
            greeting.password,
        ) {
            (true, true, _) => Method::None,
            (_, _, true) => Method::Password,
            _ => Method::Unacceptable,
        };
        self.write(&message::chosen(method)).await.ok()?;
        let identified = match method {
            Method::None => client.identify(Presented::Nothing, "SOCKS5"),
            Method::Password => {
                let identified = message!(self, message::credentials, |read| {
                    client.identify(Presented::Password(read.user, read.password), "SOCKS5")
                });
                match identified {
                    Ok(identified) => identified,
                    Err(reject) => return turned_away(client, &reject).await,
                }
            }
            Method::Unacceptable => {
                // Counted as somebody without a credential, which it is.
                let _nobody = client.identify(Presented::Nothing, "SOCKS5");
                return None;
            }
        };
        let guest = match identified {
            Ok(guest) => Arc::clone(guest),
            Err(unknown) => {
                if let Unknown::Full(guest) = unknown {
                    let detail = "the sandbox has as many connections to listeners as it may have";
                    let reject = Reject::new(Reason::LimitExceeded, detail);
                    record_reject(&guest, Ingress::Socks5, &reject, None).await;
                }
                self.part(&message::proven(false)).await;
                return None;
            }
        };
        if method == Method::Password {
            self.write(&message::proven(true)).await.ok()?;
        }
        match message!(self, message::request, |request| request) {
            Ok(request) => Some((guest, request)),
            Err(BadRequest::Malformed(reject)) => turned_away(client, &reject).await,
            Err(BadRequest::AddressType(kind)) => {
                let detail = format!("SOCKS5: an address of kind {kind}");
                let reject = Reject::new(Reason::BadRequest, detail);
                self.part(&Reply::AddressTypeNotSupported.bytes()).await;
                turned_away(client, &reject).await
            }
        }
    }

    /// Reads more; `None` at the end of the stream.
    async fn fill(&mut self) -> Option<()> {
        self.input.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.input).await {
            Ok(1..) => Some(()),
            Ok(_) | Err(_) => None,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        timeout(FIRST_TIME, written).await?
    }

    /// Says the last word. Whoever does not take it is gone.
    async fn part(&mut self, bytes: &[u8]) {
        if self.write(bytes).await.is_ok() {
            let _ = self.stream.shutdown().await;
        }
    }
}

/// Records what could not be read.
async fn turned_away<T>(client: &Client<'_>, reject: &Reject) -> Option<T> {
    client.record_reject(reject, None).await;
    None
}
