//! Small things every command prints with.

use std::io::{self, Write};

/// Prints one line on standard output; a reader that went away (`| head`) is no failure.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}
