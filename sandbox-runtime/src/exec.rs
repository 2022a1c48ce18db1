//! A running command, as its caller sees it: output events, standard input, signals, the end.

use bytes::{Bytes, BytesMut};
use http::Method;
use hyper::body::Incoming;
use outgate_pid1::api::frame::Frame;
use outgate_pid1::api::{self, Exit, ResizeRequest, SignalRequest, SignalScope, StdinAccepted};

use crate::control::{Control, broken, encoded, next_piece};
use crate::error::RuntimeError;

/// Bytes of standard input in one request.
const INPUT_CHUNK: usize = 256 << 10;

/// A command that was started in a guest. Dropping it leaves the command running.
#[derive(Debug)]
pub struct ExecHandle {
    control: ExecControl,
    input: Option<ExecInput>,
    body: Incoming,
    buffer: BytesMut,
    ended: bool,
}

impl ExecHandle {
    pub(crate) async fn attach(
        control: Control,
        id: &str,
        wants_input: bool,
    ) -> Result<Self, RuntimeError> {
        let body = control
            .stream(&format!("{}?stdout=0&stderr=0", api::exec_stream(id)))
            .await?;
        let control = ExecControl {
            control,
            id: id.to_owned(),
        };
        let input = wants_input.then(|| ExecInput {
            to: control.clone(),
            offset: 0,
        });
        Ok(Self {
            control,
            input,
            body,
            buffer: BytesMut::new(),
            ended: false,
        })
    }

    /// The next output, gap or exit; `None` after the exit.
    ///
    /// Output that isn't read holds the command back, but for what the guest keeps in its ring.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`] when the guest goes away or breaks the protocol.
    pub async fn next_event(&mut self) -> Option<Result<Frame, RuntimeError>> {
        if self.ended {
            return None;
        }
        let event = self.read_event().await;
        self.ended = matches!(event, Ok(Frame::Exit(_)) | Err(_));
        Some(event)
    }

    /// Standard input; `None` when the request didn't ask for it, and after the first call.
    pub fn take_input(&mut self) -> Option<ExecInput> {
        self.input.take()
    }

    /// Signals and sizes, from another task while events are being read.
    pub fn control(&self) -> ExecControl {
        self.control.clone()
    }

    /// Discards the rest of the output and returns how the command ended.
    ///
    /// # Errors
    /// As [`Self::next_event`].
    pub async fn wait(mut self) -> Result<Exit, RuntimeError> {
        while let Some(event) = self.next_event().await {
            if let Frame::Exit(exit) = event? {
                return Ok(exit);
            }
        }
        Err(broken("the exit of the command was read already"))
    }

    async fn read_event(&mut self) -> Result<Frame, RuntimeError> {
        loop {
            let frame = Frame::decode(&mut self.buffer)
                .map_err(|error| broken(format!("its output is not understood: {error}")))?;
            match frame {
                Some(Frame::Keepalive) => {}
                Some(frame) => return Ok(frame),
                None => {
                    next_piece(&mut self.body, &mut self.buffer)
                        .await?
                        .ok_or_else(|| broken("it ended the output without an exit"))?;
                }
            }
        }
    }
}

/// Signals and terminal sizes for one command. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ExecControl {
    control: Control,
    id: String,
}

impl ExecControl {
    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`], with code `not_found` when the command is gone.
    pub async fn signal(&self, signal: i32) -> Result<(), RuntimeError> {
        self.signal_in(signal, SignalScope::Group).await
    }

    /// Sends a signal to the main process, its group, or everything that it started.
    ///
    /// # Errors
    /// As [`Self::signal`].
    pub async fn signal_in(&self, signal: i32, scope: SignalScope) -> Result<(), RuntimeError> {
        let body = json(&SignalRequest { signal, scope })?;
        self.control
            .order(Method::POST, &api::exec_signal(&self.id), body)
            .await
    }

    /// Tells the command's terminal its new size.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`], with code `bad_request` when it has no terminal.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<(), RuntimeError> {
        let body = json(&ResizeRequest { rows, cols })?;
        self.control
            .order(Method::POST, &api::exec_resize(&self.id), body)
            .await
    }
}

/// Standard input of one command. Dropping it without [`Self::close`] leaves it open.
#[derive(Debug)]
pub struct ExecInput {
    to: ExecControl,
    offset: u64,
}

impl ExecInput {
    /// Writes all of `bytes`; resolves when the guest has taken them.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`] when the command doesn't read any more.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), RuntimeError> {
        while !bytes.is_empty() {
            let part = bytes.slice(..bytes.len().min(INPUT_CHUNK));
            let taken = self.post(part, false).await?;
            if taken == 0 {
                return Err(broken("it takes no standard input"));
            }
            bytes = bytes.slice(taken.min(bytes.len())..);
        }
        Ok(())
    }

    /// Ends standard input.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn close(mut self) -> Result<(), RuntimeError> {
        self.post(Bytes::new(), true).await.map(drop)
    }

    /// Sends one piece and says how much of it was taken.
    async fn post(&mut self, part: Bytes, eof: bool) -> Result<usize, RuntimeError> {
        let path = format!(
            "{}?offset={}{}",
            api::exec_stdin(&encoded(&self.to.id)),
            self.offset,
            if eof { "&eof=1" } else { "" }
        );
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        let StdinAccepted { accepted_to } = self.to.control.raw(Method::POST, &path, part).await?;
        let taken = accepted_to.saturating_sub(self.offset).min(length);
        self.offset += taken;
        usize::try_from(taken).map_err(|error| broken(error.to_string()))
    }
}

fn json(value: &impl serde::Serialize) -> Result<Bytes, RuntimeError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use outgate_pid1::api::{ApiError, ErrorCode};
    use tokio::net::UnixStream;

    use super::*;
    use crate::control::ControlTask;

    type Seen = Arc<Mutex<Vec<(String, Bytes)>>>;

    /// Plays PID 1: every stream is `output`, every other request is noted and answered.
    async fn guest(output: Vec<u8>) -> (Control, ControlTask, Seen) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).unwrap();
        }
        let seen = Seen::default();
        let (output, noted) = (Bytes::from(output), Arc::clone(&seen));
        let service = service_fn(move |request: Request<Incoming>| {
            let (output, noted) = (output.clone(), Arc::clone(&noted));
            async move {
                let target = request.uri().path_and_query().unwrap().to_string();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let length = body.len();
                noted.lock().unwrap().push((target.clone(), body));
                Ok::<_, Infallible>(answer(&target, length, output))
            }
        });
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(UnixStream::from_std(theirs).unwrap()), service),
        );
        let (control, task) = Control::connect(ours).await.unwrap();
        (control, task, seen)
    }

    fn answer(target: &str, length: usize, output: Bytes) -> Response<Full<Bytes>> {
        if target.contains("/stream") {
            return Response::new(output.into());
        }
        if let Some((_, offset)) = target.split_once("/stdin?offset=") {
            let offset: u64 = offset.split('&').next().unwrap().parse().unwrap();
            // It takes at most three bytes at a time.
            let accepted_to = offset + u64::try_from(length.min(3)).unwrap();
            let reply = serde_json::to_vec(&StdinAccepted { accepted_to }).unwrap();
            return Response::new(Bytes::from(reply).into());
        }
        let error = ApiError::new(ErrorCode::NotFound, "no such command", "see the list");
        Response::builder()
            .status(404)
            .body(Bytes::from(serde_json::to_vec(&error).unwrap()).into())
            .unwrap()
    }

    fn frames(frames: &[Frame]) -> Vec<u8> {
        let mut wire = BytesMut::new();
        for frame in frames {
            frame.encode(&mut wire).unwrap();
        }
        wire.to_vec()
    }

    #[tokio::test]
    async fn output_comes_in_order_and_ends_with_the_exit() {
        let all = [
            Frame::Stdout(Bytes::from_static(b"out")),
            Frame::Keepalive,
            Frame::Stderr(Bytes::from_static(b"err")),
            Frame::Exit(Exit::Code { code: 3 }),
        ];
        let (control, _task, _seen) = guest(frames(&all)).await;
        let mut command = ExecHandle::attach(control, "one", false).await.unwrap();
        let mut events = Vec::new();
        while let Some(event) = command.next_event().await {
            events.push(event.unwrap());
        }
        assert_eq!(events, [all[0].clone(), all[2].clone(), all[3].clone()]);
        assert!(command.take_input().is_none());
    }

    #[tokio::test]
    async fn an_output_that_just_ends_is_an_error_and_not_a_success() {
        let (control, _task, _seen) = guest(frames(&[Frame::Keepalive])).await;
        let command = ExecHandle::attach(control, "one", false).await.unwrap();
        let error = command.wait().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "guest: it ended the output without an exit"
        );
    }

    #[tokio::test]
    async fn a_hostile_frame_is_an_error_once() {
        let (control, _task, _seen) = guest(vec![1, 0xff, 0xff, 0xff, 0xff]).await;
        let mut command = ExecHandle::attach(control, "one", false).await.unwrap();
        assert!(command.next_event().await.unwrap().is_err());
        assert!(command.next_event().await.is_none());
    }

    #[tokio::test]
    async fn input_that_is_taken_in_parts_arrives_whole() {
        let (control, _task, seen) = guest(Vec::new()).await;
        let mut command = ExecHandle::attach(control, "one", true).await.unwrap();
        let mut input = command.take_input().unwrap();
        input.write(Bytes::from_static(b"abcdefg")).await.unwrap();
        input.close().await.unwrap();
        let seen = seen.lock().unwrap();
        let posts: Vec<(&str, &[u8])> = seen
            .iter()
            .skip(1)
            .map(|(target, body)| (target.as_str(), &**body))
            .collect();
        assert_eq!(
            posts,
            [
                ("/v1/exec/one/stdin?offset=0", &b"abcdefg"[..]),
                ("/v1/exec/one/stdin?offset=3", b"defg"),
                ("/v1/exec/one/stdin?offset=6", b"g"),
                ("/v1/exec/one/stdin?offset=7&eof=1", b""),
            ]
        );
    }

    #[tokio::test]
    async fn b214_a_refusal_keeps_its_code() {
        let (control, _task, _seen) = guest(Vec::new()).await;
        let command = ExecHandle::attach(control, "one", false).await.unwrap();
        let error = command.control().signal(15).await.unwrap_err();
        assert!(
            matches!(&error, RuntimeError::Guest { code, .. } if code == "not_found"),
            "{error:?}"
        );
        assert_eq!(error.to_string(), "guest: no such command; see the list");
    }
}
