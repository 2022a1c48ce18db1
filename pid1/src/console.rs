//! What this process says on the console.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints one line. `println!` would end the process, and with it the machine, when the console
/// can't be written; nobody is left to tell that to, and the guest goes on.
pub(crate) fn say(line: impl Display) {
    let mut console = io::stdout().lock();
    if writeln!(console, "{line}").is_err() {
        // Nothing is left to say it on.
    }
}
