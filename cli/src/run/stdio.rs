//! The command's streams and the process's own: bytes through, signals on, sizes along.

use std::future::Future;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use outgate_runtime::api::Exit;
use outgate_runtime::api::frame::Frame;
use outgate_runtime::{ExecControl, ExecHandle, ExecInput};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::report::{Event, Reporter};
use crate::run::failure;
use crate::terminal::{self, RawMode};

/// Bytes read from standard input at a time.
const CHUNK: usize = 64 * 1024;
/// Chunks of standard input that may wait for the guest.
const QUEUE: usize = 4;
/// SIGINT, sent to the command for the first Ctrl-C.
const SIGINT: i32 = 2;

/// Set while a command runs that Ctrl-C should reach first.
static COMMAND_RUNS: AtomicBool = AtomicBool::new(false);

/// How the command's time ended.
#[derive(Debug)]
pub(super) enum Ending {
    Exit(Exit),
    Interrupted,
}

/// Resolves on SIGTERM or SIGHUP, and on Ctrl-C while no command is there to take it.
pub(super) fn interrupted() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = hangup.recv() => return,
                _ = interrupt.recv() => {
                    if !COMMAND_RUNS.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        }
    })
}

/// Passes everything through until the command ends.
pub(super) async fn pass(
    mut exec: ExecHandle,
    tty: bool,
    reporter: &Reporter,
) -> anyhow::Result<Ending> {
    let _raw = tty.then(RawMode::enter).transpose()?;
    if let Some(input) = exec.take_input() {
        tokio::spawn(send_input(input));
    }
    let control = exec.control();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut resized = signal(SignalKind::window_change())?;
    COMMAND_RUNS.store(true, Ordering::Relaxed);
    let mut was_interrupted = false;
    loop {
        tokio::select! {
            event = exec.next_event() => match event {
                Some(Ok(Frame::Exit(exit))) => return Ok(Ending::Exit(exit)),
                Some(event) => show(&event.map_err(|error| failure(&error))?, reporter)?,
                None => anyhow::bail!("the output ended without an exit"),
            },
            _ = interrupt.recv() => {
                if was_interrupted {
                    return Ok(Ending::Interrupted);
                }
                was_interrupted = true;
                forward_interrupt(&control).await;
            }
            _ = resized.recv(), if tty => forward_size(&control).await,
        }
    }
}

async fn forward_interrupt(control: &ExecControl) {
    if let Err(error) = control.signal(SIGINT).await {
        tracing::debug!(%error, "the command did not get the signal");
    }
}

async fn forward_size(control: &ExecControl) {
    if let Some((rows, cols)) = terminal::size()
        && let Err(error) = control.resize(rows, cols).await
    {
        tracing::debug!(%error, "the command did not get the new size");
    }
}

/// Standard input of this process to the command's. Ends when either side does.
async fn send_input(mut input: ExecInput) {
    let (sender, mut chunks) = mpsc::channel::<Bytes>(QUEUE);
    // A plain thread: a read that never returns must not keep the process.
    std::thread::spawn(move || read_input(&sender));
    while let Some(bytes) = chunks.recv().await {
        if let Err(error) = input.write(bytes).await {
            tracing::debug!(%error, "the command reads no more");
            return;
        }
    }
    if let Err(error) = input.close().await {
        tracing::debug!(%error, "the end of standard input did not arrive");
    }
}

fn read_input(sender: &mpsc::Sender<Bytes>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match io::stdin().lock().read(&mut buffer) {
            Ok(count @ 1..) => {
                let bytes = buffer.get(..count).unwrap_or_default();
                if sender.blocking_send(Bytes::copy_from_slice(bytes)).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// # Errors
/// When our own output is gone: the command is ended then, as a closed pipe would end it.
fn show(frame: &Frame, reporter: &Reporter) -> io::Result<()> {
    match frame {
        Frame::Stdout(bytes) if reporter.is_json() => show_json("stdout", bytes, reporter),
        Frame::Stderr(bytes) if reporter.is_json() => show_json("stderr", bytes, reporter),
        Frame::Stdout(bytes) => return write(io::stdout().lock(), bytes),
        Frame::Stderr(bytes) => return write(io::stderr().lock(), bytes),
        Frame::Gap(gap) => {
            let stream = if gap.fd == 1 { "stdout" } else { "stderr" };
            reporter.warning(&format!("{} bytes of {stream} are lost", gap.to - gap.from));
        }
        Frame::Keepalive | Frame::Exit(_) => {}
    }
    Ok(())
}

fn show_json(stream: &str, bytes: &Bytes, reporter: &Reporter) {
    let text = std::str::from_utf8(bytes).ok();
    let base64 = text.is_none().then(|| BASE64_STANDARD.encode(bytes));
    reporter.event(&Event::Output {
        stream,
        text,
        base64,
    });
}

fn write(mut out: impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}
