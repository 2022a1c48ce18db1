//! `cargo xtask bench boot|gateway`: figures as a table, or with `--json` one line per figure.

mod boot;
mod gateway;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::place::Place;
use crate::setup;
use crate::table::Table;

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// What to measure
    what: Bench,
    /// One JSON object a line on standard output, instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Bench {
    /// From the command line to the first output of a command in a new guest
    Boot,
    /// Throughput, requests per second and memory of the gateway, next to no gateway at all
    Gateway,
}

/// One measured value; every bench of the project writes this form.
#[derive(Debug, Serialize, Deserialize)]
struct Figure {
    bench: String,
    case: String,
    subject: String,
    metric: String,
    value: f64,
    unit: String,
    conditions: String,
}

pub(crate) fn run(place: &Place, options: &BenchArguments) -> Result<()> {
    setup::run(place)?;
    let figures = match options.what {
        Bench::Boot => boot::measure(place)?,
        Bench::Gateway => gateway::measure(place)?,
    };
    if options.json {
        for figure in &figures {
            println!("{}", serde_json::to_string(figure)?);
        }
        return Ok(());
    }
    let mut table = Table::new(["case", "subject", "metric", "value", "unit"]);
    for figure in &figures {
        let Figure {
            case,
            subject,
            metric,
            value,
            unit,
            ..
        } = figure;
        let value = if *value < 100.0 {
            format!("{value:>10.2}")
        } else {
            format!("{value:>10.0}")
        };
        table.row([
            case.clone(),
            subject.clone(),
            metric.clone(),
            value,
            unit.clone(),
        ]);
    }
    println!("\n{table}");
    let mut conditions: Vec<_> = figures
        .iter()
        .map(|figure| figure.conditions.as_str())
        .collect();
    conditions.dedup();
    for conditions in conditions {
        println!("  {conditions}");
    }
    Ok(())
}
