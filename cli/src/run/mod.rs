//! `outgate run`: gateway and node in one process, one command, nothing left behind.
//!
//! The order is the promise: everything that can be wrong with the request is found before anything
//! is started, the link is registered before the guest boots, and the end is the same on every way
//! out: the guest goes first, then its place at the gateway, then the last audit record is written.

mod args;
mod stdio;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use outgate_gateway::admin::RegisterError;
use outgate_gateway::admin::protocol::{Registered, Registration};
use outgate_gateway::gateway::{CertificateAuthoritySource, Gateway, GatewayConfig};
use outgate_policy::Source;
use outgate_runtime::api::{ExecRequest, Exit, Network, Pty};
use outgate_runtime::{
    AcceleratorChoice, ErrorClass, GuestSetup, ImageSource, ImageStore, Kernel, Paths, Progress,
    RuntimeError, Sandbox, SandboxId, SandboxSpec, accelerator, janitor,
};

pub(crate) use self::args::RunArgs;
use self::stdio::Ending;
use crate::exit::{Code, Failure};
use crate::link::{self, Attachment};
use crate::report::{Event, Reporter};
use crate::{places, policy, terminal};

/// How long a guest gets to flush its disk and power off before it is killed.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// A shell's convention: death by a signal is this plus its number.
const SIGNAL_BASE: i32 = 128;

/// Runs to the end and reports it.
///
/// # Errors
/// A [`Failure`] with the code of [`crate::exit`].
pub(crate) fn main(args: RunArgs) -> anyhow::Result<ExitCode> {
    let reporter = Reporter::new(args.json, args.quiet);
    let runtime = tokio::runtime::Runtime::new().context("the async runtime can't start")?;
    let outcome = runtime.block_on(run(args, &reporter));
    // Reading standard input can't be cancelled; it must not hold the end of the process.
    runtime.shutdown_background();
    reporter.clear();
    match outcome {
        Ok(outcome) => {
            reporter.event(&Event::Exit {
                code: outcome.code,
                source: if outcome.is_guests {
                    "guest"
                } else {
                    "outgate"
                },
                signal: outcome.signal,
                message: outcome.message.as_deref(),
                audit: &outcome.audit,
            });
            if let Some(message) = outcome.message.filter(|_| !reporter.is_json()) {
                eprintln!("outgate: {message}");
            }
            Ok(ExitCode::from(outcome.code))
        }
        Err(error) => {
            let code = error
                .downcast_ref::<Failure>()
                .map_or(Code::Outgate, |failure| failure.code);
            let message = format!("{error:#}");
            reporter.event(&Event::Exit {
                code: code as u8,
                source: "outgate",
                signal: None,
                message: Some(&message),
                audit: "",
            });
            Err(error)
        }
    }
}

/// How a run ended.
struct Outcome {
    code: u8,
    is_guests: bool,
    signal: Option<i32>,
    message: Option<String>,
    audit: String,
}

/// What was found out before anything is started.
struct Prepared {
    id: SandboxId,
    sources: Vec<Source>,
    paths: Paths,
}

async fn run(args: RunArgs, reporter: &Reporter) -> anyhow::Result<Outcome> {
    let prepared = prepare(&args)?;
    if prepared.sources.is_empty() {
        reporter.warning("no policy selects this sandbox, so it reaches nothing; see --label");
    }
    let interrupted = stdio::interrupted()?;
    tokio::select! {
        outcome = start_and_run(&args, &prepared, reporter) => outcome,
        () = interrupted => Err(Failure::new(Code::Interrupted, "interrupted").into()),
    }
}

fn prepare(args: &RunArgs) -> anyhow::Result<Prepared> {
    let sources = policy::select(&args.policy, &args.labels())?;
    if !sources.is_empty() {
        policy::load(&sources)?;
    }
    if args.tty && !terminal::is_interactive() {
        let message = "-t needs a terminal on standard input and output; leave it out";
        return Err(Failure::new(Code::Usage, message).into());
    }
    let id = match &args.name {
        Some(name) => SandboxId::parse(name).map_err(|error| Failure::new(Code::Usage, error))?,
        None => SandboxId::generate(),
    };
    let paths = Paths::from_env().map_err(|error| failure(&error))?;
    let paths = match &args.cache {
        Some(cache) => Paths::new(cache, paths.run()),
        None => paths,
    };
    Ok(Prepared { id, sources, paths })
}

async fn start_and_run(
    args: &RunArgs,
    prepared: &Prepared,
    reporter: &Reporter,
) -> anyhow::Result<Outcome> {
    let Prepared { id, sources, paths } = prepared;
    for found in janitor::sweep(paths).map_err(|error| failure(&error))? {
        reporter.warning(&format!(
            "removed what an earlier run had to leave: {found}"
        ));
    }
    let spec = spec(args, id, paths, reporter).await?;
    let (vmm_end, gateway_end) = link::pair().context("the link can't be made")?;
    reporter.progress("gateway", "");
    let registration = Registration {
        id: id.to_string(),
        tier: args.tier.as_str().to_owned(),
        labels: args.labels(),
        policy: sources.clone(),
        mtu: None,
        placeholders: BTreeMap::new(),
    };
    let (place, registered, audit) = attach(args, registration, gateway_end).await?;
    let setup = guest_setup(id, &registered);
    let started = Sandbox::start(paths, spec, vmm_end, setup, &progress()).await;
    let outcome = match started.map_err(|error| failure(&error)) {
        Ok(sandbox) => {
            for warning in &sandbox.report().warnings {
                reporter.warning(warning);
            }
            let accelerator = sandbox.report().accelerator.to_string();
            reporter.started(id.as_str(), &accelerator, &registered.policy_revision);
            let outcome = run_command(args, &sandbox, reporter).await;
            let kept = keep(args, &sandbox).await;
            let ended = sandbox
                .shutdown(SHUTDOWN_GRACE)
                .await
                .map_err(|error| failure(&error));
            outcome.and_then(|outcome| {
                kept?;
                ended?;
                Ok(outcome)
            })
        }
        Err(error) => Err(error.into()),
    };
    place.release().await;
    outcome.map(|outcome| Outcome { audit, ..outcome })
}

/// Image, kernel and accelerator: what takes minutes the first time.
async fn spec(
    args: &RunArgs,
    id: &SandboxId,
    paths: &Paths,
    reporter: &Reporter,
) -> Result<SandboxSpec, Failure> {
    reporter.progress("image", &args.image);
    let source = image_source(&args.image)?;
    let store = ImageStore::new(paths);
    let progress = progress();
    let image = tokio::task::spawn_blocking(move || store.ensure(&source, &progress))
        .await
        .map_err(|error| Failure::new(Code::Outgate, error))?
        .map_err(|error| failure(&error))?;
    let kernel = Kernel::find(paths).map_err(|error| failure(&error))?;
    reporter.progress("accelerator", "");
    let chosen = accelerator::choose(paths, &kernel, AcceleratorChoice::Auto)
        .await
        .map_err(|error| failure(&error))?;
    reporter.progress(
        "boot",
        &format!("{} on {}", kernel.name(), chosen.accelerator),
    );
    let mut spec = SandboxSpec::new(id.clone(), image, kernel, chosen.accelerator);
    spec.vcpus = args.cpus.into();
    spec.memory_mib = args.memory;
    spec.disk_mib = args.disk;
    spec.boot_limit = args.boot_timeout;
    Ok(spec)
}

pub(crate) fn image_source(name: &str) -> Result<ImageSource, Failure> {
    match name {
        "default" => Ok(ImageSource::default()),
        other => other.parse().map_err(|error| failure(&error)),
    }
}

/// The runtime's own steps go to the program's log; the person sees ours.
fn progress() -> Progress {
    Progress::new(|event| tracing::info!(step = event.step, detail = event.detail, "progress"))
}

async fn attach(
    args: &RunArgs,
    registration: Registration,
    link: std::os::fd::OwnedFd,
) -> anyhow::Result<(Attachment, Registered, String)> {
    if let Some(socket) = &args.gateway {
        let attached = Attachment::apart(socket.clone(), registration, link).await;
        let (place, registered) = attached.map_err(|error| {
            let code = match &error {
                RegisterError::Unreachable { .. } => Code::Environment,
                _ => Code::Outgate,
            };
            Failure::new(code, error)
        })?;
        return Ok((place, registered, String::new()));
    }
    let audit = audit_dir(args, &registration.id)?;
    let config = GatewayConfig {
        ca: CertificateAuthoritySource::Ephemeral,
        audit: args.upstream.audit_config(audit.clone()),
        upstream: args.upstream.upstream_config()?,
        denied_names: args.upstream.denied_names().unwrap_or_default(),
    };
    let gateway = Gateway::start(config)
        .await
        .map_err(|error| Failure::new(Code::Outgate, error))?;
    let (place, registered) = Attachment::inside(gateway, registration, link)
        .await
        .map_err(|error| Failure::new(Code::Outgate, error))?;
    Ok((place, registered, audit.display().to_string()))
}

fn audit_dir(args: &RunArgs, id: &str) -> anyhow::Result<PathBuf> {
    if let Some(dir) = &args.audit_dir {
        return Ok(dir.clone());
    }
    let dir = places::audit_dir_of(id);
    let made = std::fs::create_dir_all(&dir).and_then(|()| places::remember_latest(&dir));
    made.map_err(|error| {
        let message = format!(
            "the audit log `{}` can't be made: {error}; name another folder with --audit-dir or \
             OUTGATE_STATE",
            dir.display()
        );
        Failure::new(Code::Outgate, message)
    })?;
    Ok(dir)
}

fn guest_setup(id: &SandboxId, registered: &Registered) -> GuestSetup {
    let network = &registered.network;
    GuestSetup {
        hostname: id.to_string(),
        env: registered.env.clone(),
        ca_pem: Some(registered.ca_pem.clone()),
        network: Some(Network {
            address: network.address,
            prefix: network.prefix,
            gateway: network.gateway,
            dns: network.dns,
            mtu: network.mtu,
        }),
    }
}

async fn run_command(
    args: &RunArgs,
    sandbox: &Sandbox,
    reporter: &Reporter,
) -> anyhow::Result<Outcome> {
    let pty = args
        .tty
        .then(terminal::size)
        .flatten()
        .map(|(rows, cols)| Pty { rows, cols });
    let request = ExecRequest {
        exec_id: "main".to_owned(),
        argv: args.command.clone(),
        env: args.env.iter().cloned().collect(),
        cwd: args.workdir.clone(),
        user: args.user.clone(),
        pty,
        stdin: args.interactive || args.tty,
        timeout_ms: args
            .timeout
            .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    };
    let exec = match sandbox.exec(request).await {
        Ok(exec) => exec,
        Err(error) => return Err(exec_failure(&error).into()),
    };
    let ending = tokio::select! {
        ending = stdio::pass(exec, args.tty, reporter) => ending?,
        lost = sandbox.ended() => return Err(failure(&lost).into()),
    };
    Ok(outcome(&ending, args))
}

fn outcome(ending: &Ending, args: &RunArgs) -> Outcome {
    let own = |code: Code, message: String| Outcome {
        code: code as u8,
        is_guests: false,
        signal: None,
        message: Some(message),
        audit: String::new(),
    };
    let guests = |code: i32, signal| Outcome {
        code: u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        is_guests: true,
        signal,
        message: None,
        audit: String::new(),
    };
    match ending {
        Ending::Interrupted => own(Code::Interrupted, "interrupted".to_owned()),
        Ending::Exit(Exit::Code { code }) => guests(*code, None),
        Ending::Exit(Exit::Signal { signal }) => guests(SIGNAL_BASE + signal, Some(*signal)),
        Ending::Exit(Exit::Timeout) => {
            let limit = args.timeout.unwrap_or_default().as_secs();
            own(
                Code::Timeout,
                format!("the command ran longer than {limit} s and was ended"),
            )
        }
    }
}

/// What the person asked to keep of the guest.
async fn keep(args: &RunArgs, sandbox: &Sandbox) -> anyhow::Result<()> {
    if let Some(path) = &args.dump_memory {
        sandbox
            .dump_memory(path)
            .await
            .map_err(|error| failure(&error))?;
    }
    if let Some(path) = &args.keep_disk {
        sandbox
            .copy_disk(path)
            .await
            .map_err(|error| failure(&error))?;
    }
    Ok(())
}

fn exec_failure(error: &RuntimeError) -> Failure {
    let code = match error {
        RuntimeError::Guest { code, .. } if code == "exec_not_found" => Code::NotFound,
        RuntimeError::Guest { code, .. } if code.starts_with("exec_") => Code::NotExecutable,
        _ => return failure(error),
    };
    Failure::new(code, error)
}

/// A failure of the runtime with its documented code.
pub(crate) fn failure(error: &RuntimeError) -> Failure {
    let code = match error.class() {
        ErrorClass::Environment => Code::Environment,
        ErrorClass::Image => Code::Image,
        ErrorClass::Boot => Code::Boot,
        ErrorClass::Guest => Code::Outgate,
    };
    Failure::new(code, error)
}
