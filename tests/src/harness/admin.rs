//! The node's side of the gateway's admin socket: one JSON line with a file descriptor attached
//! to its first byte, one JSON line back, and a registration that lives as long as the connection.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::guest::GuestNetwork;

/// How long the gateway may take to compile a policy and answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sandbox as it is announced.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    pub id: String,
    pub labels: BTreeMap<String, String>,
    /// Name and text of each layer.
    pub policy: Vec<(String, String)>,
    /// What the guest already holds, by credential, when its link is registered again.
    pub placeholders: BTreeMap<String, String>,
    /// IP MTU of the link, if the gateway is not to choose.
    pub mtu: Option<u16>,
}

/// What the gateway said to a registration.
#[derive(Debug, Clone, Deserialize)]
pub struct Registered {
    pub ca_pem: String,
    /// Placeholders by variable name.
    pub env: BTreeMap<String, String>,
    /// The same by credential, to be handed back at a later registration.
    pub placeholders: BTreeMap<String, String>,
    pub network: GuestNetwork,
    pub policy_revision: String,
}

/// A refusal in the gateway's own words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Refused {
    pub code: String,
    pub message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Registered(Registered),
    Error(Refused),
}

/// A registration in force; dropping it releases the sandbox.
#[derive(Debug)]
pub struct Registration {
    pub granted: Registered,
    _connection: UnixStream,
}

/// Registers `spec` with `link` as its gateway end. The outer error is one of transport.
pub fn register(
    admin: &Path,
    spec: &SandboxSpec,
    link: BorrowedFd<'_>,
) -> Result<Result<Registration, Refused>> {
    let layer = |(name, text): &(String, String)| json!({ "name": name, "text": text });
    let request = json!({ "register": {
        "id": spec.id,
        "tier": "microvm",
        "labels": spec.labels,
        "policy": spec.policy.iter().map(layer).collect::<Vec<Value>>(),
        "placeholders": spec.placeholders,
        "mtu": spec.mtu,
    }});
    let mut connection = UnixStream::connect(admin)
        .with_context(|| format!("no gateway at `{}`", admin.display()))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    send_with_descriptor(&mut connection, format!("{request}\n").as_bytes(), link)?;
    let mut line = String::new();
    BufReader::new(&connection)
        .read_line(&mut line)
        .context("no answer from the gateway")?;
    let answer = serde_json::from_str(&line).with_context(|| format!("odd answer `{line}`"))?;
    Ok(match answer {
        Answer::Registered(granted) => Ok(Registration {
            granted,
            _connection: connection,
        }),
        Answer::Error(refused) => Err(refused),
    })
}

fn send_with_descriptor(
    connection: &mut UnixStream,
    line: &[u8],
    descriptor: BorrowedFd<'_>,
) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let (first, rest) = line.split_at(1);
    sendmsg(
        &*connection,
        &[IoSlice::new(first)],
        &mut control,
        SendFlags::empty(),
    )?;
    connection.write_all(rest)?;
    Ok(())
}
