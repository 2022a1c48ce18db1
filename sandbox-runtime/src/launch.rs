//! The steps of a start, and what is told when one of them fails.
//!
//! Order matters: the janitor runs before there is anything to clean up, the host's ends of all
//! channels are connected before QEMU starts, and every wait for the guest is also a wait for its
//! death.

use std::fs::File;
use std::future::Future;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use http::Method;
use outgate_pid1::api::{
    self, BASE_DISK_SERIAL, ConfigureReply, ConfigureRequest, FATAL_PREFIX, Health, PROTOCOL,
    READY_LINE, WRITABLE_DISK_SERIAL,
};

use crate::accelerator::{Accelerator, groups_for};
use crate::backing::Backing;
use crate::cgroup::{Cgroup, Limits};
use crate::console::Console;
use crate::control::{Control, ControlTask};
use crate::error::RuntimeError;
use crate::fingerprint::hex;
use crate::initrd;
use crate::janitor::Janitor;
use crate::machine::{Disk, Machine};
use crate::overlay;
use crate::paths::Paths;
use crate::progress::Progress;
use crate::qemu::Qemu;
use crate::qmp::Qmp;
use crate::sandbox::{GuestSetup, Phase, Running, SandboxSpec, StartReport};
use crate::sys::Confinement;
use crate::tsc;
use crate::vm_dir::VmDir;

const STEP: &str = "boot";

/// What the kernel prints first when it gives up.
const PANIC: &str = "Kernel panic";

/// Randomness for the guest's generator, bytes.
const ENTROPY: usize = 64;

/// How long the last words of an ended QEMU may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Starts one guest and hands it over configured.
pub(crate) async fn start(
    paths: &Paths,
    spec: SandboxSpec,
    link: OwnedFd,
    setup: GuestSetup,
    progress: &Progress,
) -> Result<(Running, StartReport), RuntimeError> {
    spec.check()?;
    let mut clock = Clock::new(progress.clone());
    clock.begin(
        "prepare",
        &format!(
            "image {}, kernel {}",
            spec.image.source(),
            spec.kernel.name()
        ),
    );
    let (paths, limit) = (paths.clone(), spec.boot_limit);
    let mut report = StartReport {
        kernel: spec.kernel.name().to_owned(),
        accelerator: spec.accelerator,
        qemu_pid: None,
        phases: Vec::new(),
        warnings: Vec::new(),
    };
    let prepared = tokio::task::spawn_blocking(move || Prepared::make(&paths, &spec, link))
        .await
        .map_err(|error| RuntimeError::environment(error.to_string(), "try again"))??;
    report.warnings.clone_from(&prepared.warnings);
    clock.begin("spawn", "");
    let started = prepared.spawn()?;
    report.qemu_pid = started.qemu.pid();
    match started.bring_up(setup, limit, &mut clock).await {
        Ok(running) => {
            report.phases = clock.end();
            Ok((running, report))
        }
        Err((error, qemu, janitor, dir)) => {
            if let Err(error) = clean_up(qemu, janitor, dir).await {
                tracing::warn!(%error, "a failed start left something");
            }
            Err(error)
        }
    }
}

/// Ends QEMU and returns when its folder and groups are gone.
pub(crate) async fn clean_up(qemu: Qemu, janitor: Janitor, dir: VmDir) -> Result<(), RuntimeError> {
    let path = dir.path().to_owned();
    let failed = |error| RuntimeError::file("clean up", &path, error);
    qemu.kill().await.map_err(failed)?;
    let finished = janitor.finish().await.map_err(failed);
    // Only now: an unlocked folder is anybody's to sweep.
    drop(dir);
    finished
}

/// The error for a guest that is gone.
pub(crate) async fn ended_early(console: &Console, problem: &str) -> RuntimeError {
    // A grandchild can't hold the pipes open, so this wait is short.
    if tokio::time::timeout(LAST_WORDS, console.ended())
        .await
        .is_err()
    {
        tracing::debug!("the console is still open");
    }
    let tail = console.tail();
    let (problem, advice) = if tail.contains(PANIC) {
        (
            "its kernel panicked".to_owned(),
            "its console says why; try another kernel or image",
        )
    } else if let Some(fatal) = tail
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(FATAL_PREFIX))
    {
        (
            format!("its first program gave up: {fatal}"),
            "check that the image is a complete system",
        )
    } else {
        (
            problem.to_owned(),
            "the last messages say why; `outgate doctor` checks this machine",
        )
    };
    RuntimeError::Boot {
        problem,
        advice: advice.to_owned(),
        console: tail,
    }
}

/// Everything that one start needs, before any process runs but the janitor.
struct Prepared {
    machine: Machine,
    disk_mib: u32,
    confinement: Confinement,
    control: UnixStream,
    qmp: UnixStream,
    ram: Backing,
    disk: Backing,
    janitor: Janitor,
    dir: VmDir,
    warnings: Vec<String>,
}

impl Prepared {
    /// Blocks for some milliseconds, and longer when the caches are cold.
    fn make(paths: &Paths, spec: &SandboxSpec, link: OwnedFd) -> Result<Self, RuntimeError> {
        let tsc_khz = match spec.accelerator {
            Accelerator::Tcg => tsc::host_tsc_khz(paths.cache()),
            Accelerator::Kvm => None,
        };
        let pid1 = initrd::find_pid1(paths)?;
        let initrd = open(&initrd::ensure(paths, &spec.kernel, &pid1)?)?;
        let disk = Backing::from(overlay::writable_disk(paths, spec.disk_mib)?);
        let base = File::open(spec.image.path()).map_err(|error| {
            RuntimeError::image(
                format!("`{}` can't be opened: {error}", spec.image.path().display()),
                format!("run `outgate image build {}`", spec.image.source()),
            )
        })?;
        let kernel = open(spec.kernel.image())?;
        let dir = VmDir::create(paths, spec.id.as_str())?;
        let limits = Limits {
            memory_mib: spec.memory_mib,
            vcpus: spec.vcpus,
        };
        let cgroup = Cgroup::create(spec.id.as_str(), limits);
        dir.note_cgroups(&cgroup.folders)?;
        let janitor = Janitor::start(&dir)?;
        let cgroups = cgroup
            .entrances()
            .map_err(|error| RuntimeError::file("enter a control group of", dir.path(), error))?;
        let (control_listener, control) = dir.channel("ctl")?;
        let (qmp_listener, qmp) = dir.channel("qmp")?;
        let ram = Backing::memory(spec.memory_mib)?;
        let mut confinement = Confinement {
            uid: dir.uid(),
            groups: groups_for(spec.accelerator),
            cgroups,
            ..Confinement::default()
        };
        let machine = Machine {
            accelerator: spec.accelerator,
            tsc_khz,
            vcpus: spec.vcpus,
            memory_mib: spec.memory_mib,
            ram: confinement.pass(ram.try_clone()?.into()),
            kernel: confinement.pass(kernel.into()),
            initrd: confinement.pass(initrd.into()),
            kernel_words: Vec::new(),
            disks: vec![
                Disk {
                    serial: BASE_DISK_SERIAL,
                    descriptor: confinement.pass(base.into()),
                    writable: false,
                },
                Disk {
                    serial: WRITABLE_DISK_SERIAL,
                    descriptor: confinement.pass(disk.try_clone()?.into()),
                    writable: true,
                },
            ],
            link: Some(confinement.pass(link)),
            control: Some(confinement.pass(control_listener)),
            qmp: Some(confinement.pass(qmp_listener)),
        };
        let (disk_mib, warnings) = (spec.disk_mib, cgroup.warnings);
        Ok(Self {
            machine,
            disk_mib,
            confinement,
            control,
            qmp,
            ram,
            disk,
            janitor,
            dir,
            warnings,
        })
    }

    fn spawn(self) -> Result<Started, RuntimeError> {
        let Self {
            machine,
            disk_mib,
            confinement,
            control,
            qmp,
            ram,
            disk,
            janitor,
            dir,
            ..
        } = self;
        let qemu = Qemu::start(&machine, disk_mib, confinement)?;
        qemu.pidfd()
            .and_then(|pidfd| janitor.watch(pidfd.as_fd()))
            .map_err(|error| {
                RuntimeError::environment(
                    format!("the janitor can't watch QEMU: {error}"),
                    "try again",
                )
            })?;
        Ok(Started {
            qemu,
            control,
            qmp,
            ram,
            disk,
            janitor,
            dir,
        })
    }
}

/// A QEMU that runs, with a guest that has said nothing yet.
struct Started {
    qemu: Qemu,
    control: UnixStream,
    qmp: UnixStream,
    ram: Backing,
    disk: Backing,
    janitor: Janitor,
    dir: VmDir,
}

type Failed = (RuntimeError, Qemu, Janitor, VmDir);

impl Started {
    async fn bring_up(
        self,
        setup: GuestSetup,
        limit: Duration,
        clock: &mut Clock,
    ) -> Result<Running, Failed> {
        let Self {
            qemu,
            control,
            qmp,
            ram,
            disk,
            janitor,
            dir,
        } = self;
        let console = qemu.console().clone();
        let work = async {
            clock.begin("qemu", "");
            let qmp = connect_qmp(qmp).await?;
            clock.begin("kernel", "wait for the guest's first program");
            let (control, control_task) = Control::connect(control).await?;
            let health = async {
                if console.shows(READY_LINE).await {
                    clock.begin("control", "");
                }
                std::future::pending::<()>().await;
            };
            let health: Health = tokio::select! {
                health = control.get(api::HEALTH) => health?,
                () = health => return Err(RuntimeError::guest("unreachable", "no health")),
            };
            check_protocol(&health)?;
            clock.begin("configure", "");
            configure(&control, setup).await?;
            Ok((qmp, control, control_task))
        };
        let outcome: Result<(Qmp, Control, ControlTask), RuntimeError> =
            alive(&qemu, limit, work).await;
        match outcome {
            Ok((qmp, control, control_task)) => Ok(Running {
                control,
                control_task,
                qmp,
                ram,
                disk,
                qemu,
                janitor,
                dir,
            }),
            Err(error) => Err((error, qemu, janitor, dir)),
        }
    }
}

/// Does `work` while the guest lives, its kernel is well, and time is left.
async fn alive<T>(
    qemu: &Qemu,
    limit: Duration,
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let console = qemu.console();
    let panicked = async {
        // Without a panic this is the end of the console, which the end of QEMU tells better.
        if !console.shows(PANIC).await {
            std::future::pending::<()>().await;
        }
        // QEMU ends by itself once the call trace is printed.
        qemu.ended().await;
    };
    tokio::select! {
        biased;
        result = work => match result {
            // The channels break at the moment that QEMU ends: that is the better story.
            Err(error) if tokio::time::timeout(LAST_WORDS, qemu.ended()).await.is_ok() => {
                tracing::debug!(%error, "QEMU ended");
                Err(ended_early(console, "QEMU ended").await)
            }
            result => result,
        },
        () = panicked => Err(ended_early(console, PANIC).await),
        () = qemu.ended() => Err(ended_early(console, "QEMU ended").await),
        () = tokio::time::sleep(limit) => Err(RuntimeError::Boot {
            problem: format!("no answer in {} s", limit.as_secs()),
            advice: "a busy host needs longer; a console that shows nothing points to the kernel"
                .to_owned(),
            console: console.tail(),
        }),
    }
}

async fn connect_qmp(stream: UnixStream) -> Result<Qmp, RuntimeError> {
    let failed = |problem: String| RuntimeError::guest("qmp", problem);
    let stream = tokio::net::UnixStream::from_std(stream).map_err(|e| failed(e.to_string()))?;
    Qmp::handshake(stream)
        .await
        .map_err(|error| failed(error.to_string()))
}

fn check_protocol(health: &Health) -> Result<(), RuntimeError> {
    if health.protocol == PROTOCOL {
        return Ok(());
    }
    Err(RuntimeError::environment(
        format!(
            "the guest's first program speaks version {} of the control API, this program {PROTOCOL}",
            health.protocol
        ),
        "run `cargo xtask setup` to build both from one source",
    ))
}

async fn configure(control: &Control, setup: GuestSetup) -> Result<(), RuntimeError> {
    let GuestSetup {
        hostname,
        env,
        ca_pem,
        network,
    } = setup;
    let wall_clock_ns = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .ok_or_else(|| RuntimeError::environment("the host's clock is wrong", "set it"))?;
    let entropy = hex(&random()?);
    let request = ConfigureRequest {
        hostname,
        wall_clock_ns,
        entropy,
        network,
        ca_pem,
        env,
    };
    let reply: ConfigureReply = control.call(Method::POST, api::CONFIGURE, &request).await?;
    tracing::debug!(steps = ?reply.steps, "the guest is configured");
    Ok(())
}

fn random() -> Result<[u8; ENTROPY], RuntimeError> {
    let mut bytes = [0; ENTROPY];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match length {
        // Up to 256 bytes come whole (getrandom(2)).
        Ok(ENTROPY) => Ok(bytes),
        _ => Err(RuntimeError::environment(
            "the host gives no randomness",
            "try again",
        )),
    }
}

fn open(path: &Path) -> Result<File, RuntimeError> {
    File::open(path).map_err(|error| RuntimeError::file("open", path, error))
}

/// Measures phases and tells them.
struct Clock {
    progress: Progress,
    phases: Vec<Phase>,
    current: Option<(&'static str, Instant)>,
}

impl Clock {
    fn new(progress: Progress) -> Self {
        Self {
            progress,
            phases: Vec::new(),
            current: None,
        }
    }

    /// Ends the phase before and begins the next.
    fn begin(&mut self, name: &'static str, detail: &str) {
        self.close();
        let told = if detail.is_empty() {
            name.to_owned()
        } else {
            format!("{name}: {detail}")
        };
        self.progress.step(STEP, told);
        self.current = Some((name, Instant::now()));
    }

    fn end(&mut self) -> Vec<Phase> {
        self.close();
        std::mem::take(&mut self.phases)
    }

    fn close(&mut self) {
        if let Some((name, since)) = self.current.take() {
            self.phases.push(Phase {
                name,
                duration: since.elapsed(),
            });
        }
    }
}
