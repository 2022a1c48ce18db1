//! Measures the gateway as an explicit proxy beside other programs that do the same job, and prints
//! one JSON line per figure. `cargo xtask bench gateway` runs it.
//!
//! Client and origin run here, on the same cores as the proxy, so throughput is what is left for it;
//! processor time per request is the figure that says what the proxy itself costs. The subjects take
//! turns, with the same load each.

mod client;
mod load;
mod process;
mod subjects;
mod upstream;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use outgate_tests::lab::{Lab, LabCa};
use rustls::ServerConfig;
use serde_json::json;

use load::{CONNECTIONS, Clock, Target, Work};
use subjects::{Bench, Subject};

const NAME: &str = "bench.test";
const GIB: u64 = 1 << 30;
const STREAMS: usize = 200;

/// Measures proxies beside each other
#[derive(Debug, Parser)]
struct Arguments {
    /// Only these subjects
    #[arg(long)]
    only: Vec<String>,
    /// Only these cases: h1, h2, half, warm, cold, transfer, events
    #[arg(long)]
    case: Vec<String>,
    /// `mitmdump`, to have it measured
    #[arg(long)]
    mitmproxy: Option<PathBuf>,
    /// The program of `bench/hudsucker`, to have it measured
    #[arg(long)]
    hudsucker: Option<PathBuf>,
}

impl Arguments {
    fn wants(&self, case: &str) -> bool {
        self.case.is_empty() || self.case.iter().any(|wanted| wanted == case)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // For its name server; the origin is our own.
    let lab = Lab::start()?;
    tokio::runtime::Runtime::new()?.block_on(measure(&arguments, &lab))
}

async fn measure(arguments: &Arguments, lab: &Lab) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ca = LabCa::generate("Bench root")?;
    let (certificate, key) = ca.leaf_pem(&[NAME, &format!("*.{NAME}"), "127.0.0.1"])?;
    let root = folder.path().join("root.pem");
    let (certificate_file, key_file) = (
        folder.path().join("origin.pem"),
        folder.path().join("origin.key"),
    );
    fs::write(&root, ca.pem())?;
    fs::write(&certificate_file, &certificate)?;
    fs::write(&key_file, &key)?;
    let epoch = Instant::now();
    let origin = upstream::spawn(origin_tls(&certificate, &key)?, epoch).await?;
    for name in [NAME, &format!("*.{NAME}")] {
        lab.dns.set(name, &[origin.ip()]);
    }
    let bench = Bench {
        folder: folder.path(),
        root: &root,
        origin,
        dns: lab.dns_address(),
        name: NAME,
        certificate: &certificate_file,
        key: &key_file,
    };
    let target = Target {
        name: NAME.to_owned(),
        port: origin.port(),
    };
    // Half of what ours can do is the load at which latencies are compared.
    let mut half = None;
    for (name, start) in SUBJECTS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|only| only == name) {
            continue;
        }
        match start(&bench, arguments) {
            Ok(subject) => {
                Run::new(arguments, &target, epoch, &subject)
                    .all(&mut half)
                    .await
            }
            Err(error) => eprintln!("{name} is not measured: {error:#}"),
        }
    }
    Ok(())
}

type Start = fn(&Bench<'_>, &Arguments) -> Result<Subject>;

/// Ours first: its rate is the measure for others.
const SUBJECTS: [(&str, Start); 6] = [
    ("outgate", |bench, _| bench.outgate()),
    ("direct", |bench, _| bench.direct()),
    ("nginx", |bench, _| bench.nginx()),
    ("squid", |bench, _| bench.squid()),
    ("mitmproxy", |bench, arguments| {
        bench.mitmproxy(arguments.mitmproxy.as_deref().context("no --mitmproxy")?)
    }),
    ("hudsucker", |bench, arguments| {
        bench.hudsucker(arguments.hudsucker.as_deref().context("no --hudsucker")?)
    }),
];

fn origin_tls(certificate: &str, key: &str) -> Result<ServerConfig> {
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// All loads on one subject.
struct Run<'a> {
    arguments: &'a Arguments,
    target: &'a Target,
    epoch: Instant,
    subject: &'a Subject,
    pids: Vec<u32>,
}

impl<'a> Run<'a> {
    fn new(
        arguments: &'a Arguments,
        target: &'a Target,
        epoch: Instant,
        subject: &'a Subject,
    ) -> Self {
        Self {
            arguments,
            target,
            epoch,
            pids: subject.pids(),
            subject,
        }
    }

    async fn all(&self, half: &mut Option<f64>) {
        let name = self.subject.name;
        // A subject that fails one case is told so, and goes on with the next.
        for case in ["h1", "half", "h2", "warm", "cold", "transfer", "events"] {
            if self.arguments.wants(case)
                && let Err(error) = self.case(case, half).await
            {
                eprintln!("{name}, {case}: {error:#}");
            }
        }
    }

    async fn case(&self, case: &str, half: &mut Option<f64>) -> Result<()> {
        let (way, target) = (&self.subject.way, self.target);
        process::reset_peak(&self.pids)?;
        let clock = Clock::start();
        match case {
            "h1" => {
                let load = load::requests_h1(way, target, clock, None);
                let work = self
                    .requests("1 KiB, HTTP/1.1", "request", clock, load)
                    .await?;
                if self.subject.name == "outgate" {
                    *half = Some(work.per_second() / 2.0);
                }
            }
            "half" => {
                let Some(rate) = *half else { return Ok(()) };
                let load = load::requests_h1(way, target, clock, Some(rate));
                let case = "1 KiB, HTTP/1.1, half load";
                self.requests(case, "request", clock, load).await?;
            }
            "h2" if self.subject.speaks_h2 => {
                let load = load::requests_h2(way, target, clock);
                self.requests("1 KiB, HTTP/2", "request", clock, load)
                    .await?;
            }
            "warm" => {
                let load = load::handshakes(way, target, clock, |_| NAME.to_owned());
                let case = "new connection, certificate known";
                self.requests(case, "connection", clock, load).await?;
            }
            "cold" if self.subject.mints => {
                let load = load::handshakes(way, target, clock, |n| format!("n{n}.{NAME}"));
                let case = "new connection, certificate new";
                self.requests(case, "connection", clock, load).await?;
            }
            "transfer" => self.transfers().await?,
            "events" => {
                let load = load::events(way, target, clock, STREAMS, self.epoch);
                self.requests("200 event streams", "event", clock, load)
                    .await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs a load and reports rate, latencies, processor time per piece and memory.
    async fn requests(
        &self,
        case: &str,
        unit: &str,
        clock: Clock,
        load: impl Future<Output = Result<Work>>,
    ) -> Result<Work> {
        let before = async {
            clock.counting_begins().await;
            process::cpu_time(&self.pids)
        };
        let (work, before) = tokio::join!(load, before);
        let (mut work, spent) = (
            work?,
            process::cpu_time(&self.pids)?.saturating_sub(before?),
        );
        let done = work.done.max(1) as f64;
        self.report(case, &format!("{unit}s"), work.per_second(), "1/s");
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        self.report(case, "p50", micros(work.percentile(50)), "µs");
        self.report(case, "p99", micros(work.percentile(99)), "µs");
        if !self.pids.is_empty() {
            self.report(case, &format!("CPU per {unit}"), micros(spent) / done, "µs");
            self.report(
                case,
                "peak memory",
                process::peak_kib(&self.pids)? as f64 / 1024.0,
                "MiB",
            );
        }
        Ok(work)
    }

    async fn transfers(&self) -> Result<()> {
        let (way, target) = (&self.subject.way, self.target);
        for case in ["download 1 GiB", "upload 1 GiB"] {
            process::reset_peak(&self.pids)?;
            let before = process::cpu_time(&self.pids)?;
            let speed = if case.starts_with("down") {
                load::download(way, target, GIB).await
            } else {
                load::upload(way, target, GIB).await
            };
            let speed = speed.with_context(|| case.to_owned())?;
            self.report(case, "throughput", speed / 1e6, "MB/s");
            if !self.pids.is_empty() {
                let spent = process::cpu_time(&self.pids)?.saturating_sub(before);
                self.report(case, "CPU", spent.as_secs_f64(), "s");
                let peak = process::peak_kib(&self.pids)? as f64 / 1024.0;
                self.report(case, "peak memory", peak, "MiB");
            }
        }
        Ok(())
    }

    fn report(&self, case: &str, metric: &str, value: f64, unit: &str) {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let build = if cfg!(debug_assertions) {
            "dev"
        } else {
            "release"
        };
        let conditions = format!(
            "{build} build, {cores} cores shared with client and origin; {CONNECTIONS} connections over HTTP/1.1, \
             4 of 8 streams over HTTP/2, 8 at a time for new connections, 1 for transfers; TLS 1.3 on both sides; \
             outgate decides by 1,000 rules, attaches a credential and writes its audit log (buffered)"
        );
        println!(
            "{}",
            json!({
                "bench": "gateway",
                "case": case,
                "subject": self.subject.name,
                "metric": metric,
                "value": value,
                "unit": unit,
                "conditions": conditions,
            })
        );
    }
}
