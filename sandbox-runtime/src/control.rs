//! The host's side of the control API: HTTP/2 over the guest's serial port.
//!
//! The guest is hostile: answers have bounds, and what it calls an error is shown to people as its
//! words, never obeyed.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outgate_pid1::api::{ApiError, MAX_JSON_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::error::RuntimeError;

/// Flow-control window of one stream, bytes: what the guest may send before we read it.
const STREAM_WINDOW: u32 = 1 << 20;

/// Window of the whole connection, bytes.
const CONNECTION_WINDOW: u32 = 8 << 20;

type Body = Full<Bytes>;

/// A connection to PID 1. Cheap to clone; requests of all clones run side by side.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    sender: SendRequest<Body>,
}

/// Drives the connection; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ControlTask(JoinHandle<()>);

impl Drop for ControlTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Control {
    /// Speaks first; the guest may still be booting and reads it when it is up.
    pub(crate) async fn connect(
        stream: std::os::unix::net::UnixStream,
    ) -> Result<(Self, ControlTask), RuntimeError> {
        let stream = UnixStream::from_std(stream)
            .map_err(|error| broken(format!("the control channel can't be used: {error}")))?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(error.to_string()))?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the control channel ended");
            }
        });
        Ok((Self { sender }, ControlTask(task)))
    }

    /// A request with a JSON body and a JSON answer.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RuntimeError> {
        let body = serde_json::to_vec(body).map_err(|error| broken(error.to_string()))?;
        let bytes = collect(self.send(method, path, body.into()).await?, MAX_JSON_BYTES).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| broken(format!("its answer to `{path}` is not understood: {error}")))
    }

    /// A request without a body and with a JSON answer.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RuntimeError> {
        self.raw(Method::GET, path, Bytes::new()).await
    }

    /// A request with raw bytes and a JSON answer.
    pub(crate) async fn raw<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, RuntimeError> {
        let bytes = collect(self.send(method, path, body).await?, MAX_JSON_BYTES).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| broken(format!("its answer to `{path}` is not understood: {error}")))
    }

    /// A request whose answer, if it is a success, is of no interest.
    pub(crate) async fn order(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(), RuntimeError> {
        collect(self.send(method, path, body).await?, MAX_JSON_BYTES)
            .await
            .map(drop)
    }

    /// A request whose answer is a stream of bytes.
    pub(crate) async fn stream(&self, path: &str) -> Result<Incoming, RuntimeError> {
        self.send(Method::GET, path, Bytes::new())
            .await
            .map(Response::into_body)
    }

    /// Sends one request; an answer that is no success becomes an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, RuntimeError> {
        // HTTP/2 wants an authority; there is only one guest at the other end.
        let request = Request::builder()
            .method(method)
            .uri(format!("http://guest{path}"))
            .body(Full::new(body))
            .map_err(|error| broken(error.to_string()))?;
        let mut sender = self.sender.clone();
        let lost = |error: hyper::Error| broken(format!("the control channel broke: {error}"));
        sender.ready().await.map_err(lost)?;
        let response = sender.send_request(request).await.map_err(lost)?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(refusal(status, response).await),
        }
    }
}

/// Percent-encodes a value for a query (RFC 3986, section 2.1): all but unreserved characters.
pub(crate) fn encoded(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Reads a whole body, within a bound.
pub(crate) async fn collect(
    response: Response<Incoming>,
    limit: usize,
) -> Result<Bytes, RuntimeError> {
    let body = Limited::new(response.into_body(), limit).collect().await;
    body.map(|body| body.to_bytes())
        .map_err(|error| broken(format!("its answer can't be read: {error}")))
}

/// The next piece of a body; `None` at its end.
pub(crate) async fn next_piece(
    body: &mut Incoming,
    into: &mut BytesMut,
) -> Result<Option<()>, RuntimeError> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(broken(format!("the control channel broke: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    into.extend_from_slice(&bytes);
                    return Ok(Some(()));
                }
            }
        }
    }
}

pub(crate) fn broken(problem: impl Into<String>) -> RuntimeError {
    RuntimeError::guest("control_channel", problem)
}

async fn refusal(status: StatusCode, response: Response<Incoming>) -> RuntimeError {
    let bytes = match collect(response, MAX_JSON_BYTES).await {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    match serde_json::from_slice::<ApiError>(&bytes) {
        Ok(error) => RuntimeError::guest(
            error.code.as_str(),
            format!("{}; {}", error.message, error.how_to_fix),
        ),
        Err(_) => broken(format!("it answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_not_add_to_the_query() {
        assert_eq!(encoded("/a b&mode=777#é"), "/a%20b%26mode%3D777%23%C3%A9");
    }
}
