//! Ten thousand rules in each shape, and two of the shapes in Cedar too: what loading costs, and what
//! a decision.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use outgate_policy::{CanonicalRequest, Policy, Source, Verdict};

use crate::cedar::{self, Cedar};
use crate::figure::{Figure, machine};
use crate::heap;
use crate::random::Random;
use crate::shape::{Case, SHAPES, Shape};
use crate::timing::{self, Effort, Times};

const RULES: usize = 10_000;
/// Loads of which the median counts.
const LOADS: usize = 5;
/// Decides the order of the requests.
const SEED: u64 = 1;

/// As many rules as are asked for in turn. With all of them each is out of the processor's caches
/// when its turn comes again: the most that a decision costs. A sandbox at work asks for few.
const ALL: usize = RULES;
const FEW: usize = 100;
const EFFORT: Effort = Effort {
    calls: 200_000,
    at_most: Duration::from_secs(10),
};

/// Cedar looks at every policy for every request: fewer of them say as much.
const CEDAR_REQUESTS: usize = 100;
const CEDAR_EFFORT: Effort = Effort {
    calls: 1_000,
    at_most: Duration::from_secs(10),
};

/// The most that Outgate should need.
mod target {
    pub(super) const LOAD_MS: f64 = 500.0;
    pub(super) const HEAP_MIB: f64 = 64.0;
    pub(super) const MEDIAN_NS: f64 = 1_000.0;
    pub(super) const P99_NS: f64 = 5_000.0;
    pub(super) const ALLOCATIONS: f64 = 0.0;
}

/// Writes every figure as soon as it is known.
pub(crate) fn run() -> Result<()> {
    let bench = Bench {
        clock: timing::clock(),
        machine: machine(),
    };
    for shape in SHAPES {
        bench.outgate(shape)?;
        if let Some(text) = shape.cedar_text(RULES) {
            bench.cedar(shape, &text)?;
        }
    }
    Ok(())
}

struct Bench {
    clock: Duration,
    machine: String,
}

impl Bench {
    fn outgate(&self, shape: &Shape) -> Result<()> {
        let sources = [Source::new("bench.yaml", shape.text(RULES))];
        let loaded = load(|| Policy::load(&sources).context("the policy doesn't load"))?;
        let report = Report {
            bench: self,
            shape,
            subject: "outgate",
            notes: String::new(),
        };
        report.loading(&loaded, true)?;
        for case in shape.cases {
            let requests = requests(case, ALL)?;
            let decide = |request: &CanonicalRequest| loaded.value.decide(request).verdict();
            // Also fills what is made when it is first needed, once a rule and thread.
            expect(case, requests.iter().map(decide))?;
            let allocations = allocations(&requests, decide);
            // The request is read whole, as the gateway has just done.
            let read = |request: &CanonicalRequest| drop(black_box(request.url()));
            let decide = |request: &CanonicalRequest| loaded.value.decide(request);
            for count in [ALL, FEW] {
                let requests = requests.get(..count).context("too few requests")?;
                let times = timing::each(requests, EFFORT, self.clock, read, decide);
                report.deciding(case, count, &times, true)?;
            }
            report.allocating(case, allocations, true)?;
        }
        report.heap("heap after decisions", loaded.held())
    }

    fn cedar(&self, shape: &Shape, text: &str) -> Result<()> {
        let loaded = load(|| Cedar::load(text))?;
        let report = Report {
            bench: self,
            shape,
            subject: "cedar",
            notes: format!(
                "; {}, no features; host as the resource, method as the action, path by `like`, whose \
                 `*` also crosses `/`; protocol and port are not compared (Outgate does); requests are \
                 built before; no schema",
                cedar::VERSION
            ),
        };
        report.loading(&loaded, false)?;
        for case in shape.cases {
            let requests = requests(case, CEDAR_REQUESTS)?;
            let requests: Vec<_> = requests.iter().map(cedar::request).collect::<Result<_>>()?;
            let decide = |request: &_| loaded.value.decide(request);
            expect(case, requests.iter().map(decide))?;
            let allocations = allocations(&requests, decide);
            let times = timing::each(&requests, CEDAR_EFFORT, self.clock, |_| {}, decide);
            report.deciding(case, requests.len(), &times, false)?;
            report.allocating(case, allocations, false)?;
        }
        Ok(())
    }
}

/// Requests about rules in random order, the same in every run.
fn requests(case: &Case, count: usize) -> Result<Vec<CanonicalRequest>> {
    let order = Random::new(SEED).shuffled(RULES);
    order
        .into_iter()
        .take(count)
        .map(|n| {
            let line = (case.line)(n);
            CanonicalRequest::from_line(&line).with_context(|| format!("`{line}`"))
        })
        .collect()
}

/// What is measured must be what it is said to be.
fn expect(case: &Case, verdicts: impl Iterator<Item = Verdict>) -> Result<()> {
    for verdict in verdicts {
        ensure!(
            verdict == case.verdict,
            "a request of `{}` got {verdict} instead of {}",
            case.name,
            case.verdict
        );
    }
    Ok(())
}

/// Allocations a decision.
fn allocations<T, R>(requests: &[T], decide: impl Fn(&T) -> R) -> f64 {
    let before = heap::allocations();
    for request in requests {
        black_box(decide(request));
    }
    (heap::allocations() - before) as f64 / requests.len() as f64
}

/// Something loaded, and what that took.
struct Loaded<T> {
    value: T,
    time: Duration,
    /// Bytes held before.
    before: i64,
    /// Bytes that it holds.
    heap: i64,
    /// Bytes held at most while it was loaded.
    peak: i64,
}

impl<T> Loaded<T> {
    /// Bytes held now over those held before loading; whoever asks holds nothing else.
    fn held(&self) -> i64 {
        heap::live() - self.before
    }
}

/// Loads several times; the time is the median.
fn load<T>(load: impl Fn() -> Result<T>) -> Result<Loaded<T>> {
    let once = || -> Result<Loaded<T>> {
        let before = heap::live();
        heap::restart_peak();
        let start = Instant::now();
        let value = load()?;
        Ok(Loaded {
            value,
            time: start.elapsed(),
            before,
            heap: heap::live() - before,
            peak: heap::peak() - before,
        })
    };
    let mut times = Vec::with_capacity(LOADS);
    for _ in 1..LOADS {
        times.push(once()?.time);
    }
    let last = once()?;
    times.push(last.time);
    times.sort_unstable();
    let time = times.get(LOADS / 2).copied().unwrap_or_default();
    Ok(Loaded { time, ..last })
}

/// Figures of one subject in one shape.
struct Report<'a> {
    bench: &'a Bench,
    shape: &'a Shape,
    subject: &'static str,
    notes: String,
}

impl Report<'_> {
    fn loading<T>(&self, loaded: &Loaded<T>, has_target: bool) -> Result<()> {
        let conditions = format!("{RULES} rules; median of {LOADS} loads from text");
        Figure {
            metric: "load",
            value: loaded.time.as_secs_f64() * 1e3,
            unit: "ms",
            target: has_target.then_some(target::LOAD_MS),
            ..self.figure("", &conditions)
        }
        .print()?;
        self.heap("heap at most while loading", loaded.peak)?;
        self.heap("heap", loaded.heap)
    }

    fn heap(&self, metric: &'static str, bytes: i64) -> Result<()> {
        let conditions = format!("{RULES} rules; bytes asked of the allocator");
        let has_target = self.subject == "outgate" && metric != "heap at most while loading";
        Figure {
            metric,
            value: bytes as f64 / (1024.0 * 1024.0),
            unit: "MiB",
            target: has_target.then_some(target::HEAP_MIB),
            ..self.figure("", &conditions)
        }
        .print()
    }

    fn deciding(
        &self,
        case: &Case,
        requests: usize,
        times: &Times,
        has_target: bool,
    ) -> Result<()> {
        let conditions = format!(
            "{RULES} rules; {} decisions over {requests} requests in turn, after two rounds to warm up; \
             one clock read before and one after each, {} ns for both taken off",
            times.len(),
            self.bench.clock.as_nanos()
        );
        let name = format!("{}, {requests} in turn", case.name);
        let quantiles = [
            ("median", 500, Some(target::MEDIAN_NS)),
            ("p99", 990, Some(target::P99_NS)),
            ("p99.9", 999, None),
        ];
        for (metric, parts, most) in quantiles {
            // A quantile with nothing beyond it is a maximum by another name.
            if times.len() * (1000 - parts) < 1000 {
                continue;
            }
            Figure {
                metric,
                value: times.per_mille(parts).as_nanos() as f64,
                unit: "ns",
                target: most.filter(|_| has_target),
                ..self.figure(&name, &conditions)
            }
            .print()?;
        }
        Ok(())
    }

    fn allocating(&self, case: &Case, allocations: f64, has_target: bool) -> Result<()> {
        let conditions = format!("{RULES} rules; in a second round over the requests");
        Figure {
            metric: "allocations",
            value: allocations,
            unit: "a decision",
            target: has_target.then_some(target::ALLOCATIONS),
            ..self.figure(case.name, &conditions)
        }
        .print()
    }

    /// What figures have in common.
    fn figure(&self, case: &str, conditions: &str) -> Figure {
        let shape = self.shape.name;
        Figure {
            bench: "policy",
            case: match case {
                "" => shape.to_owned(),
                _ => format!("{shape}: {case}"),
            },
            subject: self.subject,
            metric: "",
            value: 0.0,
            unit: "",
            target: None,
            conditions: format!("{conditions}; {}{}", self.bench.machine, self.notes),
        }
    }
}
