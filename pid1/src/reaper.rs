//! Reaps every child of this process, and hands the ends of commands to whoever waits for them.
//!
//! One lock covers starting a child with registering it, and reaping with telling its end: no child
//! is reaped before it is known, and none is signalled by number after it was reaped and not yet
//! said to be ended. Orphans that the kernel hands to PID 1 have no waiter and are reaped all the
//! same.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::console;
use outgate_pid1::api::Exit;

/// How a child ended; none while it runs.
pub(crate) type Ending = watch::Receiver<Option<Exit>>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    waiting: Mutex<HashMap<Pid, watch::Sender<Option<Exit>>>>,
}

impl Reaper {
    /// Starts `command`.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<(Pid, Ending)> {
        let mut waiting = self.waiting();
        let pid = Pid::from_raw(command.spawn()?.id().cast_signed());
        let (sender, ending) = watch::channel(None);
        waiting.insert(pid, sender);
        Ok((pid, ending))
    }

    /// Does `signal` while no child is being reaped, if `ending` has none yet: the number of its
    /// process is its own until then.
    pub(crate) fn while_running<T>(
        &self,
        ending: &Ending,
        signal: impl FnOnce() -> T,
    ) -> Option<T> {
        let _waiting = self.waiting();
        ending.borrow().is_none().then(signal)
    }

    /// Reaps until the end of the program.
    ///
    /// # Errors
    /// When the signal can't be watched.
    pub(crate) async fn run(&self) -> io::Result<()> {
        let mut child_ended = signal(SignalKind::child())?;
        loop {
            self.reap();
            child_ended.recv().await;
        }
    }

    fn reap(&self) {
        let mut waiting = self.waiting();
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code { code }),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (
                    pid,
                    Exit::Signal {
                        signal: signal as i32,
                    },
                ),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => {
                    return console::say(format_args!(
                        "outgate-pid1: children can't be reaped: {error}"
                    ));
                }
            };
            if let Some(waiter) = waiting.remove(&pid) {
                waiter.send_replace(Some(exit));
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Pid, watch::Sender<Option<Exit>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
