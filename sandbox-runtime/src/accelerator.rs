//! Hardware or software: which accelerator a guest runs on.
//!
//! `/dev/kvm` proves nothing: it may be there without rights, without the processor's support, or,
//! within another virtual machine, without ever running a guest. So a small guest is booted on it,
//! confined as a real one is, and has to answer in bounded time. The answer is cached for this boot
//! of the host, this QEMU and this kernel.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use outgate_pid1::api::{PROBE_LINE, PROBE_PARAMETER};
use rustix::thread::Gid;
use serde::{Deserialize, Serialize};

use crate::backing::Backing;
use crate::error::RuntimeError;
use crate::fingerprint::Fingerprint;
use crate::initrd;
use crate::kernel::Kernel;
use crate::machine::{Machine, QEMU};
use crate::paths::{Paths, private_dir};
use crate::qemu::Qemu;
use crate::sys::Confinement;
use crate::tool;

/// How long the guest may take. With working hardware it answers in about a second.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// What QEMU prints when the host's kernel gave up on a guest.
const KVM_FAILURE: &str = "KVM internal error";

const PROBE_MEMORY_MIB: u32 = 256;

/// The user of the probe's QEMU, when we are root; below those of sandboxes.
const PROBE_UID: u32 = 199_999;

const KVM_DEVICE: &str = "/dev/kvm";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor, by the host's kernel.
    Kvm,
    /// Software emulation: works everywhere, ten times slower.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// What the person asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// Hardware where it works, else software.
    #[default]
    Auto,
    /// Hardware or an error.
    Kvm,
    /// Software, without a probe.
    Tcg,
}

impl FromStr for AcceleratorChoice {
    type Err = RuntimeError;

    fn from_str(text: &str) -> Result<Self, RuntimeError> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(RuntimeError::environment(
                format!("`{text}` is no accelerator"),
                "use `auto`, `kvm` or `tcg`",
            )),
        }
    }
}

/// The accelerator to use, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// The accelerator.
    pub accelerator: Accelerator,
    /// Why this one; one line for people.
    pub reason: String,
}

impl Chosen {
    fn new(accelerator: Accelerator, reason: impl Into<String>) -> Self {
        Self {
            accelerator,
            reason: reason.into(),
        }
    }
}

/// Decides, by a probe at most once per boot of the host. Takes at most some seconds.
///
/// # Errors
/// [`RuntimeError::Environment`] when `kvm` was demanded and does not work, or when QEMU or PID 1 is
/// missing.
pub async fn choose(
    paths: &Paths,
    kernel: &Kernel,
    choice: AcceleratorChoice,
) -> Result<Chosen, RuntimeError> {
    if choice == AcceleratorChoice::Tcg {
        return Ok(Chosen::new(
            Accelerator::Tcg,
            "software emulation was asked for",
        ));
    }
    let chosen = match Path::new(KVM_DEVICE).exists() {
        true => probe_once(paths, kernel).await?,
        false => Chosen::new(Accelerator::Tcg, format!("there is no {KVM_DEVICE}")),
    };
    if choice == AcceleratorChoice::Kvm && chosen.accelerator == Accelerator::Tcg {
        return Err(RuntimeError::environment(
            format!("KVM does not work: {}", chosen.reason),
            "use `auto` or `tcg`, or see `outgate doctor`",
        ));
    }
    Ok(chosen)
}

async fn probe_once(paths: &Paths, kernel: &Kernel) -> Result<Chosen, RuntimeError> {
    let pid1 = initrd::find_pid1(paths)?;
    let cache = cache_file(paths, kernel, &pid1)?;
    let known = fs::read(&cache)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(chosen) = known {
        return Ok(chosen);
    }
    let chosen = probe(paths, kernel, &pid1).await?;
    if let Err(error) = remember(&cache, &chosen) {
        tracing::warn!(%error, "the probe is done again next time");
    }
    Ok(chosen)
}

/// Boots the real kernel with the real first program on KVM.
async fn probe(paths: &Paths, kernel: &Kernel, pid1: &Path) -> Result<Chosen, RuntimeError> {
    let open =
        |path: &Path| File::open(path).map_err(|error| RuntimeError::file("open", path, error));
    let initrd = open(&initrd::ensure(paths, kernel, pid1)?)?;
    let mut confinement = Confinement {
        uid: rustix::process::geteuid().is_root().then_some(PROBE_UID),
        groups: groups_for(Accelerator::Kvm),
        ..Confinement::default()
    };
    let machine = Machine {
        accelerator: Accelerator::Kvm,
        tsc_khz: None,
        vcpus: 1,
        memory_mib: PROBE_MEMORY_MIB,
        ram: confinement.pass(Backing::memory(PROBE_MEMORY_MIB)?.into()),
        kernel: confinement.pass(open(kernel.image())?.into()),
        initrd: confinement.pass(initrd.into()),
        kernel_words: vec![PROBE_PARAMETER.to_owned()],
        disks: Vec::new(),
        link: None,
        control: None,
        qmp: None,
    };
    let qemu = Qemu::start(&machine, 0, confinement)?;
    let answered = async {
        tokio::select! {
            answered = qemu.console().shows(PROBE_LINE) => answered,
            // QEMU then prints registers and waits for a debugger, for ever.
            true = qemu.console().shows(KVM_FAILURE) => false,
        }
    };
    let answer = tokio::time::timeout(PROBE_LIMIT, answered).await;
    let tail = qemu.console().tail();
    if let Err(error) = qemu.kill().await {
        tracing::warn!(%error, "the probe's QEMU is left to the system");
    }
    Ok(match answer {
        Ok(true) => Chosen::new(Accelerator::Kvm, "a probe guest answered on KVM"),
        Ok(false) => {
            let told = tail.lines().find(|line| line.contains(KVM_FAILURE));
            let last = told
                .or_else(|| tail.lines().last())
                .unwrap_or("QEMU said nothing");
            Chosen::new(
                Accelerator::Tcg,
                format!("{KVM_DEVICE} runs no guest: {last}"),
            )
        }
        Err(_) => Chosen::new(
            Accelerator::Tcg,
            format!(
                "{KVM_DEVICE} runs no guest: no answer in {} s",
                PROBE_LIMIT.as_secs()
            ),
        ),
    })
}

/// The groups that QEMU needs for an accelerator when it runs under a user of its own.
pub(crate) fn groups_for(accelerator: Accelerator) -> Vec<Gid> {
    match (accelerator, fs::metadata(KVM_DEVICE)) {
        // Never the group of root: that opens more than the device.
        (Accelerator::Kvm, Ok(device)) if device.gid() != 0 => vec![Gid::from_raw(device.gid())],
        _ => Vec::new(),
    }
}

/// Named after everything that can change the answer.
fn cache_file(paths: &Paths, kernel: &Kernel, pid1: &Path) -> Result<PathBuf, RuntimeError> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let qemu = tool::find(QEMU).ok_or_else(|| {
        tool::not_started(
            &std::process::Command::new(QEMU),
            &std::io::ErrorKind::NotFound.into(),
        )
    })?;
    let mut fingerprint = Fingerprint::default();
    let boot =
        fs::read(BOOT_ID).map_err(|error| RuntimeError::file("read", Path::new(BOOT_ID), error))?;
    fingerprint.add(&boot);
    fingerprint.add_file(&qemu)?;
    fingerprint.add(kernel.fingerprint().as_bytes());
    fingerprint.add_file(pid1)?;
    let device = fs::metadata(KVM_DEVICE)
        .map_err(|error| RuntimeError::file("look at", Path::new(KVM_DEVICE), error))?;
    for number in [
        device.mode(),
        device.uid(),
        device.gid(),
        rustix::process::geteuid().as_raw(),
    ] {
        fingerprint.add(&number.to_le_bytes());
    }
    Ok(paths
        .probes()
        .join(format!("{}.json", fingerprint.finish())))
}

fn remember(cache: &Path, chosen: &Chosen) -> Result<(), RuntimeError> {
    let folder = cache.parent().unwrap_or(cache);
    let problem = |error| RuntimeError::file("write", cache, error);
    // Answers for another boot of the host are of no use to anybody.
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(problem(error));
    }
    private_dir(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(problem)?;
    serde_json::to_writer(&mut file, chosen).map_err(|error| problem(error.into()))?;
    file.persist(cache).map_err(|error| problem(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_the_words_of_the_command_line() {
        assert_eq!(
            "auto".parse::<AcceleratorChoice>().unwrap(),
            AcceleratorChoice::Auto
        );
        let error = "hvf".parse::<AcceleratorChoice>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`hvf` is no accelerator; use `auto`, `kvm` or `tcg`"
        );
    }

    #[tokio::test]
    async fn software_needs_no_probe() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(folder.path(), folder.path().join("run"));
        fs::create_dir_all(paths.kernels().join("custom")).unwrap();
        fs::write(paths.kernels().join("custom/vmlinux"), "k").unwrap();
        let kernel = Kernel::find(&paths).unwrap();
        let chosen = choose(&paths, &kernel, AcceleratorChoice::Tcg)
            .await
            .unwrap();
        assert_eq!(chosen.accelerator, Accelerator::Tcg);
        assert!(!paths.probes().exists());
    }
}
