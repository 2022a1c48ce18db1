//! Everything in this crate that the compiler can't check: the steps between fork and exec of a
//! confined process, and the time-stamp counter.
//!
//! Nothing here decides what a process may do; callers say it with [`Confinement`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::FdFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid, UnshareFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The first descriptor that isn't one of the three standard ones.
const FIRST_INHERITED: RawFd = 3;

/// How a child is cut off before its program starts.
#[derive(Debug, Default)]
pub(crate) struct Confinement {
    /// The uid and gid to become; only root can. `None` keeps the caller's and uses a user
    /// namespace for the rest.
    pub(crate) uid: Option<u32>,
    /// Supplementary groups beside `uid`; without `uid` the caller's stay.
    pub(crate) groups: Vec<Gid>,
    /// `cgroup.procs` files to enter before anything else.
    pub(crate) cgroups: Vec<File>,
    /// Hard limits, set as soft limits too.
    pub(crate) limits: Vec<(Resource, u64)>,
    /// The only descriptors beside 0, 1 and 2 that the child keeps, under the same numbers.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Confinement {
    /// Gives `fd` to the child and says its number there.
    pub(crate) fn pass(&mut self, fd: OwnedFd) -> RawFd {
        let number = fd.as_raw_fd();
        self.descriptors.push(fd);
        number
    }

    /// Runs in the child, between fork and exec: system calls only, no allocation, no lock.
    fn enter(&self, parent: Option<Pid>) -> io::Result<()> {
        for group in &self.cgroups {
            rustix::io::write(group, b"0")?;
        }
        let mut namespaces = UnshareFlags::NEWNS
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS;
        if self.uid.is_none() {
            namespaces |= UnshareFlags::NEWUSER;
        }
        unshare(namespaces)?;
        for (resource, limit) in &self.limits {
            let limit = Rlimit {
                current: Some(*limit),
                maximum: Some(*limit),
            };
            rustix::process::setrlimit(*resource, limit)?;
        }
        if let Some(id) = self.uid {
            let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
            rustix::thread::set_thread_groups(&self.groups)?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        rustix::thread::set_no_new_privs(true)?;
        // A change of uid clears the death signal, so it comes last; and the parent may have died
        // before it was set.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        close_on_exec_from(FIRST_INHERITED)?;
        for fd in &self.descriptors {
            rustix::io::fcntl_setfd(fd.as_fd(), FdFlags::empty())?;
        }
        Ok(())
    }
}

/// Starts `command` confined. It dies when this process does.
///
/// # Errors
/// What fork, one of the steps of the confinement, or exec answered.
pub(crate) fn spawn_confined(mut command: Command, confinement: Confinement) -> io::Result<Child> {
    let parent = rustix::process::getpid();
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed;
    // `enter` makes system calls on data prepared here and builds errors without allocating.
    unsafe {
        command.pre_exec(move || confinement.enter(Some(parent)));
    }
    on_spawner_thread(move || command.spawn())
}

/// Tells the current runtime when `fd` becomes readable.
pub(crate) fn watch_readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the value owns its descriptor, always returns the same one, and closes it only when it
    // is dropped, after it has been taken out of the runtime.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}

/// Collects a child that ends soon, without making anybody wait for it.
pub(crate) fn reap(mut child: Child) {
    let collect = move || {
        if let Err(error) = child.wait() {
            tracing::warn!(%error, "a child can't be waited for");
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("outgate-reaper".to_owned())
        .spawn(collect)
    {
        tracing::warn!(%error, "a child stays a zombie until this program ends");
    }
}

/// The host's time-stamp counter. It does not stop in deep sleep of one core and is equal on all
/// cores of every machine that can boot a guest with `tsc=reliable`.
pub(crate) fn time_stamp_counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC exists on every x86-64 processor, reads no memory and has no precondition.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Marks every descriptor from `first` on to be closed by exec: one that leaked into this program
/// without the mark must not leak into the child (`close_range(2)`, Linux 5.11).
fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the call takes three integers and touches no memory; it closes nothing by itself.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            RawFd::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: the child has one thread and shares no descriptor table, so that leaving namespaces
    // takes nothing away from anybody; `CLONE_FILES` is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }.map_err(Into::into)
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs `work` on the one thread that forks. The death signal of a child fires when the *thread*
/// that forked it ends, and worker threads of an async runtime come and go.
fn on_spawner_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    static SPAWNER: OnceLock<Mutex<Option<SyncSender<Job>>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(Mutex::default);
    let (reply, answer) = sync_channel(1);
    let job: Job = Box::new(move || drop(reply.send(work())));
    let sender = {
        let mut running = spawner.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(sender) => sender.clone(),
            None => running.insert(start_spawner()?).clone(),
        }
    };
    sender
        .send(job)
        .map_err(|_| io::Error::other("the spawning thread is gone"))?;
    answer
        .recv()
        .map_err(|_| io::Error::other("the spawning thread gave no answer"))?
}

fn start_spawner() -> io::Result<SyncSender<Job>> {
    let (sender, jobs) = sync_channel::<Job>(1);
    std::thread::Builder::new()
        .name("outgate-spawner".to_owned())
        .spawn(move || {
            for job in jobs {
                job();
            }
        })?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    fn run(script: &str, confinement: Confinement) -> String {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn_confined(command, confinement).unwrap();
        let mut output = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut output)
            .unwrap();
        child.wait().unwrap();
        output
    }

    #[test]
    fn the_child_gets_the_passed_descriptors_and_no_other() {
        let (reader, writer) = io::pipe().unwrap();
        let mut confinement = Confinement::default();
        let number = confinement.pass(writer.into());
        let script = format!("echo through >&{number}; ls /proc/self/fd | wc -l");
        // 0, 1, 2, the passed one, and the one with which `ls` reads the folder.
        assert_eq!(run(&script, confinement).trim(), "5");
        let mut text = String::new();
        io::BufReader::new(reader)
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "through\n");
    }

    #[test]
    fn the_child_is_in_an_empty_network_and_cannot_gain_privileges() {
        let output = run(
            "grep -c : /proc/net/dev; grep NoNewPrivs /proc/self/status",
            Confinement::default(),
        );
        assert_eq!(output, "1\nNoNewPrivs:\t1\n");
    }

    #[test]
    fn root_becomes_another_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let confinement = Confinement {
            uid: Some(200_123),
            ..Confinement::default()
        };
        let output = run("id -u; id -G; grep CapEff /proc/self/status", confinement);
        assert_eq!(output, "200123\n200123\nCapEff:\t0000000000000000\n");
    }

    #[test]
    fn limits_hold() {
        let limits = vec![(Resource::Nofile, 77), (Resource::Core, 0)];
        let output = run(
            "ulimit -n; ulimit -c",
            Confinement {
                limits,
                ..Confinement::default()
            },
        );
        assert_eq!(output, "77\n0\n");
    }
}
