//! From a request to a running process, its pumps and its timer.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::pty::openpty;
use nix::unistd::{Uid, fchown};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::program::{self, DEFAULT_PATH};
use super::{Exec, Outputs, end_after, io_error, pump};
use crate::boot::COMMANDS_CGROUP;
use crate::reaper::Reaper;
use crate::sys::{self, ChildSetup, ChildStep};
use crate::users::User;
use outgate_pid1::api::{ApiError, ErrorCode, ExecRequest, Pty};

/// The writing end of standard input.
#[derive(Debug)]
pub(crate) struct Stdin {
    /// None when it was never open, or is closed.
    pub(crate) pipe: Option<AsyncFd<OwnedFd>>,
    /// How many bytes were accepted.
    pub(crate) offset: u64,
    /// A terminal has no end of file but the character.
    pub(crate) is_terminal: bool,
}

pub(super) fn spawn(
    root: &Path,
    request: &ExecRequest,
    base_env: &BTreeMap<String, String>,
    reaper: &Arc<Reaper>,
) -> Result<Arc<Exec>, ApiError> {
    let plan = Plan::new(root, request, base_env)?;
    let cgroup = make_cgroup(&request.exec_id);
    let owner = plan.user.as_ref().map(|user| user.uid);
    let mut streams = Streams::open(request, owner).map_err(|e| io_error(&e))?;
    let mut command = plan.command(request);
    streams.give_to(&mut command);
    let procs = cgroup
        .as_ref()
        .map(|dir| File::options().write(true).open(dir.join("cgroup.procs")));
    let procs = procs.transpose().map_err(|error| io_error(&error))?;
    let setup = ChildSetup {
        user: plan.user.map(|user| (user.uid, user.gid, user.groups)),
        controlling_terminal: request.pty.is_some(),
        cgroup: procs.map(OwnedFd::from),
        cwd: plan.cwd,
    };
    sys::prepare_child(&mut command, setup);
    let started = reaper.start(&mut command);
    // Our copies of the child's ends must go, or the streams never end.
    drop(command);
    let (pid, ending) = started.map_err(|error| {
        remove(cgroup.as_deref());
        spawn_error(&error, request)
    })?;
    let exec = Arc::new(Exec {
        pid,
        cgroup: cgroup.clone(),
        terminal: streams.terminal.clone(),
        stdin: tokio::sync::Mutex::new(streams.stdin),
        outputs: Mutex::new(Outputs::default()),
        moved: Notify::new(),
        ending,
        timed_out: AtomicBool::new(false),
        reaper: Arc::clone(reaper),
        readers: AtomicU64::new(0),
    });
    if let Some(timeout) = request.timeout_ms {
        tokio::spawn(end_after(Duration::from_millis(timeout), Arc::clone(&exec)));
    }
    pump::start(&exec, streams.stdout, streams.stderr);
    Ok(exec)
}

/// Removes the cgroup of a command that is forgotten. It stays when background children live on:
/// they keep what they were given.
pub(super) fn remove(cgroup: Option<&Path>) {
    if let Some(cgroup) = cgroup {
        fs::remove_dir(cgroup).unwrap_or(());
    }
}

/// What is worked out before anything is made.
struct Plan {
    program: PathBuf,
    env: BTreeMap<String, String>,
    cwd: CString,
    user: Option<User>,
}

impl Plan {
    fn new(
        root: &Path,
        request: &ExecRequest,
        base_env: &BTreeMap<String, String>,
    ) -> Result<Self, ApiError> {
        let name = request.argv.first().ok_or_else(|| {
            ApiError::new(ErrorCode::BadRequest, "argv is empty", "name a program")
        })?;
        if request.argv.iter().any(|argument| argument.contains('\0')) {
            return Err(ApiError::new(
                ErrorCode::BadRequest,
                "an argument holds a NUL byte",
                "send such bytes as a file, or on standard input",
            ));
        }
        check_environment(&request.env)?;
        let user = request
            .user
            .as_deref()
            .map(|user| User::look_up(root, user))
            .transpose()?;
        let home = user.as_ref().map_or("/root", |user| user.home.as_str());
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), home.to_owned()),
            ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        ]);
        if let Some(name) = user.as_ref().and_then(|user| user.name.as_deref()) {
            env.insert("USER".to_owned(), name.to_owned());
        }
        if request.pty.is_some() {
            env.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        env.extend(base_env.clone());
        env.extend(request.env.clone());
        // A home that the image lacks is no reason to refuse what never asked for it.
        let fallback = || {
            if Path::new(home).is_dir() {
                home.to_owned()
            } else {
                "/".to_owned()
            }
        };
        let cwd = request.cwd.clone().unwrap_or_else(fallback);
        if !cwd.starts_with('/') {
            return Err(no_cwd(request));
        }
        let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let program = program::find(name, path, Path::new(&cwd))?;
        let cwd = CString::new(cwd).map_err(|_| no_cwd(request))?;
        Ok(Self {
            program,
            env,
            cwd,
            user,
        })
    }

    fn command(&self, request: &ExecRequest) -> Command {
        let mut command = Command::new(&self.program);
        if let Some((name, arguments)) = request.argv.split_first() {
            command.arg0(name).args(arguments);
        }
        command.env_clear().envs(&self.env);
        command
    }
}

/// Refuses what no program could read back: a name that is empty or holds `=`, and NUL bytes.
pub(crate) fn check_environment(env: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let odd = |(name, value): &(&String, &String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    env.iter().find(odd).map_or(Ok(()), |(name, _)| {
        Err(ApiError::new(
            ErrorCode::BadRequest,
            format!(
                "`{}` can't be a variable of an environment",
                name.escape_debug()
            ),
            "use a name without `=`, and no NUL bytes",
        ))
    })
}

/// The streams of one command, both ends until the child has its own.
struct Streams {
    stdin: Stdin,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    terminal: Option<Arc<OwnedFd>>,
    child: [Option<OwnedFd>; 3],
}

impl Streams {
    fn open(request: &ExecRequest, owner: Option<u32>) -> std::io::Result<Self> {
        match request.pty {
            Some(size) => Self::terminal(size, owner),
            None => Self::pipes(request.stdin),
        }
    }

    fn terminal(size: Pty, owner: Option<u32>) -> std::io::Result<Self> {
        let pair = openpty(None, None)?;
        for end in [&pair.master, &pair.slave] {
            fcntl(end, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        }
        sys::set_window_size(&pair.master, size.rows, size.cols)?;
        if let Some(owner) = owner {
            // So that the user may open it by name.
            fchown(&pair.slave, Some(Uid::from_raw(owner)), None)?;
        }
        let stdin = Stdin {
            pipe: Some(sys::watched(non_blocking(pair.master.try_clone()?)?)?),
            offset: 0,
            is_terminal: true,
        };
        let slave = || pair.slave.try_clone().map(Some);
        Ok(Self {
            stdin,
            stdout: pair.master.try_clone()?,
            stderr: None,
            terminal: Some(Arc::new(pair.master)),
            child: [slave()?, slave()?, slave()?],
        })
    }

    fn pipes(wants_stdin: bool) -> std::io::Result<Self> {
        let (stdout, child_stdout) = std::io::pipe()?;
        let (stderr, child_stderr) = std::io::pipe()?;
        let (pipe, child_stdin) = if wants_stdin {
            let (child_end, ours) = std::io::pipe()?;
            (
                Some(sys::watched(non_blocking(ours.into())?)?),
                Some(child_end.into()),
            )
        } else {
            (None, None)
        };
        Ok(Self {
            stdin: Stdin {
                pipe,
                offset: 0,
                is_terminal: false,
            },
            stdout: stdout.into(),
            stderr: Some(stderr.into()),
            terminal: None,
            child: [
                child_stdin,
                Some(child_stdout.into()),
                Some(child_stderr.into()),
            ],
        })
    }

    fn give_to(&mut self, command: &mut Command) {
        let [stdin, stdout, stderr] =
            std::mem::take(&mut self.child).map(|end| end.map_or_else(Stdio::null, Stdio::from));
        command.stdin(stdin).stdout(stdout).stderr(stderr);
    }
}

pub(super) fn non_blocking(fd: OwnedFd) -> std::io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(fd)
}

/// A cgroup of its own names a tree for good; where there is none, the process group has to do.
fn make_cgroup(id: &str) -> Option<PathBuf> {
    if !Path::new("/sys/fs/cgroup/cgroup.procs").exists() || std::process::id() != 1 {
        return None;
    }
    // The prefix keeps an id from being the name of one of the cgroup's own files.
    let folder = Path::new(COMMANDS_CGROUP).join(format!("command-{id}"));
    fs::create_dir_all(&folder).ok().map(|()| folder)
}

fn spawn_error(error: &std::io::Error, request: &ExecRequest) -> ApiError {
    let name = request
        .argv
        .first()
        .map_or("", String::as_str)
        .escape_debug()
        .to_string();
    match sys::child_failure(error) {
        Some(ChildStep::Cwd) => return no_cwd(request),
        Some(ChildStep::User) => {
            let message = format!(
                "user `{}` can't be taken on",
                request.user.as_deref().unwrap_or("root")
            );
            return ApiError::new(ErrorCode::ExecUser, message, "use another user");
        }
        None => {}
    }
    match error.raw_os_error() {
        Some(libc::ENOENT) => ApiError::new(
            ErrorCode::ExecNotFound,
            format!("`{name}` names an interpreter that is not there"),
            "check its first line, or its dynamic loader",
        ),
        Some(libc::EACCES | libc::ENOEXEC) => ApiError::new(
            ErrorCode::ExecNotExecutable,
            format!("`{name}` can't be executed: {error}"),
            "check its mode and format",
        ),
        _ => io_error(error),
    }
}

fn no_cwd(request: &ExecRequest) -> ApiError {
    let cwd = request
        .cwd
        .as_deref()
        .unwrap_or("the home")
        .escape_debug()
        .to_string();
    ApiError::new(
        ErrorCode::ExecCwd,
        format!("the working directory `{cwd}` can't be entered"),
        "name a directory of the guest that the user may enter",
    )
}
