//! Steps: each is announced, timed and named again when it fails.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Announces `name`, does the work and says how long it took.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("── {name}");
    let start = Instant::now();
    let result = work().with_context(|| format!("step `{name}` failed"))?;
    eprintln!("   {name}: {}", human(start.elapsed()));
    Ok(result)
}

/// Runs a command that must end well. What it prints goes to standard error: standard output is
/// for results alone.
pub(crate) fn must(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot run `{name}`"))?;
    if !status.success() {
        bail!("{} ended with {status}", display(command));
    }
    Ok(())
}

/// Runs a command that must end well and gives back what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run `{name}`"))?;
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} ended with {}: {}",
            display(command),
            output.status,
            problem.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `0.42 s`, `12.3 s`, `3 min 05 s`.
pub(crate) fn human(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..10.0 => format!("{seconds:.2} s"),
        ..60.0 => format!("{seconds:.1} s"),
        _ => format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60),
    }
}

fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_for_people() {
        assert_eq!(human(Duration::from_millis(420)), "0.42 s");
        assert_eq!(human(Duration::from_millis(12_340)), "12.3 s");
        assert_eq!(human(Duration::from_secs(185)), "3 min 05 s");
    }

    #[test]
    fn a_failing_command_is_named_with_its_arguments() {
        let error = must(Command::new("false").arg("--why")).expect_err("`false` fails");
        assert_eq!(error.to_string(), "`false --why` ended with exit status: 1");
    }
}
