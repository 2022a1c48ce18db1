//! The commands of a guest: started once per id, read by offset, ended as a tree.

mod program;
mod pump;
mod spawn;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::sync::Notify;

use crate::reaper::{Ending, Reaper};
use crate::ring::Ring;
use crate::sys;
use outgate_pid1::api::{
    ApiError, ErrorCode, ExecList, ExecRequest, ExecStatus, Exit, ResizeRequest, SignalRequest,
    SignalScope,
};

pub(crate) use self::spawn::{Stdin, check_environment};

/// Commands remembered at a time, running or ended; the oldest ended ones are forgotten.
const MAX_EXECS: usize = 1024;
/// Bytes of output kept for ended commands, all together: what nobody fetched must not fill a small
/// guest.
const MAX_KEPT: usize = 64 * 1024 * 1024;
/// Characters in an id.
const MAX_ID_CHARS: usize = 64;

/// All commands of this guest.
#[derive(Debug)]
pub(crate) struct Execs {
    /// The image's root, where programs and users are looked up.
    root: PathBuf,
    reaper: Arc<Reaper>,
    table: Mutex<BTreeMap<String, Entry>>,
    started: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    order: u64,
    request: ExecRequest,
    exec: Arc<Exec>,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Exec {
    pid: Pid,
    cgroup: Option<PathBuf>,
    terminal: Option<Arc<std::os::fd::OwnedFd>>,
    /// Standard input, as long as it is open.
    pub(crate) stdin: tokio::sync::Mutex<Stdin>,
    outputs: Mutex<Outputs>,
    /// Tells readers of more output, and writers of more room.
    pub(crate) moved: Notify,
    ending: Ending,
    timed_out: AtomicBool,
    reaper: Arc<Reaper>,
    readers: AtomicU64,
}

/// Standard output and standard error.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) stdout: Ring,
    pub(crate) stderr: Ring,
}

impl Outputs {
    fn len(&self) -> usize {
        self.stdout.len() + self.stderr.len()
    }
}

impl Execs {
    pub(crate) fn new(root: PathBuf, reaper: Arc<Reaper>) -> Self {
        Self {
            root,
            reaper,
            table: Mutex::default(),
            started: AtomicU64::new(0),
        }
    }

    /// Starts the command, or finds the one that was started under this id with the same request.
    pub(crate) fn start(
        &self,
        request: ExecRequest,
        base_env: &BTreeMap<String, String>,
    ) -> Result<Arc<Exec>, ApiError> {
        check_id(&request.exec_id)?;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.get(&request.exec_id) {
            if known.request == request {
                return Ok(Arc::clone(&known.exec));
            }
            return Err(ApiError::new(
                ErrorCode::Conflict,
                format!("`{}` is another command", request.exec_id),
                "choose an id of its own for every command",
            ));
        }
        make_room(&mut table)?;
        let exec = spawn::spawn(&self.root, &request, base_env, &self.reaper)?;
        let order = self.started.fetch_add(1, Ordering::Relaxed);
        let id = request.exec_id.clone();
        table.insert(
            id,
            Entry {
                order,
                request,
                exec: Arc::clone(&exec),
            },
        );
        Ok(exec)
    }

    /// Every command that is remembered, in the order of the starts.
    pub(crate) fn list(&self) -> ExecList {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_unstable_by_key(|(_, entry)| entry.order);
        let status = |(id, entry): (&String, &Entry)| ExecStatus {
            exec_id: id.clone(),
            pid: entry.exec.pid.as_raw(),
            exit: entry.exec.exit(),
        };
        ExecList {
            execs: entries.into_iter().map(status).collect(),
        }
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Exec>, ApiError> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table
            .get(id)
            .map(|entry| Arc::clone(&entry.exec))
            .ok_or_else(|| {
                ApiError::new(
                    ErrorCode::NotFound,
                    format!("there is no command `{}`", id.escape_debug()),
                    "start it first; ended commands are forgotten after a while",
                )
            })
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        spawn::remove(self.cgroup.as_deref());
    }
}

impl Exec {
    pub(crate) fn outputs(&self) -> MutexGuard<'_, Outputs> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its main process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended; none while it runs.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let exit = self.ending.borrow().clone()?;
        Some(if self.timed_out.load(Ordering::Relaxed) {
            Exit::Timeout
        } else {
            exit
        })
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Exit {
        let mut ending = self.ending.clone();
        // The reaper drops a sender only after it has sent; a signal that nobody has stands for the
        // impossible case.
        drop(ending.wait_for(Option::is_some).await);
        self.exit().unwrap_or(Exit::Signal { signal: 0 })
    }

    pub(crate) fn next_reader(&self) -> u64 {
        self.readers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn signal(&self, request: SignalRequest) -> Result<(), ApiError> {
        let signal = Signal::try_from(request.signal).map_err(|_| {
            ApiError::new(
                ErrorCode::BadRequest,
                format!("{} is no signal", request.signal),
                "use a number from 1 to 31",
            )
        })?;
        let sent = match request.scope {
            SignalScope::Process => self.while_running(|| kill(self.pid, signal)),
            SignalScope::Group => self.while_running(|| killpg(self.pid, signal)),
            SignalScope::Tree => self.signal_tree(signal),
        };
        sent.map_err(|errno| match errno {
            Errno::ESRCH => ended(),
            other => io_error(&other.into()),
        })
    }

    pub(crate) fn resize(&self, size: ResizeRequest) -> Result<(), ApiError> {
        let terminal = self.terminal.as_ref().ok_or_else(|| {
            ApiError::new(
                ErrorCode::BadRequest,
                "the command has no terminal",
                "start it with one",
            )
        })?;
        sys::set_window_size(terminal, size.rows, size.cols).map_err(|error| io_error(&error))
    }

    /// Signals everything that the command started, also what it left behind. Without a cgroup that
    /// is its process group, as long as it can be named.
    fn signal_tree(&self, signal: Signal) -> nix::Result<()> {
        let Some(cgroup) = self.cgroup.as_ref().filter(|cgroup| cgroup.exists()) else {
            return self.while_running(|| killpg(self.pid, signal));
        };
        if signal == Signal::SIGKILL {
            let killed = std::fs::write(cgroup.join("cgroup.kill"), "1");
            return killed.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)));
        }
        let listed = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        for pid in listed.lines().filter_map(|line| line.parse().ok()) {
            // A process of the tree may end by itself before its turn.
            kill(Pid::from_raw(pid), signal).unwrap_or(());
        }
        Ok(())
    }

    fn while_running(&self, signal: impl FnOnce() -> nix::Result<()>) -> nix::Result<()> {
        self.reaper
            .while_running(&self.ending, signal)
            .unwrap_or(Err(Errno::ESRCH))
    }
}

/// Ends everything after `timeout`, by the guest's monotonic clock.
async fn end_after(timeout: Duration, exec: Arc<Exec>) {
    if tokio::time::timeout(timeout, exec.ended()).await.is_ok() {
        return;
    }
    let timed_out = || {
        exec.timed_out.store(true, Ordering::Relaxed);
        Ok(())
    };
    // ESRCH: it ended by itself at the last moment.
    if exec
        .while_running(timed_out)
        .and_then(|()| exec.signal_tree(Signal::SIGKILL))
        .is_err()
    {
        exec.timed_out.store(false, Ordering::Relaxed);
    }
}

/// Forgets the oldest ended commands until there is room for one more, in number and in bytes.
fn make_room(table: &mut BTreeMap<String, Entry>) -> Result<(), ApiError> {
    let mut ended: Vec<_> = table
        .iter()
        .filter(|(_, entry)| entry.exec.exit().is_some())
        .map(|(id, entry)| (entry.order, id.clone(), entry.exec.outputs().len()))
        .collect();
    ended.sort_unstable();
    let mut kept: usize = ended.iter().map(|(.., bytes)| bytes).sum();
    for (_, id, bytes) in ended {
        if table.len() < MAX_EXECS && kept <= MAX_KEPT {
            break;
        }
        table.remove(&id);
        kept -= bytes;
    }
    if table.len() < MAX_EXECS {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::LimitExceeded,
        format!("{MAX_EXECS} commands are running"),
        "end some of them",
    ))
}

fn check_id(id: &str) -> Result<(), ApiError> {
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !id.is_empty() && id.len() <= MAX_ID_CHARS && id.chars().all(named) && !id.starts_with('.') {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::BadRequest,
        format!("`{}` is no id", id.escape_debug()),
        "use 1 to 64 of `a-z A-Z 0-9 . _ -`, not starting with a dot",
    ))
}

fn ended() -> ApiError {
    ApiError::new(
        ErrorCode::Conflict,
        "the command has ended",
        "nothing is left to do",
    )
}

pub(crate) fn io_error(error: &std::io::Error) -> ApiError {
    use std::io::ErrorKind;
    let (code, how_to_fix) = match error.kind() {
        ErrorKind::NotFound => (ErrorCode::NotFound, "check the path"),
        ErrorKind::PermissionDenied => (ErrorCode::PermissionDenied, "check owner and mode"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (
            ErrorCode::StorageFull,
            "remove files, or start the sandbox with a larger disk",
        ),
        ErrorKind::AlreadyExists | ErrorKind::IsADirectory | ErrorKind::NotADirectory => {
            (ErrorCode::Conflict, "check what is at the path")
        }
        ErrorKind::ReadOnlyFilesystem => (ErrorCode::PermissionDenied, "choose another place"),
        ErrorKind::ArgumentListTooLong => (
            ErrorCode::BadRequest,
            "send less as arguments and environment, more as input",
        ),
        ErrorKind::InvalidFilename => (ErrorCode::BadRequest, "shorten the name"),
        // What a limit on processes says, and one on descriptors.
        ErrorKind::WouldBlock => (ErrorCode::LimitExceeded, "end some of the commands"),
        _ => match error.raw_os_error() {
            Some(libc::ELOOP) => (ErrorCode::Conflict, "check where its links lead"),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                (ErrorCode::LimitExceeded, "end some of the commands")
            }
            _ => (ErrorCode::Io, "see the message"),
        },
    };
    ApiError::new(code, error.to_string(), how_to_fix)
}
