//! The lab as a child process, and questions to its control endpoint.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::place::{Place, Profile};

/// Where everything in the lab is.
#[derive(Debug, Deserialize)]
pub(super) struct Description {
    pub(super) root_certificate: PathBuf,
    pub(super) dns: String,
    control: String,
}

/// A running lab; it ends when this does, since its input ends.
#[derive(Debug)]
pub(super) struct Lab {
    process: Child,
    pub(super) description: Description,
}

impl Lab {
    pub(super) fn start(place: &Place) -> Result<Self> {
        let mut process = place
            .command(place.program(Profile::Dev, "outgate-lab"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the lab")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the lab's output is piped")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let description = serde_json::from_str(&line).context("the lab did not start")?;
        Ok(Self {
            process,
            description,
        })
    }

    /// `/requests`, `/dns` or `/sink`, as a list.
    pub(super) fn ask(&self, path: &str) -> Result<Vec<Value>> {
        let address = self.description.control.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer
            .split_once("\r\n\r\n")
            .context("the lab gave no answer")?
            .1;
        Ok(serde_json::from_str(body)?)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It ends by itself; waiting only keeps it from being left as a zombie.
        let _ = self.process.wait();
    }
}
