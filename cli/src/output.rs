//! Small things every command prints with.

use std::io::{self, Write};

/// Prints one line on standard output; a reader that went away (`| head`) is no failure.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Control characters, text-direction marks and whatever else moves a cursor, as escapes.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' '..='~' => safe.push(c),
            // `escape_debug` leaves printable letters of any script as they are, and knows the rest.
            _ => safe.extend(c.escape_debug()),
        }
    }
    safe
}

/// As [`printable`], and the lines stay lines.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}
