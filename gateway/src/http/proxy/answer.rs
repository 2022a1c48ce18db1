//! Answers that a proxy gives before any HTTP server reads the connection.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt as _;
use outgate_policy::Reason;

use super::super::body::ResponseBody;
use super::super::denial::typed;

/// Says that a tunnel is open. It has neither content nor a length (RFC 9110 section 9.3.6).
pub(super) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// What is asked for. The realm is the same everywhere, so that it tells nothing.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"outgate\"");

/// The one answer to a credential that is missing or wrong. The connection stays open for another
/// attempt.
pub(in crate::http) fn challenge() -> Response<ResponseBody> {
    let mut response = off_record(Reason::ProxyAuthRequired, None);
    let headers = response.headers_mut();
    headers.insert(http::header::PROXY_AUTHENTICATE, CHALLENGE);
    response
}

/// The answer to a client that no sandbox is known for. One record stands for many of them, so it
/// names none.
pub(super) fn off_record(reason: Reason, message: Option<&str>) -> Response<ResponseBody> {
    let message = message.map(|message| format!("message: {message}\n"));
    let text = format!(
        "outgate refused this request: {reason}\n\nwhy: {}\n{}how to fix: {}\n",
        reason.explanation(),
        message.unwrap_or_default(),
        reason.how_to_fix()
    );
    let mut response = typed("text/plain; charset=utf-8", text);
    *response.status_mut() =
        StatusCode::from_u16(reason.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// A response with content in memory, as HTTP/1 puts it on the wire.
pub(super) async fn to_bytes(response: Response<ResponseBody>) -> Bytes {
    let (parts, body) = response.into_parts();
    // Content in memory can't fail to be read.
    let content = body
        .collect()
        .await
        .map_or_else(|_| Bytes::new(), |body| body.to_bytes());
    let mut bytes = BytesMut::with_capacity(1024 + content.len());
    let phrase = parts.status.canonical_reason().unwrap_or_default();
    bytes.put_slice(format!("HTTP/1.1 {} {phrase}\r\n", parts.status.as_u16()).as_bytes());
    for (name, value) in &parts.headers {
        bytes.put_slice(name.as_str().as_bytes());
        bytes.put_slice(b": ");
        bytes.put_slice(value.as_bytes());
        bytes.put_slice(b"\r\n");
    }
    bytes.put_slice(b"\r\n");
    bytes.put_slice(&content);
    bytes.freeze()
}
