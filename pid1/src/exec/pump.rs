//! From a command's pipes into its rings.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::spawn::non_blocking;
use super::{Exec, Outputs};
use crate::console;
use crate::ring::Ring;
use crate::sys;

/// Bytes read at a time: what a pipe holds.
const CHUNK: usize = 64 * 1024;
/// How long after the end of a command its output may still grow. What it wrote itself is in the
/// pipe by then; a background child may hold the pipe, and fill it, for ever.
const GRACE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy)]
enum Which {
    Stdout,
    Stderr,
}

impl Which {
    fn ring(self, outputs: &mut Outputs) -> &mut Ring {
        match self {
            Self::Stdout => &mut outputs.stdout,
            Self::Stderr => &mut outputs.stderr,
        }
    }
}

/// Starts a pump for each stream; a missing standard error is a terminal's.
pub(super) fn start(exec: &Arc<Exec>, stdout: OwnedFd, stderr: Option<OwnedFd>) {
    tokio::spawn(run(Arc::clone(exec), stdout, Which::Stdout));
    match stderr {
        Some(stderr) => drop(tokio::spawn(run(Arc::clone(exec), stderr, Which::Stderr))),
        None => exec.outputs().stderr.close(),
    }
}

async fn run(exec: Arc<Exec>, fd: OwnedFd, which: Which) {
    let outcome = pump(&exec, fd, which).await;
    which.ring(&mut exec.outputs()).close();
    exec.moved.notify_waiters();
    if let Err(error) = outcome {
        console::say(format_args!(
            "outgate-pid1: the output of a command broke off: {error}"
        ));
    }
}

async fn pump(exec: &Exec, fd: OwnedFd, which: Which) -> io::Result<()> {
    let fd = sys::watched(non_blocking(fd)?)?;
    let mut buffer = vec![0_u8; CHUNK];
    let mut rest: Option<Rest> = None;
    loop {
        let room = wait_for_room(exec, which).await;
        if rest.is_none() && exec.exit().is_some() {
            rest = Some(Rest::of(&fd)?);
        }
        if rest.as_ref().is_some_and(Rest::is_over) {
            return Ok(());
        }
        let Some(wanted) = buffer.get_mut(..room.min(CHUNK)) else {
            return Ok(());
        };
        let read = tokio::select! {
            biased;
            read = read(&fd, wanted) => read,
            () = pause(exec, rest.as_ref()) => match rest {
                Some(_) => return Ok(()),
                None => continue,
            },
        };
        let count = match read {
            // A terminal whose last user is gone reads as an error.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => 0,
            other => other?,
        };
        let Some(bytes) = wanted.get(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        if let Some(rest) = &mut rest {
            rest.owed = rest.owed.saturating_sub(count as u64);
        }
        which.ring(&mut exec.outputs()).write(bytes);
        exec.moved.notify_waiters();
    }
}

/// What may still come once the command has ended.
struct Rest {
    /// Bytes that were in the pipe at the end, and are the command's own.
    owed: u64,
    until: Instant,
}

impl Rest {
    fn of(fd: &AsyncFd<OwnedFd>) -> io::Result<Self> {
        let owed = rustix::io::ioctl_fionread(fd.get_ref())?;
        Ok(Self {
            owed,
            until: Instant::now() + GRACE,
        })
    }

    /// A slow reader may make the command's own bytes take longer than the grace.
    fn is_over(&self) -> bool {
        self.owed == 0 && Instant::now() >= self.until
    }
}

/// Until the command ends, or the grace after its end does.
async fn pause(exec: &Exec, rest: Option<&Rest>) {
    match rest {
        None => {
            exec.ended().await;
        }
        Some(rest) => tokio::time::sleep_until(rest.until).await,
    }
}

async fn read(fd: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut guard = fd.readable().await?;
        match guard.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), buffer)?)) {
            Ok(read) => return read,
            Err(_would_block) => {}
        }
    }
}

async fn wait_for_room(exec: &Exec, which: Which) -> usize {
    loop {
        let moved = exec.moved.notified();
        tokio::pin!(moved);
        moved.as_mut().enable();
        let room = which.ring(&mut exec.outputs()).room();
        if room > 0 {
            return room;
        }
        moved.await;
    }
}
