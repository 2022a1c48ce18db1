//! One measured value as a line of JSON, in the form that every bench of the project writes.

use serde::Serialize;

/// A measured value. `cargo xtask bench` reads these.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) bench: &'static str,
    pub(crate) case: String,
    pub(crate) subject: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The most that the value should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<f64>,
    pub(crate) conditions: String,
}

impl Figure {
    /// Writes the figure at once: a long run shows where it is.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// The processor and the number of cores, for `conditions`.
pub(crate) fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}
