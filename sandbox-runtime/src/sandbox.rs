//! One sandbox: started, used, ended.
//!
//! A value of [`Sandbox`] is a guest that answered and took its configuration; there is none that
//! is half up. It ends with its value: dropped, killed or with its whole process.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use outgate_pid1::api::{self, ExecRequest, Network};

use crate::accelerator::Accelerator;
use crate::backing::Backing;
use crate::control::{Control, ControlTask, broken, encoded, next_piece};
use crate::error::RuntimeError;
use crate::exec::ExecHandle;
use crate::image::Image;
use crate::janitor::Janitor;
use crate::kernel::Kernel;
use crate::launch;
use crate::overlay::MIN_DISK_MIB;
use crate::paths::Paths;
use crate::progress::Progress;
use crate::qemu::Qemu;
use crate::qmp::{Qmp, QmpError, Status};
use crate::vm_dir::VmDir;

/// Longest name; it is a host name in the guest and part of a socket's path, which has 108 bytes.
const MAX_ID: usize = 40;

const VCPUS: std::ops::RangeInclusive<u32> = 1..=16;
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 128..=65_536;

/// A sandbox's name: letters, digits and `-`, at most 40, unique among the live ones of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxId(String);

impl SandboxId {
    /// # Errors
    /// [`RuntimeError::Environment`] for a name of another form.
    pub fn parse(text: &str) -> Result<Self, RuntimeError> {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=MAX_ID).contains(&text.len()) && text.bytes().all(letters) && !text.starts_with('-')
        {
            return Ok(Self(text.to_owned()));
        }
        Err(RuntimeError::environment(
            format!("`{text}` can't name a sandbox"),
            format!("use letters, digits and `-`, at most {MAX_ID}"),
        ))
    }

    /// A name that nobody has had.
    pub fn generate() -> Self {
        Self(ulid::Ulid::generate().to_string().to_ascii_lowercase())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// Its name.
    pub id: SandboxId,
    /// Its read-only root file system.
    pub image: Image,
    /// Its kernel.
    pub kernel: Kernel,
    /// What executes its instructions.
    pub accelerator: Accelerator,
    /// Processors, 1 to 16.
    pub vcpus: u32,
    /// Memory, MiB, 128 to 65536. Untouched memory costs the host nothing.
    pub memory_mib: u32,
    /// Writable disk, MiB, at least 64. Unwritten space costs the host nothing.
    pub disk_mib: u32,
    /// How long it may take until the guest answers.
    pub boot_limit: Duration,
}

impl SandboxSpec {
    /// A sandbox of the usual size: 2 processors (1 when emulated), 1 GiB of memory, 4 GiB of disk;
    /// 60 s to boot under emulation, 30 s on KVM.
    pub fn new(id: SandboxId, image: Image, kernel: Kernel, accelerator: Accelerator) -> Self {
        let (vcpus, boot_limit) = match accelerator {
            Accelerator::Kvm => (2, Duration::from_secs(30)),
            Accelerator::Tcg => (1, Duration::from_secs(60)),
        };
        Self {
            id,
            image,
            kernel,
            accelerator,
            vcpus,
            memory_mib: 1024,
            disk_mib: 4096,
            boot_limit,
        }
    }

    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        let within = |name: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
            if range.contains(&value) {
                return Ok(());
            }
            Err(RuntimeError::environment(
                format!("{value} is no possible {name}"),
                format!("use {} to {}", range.start(), range.end()),
            ))
        };
        within("number of vCPUs", self.vcpus, VCPUS)?;
        within("memory size in MiB", self.memory_mib, MEMORY_MIB)?;
        within("disk size in MiB", self.disk_mib, MIN_DISK_MIB..=u32::MAX)
    }
}

/// What the guest is told before its first command. None of it is a secret.
#[derive(Clone, Debug, Default)]
pub struct GuestSetup {
    /// Its host name.
    pub hostname: String,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// A certificate authority that the guest trusts, PEM.
    pub ca_pem: Option<String>,
    /// Its side of the link; `None` leaves the interface down.
    pub network: Option<Network>,
}

/// How a start went.
#[derive(Clone, Debug)]
pub struct StartReport {
    /// Name of the kernel.
    pub kernel: String,
    /// What executes instructions.
    pub accelerator: Accelerator,
    /// Process id of QEMU.
    pub qemu_pid: Option<u32>,
    /// What took how long, in order.
    pub phases: Vec<Phase>,
    /// What is not as it should be and does not prevent the start.
    pub warnings: Vec<String>,
}

/// A part of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// How long it took.
    pub duration: Duration,
}

/// The parts of a running sandbox. Fields are dropped in order: the channels, then QEMU, and last
/// the janitor, which then removes what is left.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) control: Control,
    pub(crate) control_task: ControlTask,
    pub(crate) qmp: Qmp,
    pub(crate) ram: Backing,
    pub(crate) disk: Backing,
    pub(crate) qemu: Qemu,
    pub(crate) janitor: Janitor,
    pub(crate) dir: VmDir,
}

/// A guest that is up. Dropping it kills it.
#[derive(Debug)]
pub struct Sandbox {
    id: SandboxId,
    report: StartReport,
    running: Running,
}

impl Sandbox {
    /// Starts a guest and returns when it has taken `setup`. `link` is QEMU's end of its only
    /// network: a datagram socket, one Ethernet frame each.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`], [`RuntimeError::File`] or [`RuntimeError::Image`] for what is
    /// found before the start, [`RuntimeError::Boot`] with the end of the console for what
    /// happens after it, [`RuntimeError::Guest`] when it refuses `setup`. Nothing is left then.
    pub async fn start(
        paths: &Paths,
        spec: SandboxSpec,
        link: OwnedFd,
        setup: GuestSetup,
        progress: &Progress,
    ) -> Result<Self, RuntimeError> {
        let id = spec.id.clone();
        let (running, report) = launch::start(paths, spec, link, setup, progress).await?;
        Ok(Self {
            id,
            report,
            running,
        })
    }

    /// Its name.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// How the start went.
    pub fn report(&self) -> &StartReport {
        &self.report
    }

    /// Starts a command.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`]; its code says why the command did not start, such as
    /// `exec_not_found`.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecHandle, RuntimeError> {
        let control = &self.running.control;
        let body = serde_json::to_vec(&request)
            .map_err(|error| broken(error.to_string()))?
            .into();
        control.order(Method::POST, api::EXEC, body).await?;
        ExecHandle::attach(control.clone(), &request.exec_id, request.stdin).await
    }

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`] when there is no such file, or it is longer.
    pub async fn read_file(&self, path: &str, limit: usize) -> Result<Bytes, RuntimeError> {
        let path = format!("{}?path={}", api::FILES, encoded(path));
        let mut body = self.running.control.stream(&path).await?;
        let mut content = BytesMut::new();
        while next_piece(&mut body, &mut content).await?.is_some() {
            if content.len() > limit {
                return Err(RuntimeError::guest(
                    "limit_exceeded",
                    format!("the file is longer than {limit} bytes; read it in parts"),
                ));
            }
        }
        Ok(content.freeze())
    }

    /// Replaces a file, atomically. `mode` has the permission bits of a new one.
    ///
    /// # Errors
    /// [`RuntimeError::Guest`] when it can't be written.
    pub async fn write_file(
        &self,
        path: &str,
        mode: u32,
        content: Bytes,
    ) -> Result<(), RuntimeError> {
        let path = format!("{}?path={}&mode={mode:o}", api::FILES, encoded(path));
        self.running
            .control
            .order(Method::PUT, &path, content)
            .await
    }

    /// Resolves when the guest ends by itself, with what its console showed last.
    pub async fn ended(&self) -> RuntimeError {
        self.running.qemu.ended().await;
        launch::ended_early(self.running.qemu.console(), "the guest ended").await
    }

    /// Whether the guest's processors run.
    ///
    /// # Errors
    /// [`QmpError`] when QEMU is gone.
    pub async fn status(&self) -> Result<Status, QmpError> {
        self.running.qmp.query_status().await
    }

    /// Writes the guest's whole memory to a new file, with the guest stopped meanwhile.
    ///
    /// # Errors
    /// [`RuntimeError::File`] when the file exists or can't be written, [`RuntimeError::Guest`]
    /// when the guest can't be stopped.
    pub async fn dump_memory(&self, path: &Path) -> Result<(), RuntimeError> {
        self.copy(&self.running.ram, path).await
    }

    /// Writes the guest's writable disk to a new file, with the guest stopped meanwhile. What the
    /// guest holds in memory and hasn't written yet is in its memory only.
    ///
    /// # Errors
    /// As [`Self::dump_memory`].
    pub async fn copy_disk(&self, path: &Path) -> Result<(), RuntimeError> {
        self.copy(&self.running.disk, path).await
    }

    async fn copy(&self, backing: &Backing, path: &Path) -> Result<(), RuntimeError> {
        let qmp_failed = |error: QmpError| RuntimeError::guest("qmp", error.to_string());
        let (backing, path) = (backing.try_clone()?, path.to_owned());
        self.running.qmp.stop().await.map_err(qmp_failed)?;
        let copied = tokio::task::spawn_blocking(move || backing.copy_to(&path)).await;
        self.running.qmp.cont().await.map_err(qmp_failed)?;
        copied.map_err(|error| RuntimeError::guest("copy", error.to_string()))?
    }

    /// Asks the guest to flush and power off, and kills it when it takes longer than `grace`.
    ///
    /// # Errors
    /// As [`Self::kill`].
    pub async fn shutdown(self, grace: Duration) -> Result<(), RuntimeError> {
        let control = &self.running.control;
        let polite = async {
            // The answer may be lost in the power-off that it announces.
            if let Err(error) = control
                .order(Method::POST, api::SHUTDOWN, Bytes::new())
                .await
            {
                tracing::debug!(%error, "no answer to the request to shut down");
            }
            self.running.qemu.ended().await;
        };
        if tokio::time::timeout(grace, polite).await.is_err() {
            tracing::debug!(sandbox = %self.id, "the guest did not power off in time");
        }
        self.kill().await
    }

    /// Ends the guest now. Returns when nothing of it is left.
    ///
    /// # Errors
    /// [`RuntimeError::Environment`] when something of it had to be left; the next start tries
    /// again.
    pub async fn kill(self) -> Result<(), RuntimeError> {
        self.running.end().await
    }
}

impl Running {
    pub(crate) async fn end(self) -> Result<(), RuntimeError> {
        let Self {
            control,
            control_task,
            qmp,
            ram,
            disk,
            qemu,
            janitor,
            dir,
        } = self;
        drop((control, control_task, qmp, ram, disk));
        launch::clean_up(qemu, janitor, dir).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_leave_its_folder() {
        for text in ["", ".", "..", "a/b", "-x", "a b", &"x".repeat(41)] {
            assert!(SandboxId::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(SandboxId::parse("Build-7").unwrap().as_str(), "Build-7");
        let generated = SandboxId::generate();
        assert_eq!(SandboxId::parse(generated.as_str()).unwrap(), generated);
    }
}
