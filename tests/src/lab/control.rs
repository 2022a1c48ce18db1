//! The lab's control endpoint for people and for the demo: plain HTTP on loopback, JSON out.

use std::convert::Infallible;

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::body::{LabBody, full};
use super::{Gates, Journal, LabDns, SinkLog};

/// What can be looked at and steered from outside.
#[derive(Debug, Clone)]
pub(super) struct Control {
    pub(super) journal: Journal,
    pub(super) dns: LabDns,
    pub(super) sink: SinkLog,
    pub(super) gates: Gates,
}

impl Control {
    /// Serves `/requests`, `/dns`, `/sink` and `/release/GATE` on `listener`.
    pub(super) fn spawn(self, listener: TcpListener) {
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let control = self.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let answer = control.answer(&request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<LabBody> {
        let path = request.uri().path();
        let text = match path {
            "/requests" => serde_json::to_vec(&self.journal.all()),
            "/dns" => serde_json::to_vec(&self.dns.queries()),
            "/sink" => serde_json::to_vec(&self.sink.all()),
            _ => match path.strip_prefix("/release/") {
                Some(gate) => {
                    self.gates.release(gate, 1);
                    Ok(b"{}".to_vec())
                }
                None => return refused(StatusCode::NOT_FOUND),
            },
        };
        let Ok(text) = text else {
            return refused(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let mut response = Response::new(full(text));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

fn refused(code: StatusCode) -> Response<LabBody> {
    let mut response = Response::new(full(""));
    *response.status_mut() = code;
    response
}
