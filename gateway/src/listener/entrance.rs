//! The first byte of a connection: what is spoken on it, and whether it may be here.
//!
//! A TLS record begins with 22, SOCKS5 with 5, an HTTP method with a letter, so one listener can take
//! all of them. A listener with TLS takes nothing else: what a client proves itself by must not be
//! sent in clear text by mistake. Nothing is guessed beyond the first byte.

use bytes::BytesMut;
use outgate_policy::{Reason, Reject};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::accept::{Door, HalfOpen, Kind, Protocols};
use super::client::{Client, FIRST_TIME};
use super::refusals::Refused;
use super::socks;
use super::transport::{Plain, Transport};
use crate::ahead::Ahead;
use crate::audit::Ingress;
use crate::http;

/// First byte of a TLS handshake record (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// First byte of SOCKS5 (RFC 1928 section 3).
const SOCKS5: u8 = 5;
/// Bytes read with the first one.
const READ_BYTES: usize = 8 * 1024;

/// Serves one connection until either side is done with it.
pub(super) async fn serve(stream: Plain, door: &Door, half_open: HalfOpen) {
    let Some(stream) = first_bytes(stream, door, &half_open).await else {
        return;
    };
    let Kind::Proxy(protocols, tls) = &door.kind else {
        return;
    };
    let stream = match (tls, stream.first()) {
        (None, Some(TLS_HANDSHAKE)) => {
            let detail = "TLS on a listener that has none";
            return door.count(Refused::Malformed, half_open.from(), detail);
        }
        (None, _) => {
            let (ahead, stream) = stream.into_parts();
            Ahead::new(ahead, Transport::Plain(stream))
        }
        (Some(tls), Some(TLS_HANDSHAKE)) => {
            let accepted = timeout(FIRST_TIME, tls.accept(stream)).await;
            let error = match accepted {
                Ok(Ok(stream)) => {
                    let inside = first_bytes(Transport::Tls(Box::new(stream)), door, &half_open);
                    match inside.await {
                        Some(stream) => return speak(stream, *protocols, door, half_open).await,
                        None => return,
                    }
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    return door.count(Refused::Slow, half_open.from(), "in a TLS handshake");
                }
            };
            return door.count(Refused::Malformed, half_open.from(), &error);
        }
        (Some(_), _) => {
            let detail = "clear text on a listener that speaks TLS";
            return door.count(Refused::Malformed, half_open.from(), detail);
        }
    };
    speak(stream, *protocols, door, half_open).await;
}

/// Serves what is spoken, once nothing lies around it.
async fn speak(stream: Ahead<Transport>, protocols: Protocols, door: &Door, half_open: HalfOpen) {
    let is_socks = stream.first() == Some(SOCKS5);
    let ingress = if is_socks {
        Ingress::Socks5
    } else {
        Ingress::ExplicitProxy
    };
    let Some(client) = Client::new(door, ingress, half_open) else {
        return;
    };
    match (is_socks, protocols.socks5, protocols.http) {
        (true, true, _) => socks::serve(stream, &client).await,
        (false, _, true) => http::serve_proxy(stream, &client).await,
        (true, false, _) | (false, _, false) => {
            let detail = "a protocol that the listener does not take";
            client
                .record_reject(&Reject::new(Reason::BadRequest, detail), None)
                .await;
        }
    }
}

/// Reads until there is a byte to look at. `None` at the end of the stream, or when none comes.
async fn first_bytes<S: AsyncRead + Unpin>(
    mut stream: S,
    door: &Door,
    half_open: &HalfOpen,
) -> Option<Ahead<S>> {
    let mut bytes = BytesMut::with_capacity(READ_BYTES);
    match timeout(FIRST_TIME, stream.read_buf(&mut bytes)).await {
        Ok(Ok(1..)) => Some(Ahead::new(bytes, stream)),
        // Opened ahead of need, or gone: nothing was asked.
        Ok(Ok(0) | Err(_)) => None,
        Err(_) => {
            door.count(Refused::Slow, half_open.from(), "");
            None
        }
    }
}
