//! Prints what loading ten thousand rules and deciding among them costs. Run it in a release build
//! on a quiet machine: `cargo run --release -p outgate-policy --example decision_cost`.

use std::time::Instant;

use outgate_policy::{CanonicalRequest, Policy, Source};

const RULES: usize = 10_000;
const ROUNDS: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules: String = (0..RULES)
        .map(|at| {
            format!(
                "  - {{ id: r{at}, action: allow, to: {{ hosts: [h{at}.example.com] }}, http: {{ \
                 methods: [GET], paths: [\"/repos/o{at}/**\", \"/user/*/keys\"] }} }}\n"
            )
        })
        .collect();
    let start = Instant::now();
    let policy = Policy::load(&[Source::new(
        "p.yaml",
        format!("version: 1\nrules:\n{rules}"),
    )])?;
    println!("load {RULES} rules: {:?}", start.elapsed());
    for line in [
        "GET https://h7777.example.com/repos/o7777/x/y",
        "GET https://h7777.example.com/other",
        "GET https://unknown.example.org/",
    ] {
        let request = CanonicalRequest::from_line(line).map_err(|reject| reject.detail)?;
        let mut times: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                std::hint::black_box(policy.decide(std::hint::black_box(&request)).verdict());
                start.elapsed()
            })
            .collect();
        times.sort();
        let at = |share: usize| {
            times
                .get(times.len() * share / 100)
                .copied()
                .unwrap_or_default()
        };
        println!("{line}: median {:?}, p99 {:?}", at(50), at(99));
    }
    Ok(())
}
