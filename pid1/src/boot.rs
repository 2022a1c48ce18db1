//! From the kernel's hand-over to the image as root: modules, disks, overlay, pivot.
//!
//! The initrd holds this program as `/init` and, for a kernel that needs them, modules under
//! `/modules` in load order. The image is read-only; what the guest writes goes to its own disk.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use nix::mount::{MsFlags, mount};

use crate::{console, sys};
use outgate_pid1::api;

/// How long the disks may take to appear after the modules are loaded.
const DISK_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two looks; the kernel has no event for us before there is a `/dev`.
const DISK_PAUSE: Duration = Duration::from_millis(5);

/// Where the cgroups of commands are.
pub(crate) const COMMANDS_CGROUP: &str = "/sys/fs/cgroup/exec";
/// Part of the tasks that the kernel has memory for, one in so many, that commands may have.
const TASKS_SHARE: u64 = 4;
/// Tasks that commands may have on the smallest machine.
const MIN_TASKS: u64 = 512;

/// Where a boot went wrong.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub(crate) struct BootError {
    step: String,
    source: io::Error,
}

trait Step<T> {
    fn step(self, step: impl Into<String>) -> Result<T, BootError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl Into<String>) -> Result<T, BootError> {
        self.map_err(|error| BootError {
            step: step.into(),
            source: error.into(),
        })
    }
}

/// Mounts what the kernel offers and loads the modules.
pub(crate) fn early() -> Result<(), BootError> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_at("proc", "/proc", "proc", quiet, None)?;
    mount_at("sysfs", "/sys", "sysfs", quiet, None)?;
    match mount_at("devtmpfs", "/dev", "devtmpfs", MsFlags::MS_NOSUID, None) {
        // The kernel may have done it already.
        Err(error) if error.source.raw_os_error() == Some(libc::EBUSY) => {}
        outcome => outcome?,
    }
    load_modules(Path::new("/modules"))
}

/// Whether the kernel command line holds `parameter`.
pub(crate) fn has_parameter(parameter: &str) -> bool {
    fs::read_to_string("/proc/cmdline")
        .is_ok_and(|line| line.split_ascii_whitespace().any(|word| word == parameter))
}

/// Makes the image the root, with the initrd gone from sight.
pub(crate) fn enter_image() -> Result<(), BootError> {
    let base = disk(api::BASE_DISK_SERIAL).step("the image's disk")?;
    for dir in ["/base", "/rw", "/root"] {
        fs::create_dir_all(dir).step(dir)?;
    }
    mount_base(&base)?;
    match find_disk(api::WRITABLE_DISK_SERIAL) {
        Some(disk) => mount_at(&disk, "/rw", "ext4", MsFlags::MS_NOATIME, None)?,
        None => mount_at("tmpfs", "/rw", "tmpfs", MsFlags::empty(), Some("mode=0755"))?,
    }
    for dir in ["/rw/upper", "/rw/work"] {
        fs::create_dir_all(dir).step(dir)?;
    }
    let layers = "lowerdir=/base,upperdir=/rw/upper,workdir=/rw/work";
    mount_at(
        "overlay",
        "/root",
        "overlay",
        MsFlags::empty(),
        Some(layers),
    )?;
    for dir in ["proc", "sys", "dev"] {
        let target = format!("/root/{dir}");
        fs::create_dir_all(&target).step(&*target)?;
        move_mount(&format!("/{dir}"), &target)?;
    }
    switch_root()?;
    mount_runtime_folders()
}

/// The initrd's files stay in memory until they are removed; then the image moves on top.
fn switch_root() -> Result<(), BootError> {
    for entry in ["/init", "/modules"] {
        let path = Path::new(entry);
        let removed = if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
        if let Err(error) = removed {
            console::say(format_args!(
                "outgate-pid1: {entry} of the initrd stays: {error}"
            ));
        }
    }
    std::env::set_current_dir("/root").step("enter the image")?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>).step("move the image")?;
    nix::unistd::chroot(".").step("make the image the root")?;
    std::env::set_current_dir("/").step("enter the root")
}

fn mount_runtime_folders() -> Result<(), BootError> {
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_at(
        "devpts",
        "/dev/pts",
        "devpts",
        MsFlags::MS_NOSUID,
        Some("mode=0620,gid=5,ptmxmode=0666"),
    )?;
    mount_at("tmpfs", "/dev/shm", "tmpfs", safe, Some("mode=1777"))?;
    mount_at("tmpfs", "/run", "tmpfs", safe, Some("mode=0755"))?;
    mount_at(
        "cgroup2",
        "/sys/fs/cgroup",
        "cgroup2",
        safe | MsFlags::MS_NOEXEC,
        None,
    )?;
    limit_commands();
    fs::create_dir_all("/tmp").step("/tmp")?;
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        match std::os::unix::fs::symlink(target, link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            outcome => outcome.step(link)?,
        }
    }
    Ok(())
}

/// Makes the cgroup of all commands, and keeps them from having all processes and all processor time
/// of the machine: a fork bomb must leave this process able to end it. A share of its own is better
/// than a priority, with which it would interrupt a command at every write. A kernel without a
/// controller has no such limit, and runs commands all the same.
fn limit_commands() {
    let limit = fs::read_to_string("/proc/sys/kernel/threads-max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .map_or(MIN_TASKS, |most| (most / TASKS_SHARE).max(MIN_TASKS));
    let commands = Path::new(COMMANDS_CGROUP);
    let steps = [
        ("make", fs::create_dir_all(commands)),
        (
            "cpu",
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu"),
        ),
        (
            "pids",
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids"),
        ),
        (
            "pids.max",
            fs::write(commands.join("pids.max"), limit.to_string()),
        ),
    ];
    for (step, outcome) in steps {
        if let Err(error) = outcome {
            console::say(format_args!(
                "outgate-pid1: commands without `{step}` limit: {error}"
            ));
        }
    }
}

fn mount_base(device: &str) -> Result<(), BootError> {
    let mut last = None;
    for kind in ["erofs", "squashfs", "ext4"] {
        match mount_at(device, "/base", kind, MsFlags::MS_RDONLY, None) {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    last.map_or(Ok(()), Err)
}

fn mount_at(
    source: &str,
    target: &str,
    kind: &str,
    flags: MsFlags,
    data: Option<&str>,
) -> Result<(), BootError> {
    fs::create_dir_all(target).step(target)?;
    mount(Some(source), target, Some(kind), flags, data)
        .step(format!("mount {source} at {target} as {kind}"))
}

fn move_mount(from: &str, to: &str) -> Result<(), BootError> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .step(format!("move {from} to {to}"))
}

/// In the order of their names, which is the order that the host worked out.
fn load_modules(folder: &Path) -> Result<(), BootError> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let mut modules: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    for path in modules {
        let module = File::open(&path).step(path.display().to_string())?;
        sys::load_module(&module).step(format!("load {}", path.display()))?;
    }
    Ok(())
}

/// Waits for the disk: a driver finds its devices on its own time.
fn disk(serial: &str) -> io::Result<String> {
    let deadline = Instant::now() + DISK_TIMEOUT;
    loop {
        if let Some(path) = find_disk(serial) {
            return Ok(path);
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no disk has serial `{serial}`"),
            ));
        }
        std::thread::sleep(DISK_PAUSE);
    }
}

fn find_disk(serial: &str) -> Option<String> {
    let blocks = fs::read_dir("/sys/block").ok()?;
    blocks.flatten().find_map(|block| {
        let found = fs::read_to_string(block.path().join("serial")).ok()?;
        (found.trim_end_matches(['\n', '\0']) == serial)
            .then(|| format!("/dev/{}", block.file_name().to_string_lossy()))
    })
}
