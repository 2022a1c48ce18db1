//! Boots a sandbox, runs one command in it, and prints how long each phase took.
//!
//! ```text
//! cargo run -p outgate-runtime --example boot -- [--kernel FOLDER] [--image SOURCE] [--accel auto]
//!     [--vcpus N] [--memory MIB] [--limit SECONDS] [--times N] [--stdin] [--pty] [--dump FILE] [--hang] [--doctor] [COMMAND [ARGUMENT…]]
//! ```
//!
//! The link ends in a socket that nobody reads: the guest has no network.

#![expect(clippy::unwrap_used, reason = "an example ends at the first problem")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;

use outgate_runtime::api::frame::Frame;
use outgate_runtime::api::{ExecRequest, Exit, Network, Pty};
use outgate_runtime::{
    AcceleratorChoice, ExecInput, GuestSetup, ImageSource, ImageStore, Kernel, Paths, Progress,
    RuntimeError, Sandbox, SandboxId, SandboxSpec, accelerator, doctor, install_debian_kernel,
    janitor,
};

struct Options {
    kernel: Option<PathBuf>,
    image: String,
    accelerator: String,
    vcpus: Option<u32>,
    memory: Option<u32>,
    limit: Option<u64>,
    times: u32,
    dump: Option<PathBuf>,
    hang: bool,
    stdin: bool,
    pty: bool,
    command: Vec<String>,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self {
            kernel: None,
            image: "debian:bookworm".to_owned(),
            accelerator: "auto".to_owned(),
            vcpus: None,
            memory: None,
            limit: None,
            times: 1,
            dump: None,
            hang: false,
            stdin: false,
            pty: false,
            command: Vec::new(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--kernel" => options.kernel = words.next().map(PathBuf::from),
                "--image" => options.image = words.next().unwrap(),
                "--accel" => options.accelerator = words.next().unwrap(),
                "--vcpus" => options.vcpus = words.next().unwrap().parse().ok(),
                "--memory" => options.memory = words.next().unwrap().parse().ok(),
                "--limit" => options.limit = words.next().unwrap().parse().ok(),
                "--times" => options.times = words.next().unwrap().parse().unwrap(),
                "--dump" => options.dump = words.next().map(PathBuf::from),
                "--hang" => options.hang = true,
                "--stdin" => options.stdin = true,
                "--pty" => options.pty = true,
                _ => options.command = std::iter::once(word).chain(words.by_ref()).collect(),
            }
        }
        if options.command.is_empty() {
            options.command = vec!["echo".to_owned(), "hi".to_owned()];
        }
        options
    }
}

fn main() -> ExitCode {
    if let Some(code) = janitor::main_if_requested() {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(run()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("boot: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<u8, RuntimeError> {
    let paths = Paths::from_env()?;
    if std::env::args().any(|word| word == "--doctor") {
        for check in doctor::examine(&paths).await {
            println!("{:8} {:16} {}", check.state, check.name, check.found);
            println!("{:26}{}", "", check.fix.unwrap_or_default());
        }
        return Ok(0);
    }
    let options = Options::parse();
    let since = Instant::now();
    let progress = Progress::new(move |event| {
        eprintln!(
            "[{:6} ms] {}: {}",
            since.elapsed().as_millis(),
            event.step,
            event.detail
        );
    });
    let kernel = match &options.kernel {
        Some(folder) => Kernel::load(folder)?,
        None => Kernel::find(&paths).or_else(|_| install_debian_kernel(&paths, &progress))?,
    };
    let image =
        ImageStore::new(&paths).ensure(&options.image.parse::<ImageSource>()?, &progress)?;
    let chosen = accelerator::choose(
        &paths,
        &kernel,
        options.accelerator.parse::<AcceleratorChoice>()?,
    )
    .await?;
    eprintln!("accelerator {}: {}", chosen.accelerator, chosen.reason);
    let mut code = 0;
    for _ in 0..options.times {
        let id = SandboxId::generate();
        let mut spec = SandboxSpec::new(id, image.clone(), kernel.clone(), chosen.accelerator);
        spec.vcpus = options.vcpus.unwrap_or(spec.vcpus);
        spec.memory_mib = options.memory.unwrap_or(spec.memory_mib);
        spec.boot_limit = options.limit.map_or(spec.boot_limit, Duration::from_secs);
        code = once(&paths, spec, &options, &progress).await?;
    }
    Ok(code)
}

async fn copy_stdin(mut input: ExecInput) {
    let mut stdin = tokio::io::stdin();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let length = stdin.read(&mut chunk).await.unwrap();
        if length == 0 {
            return input.close().await.unwrap();
        }
        input.write(chunk[..length].to_vec().into()).await.unwrap();
    }
}

async fn once(
    paths: &Paths,
    spec: SandboxSpec,
    options: &Options,
    progress: &Progress,
) -> Result<u8, RuntimeError> {
    let (link, _gateway) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let setup = GuestSetup {
        hostname: "boot-example".to_owned(),
        network: Some(Network {
            address: [10, 0, 2, 15].into(),
            prefix: 24,
            gateway: [10, 0, 2, 2].into(),
            dns: [10, 0, 2, 2].into(),
            mtu: 65_520,
        }),
        ..GuestSetup::default()
    };
    let since = Instant::now();
    let sandbox = Sandbox::start(paths, spec, link.into(), setup, progress).await?;
    let up = since.elapsed();
    let request = ExecRequest {
        exec_id: "example".to_owned(),
        argv: options.command.clone(),
        stdin: options.stdin,
        pty: options.pty.then_some(Pty { rows: 24, cols: 80 }),
        ..ExecRequest::default()
    };
    let mut command = sandbox.exec(request).await?;
    if let Some(input) = command.take_input() {
        tokio::spawn(copy_stdin(input));
    }
    let mut code = 255;
    while let Some(event) = command.next_event().await {
        match event? {
            Frame::Stdout(bytes) => std::io::stdout().write_all(&bytes).unwrap(),
            Frame::Stderr(bytes) => std::io::stderr().write_all(&bytes).unwrap(),
            Frame::Exit(Exit::Code { code: own }) => code = u8::try_from(own).unwrap_or(255),
            Frame::Exit(exit) => eprintln!("{exit:?}"),
            _ => {}
        }
    }
    let done = since.elapsed();
    if let Some(file) = &options.dump {
        sandbox.dump_memory(file).await?;
    }
    if options.hang {
        eprintln!("qemu {:?}; waiting to be killed", sandbox.report().qemu_pid);
        return Err(sandbox.ended().await);
    }
    let report = sandbox.report().clone();
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    let before = Instant::now();
    sandbox.shutdown(Duration::from_secs(10)).await?;
    let phases: Vec<String> = report
        .phases
        .iter()
        .map(|phase| format!("{} {}", phase.name, phase.duration.as_millis()))
        .collect();
    println!(
        "up {} ms ({}), command {} ms, shutdown {} ms",
        up.as_millis(),
        phases.join(", "),
        (done - up).as_millis(),
        before.elapsed().as_millis()
    );
    Ok(code)
}
