//! What the lab's HTTP upstreams answer. A path that no route names is answered with what was
//! received, so that policy tests may use any path they like.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::body::{ChannelBody, LabBody, PatternBody, full, hex};
use super::gates::Gates;
use super::git::GitRepository;
use super::journal::{Entry, Journal, Received};
use super::server::listed;

/// Bodies up to this many bytes are kept as text in the journal.
const TEXT_LIMIT_BYTES: usize = 16 * 1024;

/// What all upstreams of one lab share.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    pub(super) journal: Journal,
    pub(super) gates: Gates,
    pub(super) git: Arc<GitRepository>,
}

type Answer = io::Result<Response<LabBody>>;

impl Routes {
    /// Notes the request, then answers it. An `Err` cuts the connection.
    pub(super) async fn answer(self, received: Received, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let entry = self.journal.push(received);
        let mut segments = path.trim_start_matches('/').split('/');
        let argument = |mut segments: std::str::Split<'_, char>| {
            segments
                .next()
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap_or(0)
        };
        match segments.next().unwrap_or_default() {
            "git" => return self.git.serve(request, &entry).await,
            "refuse-body" => return Ok(status(StatusCode::EXPECTATION_FAILED, "no bodies here")),
            "slow" => self.gates.pass(query.text("gate"), 1).await,
            _ => {}
        }
        match path.split('/').nth(1).unwrap_or_default() {
            "sse" => {
                tokio::spawn(drain(request.into_body(), entry));
                Ok(self.events(query))
            }
            "bytes" => {
                tokio::spawn(drain(request.into_body(), entry.clone()));
                Ok(Response::new(
                    PatternBody::new(argument(segments), entry).boxed(),
                ))
            }
            "reset" => Ok(self.cut_short(query)),
            "trailers" => {
                drain(request.into_body(), entry.clone()).await;
                Ok(with_trailers(&entry))
            }
            "status" => {
                drain(request.into_body(), entry).await;
                let code = u16::try_from(argument(segments)).unwrap_or(500);
                Ok(status(
                    StatusCode::from_u16(code).unwrap_or_default(),
                    "as you asked",
                ))
            }
            "redirect" => {
                drain(request.into_body(), entry).await;
                Ok(with_header(
                    StatusCode::FOUND,
                    header::LOCATION,
                    query.text("to"),
                ))
            }
            "upload" => {
                drain(request.into_body(), entry.clone()).await;
                let received = entry.snapshot();
                Ok(json_answer(&json!({
                    "length": received.body_length,
                    "sha256": received.body_sha256,
                })))
            }
            first => {
                drain(request.into_body(), entry.clone()).await;
                // An honest upstream sends no credential back; `/echo` is for tests of the others.
                let received = match first {
                    "echo" => entry.snapshot(),
                    _ => entry.snapshot().without_credentials(),
                };
                let mut response = json_answer(&received);
                add_headers(response.headers_mut(), &query);
                Ok(response)
            }
        }
    }

    /// `n` server-sent events. With `gate`, event `i` leaves once the gate released `i` steps;
    /// else `interval` milliseconds lie between two events.
    fn events(&self, query: Query) -> Response<LabBody> {
        let (feed, body) = ChannelBody::fed();
        let gates = self.gates.clone();
        tokio::spawn(async move {
            for event in 1..=query.number("n", 5) {
                match query.get("gate") {
                    Some(gate) => gates.pass(gate, event).await,
                    None if event > 1 => {
                        tokio::time::sleep(Duration::from_millis(query.number("interval", 200)))
                            .await;
                    }
                    None => {}
                }
                let text = format!("id: {event}\ndata: {{\"event\":{event}}}\n\n");
                if feed.send(Ok(Frame::data(Bytes::from(text)))).await.is_err() {
                    return;
                }
            }
        });
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, no-transform"),
        );
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// Promises a megabyte, sends `after` bytes of it and breaks off.
    fn cut_short(&self, query: Query) -> Response<LabBody> {
        let (feed, body) = ChannelBody::fed();
        let gates = self.gates.clone();
        tokio::spawn(async move {
            let sent = Bytes::from(vec![
                b'x';
                usize::try_from(query.number("after", 100)).unwrap_or(0)
            ]);
            let _ = feed.send(Ok(Frame::data(sent))).await;
            if let Some(gate) = query.get("gate") {
                gates.pass(gate, 1).await;
            }
            let broken = io::Error::new(io::ErrorKind::ConnectionReset, "cut short as asked");
            let _ = feed.send(Err(broken)).await;
        });
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, HeaderValue::from_static("1048576"));
        response
    }
}

/// Reads a body to its end and notes its length, digest and trailers.
pub(super) async fn drain(mut body: Incoming, entry: Entry) {
    let mut digest = Sha256::new();
    let mut text = Vec::new();
    let mut length = 0_u64;
    let complete = loop {
        match body.frame().await {
            None => break true,
            Some(Err(_)) => break false,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    length += data.len() as u64;
                    digest.update(&data);
                    if text.len() + data.len() <= TEXT_LIMIT_BYTES {
                        text.extend_from_slice(&data);
                    }
                    // Visible while it grows: a test sees that an upload is streamed.
                    entry.update(|received| received.body_length = length);
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        entry.update(|received| received.trailers = listed(&trailers));
                    }
                }
            },
        }
    };
    entry.update(|received| {
        received.body_sha256 = hex(&digest.finalize());
        let whole = text.len() as u64 == length;
        received.body_text = whole.then(|| String::from_utf8(text).ok()).flatten();
        received.complete = complete;
    });
}

fn with_trailers(entry: &Entry) -> Response<LabBody> {
    let (feed, body) = ChannelBody::fed();
    let digest = entry.snapshot().body_sha256;
    tokio::spawn(async move {
        let _ = feed
            .send(Ok(Frame::data(Bytes::from_static(
                b"body before trailers\n",
            ))))
            .await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-lab-trailer", HeaderValue::from_static("after the body"));
        if let Ok(digest) = HeaderValue::from_str(&digest) {
            trailers.insert("x-request-sha256", digest);
        }
        let _ = feed.send(Ok(Frame::trailers(trailers))).await;
    });
    let mut response = Response::new(body);
    let names = HeaderValue::from_static("x-lab-trailer, x-request-sha256");
    response.headers_mut().insert(header::TRAILER, names);
    response
}

fn status(code: StatusCode, text: &'static str) -> Response<LabBody> {
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    response
}

fn with_header(code: StatusCode, name: header::HeaderName, value: &str) -> Response<LabBody> {
    let mut response = status(code, "");
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}

fn json_answer(value: &impl serde::Serialize) -> Response<LabBody> {
    let text = serde_json::to_vec_pretty(value).unwrap_or_default();
    let mut response = Response::new(full(text));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// `?header.NAME=VALUE` adds a response header, as often as it is given.
fn add_headers(headers: &mut HeaderMap, query: &Query) {
    for (name, value) in &query.pairs {
        let Some(name) = name.strip_prefix("header.") else {
            continue;
        };
        if let (Ok(name), Ok(value)) = (name.parse::<header::HeaderName>(), value.parse()) {
            headers.append(name, value);
        }
    }
}

/// The query of a lab URL: `a=b&c=d`, percent-decoded.
#[derive(Debug, Clone)]
struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    fn parse(text: &str) -> Self {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decoded(name), percent_decoded(value))
        };
        Self {
            pairs: text
                .split('&')
                .filter(|p| !p.is_empty())
                .map(pair)
                .collect(),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }
}

fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        let escape = tail
            .get(..2)
            .and_then(|pair| std::str::from_utf8(pair).ok());
        match escape.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(value) if *byte == b'%' => {
                decoded.push(value);
                rest = &tail[2..];
            }
            _ => {
                decoded.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_and_looked_up_by_name() {
        let query = Query::parse("n=3&to=https%3A%2F%2Fevil.test%2F&flag");
        assert_eq!(query.number("n", 0), 3);
        assert_eq!(query.text("to"), "https://evil.test/");
        assert_eq!(query.get("flag"), Some(""));
        assert_eq!(query.get("absent"), None);
    }
}
