//! Applies what the host says about this guest. Every step may be done again.

use std::path::Path;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};

use crate::{network, sys, trust};
use outgate_pid1::api::{ApiError, ConfigureReply, ConfigureRequest, ErrorCode};

/// Longest host name, in characters (`HOST_NAME_MAX`).
const MAX_HOSTNAME: usize = 64;

/// Sets the machine up: entropy before anything draws from it, the clock before anything checks a
/// certificate, the network last.
pub(crate) fn apply(root: &Path, request: &ConfigureRequest) -> Result<ConfigureReply, ApiError> {
    let entropy = unhex(&request.entropy).ok_or_else(|| {
        bad(
            "`entropy` is no hexadecimal text of at most 128 bytes",
            "send 64 random bytes as hex",
        )
    })?;
    check_hostname(&request.hostname)?;
    if request
        .network
        .as_ref()
        .is_some_and(|network| network.prefix > 32)
    {
        return Err(bad("`prefix` is no prefix length", "use 0 to 32"));
    }
    let mut steps = Vec::new();
    let mut done = |step: &str, outcome: std::io::Result<()>| {
        outcome.map_err(|error| failed(step, &error))?;
        steps.push(step.to_owned());
        Ok(())
    };
    done("entropy", sys::add_entropy(&entropy))?;
    done("clock", set_clock(request.wall_clock_ns))?;
    done(
        "hostname",
        nix::unistd::sethostname(&request.hostname).map_err(Into::into),
    )?;
    let dns = request.network.as_ref().map(|network| network.dns);
    done("names", network::write_names(root, &request.hostname, dns))?;
    if let Some(ca_pem) = &request.ca_pem {
        let stores = trust::install(root, ca_pem).map_err(|error| failed("ca", &error))?;
        steps.extend(stores);
    }
    network::configure(request.network.as_ref()).map_err(|error| failed("network", &error))?;
    steps.push("network".to_owned());
    let left_out = trust::java_stores(root);
    Ok(ConfigureReply { steps, left_out })
}

fn set_clock(nanoseconds: u64) -> std::io::Result<()> {
    let second = 1_000_000_000;
    let time = TimeSpec::new(
        i64::try_from(nanoseconds / second).unwrap_or(i64::MAX),
        i64::try_from(nanoseconds % second).unwrap_or(0),
    );
    Ok(clock_settime(ClockId::CLOCK_REALTIME, time)?)
}

fn check_hostname(name: &str) -> Result<(), ApiError> {
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !name.is_empty() && name.len() <= MAX_HOSTNAME && name.chars().all(named) {
        return Ok(());
    }
    Err(bad(
        "`hostname` is no host name",
        "use 1 to 64 of `a-z A-Z 0-9 . _ -`",
    ))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * sys::MAX_ENTROPY {
        return None;
    }
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair.first())? * 16 + digit(pair.get(1))?).ok();
    text.as_bytes().chunks(2).map(byte).collect()
}

fn failed(step: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(
        ErrorCode::Io,
        format!("{step}: {error}"),
        "see the message, and the image",
    )
}

fn bad(message: &str, how_to_fix: &str) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message, how_to_fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_bytes() {
        assert_eq!(unhex("00ff10"), Some(vec![0, 255, 16]));
        assert_eq!(unhex(""), Some(Vec::new()));
        for wrong in ["0", "zz", "+1", &"00".repeat(129), "é0"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }
}
