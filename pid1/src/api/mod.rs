//! The control API of PID 1: HTTP/2 over a byte stream that only the host can reach.
//!
//! Requests and replies are JSON, but for the bytes of files and of standard input, and for the
//! output of a command, which is a stream of [`frame`]s. Both sides treat the other's bytes as
//! hostile.

mod error;
mod exec;
pub mod frame;
mod setup;

pub use error::{ApiError, ErrorCode};
pub use exec::{
    ExecList, ExecRequest, ExecStarted, ExecStatus, Exit, Pty, ResizeRequest, SignalRequest,
    SignalScope, StdinAccepted,
};
pub use setup::{ConfigureReply, ConfigureRequest, Health, Network};

/// Version of this API. The host refuses a guest with another one.
pub const PROTOCOL: u32 = 1;
/// Name of the virtio-serial port that carries the API.
pub const PORT_NAME: &str = "ctl";
/// What PID 1 prints on the console when the API is being served.
pub const READY_LINE: &str = "outgate-pid1: ready";
/// What PID 1 prints on the console before it gives up and powers off.
pub const FATAL_PREFIX: &str = "outgate-pid1: fatal: ";
/// Kernel parameter that asks PID 1 to print [`PROBE_LINE`] and power off.
pub const PROBE_PARAMETER: &str = "outgate.probe";
/// The answer to [`PROBE_PARAMETER`].
pub const PROBE_LINE: &str = "outgate-probe-ok";
/// Serial of the read-only disk that holds the image.
pub const BASE_DISK_SERIAL: &str = "outgate-base";
/// Serial of the writable ext4 disk.
pub const WRITABLE_DISK_SERIAL: &str = "outgate-rw";
/// Longest JSON body either side accepts, in bytes.
pub const MAX_JSON_BYTES: usize = 4 * 1024 * 1024;

/// `GET`: [`Health`].
pub const HEALTH: &str = "/v1/health";
/// `POST` [`ConfigureRequest`]: [`ConfigureReply`]. Must come first.
pub const CONFIGURE: &str = "/v1/configure";
/// `POST` [`ExecRequest`]: [`ExecStarted`]; the same id and body again is the same command.
/// `GET`: [`ExecList`].
pub const EXEC: &str = "/v1/exec";
/// `GET ?path=`, with `Range`; `PUT ?path=[&mode=OCTAL][&user=USER][&parents=0]`: atomic replace.
/// Raw bytes, of regular files alone. Without `mode` and `user` a file that is there keeps its own.
pub const FILES: &str = "/v1/files";
/// `POST`: flush, stop everything, power off.
pub const SHUTDOWN: &str = "/v1/shutdown";

/// `GET ?stdout=OFFSET&stderr=OFFSET`: [`frame`]s until the exit.
#[must_use]
pub fn exec_stream(id: &str) -> String {
    format!("{EXEC}/{id}/stream")
}

/// `POST ?offset=N[&eof=1]`, raw bytes: [`StdinAccepted`].
#[must_use]
pub fn exec_stdin(id: &str) -> String {
    format!("{EXEC}/{id}/stdin")
}

/// `POST` [`SignalRequest`].
#[must_use]
pub fn exec_signal(id: &str) -> String {
    format!("{EXEC}/{id}/signal")
}

/// `POST` [`ResizeRequest`].
#[must_use]
pub fn exec_resize(id: &str) -> String {
    format!("{EXEC}/{id}/resize")
}

/// `GET`: [`Exit`], once there is one.
#[must_use]
pub fn exec_wait(id: &str) -> String {
    format!("{EXEC}/{id}/wait")
}
