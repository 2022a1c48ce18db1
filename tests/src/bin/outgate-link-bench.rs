//! Measures the gateway over a link, next to the same client talking to the same upstream
//! directly, and prints one JSON line per figure. `cargo xtask bench gateway` runs it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use outgate_tests::guest::{Guest, read_response};
use outgate_tests::harness::{World, lab};
use outgate_tests::lab::{Lab, pattern};
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;

/// What is moved in each direction.
const TRANSFER_BYTES: u64 = 1 << 30;

/// How long requests are counted.
const COUNTING: Duration = Duration::from_secs(5);

/// Connections that ask at the same time.
const CONNECTIONS: usize = 8;

/// Sandboxes that do nothing while memory is measured.
const IDLE_SANDBOXES: usize = 200;

const RULES: &str =
    "rules:\n  - { id: a, action: allow, to: { hosts: [a.test], private: true } }\n";

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn main() -> Result<()> {
    let world = World::in_lab(lab(), RULES);
    // First, while the allocator holds nothing that a transfer left behind.
    let (kib, sandboxes) = idle_memory(&world)?;
    report(
        "idle sandbox",
        "outgate",
        "gateway memory (PSS)",
        kib / sandboxes,
        "KiB",
    );
    for (case, bytes_per_second) in [
        ("download 1 GiB", download as fn(Stream) -> Result<f64>),
        ("upload 1 GiB", upload),
    ] {
        let direct = bytes_per_second(direct(&world.lab)?)?;
        let through = bytes_per_second(through(world.guest())?)?;
        report(case, "direct", "throughput", direct / 1e6, "MB/s");
        report(case, "outgate", "throughput", through / 1e6, "MB/s");
    }
    let case = "1 KiB responses, keep-alive";
    let direct = requests_per_second(|| direct(&world.lab))?;
    let through = requests_per_second(|| through(world.guest()))?;
    report(case, "direct", "requests", direct, "1/s");
    report(case, "outgate", "requests", through, "1/s");
    Ok(())
}

fn report(case: &str, subject: &str, metric: &str, value: f64, unit: &str) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let build = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    let conditions = format!(
        "{build} build, {cores} cores shared with client and upstream, HTTP/1.1 over TLS 1.3, \
         TAP guest, MTU 65520, {CONNECTIONS} connections for requests and 1 for transfers"
    );
    println!(
        "{}",
        json!({
            "bench": "gateway",
            "case": case,
            "subject": subject,
            "metric": metric,
            "value": value,
            "unit": unit,
            "conditions": conditions,
        })
    );
}

fn through(guest: &Guest) -> Result<Stream> {
    guest.tls("a.test", 443, "http/1.1")
}

fn direct(lab: &Lab) -> Result<Stream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(lab.root_certificate())?)?;
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect((lab.origin_address(), 443))?;
    stream.set_nodelay(true)?;
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from("a.test")?)?;
    Ok(StreamOwned::new(session, stream))
}

fn download(mut stream: Stream) -> Result<f64> {
    let start = Instant::now();
    write!(
        stream,
        "GET /bytes/{TRANSFER_BYTES} HTTP/1.1\r\nHost: a.test\r\n\r\n"
    )?;
    let mut buffer = vec![0; 256 * 1024];
    let mut received = 0;
    while received < TRANSFER_BYTES {
        let length = stream.read(&mut buffer)?;
        ensure!(length > 0, "the download broke off after {received} bytes");
        received += length as u64;
    }
    Ok(TRANSFER_BYTES as f64 / start.elapsed().as_secs_f64())
}

fn upload(mut stream: Stream) -> Result<f64> {
    let start = Instant::now();
    write!(
        stream,
        "POST /upload HTTP/1.1\r\nHost: a.test\r\nContent-Length: {TRANSFER_BYTES}\r\n\r\n"
    )?;
    for chunk in pattern(TRANSFER_BYTES) {
        stream.write_all(&chunk)?;
    }
    let (head, body) = read_response(&mut stream)?;
    let answer: serde_json::Value =
        serde_json::from_slice(&body).with_context(|| format!("odd answer: {head}"))?;
    ensure!(answer["length"] == TRANSFER_BYTES, "{answer}");
    Ok(TRANSFER_BYTES as f64 / start.elapsed().as_secs_f64())
}

fn requests_per_second(connect: impl Fn() -> Result<Stream>) -> Result<f64> {
    let streams = (0..CONNECTIONS)
        .map(|_| connect())
        .collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let clients: Vec<_> = streams
        .into_iter()
        .map(|stream| std::thread::spawn(move || count(stream, start)))
        .collect();
    let mut total = 0;
    for client in clients {
        total += client
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    Ok(total as f64 / start.elapsed().as_secs_f64())
}

fn count(mut stream: Stream, start: Instant) -> Result<u64> {
    let mut count = 0;
    // One read takes head and body: they arrive together.
    let mut buffer = vec![0; 4096];
    while start.elapsed() < COUNTING {
        stream.write_all(b"GET /bytes/1024 HTTP/1.1\r\nHost: a.test\r\n\r\n")?;
        let mut received = 0;
        while !is_whole(&buffer[..received]) {
            let length = stream.read(&mut buffer[received..])?;
            ensure!(length > 0, "the connection ended");
            received += length;
        }
        count += 1;
    }
    Ok(count)
}

/// Whether the head and 1,024 bytes of body are there.
fn is_whole(response: &[u8]) -> bool {
    outgate_tests::lab::find(response, b"\r\n\r\n")
        .is_some_and(|end| response.len() >= end + 4 + 1024)
}

/// How much the gateway grows by idle sandboxes, in KiB, and how many there were.
fn idle_memory(world: &World) -> Result<(f64, f64)> {
    let pid = world.gateway().pid();
    let before = proportional_kib(pid)?;
    let idle: Vec<_> = (0..IDLE_SANDBOXES)
        .map(|n| world.second_guest(&format!("idle-{n}"), RULES))
        .collect();
    let after = proportional_kib(pid)?;
    Ok((after.saturating_sub(before) as f64, idle.len() as f64))
}

/// The proportional set size of a process.
fn proportional_kib(pid: u32) -> Result<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .context("no Pss")?;
    Ok(line
        .split_whitespace()
        .nth(1)
        .context("no number")?
        .parse()?)
}
