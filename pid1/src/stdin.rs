//! Standard input by offset: what was accepted before is skipped, so that a request may be repeated.

use std::io;
use std::os::fd::OwnedFd;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::unix::AsyncFd;

use crate::exec::{Exec, Stdin, io_error};
use outgate_pid1::api::{ApiError, ErrorCode, StdinAccepted};

/// What ends a terminal's input (`VEOF`, ^D).
const END_OF_TRANSMISSION: &[u8] = &[4];

/// Writes the body from `offset` on; with `eof`, closes the stream after it.
///
/// # Errors
/// `conflict` when bytes are missing before `offset`, or the stream is closed.
pub(crate) async fn write(
    exec: &Exec,
    offset: u64,
    eof: bool,
    mut body: Incoming,
) -> Result<StdinAccepted, ApiError> {
    let mut stdin = exec.stdin.lock().await;
    if offset > stdin.offset {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            format!("bytes {} to {offset} are missing", stdin.offset),
            "send the missing bytes first",
        ));
    }
    let mut skip = stdin.offset - offset;
    while let Some(frame) = body.frame().await {
        let broken = |error: hyper::Error| {
            ApiError::new(
                ErrorCode::Io,
                error.to_string(),
                "send the bytes again, by offset",
            )
        };
        let Ok(bytes) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        let known = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
        skip -= known as u64;
        if let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) {
            send(exec, &mut stdin, new).await?;
        }
    }
    if eof {
        if stdin.is_terminal {
            send(exec, &mut stdin, END_OF_TRANSMISSION).await?;
        } else {
            stdin.pipe = None;
        }
    }
    Ok(StdinAccepted {
        accepted_to: stdin.offset,
    })
}

async fn send(exec: &Exec, stdin: &mut Stdin, bytes: &[u8]) -> Result<(), ApiError> {
    let Some(pipe) = &stdin.pipe else {
        return Err(closed());
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        // A command that ends without reading must not hold the request for ever.
        let written = tokio::select! {
            written = write_some(pipe, rest) => written,
            _ = exec.ended() => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let count = match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(closed()),
            other => other.map_err(|error| io_error(&error))?,
        };
        rest = rest.get(count..).unwrap_or_default();
        stdin.offset += count as u64;
    }
    Ok(())
}

async fn write_some(pipe: &AsyncFd<OwnedFd>, bytes: &[u8]) -> io::Result<usize> {
    loop {
        let mut guard = pipe.writable().await?;
        match guard.try_io(|pipe| Ok(nix::unistd::write(pipe.get_ref(), bytes)?)) {
            Ok(written) => return written,
            Err(_would_block) => {}
        }
    }
}

fn closed() -> ApiError {
    ApiError::new(
        ErrorCode::Conflict,
        "standard input is closed",
        "nothing is left to send to",
    )
}
