//! Reading the audit log as an auditor's tool would: from its files, line by line.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::gateway::outgate;
use super::wait::eventually;
use crate::guest::Finished;

/// The log of one gateway home.
#[derive(Debug, Clone)]
pub struct AuditTrail {
    folder: PathBuf,
}

impl AuditTrail {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// A log in any folder, such as that of `outgate run --audit-dir`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Every complete record, in order.
    pub fn records(&self) -> Vec<Record> {
        let mut segments: Vec<PathBuf> = std::fs::read_dir(&self.folder)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        segments.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        });
        segments.sort();
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let segments: Vec<String> = segments.into_iter().map(text).collect();
        let lines = segments.iter().flat_map(|text| text.lines());
        lines
            .filter_map(|line| serde_json::from_str(line).ok().map(Record))
            .collect()
    }

    /// Waits for a record for which `wanted` holds.
    #[track_caller]
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Record) -> bool) -> Record {
        eventually(&format!("audit record: {what}"), || {
            self.records().into_iter().find(|record| wanted(record))
        })
    }

    /// Waits for the decision with this id.
    #[track_caller]
    pub fn decision(&self, id: &str) -> Record {
        self.wait_for(&format!("decision {id}"), |record| record.text("id") == id)
    }

    /// Waits for a record with this verdict, reason and host.
    #[track_caller]
    pub fn denial(&self, reason: &str, host: &str) -> Record {
        self.wait_for(&format!("deny {reason} {host}"), |record| {
            record.text("verdict") == "deny"
                && record.text("reason") == reason
                && record.text("host") == host
        })
    }

    /// The decisions on requests, oldest first.
    pub fn requests(&self) -> Vec<Record> {
        self.records()
            .into_iter()
            .filter(|record| record.text("kind") == "request")
            .collect()
    }

    /// `outgate audit verify` on this log.
    pub fn verify(&self) -> Finished {
        let program = outgate().expect("the program under test exists");
        let output = Command::new(program)
            .args(["audit", "verify"])
            .arg(&self.folder)
            .output();
        output.expect("`outgate audit verify` runs").into()
    }
}

/// One record.
#[derive(Debug, Clone)]
pub struct Record(pub Value);

impl Record {
    /// A text field, `rule.id` for one inside another; empty where there is none.
    pub fn text(&self, field: &str) -> &str {
        self.value(field).as_str().unwrap_or_default()
    }

    /// A number; 0 where there is none.
    pub fn number(&self, field: &str) -> u64 {
        self.value(field).as_u64().unwrap_or_default()
    }

    /// Any field; null where there is none.
    pub fn value(&self, field: &str) -> &Value {
        field.split('.').fold(&self.0, |value, name| &value[name])
    }
}
