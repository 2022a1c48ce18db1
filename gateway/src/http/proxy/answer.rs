//! Answers that a proxy gives before, or instead of, judging a request.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, PROXY_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt as _;
use outgate_policy::{Reason, Reject};

use super::super::body::ResponseBody;
use super::super::denial::{Asker, Denial, typed};
use crate::listener::Client;

/// Says that a tunnel is open. It has neither content nor a length (RFC 9110 section 9.3.6).
pub(super) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// What is asked for. The realm is the same everywhere, so that it tells nothing.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"outgate\"");
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// The one answer to a credential that is missing or wrong. But for the `last`, the connection stays
/// open for another attempt.
pub(super) fn challenge(last: bool) -> Response<ResponseBody> {
    let mut response = off_record(Reason::ProxyAuthRequired, None);
    let headers = response.headers_mut();
    headers.insert(PROXY_AUTHENTICATE, CHALLENGE);
    if last {
        headers.insert(CONNECTION, CLOSE);
    }
    response
}

/// The answer to a head that could not be read; nothing more is.
pub(super) async fn to_reject(client: &Client<'_>, reject: &Reject) -> Response<ResponseBody> {
    if let Some(id) = client.record_reject(reject, None).await {
        return Denial::from(reject.clone()).response(&Asker::unknown(), id);
    }
    let mut response = off_record(reject.reason, Some(&reject.detail));
    response.headers_mut().insert(CONNECTION, CLOSE);
    response
}

/// The answer to a client that no sandbox is known for. One record stands for many of them, so it
/// names none.
fn off_record(reason: Reason, message: Option<&str>) -> Response<ResponseBody> {
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
