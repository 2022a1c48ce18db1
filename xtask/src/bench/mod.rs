//! `cargo xtask bench boot|gateway|policy`: figures as a table, or with `--json` one line per figure.

mod boot;
mod gateway;
mod policy;

use std::collections::HashSet;

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
    /// Load time, memory and time a decision with ten thousand rules, beside Cedar
    Policy,
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
    /// The most that the value should be, where something was promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<f64>,
    conditions: String,
}

impl Figure {
    /// `≤ 500`, and whether that was missed.
    fn target(&self) -> String {
        match self.target {
            Some(target) if self.value > target => format!("≤ {target} MISSED"),
            Some(target) => format!("≤ {target}"),
            None => String::new(),
        }
    }
}

pub(crate) fn run(place: &Place, options: &BenchArguments) -> Result<()> {
    let figures = match options.what {
        Bench::Boot => {
            setup::run(place)?;
            boot::measure(place)?
        }
        Bench::Gateway => {
            setup::run(place)?;
            gateway::measure(place)?
        }
        // Needs no guest, so nothing is set up.
        Bench::Policy => policy::measure(place)?,
    };
    if options.json {
        for figure in &figures {
            println!("{}", serde_json::to_string(figure)?);
        }
        return Ok(());
    }
    print_table(&figures);
    Ok(())
}

fn print_table(figures: &[Figure]) {
    let mut table = Table::new(["case", "subject", "metric", "value", "unit", "target"]);
    for figure in figures {
        let value = if figure.value < 100.0 {
            format!("{:>10.2}", figure.value)
        } else {
            format!("{:>10.0}", figure.value)
        };
        table.row([
            figure.case.clone(),
            figure.subject.clone(),
            figure.metric.clone(),
            value,
            figure.unit.clone(),
            figure.target(),
        ]);
    }
    println!("\n{table}");
    let mut shown = HashSet::new();
    for figure in figures {
        if shown.insert(&figure.conditions) {
            println!("  {}", figure.conditions);
        }
    }
}

/// Figures that a program wrote, one JSON object a line.
fn read_figures(lines: &str) -> Result<Vec<Figure>> {
    lines
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_with_and_without_a_target_are_read() {
        let lines = r#"{"bench":"b","case":"c","subject":"s","metric":"m","value":2.5,"unit":"ms","conditions":""}
{"bench":"b","case":"c","subject":"s","metric":"m","value":2.5,"unit":"ms","target":2.0,"conditions":""}
{"bench":"b","case":"c","subject":"s","metric":"m","value":0.0,"unit":"","target":0.0,"conditions":""}"#;
        let figures = read_figures(lines).expect("these are figures");
        let targets: Vec<_> = figures.iter().map(Figure::target).collect();
        assert_eq!(targets, ["", "≤ 2 MISSED", "≤ 0"]);
        read_figures("error").expect_err("this is no figure");
    }
}
