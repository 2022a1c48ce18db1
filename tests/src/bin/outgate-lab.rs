//! Runs the lab in the foreground: prints one JSON line that says where everything is, and ends
//! when its standard input does.

use std::io::{Read as _, Write as _};

use outgate_tests::lab::Lab;

fn main() -> anyhow::Result<()> {
    let lab = Lab::start()?;
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &lab.description())?;
    writeln!(stdout)?;
    stdout.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
