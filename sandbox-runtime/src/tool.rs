//! Running the host's own programs: quiet when they work, their own words when they don't.

use std::io;
use std::process::{Command, Output, Stdio};

use crate::error::RuntimeError;

/// How much of a failed program's messages is shown, lines from the end.
const SHOWN_LINES: usize = 12;

/// Runs `command` to its end.
///
/// # Errors
/// [`RuntimeError::Environment`] with the program's last messages, or with the package to install
/// when there is no such program.
pub(crate) fn run(command: &mut Command) -> Result<(), RuntimeError> {
    output(command).map(drop)
}

/// Runs `command` and returns what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, RuntimeError> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_started(command, &error))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    Err(failed(
        command,
        &status.to_string(),
        &String::from_utf8_lossy(&stderr),
    ))
}

pub(crate) fn not_started(command: &Command, error: &io::Error) -> RuntimeError {
    let name = command.get_program().to_string_lossy().into_owned();
    if error.kind() == io::ErrorKind::NotFound {
        let advice = match package_of(&name) {
            Some(package) => format!("install it: `apt-get install {package}`"),
            None => "install it".to_owned(),
        };
        return RuntimeError::environment(format!("the program `{name}` is not found"), advice);
    }
    RuntimeError::environment(
        format!("the program `{name}` can't be started: {error}"),
        "check its permissions",
    )
}

pub(crate) fn failed(command: &Command, status: &str, messages: &str) -> RuntimeError {
    let name = command.get_program().to_string_lossy();
    let lines: Vec<&str> = messages.trim_end().lines().collect();
    let shown = lines
        .get(lines.len().saturating_sub(SHOWN_LINES)..)
        .unwrap_or_default()
        .join("\n");
    let advice = if messages.contains("No space left on device") {
        "the disk is full: free some space, or point OUTGATE_CACHE at a larger disk"
    } else {
        "its own messages say why"
    };
    RuntimeError::environment(
        format!("`{name}` failed ({status})"),
        format!("{advice}:\n{shown}"),
    )
}

/// The Debian package that brings a program.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    Some(match program {
        "qemu-system-x86_64" => "qemu-system-x86",
        "mmdebstrap" => "mmdebstrap",
        "mkfs.erofs" => "erofs-utils",
        "mkfs.ext4" => "e2fsprogs",
        "dpkg-deb" => "dpkg",
        "apt-get" | "apt-cache" | "apt-config" => "apt",
        "xz" => "xz-utils",
        "zstd" => "zstd",
        _ => return None,
    })
}

/// Whether a program is on the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// Where a program is. System folders count even where a user's search path leaves them out.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}
