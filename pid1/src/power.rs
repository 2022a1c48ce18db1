//! The end of the machine, and what keeps this process alive until then.

use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, sync};

use crate::console;

/// How long processes get between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(300);
/// Pause between two looks whether they are gone.
const PAUSE: Duration = Duration::from_millis(10);

/// Descriptors of this process, and of the commands that inherit the limit: a handful for each of
/// the commands that may run at a time.
const MAX_DESCRIPTORS: u64 = 65_536;

/// The guest may run out of memory and of descriptors; the process that can tell, and end the cause,
/// must not be the one that suffers.
pub(crate) fn protect_itself() {
    let steps = [
        (
            "out of the OOM killer's reach",
            std::fs::write("/proc/self/oom_score_adj", "-1000"),
        ),
        ("able to open more files", raise_descriptors()),
    ];
    for (step, outcome) in steps {
        if let Err(error) = outcome {
            console::say(format_args!("outgate-pid1: not {step}: {error}"));
        }
    }
}

fn raise_descriptors() -> std::io::Result<()> {
    Ok(setrlimit(
        Resource::RLIMIT_NOFILE,
        MAX_DESCRIPTORS,
        MAX_DESCRIPTORS,
    )?)
}

/// Ends every process, flushes the disk and powers off. Does not return.
pub(crate) fn off() -> ! {
    end_processes();
    sync();
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    if mount(None::<&str>, "/", None::<&str>, read_only, None::<&str>).is_ok() {
        sync();
    }
    loop {
        let Err(error) = reboot(RebootMode::RB_POWER_OFF);
        console::say(format_args!(
            "outgate-pid1: the machine does not power off: {error}"
        ));
        std::thread::sleep(GRACE);
    }
}

fn end_processes() {
    let everybody = Pid::from_raw(-1);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        // ESRCH: nobody is left.
        if kill(everybody, signal).is_err() {
            return;
        }
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Err(_nobody) => return,
                Ok(WaitStatus::StillAlive) => std::thread::sleep(PAUSE),
                Ok(_) => {}
            }
        }
    }
}
