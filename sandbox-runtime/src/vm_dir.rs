//! The folder of one live sandbox: its lock, its sockets, and what a sweep needs to know.
//!
//! A locked folder has a live owner. One that can be locked was left behind and may be removed by
//! anybody; the lock of the run folder keeps making and sweeping apart.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::RuntimeError;
use crate::paths::{Paths, private_dir};

/// First of the user ids that QEMU processes run under when we are root; one per live sandbox, so
/// that two of them can't signal or trace each other. The range is above what distributions give
/// to people and below the subordinate ids of most.
const FIRST_UID: u32 = 200_000;

/// How many ids there are, and so sandboxes at once.
const UIDS: u32 = 10_000;

const UID_FILE: &str = "uid";
const CGROUPS_FILE: &str = "cgroups";
const LOCK_FILE: &str = "lock";

/// A live sandbox's folder; locked as long as this value lives. Removing it is the janitor's work.
#[derive(Debug)]
pub(crate) struct VmDir {
    path: PathBuf,
    uid: Option<u32>,
    _lock: File,
}

impl VmDir {
    /// Makes the folder of sandbox `id`, after sweeping what dead owners left.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when a sandbox of that name is alive,
    /// [`RuntimeError::File`] when the run folder can't be written.
    pub(crate) fn create(paths: &Paths, id: &str) -> Result<Self, RuntimeError> {
        let run = paths.run();
        let _exclusive = lock_run(run)?;
        sweep_locked(run)?;
        let path = run.join(id);
        let problem = |error| RuntimeError::file("write in", &path, error);
        if path.exists() {
            return Err(RuntimeError::environment(
                format!("a sandbox named `{id}` is running"),
                "choose another name, or stop that one",
            ));
        }
        private_dir(&path)?;
        let lock = File::create(path.join(LOCK_FILE)).map_err(problem)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| problem(error.into()))?;
        let uid = if rustix::process::geteuid().is_root() {
            Some(free_uid(run)?)
        } else {
            None
        };
        if let Some(uid) = uid {
            fs::write(path.join(UID_FILE), uid.to_string()).map_err(problem)?;
        }
        Ok(Self {
            path,
            uid,
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The user that QEMU becomes; `None` when we aren't root and it stays the caller.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.uid
    }

    /// Leaves a note for a sweep of where the control groups are.
    pub(crate) fn note_cgroups(&self, folders: &[PathBuf]) -> Result<(), RuntimeError> {
        let lines: Vec<&str> = folders
            .iter()
            .filter_map(|folder| folder.to_str())
            .collect();
        let path = self.path.join(CGROUPS_FILE);
        fs::write(&path, lines.join("\n"))
            .map_err(|error| RuntimeError::file("write", &path, error))
    }

    /// A listening socket for QEMU and a connection to it that is made already, so that nobody has
    /// to wait for QEMU and try again.
    pub(crate) fn channel(&self, name: &str) -> Result<(OwnedFd, UnixStream), RuntimeError> {
        let path = self.path.join(name);
        let connect = || -> io::Result<(OwnedFd, UnixStream)> {
            let listener = UnixListener::bind(&path)?;
            let stream = UnixStream::connect(&path)?;
            stream.set_nonblocking(true)?;
            Ok((listener.into(), stream))
        };
        // A path that is too long for a socket is the usual reason.
        connect().map_err(|error| RuntimeError::file("open the socket", &path, error))
    }
}

/// Removes what dead owners left and says the names of their sandboxes.
pub(crate) fn sweep(paths: &Paths) -> Result<Vec<String>, RuntimeError> {
    if !paths.run().exists() {
        return Ok(Vec::new());
    }
    let _exclusive = lock_run(paths.run())?;
    sweep_locked(paths.run())
}

/// Removes one sandbox's control groups and folder. All that is gone already is as good.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let cgroups = fs::read_to_string(path.join(CGROUPS_FILE)).unwrap_or_default();
    for folder in cgroups.lines() {
        gone(fs::remove_dir(folder))?;
    }
    gone(fs::remove_dir_all(path))
}

fn sweep_locked(run: &Path) -> Result<Vec<String>, RuntimeError> {
    let problem = |error| RuntimeError::file("sweep", run, error);
    let mut removed = Vec::new();
    for entry in fs::read_dir(run).map_err(problem)?.filter_map(Result::ok) {
        let path = entry.path();
        if !path.is_dir() || is_alive(&path) {
            continue;
        }
        match remove(&path) {
            Ok(()) => removed.push(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a dead sandbox's rest stays");
            }
        }
    }
    Ok(removed)
}

fn is_alive(path: &Path) -> bool {
    let Ok(lock) = File::open(path.join(LOCK_FILE)) else {
        return false;
    };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
}

fn lock_run(run: &Path) -> Result<File, RuntimeError> {
    private_dir(run)?;
    let path = run.join(".lock");
    let problem = |error: io::Error| RuntimeError::file("lock", &path, error);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(problem)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)
        .map_err(|error| problem(error.into()))?;
    Ok(lock)
}

fn free_uid(run: &Path) -> Result<u32, RuntimeError> {
    let used: BTreeSet<u32> = fs::read_dir(run)
        .map_err(|error| RuntimeError::file("read", run, error))?
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join(UID_FILE)).ok())
        .filter_map(|text| text.parse().ok())
        .collect();
    (FIRST_UID..FIRST_UID + UIDS)
        .find(|uid| !used.contains(uid))
        .ok_or_else(|| {
            RuntimeError::environment(
                format!("{UIDS} sandboxes are running"),
                "stop some before starting more",
            )
        })
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> (tempfile::TempDir, Paths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(folder.path().join("cache"), folder.path().join("run"));
        (folder, paths)
    }

    #[test]
    fn b238_a_dead_owners_rest_never_blocks_its_name() {
        let (_folder, paths) = lab();
        let first = VmDir::create(&paths, "one").unwrap();
        let error = VmDir::create(&paths, "one").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("a sandbox named `one` is running"),
            "{error}"
        );
        drop(first);
        VmDir::create(&paths, "one").unwrap();
    }

    #[test]
    fn a_sweep_removes_the_dead_and_leaves_the_living() {
        let (_folder, paths) = lab();
        let living = VmDir::create(&paths, "living").unwrap();
        let group = paths.cache().join("group");
        fs::create_dir_all(&group).unwrap();
        VmDir::create(&paths, "dead")
            .unwrap()
            .note_cgroups(std::slice::from_ref(&group))
            .unwrap();
        // Half made: its owner died before it could lock.
        fs::create_dir(paths.run().join("half")).unwrap();
        let mut removed = sweep(&paths).unwrap();
        removed.sort();
        assert_eq!(removed, ["dead", "half"]);
        assert!(living.path().exists());
        assert!(!group.exists());
    }

    #[test]
    fn living_sandboxes_have_users_of_their_own() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_folder, paths) = lab();
        let one = VmDir::create(&paths, "one").unwrap();
        let two = VmDir::create(&paths, "two").unwrap();
        assert_eq!(
            (one.uid(), two.uid()),
            (Some(FIRST_UID), Some(FIRST_UID + 1))
        );
        drop(one);
        assert_eq!(
            VmDir::create(&paths, "three").unwrap().uid(),
            Some(FIRST_UID)
        );
    }

    #[test]
    fn a_channel_is_connected_before_anybody_listens_actively() {
        use std::io::Write as _;
        let (_folder, paths) = lab();
        let dir = VmDir::create(&paths, "one").unwrap();
        let (_listener, mut stream) = dir.channel("ctl").unwrap();
        stream.write_all(b"early").unwrap();
    }
}
