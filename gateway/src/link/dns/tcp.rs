//! DNS over TCP (RFC 7766): any number of questions on a connection, answered in their order.
//!
//! Every answer is at hand when its question is read, so a client that sends many without waiting
//! gets them all; one that asks faster than its rate is slowed down instead of dropped. A connection
//! holds one question at a time, and one that says nothing, or takes no answer, is closed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Duration, sleep, timeout};

use super::super::FlowStream;
use super::{MAX_QUESTION, Resolver};

/// DNS connections of one sandbox. Stub resolvers use one or two.
pub(super) const MAX_CONNECTIONS: usize = 32;
/// How long a connection may be idle, and how long one question and its answer may take.
const IDLE: Duration = Duration::from_secs(10);

/// Serves one connection until the guest ends it, breaks the protocol or is silent for [`IDLE`].
pub(in super::super) async fn serve(mut stream: FlowStream, resolver: &Resolver) {
    let Ok(_place) = Arc::clone(&resolver.connections).try_acquire_owned() else {
        // Dropping the stream resets it.
        resolver.refused_connections.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // Whatever ends the exchange early, dropping the stream tells the guest by a reset.
    while let Ok(Ok(more)) = timeout(IDLE, serve_one(&mut stream, resolver)).await {
        if !more {
            // The guest is gone if this fails, which is what closing wants.
            let _closed = stream.shutdown().await;
            return;
        }
    }
}

async fn serve_one(stream: &mut FlowStream, resolver: &Resolver) -> io::Result<bool> {
    let len = match stream.read_u16().await {
        Ok(len) => usize::from(len),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    };
    if len > MAX_QUESTION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await?;
    while let Some(wait) = resolver.admit() {
        sleep(wait).await;
    }
    let reply = resolver
        .reply(&message)
        .map_err(|dropped| io::Error::other(dropped.as_str()))?;
    let len = u16::try_from(reply.len()).map_err(io::Error::other)?;
    // In one piece, as RFC 7766 section 8 asks.
    stream
        .write_all(&[len.to_be_bytes().as_slice(), &reply].concat())
        .await?;
    Ok(true)
}
