//! The command line of `outgate run`, parsed into values before anything is started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::gateway::UpstreamArgs;

/// Run a command in a sandbox of its own.
///
/// Boots a microVM whose only network is the gateway, runs CMD in it, passes output, input and exit
/// code through, and removes everything at the end.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Policy file, `preset:NAME`, or a folder of policies that select sandboxes by label; give it
    /// several times to add layers, all of which must allow a request
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) policy: Vec<PathBuf>,
    /// Guest image: `default`, `debian:SUITE+PACKAGE,…`, or the path of a folder or image file
    #[arg(long, default_value = "default", value_name = "IMAGE")]
    pub(crate) image: String,
    /// Virtual CPUs
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) cpus: u8,
    /// Guest memory, such as 512M or 2G; a bare number is MiB
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = mebibytes)]
    pub(crate) memory: u32,
    /// Size limit of the guest's writable disk
    #[arg(long, default_value = "8G", value_name = "SIZE", value_parser = mebibytes)]
    pub(crate) disk: u32,
    /// Isolation tier
    #[arg(long, default_value = "microvm")]
    pub(crate) tier: Tier,
    /// Set an environment variable of the command; `K` alone takes its value from here
    #[arg(long, short = 'e', value_name = "K=V", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory of the command
    #[arg(long, short = 'w', value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User of the command, by name or as `UID` or `UID:GID`
    #[arg(long, short = 'u', value_name = "USER")]
    pub(crate) user: Option<String>,
    /// End the command after this long, such as 90s, 10m or 2h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// How long the guest may take to boot and answer
    #[arg(long, default_value = "90s", value_name = "TIME", value_parser = duration)]
    pub(crate) boot_timeout: Duration,
    /// Pass standard input to the command
    #[arg(long, short = 'i')]
    pub(crate) interactive: bool,
    /// Give the command a terminal
    #[arg(long, short = 't')]
    pub(crate) tty: bool,
    /// Id of the sandbox in the audit log [default: a new one]
    #[arg(long, value_name = "ID")]
    pub(crate) name: Option<String>,
    /// Label recorded with every audit event
    #[arg(long, value_name = "K=V", value_parser = variable)]
    pub(crate) label: Vec<(String, String)>,
    /// Write events as JSON lines on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress line
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Use the gateway that listens at this admin socket instead of one in this process
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["audit_dir", "upstream_ca", "dns", "audit_fsync"])]
    pub(crate) gateway: Option<PathBuf>,
    /// Folder of the audit log [default: a new one in the state folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) audit_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Folder for images and kernels [default: ~/.cache/outgate]
    #[arg(long, env = "OUTGATE_CACHE", value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// When the command has ended, write the guest's memory to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) dump_memory: Option<PathBuf>,
    /// When the command has ended, keep a copy of the guest's writable disk in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) keep_disk: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// How the sandbox is isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// A QEMU microVM
    Microvm,
}

impl Tier {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
        }
    }
}

impl RunArgs {
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.label.iter().cloned().collect()
    }
}

/// `512M`, `2G` or MiB as a bare number, in MiB.
fn mebibytes(text: &str) -> Result<u32, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'M' | b'm') => (text.get(..text.len() - 1), 1),
        Some(b'G' | b'g') => (text.get(..text.len() - 1), 1024),
        _ => (Some(text), 1),
    };
    digits
        .and_then(|digits| digits.parse::<u32>().ok())
        .and_then(|number| number.checked_mul(factor))
        .filter(|&mebibytes| mebibytes > 0)
        .ok_or_else(|| format!("`{text}` is no size; write it like 512M or 2G"))
}

/// `90s`, `10m`, `2h`, or seconds as a bare number.
fn duration(text: &str) -> Result<Duration, String> {
    let (digits, seconds) = match text.as_bytes().last() {
        Some(b's') => (text.get(..text.len() - 1), 1),
        Some(b'm') => (text.get(..text.len() - 1), 60),
        Some(b'h') => (text.get(..text.len() - 1), 3600),
        _ => (Some(text), 1),
    };
    digits
        .and_then(|digits| digits.parse::<u64>().ok())
        .and_then(|number| number.checked_mul(seconds))
        .filter(|&seconds| seconds > 0)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("`{text}` is no time; write it like 90s, 10m or 2h"))
}

/// `K=V`, or `K` for the value it has here.
fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => {
            let value = std::env::var(text)
                .map_err(|_| format!("`{text}` has no value here; write it like {text}=VALUE"))?;
            (text, value)
        }
    };
    if name.is_empty() || name.contains('\0') || value.contains('\0') {
        return Err(format!("`{text}` is no variable; write it like NAME=VALUE"));
    }
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mebibytes() {
        assert_eq!(mebibytes("512M"), Ok(512));
        assert_eq!(mebibytes("2G"), Ok(2048));
        assert_eq!(mebibytes("64"), Ok(64));
        for wrong in ["", "0", "-1", "G", "5T", "1.5G", "4194304G"] {
            let message = format!("`{wrong}` is no size; write it like 512M or 2G");
            assert_eq!(mebibytes(wrong), Err(message));
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        for wrong in ["", "0", "s", "1d", "-3", "18446744073709551615h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_keep_their_equals_signs() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(variable("A="), Ok(("A".to_owned(), String::new())));
        assert!(variable("=b").is_err());
        assert!(variable("OUTGATE_TEST_NO_SUCH_VARIABLE").is_err());
    }
}
