//! One running QEMU: started confined, watched by pidfd, killed when dropped.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Resource, Signal};
use tokio::io::unix::AsyncFd;

use crate::console::Console;
use crate::error::RuntimeError;
use crate::machine::{Machine, QEMU};
use crate::sys::{Confinement, reap, spawn_confined, watch_readable};
use crate::tool;

/// Descriptors that one QEMU may have open; it uses about 40.
const MAX_DESCRIPTORS: u64 = 256;

/// Room beside the largest file that QEMU writes to: its RAM or its disk.
const FILE_SIZE_SLACK: u64 = 64 << 20;

/// A QEMU process of ours.
#[derive(Debug)]
pub(crate) struct Qemu {
    /// `None` only while it is being dropped.
    child: Option<Child>,
    pidfd: AsyncFd<OwnedFd>,
    console: Console,
}

impl Qemu {
    /// Starts `machine`. `confinement` must hold every descriptor that the machine names.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when QEMU is missing or can't be confined.
    pub(crate) fn start(
        machine: &Machine,
        disk_mib: u32,
        mut confinement: Confinement,
    ) -> Result<Self, RuntimeError> {
        let largest_file = u64::from(machine.memory_mib.max(disk_mib)) << 20;
        confinement.limits.extend([
            (Resource::Core, 0),
            (Resource::Nofile, MAX_DESCRIPTORS),
            (Resource::Memlock, 0),
            (
                Resource::Fsize,
                largest_file.saturating_add(FILE_SIZE_SLACK),
            ),
        ]);
        let program = tool::find(QEMU).unwrap_or_else(|| QEMU.into());
        let mut command = Command::new(program);
        command
            .arg0(QEMU)
            .args(machine.arguments())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in the terminal is for whoever owns the sandbox to handle.
            .process_group(0);
        let mut child =
            spawn_confined(command, confinement).map_err(|error| not_started(&error))?;
        let pipes = [
            child.stdout.take().map(OwnedFd::from),
            child.stderr.take().map(OwnedFd::from),
        ];
        let watch = || -> io::Result<(AsyncFd<OwnedFd>, Console)> {
            let pid = Pid::from_child(&child);
            let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?;
            let pidfd = watch_readable(pidfd)?;
            Ok((
                pidfd,
                Console::drain(pipes.into_iter().flatten().collect())?,
            ))
        };
        match watch() {
            Ok((pidfd, console)) => Ok(Self {
                child: Some(child),
                pidfd,
                console,
            }),
            Err(error) => {
                // It may have ended by itself, which is as good.
                let _ = child.kill();
                reap(child);
                Err(RuntimeError::environment(
                    format!("QEMU can't be watched: {error}"),
                    "outgate needs Linux 5.3 or newer and some free file descriptors",
                ))
            }
        }
    }

    pub(crate) fn console(&self) -> &Console {
        &self.console
    }

    /// A second handle on the process for somebody else who may have to kill it.
    pub(crate) fn pidfd(&self) -> io::Result<OwnedFd> {
        self.pidfd.get_ref().try_clone()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Resolves when the process has ended. May be called again and by several.
    pub(crate) async fn ended(&self) {
        if let Err(error) = self.pidfd.readable().await {
            tracing::debug!(%error, "the runtime shuts down");
        }
    }

    /// Ends the process now and waits for it.
    pub(crate) async fn kill(mut self) -> io::Result<ExitStatus> {
        self.send_kill();
        self.ended().await;
        match self.child.take() {
            // It is dead, so this does not block.
            Some(mut child) => child.wait(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn send_kill(&self) {
        match rustix::process::pidfd_send_signal(self.pidfd.get_ref().as_fd(), Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "QEMU can't be killed"),
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.send_kill();
            reap(child);
        }
    }
}

fn not_started(error: &io::Error) -> RuntimeError {
    if error.kind() == io::ErrorKind::NotFound {
        return tool::not_started(&Command::new(QEMU), error);
    }
    let advice = if rustix::process::geteuid().is_root() {
        "run where namespaces may be made, or give the container CAP_SYS_ADMIN"
    } else {
        "allow unprivileged user namespaces (`sysctl kernel.unprivileged_userns_clone=1`, or the \
         AppArmor restriction of them), or run as root"
    };
    RuntimeError::environment(format!("QEMU can't be confined: {error}"), advice)
}
