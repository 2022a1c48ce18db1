//! The loads: each puts one kind of work on a subject and says how much of it was done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::client::{Way, get, length, read_answer, read_head};

/// Kept connections that ask at the same time over HTTP/1.1.
pub(crate) const CONNECTIONS: usize = 32;
/// Connections and requests at a time on each over HTTP/2.
const H2_CONNECTIONS: usize = 4;
const H2_STREAMS: usize = 8;
/// Clients that connect again and again.
const CONNECTORS: usize = 8;
/// How long a load runs before it counts, and how long it counts.
const WARM_UP: Duration = Duration::from_secs(1);
const COUNTING: Duration = Duration::from_secs(4);

/// What a load found.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Things done while it counted.
    pub(crate) done: u64,
    pub(crate) elapsed: Duration,
    /// How long each of them took.
    pub(crate) latencies: Vec<Duration>,
}

impl Work {
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that so many per cent stay below.
    pub(crate) fn percentile(&mut self, percent: usize) -> Duration {
        self.latencies.sort_unstable();
        let at = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).copied().unwrap_or_default()
    }
}

/// When a load counts. `begun` is told as counting begins, for whoever measures the subject.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    from: Instant,
    until: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let from = Instant::now() + WARM_UP;
        Self {
            from,
            until: from + COUNTING,
        }
    }

    pub(crate) async fn counting_begins(self) {
        tokio::time::sleep_until(self.from.into()).await;
    }

    fn is_over(self) -> bool {
        Instant::now() >= self.until
    }

    fn count(self, latencies: &mut Vec<Duration>, sent: Instant) {
        let now = Instant::now();
        if now >= self.from && now < self.until {
            latencies.push(now - sent);
        }
    }
}

async fn gather(mut clients: JoinSet<Result<Vec<Duration>>>) -> Result<Work> {
    let mut latencies = Vec::new();
    while let Some(client) = clients.join_next().await {
        latencies.append(&mut client??);
    }
    Ok(Work {
        done: latencies.len() as u64,
        elapsed: COUNTING,
        latencies,
    })
}

/// 1 KiB answers on kept HTTP/1.1 connections; all as fast as they go, or so many a second in all.
pub(crate) async fn requests_h1(
    way: &Way,
    target: &Target,
    clock: Clock,
    rate: Option<f64>,
) -> Result<Work> {
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let (way, target) = (way.clone(), target.clone());
        clients.spawn(async move {
            let mut stream = way.open(&target.name, "http/1.1").await?;
            let request = get(&target.name, target.port, "/1k");
            let (mut buffer, mut latencies) = (Vec::with_capacity(4096), Vec::new());
            let pause = rate.map(|rate| Duration::from_secs_f64(CONNECTIONS as f64 / rate));
            let mut next =
                Instant::now() + pause.unwrap_or_default() * number as u32 / CONNECTIONS as u32;
            while !clock.is_over() {
                if let Some(pause) = pause {
                    tokio::time::sleep_until(next.into()).await;
                    next += pause;
                }
                let sent = Instant::now();
                stream.write_all(&request).await?;
                read_answer(&mut stream, &mut buffer).await?;
                clock.count(&mut latencies, sent);
            }
            Ok(latencies)
        });
    }
    gather(clients).await
}

/// 1 KiB answers on kept HTTP/2 connections.
pub(crate) async fn requests_h2(way: &Way, target: &Target, clock: Clock) -> Result<Work> {
    let mut clients = JoinSet::new();
    for _ in 0..H2_CONNECTIONS {
        let sender = way.open_h2(&target.name).await?;
        for _ in 0..H2_STREAMS {
            let (mut sender, uri) = (sender.clone(), target.uri("/1k"));
            clients.spawn(async move {
                let mut latencies = Vec::new();
                while !clock.is_over() {
                    let sent = Instant::now();
                    let request = Request::get(&uri).body(Full::<Bytes>::default())?;
                    let answer = sender.send_request(request).await?;
                    ensure!(answer.status().is_success(), "{}", answer.status());
                    let mut body = answer.into_body();
                    while let Some(frame) = body.frame().await {
                        frame?;
                    }
                    clock.count(&mut latencies, sent);
                }
                Ok(latencies)
            });
        }
    }
    gather(clients).await
}

/// One request on each new connection. `names` gives the name of each: always the same, whose
/// certificate is warm, or always another.
pub(crate) async fn handshakes(
    way: &Way,
    target: &Target,
    clock: Clock,
    names: impl Fn(u64) -> String + Clone + Send + 'static,
) -> Result<Work> {
    let next = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTORS {
        let (way, port, names, next) = (way.clone(), target.port, names.clone(), Arc::clone(&next));
        clients.spawn(async move {
            let (mut buffer, mut latencies) = (Vec::new(), Vec::new());
            while !clock.is_over() {
                let name = names(next.fetch_add(1, Ordering::Relaxed));
                let sent = Instant::now();
                let mut stream = way.open(&name, "http/1.1").await?;
                stream.write_all(&get(&name, port, "/1k")).await?;
                read_answer(&mut stream, &mut buffer).await?;
                clock.count(&mut latencies, sent);
            }
            Ok(latencies)
        });
    }
    gather(clients).await
}

/// One download of so many bytes; answers bytes per second.
pub(crate) async fn download(way: &Way, target: &Target, bytes: u64) -> Result<f64> {
    let mut stream = way.open(&target.name, "http/1.1").await?;
    let start = Instant::now();
    let request = get(&target.name, target.port, &format!("/bytes/{bytes}"));
    stream.write_all(&request).await?;
    let head = read_head(&mut stream).await?;
    ensure!(length(&head)? == bytes, "{head}");
    let mut buffer = vec![0; 256 * 1024];
    let mut received = 0;
    while received < bytes {
        let now = stream.read(&mut buffer).await?;
        ensure!(now > 0, "the download broke off after {received} bytes");
        received += now as u64;
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// One upload of so many bytes; answers bytes per second.
pub(crate) async fn upload(way: &Way, target: &Target, bytes: u64) -> Result<f64> {
    let mut stream = way.open(&target.name, "http/1.1").await?;
    let start = Instant::now();
    let head = format!(
        "POST /1k HTTP/1.1\r\nHost: {}:{}\r\nContent-Length: {bytes}\r\n\r\n",
        target.name, target.port
    );
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b'x'; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64) as usize;
        stream.write_all(&piece[..now]).await?;
        left -= now as u64;
    }
    stream.flush().await?;
    read_answer(&mut stream, &mut Vec::new()).await?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// Event streams side by side; the latency is that from the origin to here.
pub(crate) async fn events(
    way: &Way,
    target: &Target,
    clock: Clock,
    streams: usize,
    epoch: Instant,
) -> Result<Work> {
    let mut clients = JoinSet::new();
    for _ in 0..streams {
        let mut stream = way.open(&target.name, "http/1.1").await?;
        stream
            .write_all(&get(&target.name, target.port, "/events"))
            .await?;
        clients.spawn(async move {
            read_head(&mut stream).await?;
            let (mut text, mut latencies) = (Vec::new(), Vec::new());
            while !clock.is_over() {
                ensure!(
                    stream.read_buf(&mut text).await? > 0,
                    "a stream of events ended"
                );
                while let Some(end) = outgate_tests::lab::find(&text, b"\n\n") {
                    let event = String::from_utf8_lossy(&text[..end]).into_owned();
                    text.drain(..end + 2);
                    let (_, nanos) = event.split_once("data: ").context("no event")?;
                    clock.count(&mut latencies, epoch + Duration::from_nanos(nanos.parse()?));
                }
            }
            Ok(latencies)
        });
    }
    gather(clients).await
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Target {
    fn uri(&self, path: &str) -> String {
        format!("https://{}:{}{path}", self.name, self.port)
    }
}
