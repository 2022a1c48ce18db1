//! Measures the audit log: appends per second and their latency, for callers that wait for each.
//!
//! ```text
//! cargo run --release -p outgate-gateway --example audit_throughput [DIR]
//! ```
//!
//! DIR (default: the temporary folder) decides which disk is measured.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outgate_gateway::audit::{
    AuditConfig, AuditLog, Durability, Event, EventKind, Ingress, QueryNames, SandboxRef, Timings,
    verify,
};
use outgate_policy::{Protocol, Reason, RuleRef, Verdict};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let base = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    println!(
        "{:<10} {:>8} {:>12} {:>10} {:>10}",
        "durability", "callers", "appends/s", "p50", "p99"
    );
    for (durability, callers, appends) in [
        (Durability::Buffered, 1, 20_000),
        (Durability::Buffered, 64, 200_000),
        (Durability::Buffered, 1024, 200_000),
        (Durability::Fsync, 1, 500),
        (Durability::Fsync, 64, 20_000),
        (Durability::Fsync, 1024, 100_000),
    ] {
        let dir = base.join(format!("outgate-audit-throughput-{}", std::process::id()));
        let result = measure(&dir, durability, callers, appends).await;
        std::fs::remove_dir_all(&dir)?;
        let Measured {
            per_second,
            p50,
            p99,
        } = result?;
        println!(
            "{:<10} {callers:>8} {per_second:>12.0} {p50:>10.1?} {p99:>10.1?}",
            format!("{durability:?}")
        );
    }
    Ok(())
}

struct Measured {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

async fn measure(
    dir: &Path,
    durability: Durability,
    callers: usize,
    appends: usize,
) -> Result<Measured, Failure> {
    let log = AuditLog::open(AuditConfig {
        durability,
        ..AuditConfig::new(dir.to_owned())
    })?;
    let sandbox = Arc::new(SandboxRef {
        id: "sb-01k3".to_owned(),
        tier: "microvm".to_owned(),
        ..SandboxRef::default()
    });
    let began = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (log, sandbox) = (log.clone(), Arc::clone(&sandbox));
            tokio::spawn(async move {
                let mut waits = Vec::with_capacity(appends / callers);
                for _ in 0..appends / callers {
                    let sent = Instant::now();
                    log.append(&decision(&sandbox)).await?;
                    waits.push(sent.elapsed());
                }
                Ok::<_, Failure>(waits)
            })
        })
        .collect();
    let mut waits = Vec::with_capacity(appends);
    for task in tasks {
        waits.append(&mut task.await??);
    }
    let elapsed = began.elapsed();
    let head = log.close().await?;
    if let Some(fault) = verify(dir, Some(head))?.fault {
        return Err(fault.to_string().into());
    }
    waits.sort_unstable();
    let at = |part: usize| {
        waits
            .get(waits.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    let per_second = waits.len() as f64 / elapsed.as_secs_f64();
    Ok(Measured {
        per_second,
        p50: at(50),
        p99: at(99),
    })
}

/// A record as a typical decision has it.
fn decision(sandbox: &Arc<SandboxRef>) -> Event {
    Event {
        sandbox: Some(Arc::clone(sandbox)),
        ingress: Some(Ingress::Link),
        verdict: Some(Verdict::Allow),
        reason: Some(Reason::Allowed),
        rule: Some(RuleRef {
            id: "api".into(),
            file: "policy.yaml".into(),
            line: 12,
            layer: 0,
        }),
        policy_revision: Some("5f".repeat(32)),
        protocol: Some(Protocol::Https),
        host: Some("api.example.com".to_owned()),
        port: Some(443),
        method: Some("GET".to_owned()),
        path: Some("/v1/repos/outgate/issues".to_owned()),
        query_names: QueryNames::of("page=1&per_page=100"),
        timings: Timings {
            decide: Some(Duration::from_micros(9)),
            ..Timings::default()
        },
        ..Event::new(EventKind::Request)
    }
}
