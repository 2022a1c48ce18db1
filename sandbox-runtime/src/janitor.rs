//! A tiny process beside every sandbox that cleans up after it, however its owner ends.
//!
//! It is this same program, started again with a hidden first argument, in a session of its own so
//! that neither Ctrl-C nor a closing terminal reaches it. It holds one end of a socket: when the
//! other end closes (the owner is done, or was killed), it kills QEMU and removes the sandbox's
//! control groups and folder. This is the only way they are ever removed, so that it works on the
//! day that it is needed.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::Signal;

use crate::error::RuntimeError;
use crate::paths::Paths;
use crate::sys::reap;
use crate::vm_dir::{self, VmDir};

/// The hidden first argument.
const ROLE: &str = "__outgate-janitor";

/// How long a fresh janitor may take to answer; it does nothing before.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long a killed QEMU may take to give its memory back, seconds.
const KILL_LIMIT_SECONDS: i64 = 30;

/// A control group can be busy for a moment after its last process died, and nothing tells when it
/// no longer is (version 1 has no events).
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// Does the janitor's work and returns its exit code when this process was started as one. Call it
/// first thing in `main`, before any thread or runtime starts.
pub fn main_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ROLE)) {
        return None;
    }
    let code = match arguments
        .next()
        .map(PathBuf::from)
        .map(|folder| serve(&folder))
    {
        Some(Ok(())) => ExitCode::SUCCESS,
        // Nobody listens any more; a sweep will find what is left.
        Some(Err(_)) | None => ExitCode::FAILURE,
    };
    Some(code)
}

/// Removes what owners left that died together with their janitors, and says which sandboxes' it
/// was. Starting a sandbox does the same.
///
/// # Errors
/// [`RuntimeError::File`] when the run folder can't be read.
pub fn sweep(paths: &Paths) -> Result<Vec<String>, RuntimeError> {
    vm_dir::sweep(paths)
}

/// The owner's handle on a running janitor. Dropping it makes the janitor clean up.
#[derive(Debug)]
pub(crate) struct Janitor {
    socket: Option<UnixStream>,
    child: Option<Child>,
}

impl Janitor {
    /// Starts the janitor of one sandbox. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when this program can't be started again, or does not call
    /// [`main_if_requested`].
    pub(crate) fn start(dir: &VmDir) -> Result<Self, RuntimeError> {
        let problem = |error: io::Error| {
            RuntimeError::environment(
                format!("the janitor process can't be started: {error}"),
                "programs that start sandboxes call `janitor::main_if_requested` first in `main`",
            )
        };
        let (ours, theirs) = UnixStream::pair().map_err(problem)?;
        let child = Command::new("/proc/self/exe")
            .arg0("outgate-janitor")
            .arg(ROLE)
            .arg(dir.path())
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(problem)?;
        let mut janitor = Self {
            socket: Some(ours),
            child: Some(child),
        };
        janitor.await_ready().map_err(problem)?;
        Ok(janitor)
    }

    /// Hands the process over that has to be killed.
    ///
    /// # Errors
    /// When the janitor is gone.
    pub(crate) fn watch(&self, process: BorrowedFd<'_>) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let processes = [process];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&processes));
        sendmsg(
            socket,
            &[IoSlice::new(b"p")],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Lets the janitor clean up and waits until it has.
    ///
    /// # Errors
    /// When it can't be waited for, or failed.
    pub(crate) async fn finish(mut self) -> io::Result<()> {
        drop(self.socket.take());
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let status = tokio::task::spawn_blocking(move || child.wait()).await??;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the janitor left something behind ({status})"
        )))
    }

    fn await_ready(&mut self) -> io::Result<()> {
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        socket.set_read_timeout(Some(START_LIMIT))?;
        socket.read_exact(&mut [0])
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.socket.take());
        if let Some(child) = self.child.take() {
            reap(child);
        }
    }
}

/// The janitor's whole life.
fn serve(folder: &Path) -> io::Result<()> {
    rustix::process::setsid()?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.write_all(b"r")?;
    let mut process = None;
    while let Some(message) = receive(&socket)? {
        process = message.or(process);
    }
    if let Some(process) = process {
        kill(&process);
    }
    for _ in 0..REMOVE_TRIES {
        if vm_dir::remove(folder).is_ok() {
            return Ok(());
        }
        std::thread::sleep(REMOVE_PAUSE);
    }
    vm_dir::remove(folder)
}

/// The next message with the descriptor in it, if any; `None` when the owner is gone.
fn receive(socket: &UnixStream) -> io::Result<Option<Option<OwnedFd>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = match recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        flags,
    ) {
        Err(rustix::io::Errno::INTR) => return Ok(Some(None)),
        // The owner was killed with data of ours unread.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        result => result?,
    };
    if message.bytes == 0 {
        return Ok(None);
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(Some(descriptor))
}

/// Kills a process and waits for its end, so that its groups can be removed.
fn kill(process: &OwnedFd) {
    // That it is dead already is the usual case: it dies with its owner.
    let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
    let limit = Timespec {
        tv_sec: KILL_LIMIT_SECONDS,
        tv_nsec: 0,
    };
    // Whether it ended in time shows when the group is removed.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
}
