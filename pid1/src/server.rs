//! The routes of the control API.
//!
//! One service, whatever the bytes travel on: the virtio-serial port in a guest, a pair of sockets
//! in a test. Every request gets exactly one reply; a refusal is an [`ApiError`] as JSON.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use crate::exec::{Execs, check_environment};
use crate::files::{Attributes, Extent};
use crate::query::Query;
use crate::range::Range;
use crate::users::User;
use crate::{body, files, stdin, trust};
use outgate_pid1::api::{
    self, ApiError, ConfigureReply, ConfigureRequest, ErrorCode, ExecRequest, ExecStarted, Health,
};

/// Streams that a host may have open at a time: one that watches every command, and some to act.
const MAX_STREAMS: u32 = 1280;
/// Flow-control window of a stream, in bytes: what an upload may have in flight before it is read.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Window of the connection: all streams together, so that input which no command reads can't hold
/// up any other request.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;

pub(crate) type Body = BoxBody<Bytes, std::io::Error>;
type Applied = fn(&std::path::Path, &ConfigureRequest) -> Result<ConfigureReply, ApiError>;

/// What the routes work on.
#[derive(Debug)]
pub(crate) struct Control {
    root: PathBuf,
    execs: Execs,
    apply: Applied,
    /// The environment of every command, once the guest is configured.
    env: Mutex<Option<BTreeMap<String, String>>>,
    /// Told when the host wants the machine off.
    pub(crate) shutdown: Notify,
}

impl Control {
    pub(crate) fn new(root: PathBuf, execs: Execs, apply: Applied) -> Self {
        Self {
            root,
            execs,
            apply,
            env: Mutex::default(),
            shutdown: Notify::new(),
        }
    }

    fn env(&self) -> Option<BTreeMap<String, String>> {
        self.env
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn configure(&self, request: &ConfigureRequest) -> Result<ConfigureReply, ApiError> {
        check_environment(&request.env)?;
        let reply = (self.apply)(&self.root, request)?;
        let mut env = if request.ca_pem.is_some() {
            trust::environment()
        } else {
            BTreeMap::new()
        };
        env.extend(request.env.clone());
        *self.env.lock().unwrap_or_else(PoisonError::into_inner) = Some(env);
        Ok(reply)
    }

    fn health(&self) -> Health {
        let uptime = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
            u64::try_from(time.tv_sec()).unwrap_or(0) * 1000
                + u64::try_from(time.tv_nsec()).unwrap_or(0) / 1_000_000
        });
        Health {
            protocol: api::PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: uptime,
            configured: self.env().is_some(),
            generation: 0,
        }
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve(
    control: Arc<Control>,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| {
        let control = Arc::clone(&control);
        async move {
            let reply = route(&control, request).await;
            Ok::<_, Infallible>(reply.unwrap_or_else(|error| refusal(&error)))
        }
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(io), service)
        .await
}

async fn route(
    control: &Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    match (&method, path.as_str()) {
        (&Method::GET, api::HEALTH) => return json(&control.health()),
        (&Method::POST, api::CONFIGURE) => return json(&control.configure(&read(request).await?)?),
        (&Method::POST, api::SHUTDOWN) => {
            control.shutdown.notify_one();
            return json(&serde_json::json!({}));
        }
        _ => {}
    }
    let Some(env) = control.env() else {
        let message = "the guest is not configured yet";
        return Err(ApiError::new(
            ErrorCode::NotConfigured,
            message,
            "POST /v1/configure first",
        ));
    };
    match (&method, path.as_str()) {
        (&Method::POST, api::EXEC) => {
            let request: ExecRequest = read(request).await?;
            let exec_id = request.exec_id.clone();
            let pid = control.execs.start(request, &env)?.pid().as_raw();
            json(&ExecStarted { exec_id, pid })
        }
        (&Method::GET, api::EXEC) => json(&control.execs.list()),
        (&Method::GET, api::FILES) => read_file(&request).await,
        (&Method::PUT, api::FILES) => {
            let count = write_file(control, request).await?;
            json(&serde_json::json!({ "bytes": count }))
        }
        _ => exec_route(control, &method, &path, request).await,
    }
}

async fn exec_route(
    control: &Arc<Control>,
    method: &Method,
    path: &str,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let named = path
        .strip_prefix(api::EXEC)
        .and_then(|rest| rest.strip_prefix('/'));
    let Some((id, verb)) = named.and_then(|rest| rest.split_once('/')) else {
        return Err(no_route(method, path));
    };
    let exec = control.execs.get(id)?;
    match (method, verb) {
        (&Method::GET, "stream") => {
            let query = Query::of(&request);
            let offsets = [query.number("stdout")?, query.number("stderr")?];
            Ok(Response::new(body::output(
                exec,
                offsets.map(|offset| offset.unwrap_or(0)),
            )))
        }
        (&Method::GET, "wait") => json(&exec.ended().await),
        (&Method::POST, "stdin") => {
            let query = Query::of(&request);
            let offset = query.number("offset")?.unwrap_or(0);
            let eof = query.has("eof");
            json(&stdin::write(&exec, offset, eof, request.into_body()).await?)
        }
        (&Method::POST, "signal") => {
            exec.signal(read(request).await?)?;
            json(&serde_json::json!({}))
        }
        (&Method::POST, "resize") => {
            exec.resize(read(request).await?)?;
            json(&serde_json::json!({}))
        }
        _ => Err(no_route(method, path)),
    }
}

async fn read_file(request: &Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let range = request.headers().get("range").map(|value| {
        value.to_str().ok().and_then(Range::parse).ok_or_else(|| {
            let message = "the range can't be read";
            ApiError::new(ErrorCode::BadRequest, message, "write it like `bytes=0-99`")
        })
    });
    let range = range.transpose()?;
    let part = files::Part::open(&Query::of(request).text("path")?, range).await?;
    let mut response = Response::builder();
    if let Some(Extent {
        start,
        length,
        size,
    }) = part.extent
    {
        response = response.header("content-length", length);
        if range.is_some() {
            let last = start + length - 1;
            response = response
                .status(StatusCode::PARTIAL_CONTENT)
                .header("content-range", format!("bytes {start}-{last}/{size}"));
        }
    }
    response
        .body(body::file(part))
        .map_err(|error| internal(&error))
}

async fn write_file(control: &Control, request: Request<Incoming>) -> Result<u64, ApiError> {
    let query = Query::of(&request);
    let path = query.text("path")?;
    let user = query.has("user").then(|| query.text("user")).transpose()?;
    let user = user
        .map(|user| User::look_up(&control.root, &user))
        .transpose()?;
    let attributes = Attributes {
        mode: query.octal("mode")?,
        owner: user.map(|user| (user.uid, user.gid)),
        parents_must_exist: query.number("parents")? == Some(0),
    };
    files::write(&path, attributes, request.into_body()).await
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, ApiError> {
    let bad = |message: String| {
        ApiError::new(
            ErrorCode::BadRequest,
            message,
            "send what the documentation of the route says",
        )
    };
    let body = Limited::new(request.into_body(), api::MAX_JSON_BYTES)
        .collect()
        .await;
    let bytes = body.map_err(|error| bad(error.to_string()))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))
}

fn json(value: &impl Serialize) -> Result<Response<Body>, ApiError> {
    let bytes = serde_json::to_vec(value).map_err(|error| internal(&error))?;
    Response::builder()
        .header("content-type", "application/json")
        .body(full(bytes))
        .map_err(|error| internal(&error))
}

fn refusal(error: &ApiError) -> Response<Body> {
    let bytes = serde_json::to_vec(error).unwrap_or_default();
    let mut response = Response::new(full(bytes));
    *response.status_mut() =
        StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes))
        .map_err(|never| match never {})
        .boxed()
}

fn no_route(method: &Method, path: &str) -> ApiError {
    let message = format!("there is no `{method} {}`", path.escape_debug());
    ApiError::new(
        ErrorCode::NotFound,
        message,
        "see the documentation of the control API",
    )
}

fn internal(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::Io, error.to_string(), "report it")
}
