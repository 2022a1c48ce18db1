//! Random policies and requests, decided by Outgate and by Cedar: the verdicts must be equal.
//!
//! Each policy is written in both languages from one model ([`model`]), so that a difference is one
//! of meaning: in what a pattern matches, which rule wins or how layers meet.

mod model;
mod path;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use outgate_policy::{CanonicalRequest, Decision, Policy, Reason, Source, Verdict};

use self::model::Model;
use crate::cedar::{self, Cedar};
use crate::figure::{Figure, machine};
use crate::random::Random;

/// Requests a policy.
const REQUESTS: usize = 16;

/// Options of `oracle`.
#[derive(Debug, Args)]
pub(crate) struct OracleArguments {
    /// Random policies to compare
    #[arg(long, default_value_t = 20_000)]
    cases: u64,
    /// Determines policies and requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// True when every verdict was equal; the first difference is written to standard error.
pub(crate) fn run(options: &OracleArguments) -> Result<bool> {
    let mut counts = Counts::default();
    for case in 0..options.cases {
        // Each case has a seed of its own, so that one can be repeated alone.
        let seed = options.seed.wrapping_add(case);
        match compare(seed).with_context(|| repeat(seed))? {
            Compared::Equal(equal) => counts.add(equal),
            Compared::Different(difference) => {
                eprintln!("{difference}\n{}", repeat(seed));
                return Ok(false);
            }
        }
    }
    let decisions = options.cases * REQUESTS as u64;
    let Counts { allowed, denied } = counts;
    ensure!(
        options.cases < 100 || allowed.min(denied) > decisions / 20,
        "of {decisions} requests {allowed} were allowed and {denied} denied by a rule: such cases \
         show too little"
    );
    Figure {
        bench: "policy",
        case: "random policies in both languages".to_owned(),
        subject: "outgate and cedar",
        metric: "equal verdicts",
        value: decisions as f64,
        unit: "of as many",
        target: None,
        conditions: format!(
            "{} policies, seed {}, {allowed} requests allowed, {denied} denied by a rule; {}; {}",
            options.cases,
            options.seed,
            cedar::VERSION,
            machine()
        ),
    }
    .print()?;
    Ok(true)
}

fn repeat(seed: u64) -> String {
    format!("repeat this case with: oracle --cases 1 --seed {seed}")
}

/// Verdicts that a rule gave; the others are default denies.
#[derive(Debug, Default)]
struct Counts {
    allowed: u64,
    denied: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
    }

    fn count(&mut self, decision: &Decision) {
        self.allowed += u64::from(decision.verdict() == Verdict::Allow);
        self.denied += u64::from(decision.reason() == Reason::RuleDeny);
    }
}

enum Compared {
    Equal(Counts),
    /// Both texts, the request and both verdicts.
    Different(String),
}

fn compare(seed: u64) -> Result<Compared> {
    let mut random = Random::new(seed);
    let model = Model::random(&mut random);
    let yaml: Vec<String> = model.layers().map(|layer| layer.yaml()).collect();
    let cedar: Vec<String> = model.layers().map(|layer| layer.cedar()).collect();
    let texts = || {
        format!(
            "── Outgate\n{}\n── Cedar\n{}",
            yaml.join("---\n"),
            cedar.join("// and\n")
        )
    };
    let sources: Vec<Source> = yaml
        .iter()
        .enumerate()
        .map(|(at, text)| Source::new(format!("layer{at}.yaml"), text.as_str()))
        .collect();
    let policy = Policy::load(&sources).with_context(texts)?;
    let sets: Vec<Cedar> = cedar
        .iter()
        .map(|text| Cedar::load(text))
        .collect::<Result<_>>()
        .with_context(texts)?;
    let mut counts = Counts::default();
    for _ in 0..REQUESTS {
        let line = model.random_request(&mut random);
        let request = CanonicalRequest::from_line(&line).with_context(|| line.clone())?;
        let decision = policy.decide(&request);
        let ours = decision.verdict();
        let theirs = all_allow(&sets, &request).with_context(texts)?;
        if ours != theirs {
            return Ok(Compared::Different(format!(
                "{}\n── {line}\nOutgate: {ours}, Cedar: {theirs}",
                texts()
            )));
        }
        counts.count(&decision);
    }
    Ok(Compared::Equal(counts))
}

/// Layers intersect.
fn all_allow(sets: &[Cedar], request: &CanonicalRequest) -> Result<Verdict> {
    let request = cedar::request(request)?;
    for set in sets {
        if set.decide_strictly(&request)? == Verdict::Deny {
            return Ok(Verdict::Deny);
        }
    }
    Ok(Verdict::Allow)
}
