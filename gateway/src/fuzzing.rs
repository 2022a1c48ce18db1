//! What the fuzz targets see of the inside: thin, without decisions of its own, and no part of the
//! public interface.

use crate::http::fuzzing as proxy;
use crate::listener::message::{self, Command};
use crate::listener::{Sniffed, Sniffer};

pub use proxy::{ProxyHead, proxy_head};

/// What the first message of SOCKS5 in some bytes is, and how many it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocksMessage {
    /// Bytes of the message.
    pub length: usize,
    /// The destination of a CONNECT that may be judged, in canonical form.
    pub authority: Option<String>,
    /// What a record says of the request.
    pub target: String,
}

/// Reads a greeting.
///
/// # Errors
/// What is wrong with it.
pub fn socks_greeting(input: &[u8]) -> Result<Option<usize>, String> {
    let read = message::greeting(input).map_err(|reject| reject.detail)?;
    Ok(read.map(|(_, rest)| input.len() - rest.len()))
}

/// Reads user and password, and gives their lengths.
///
/// # Errors
/// What is wrong with it.
pub fn socks_credentials(input: &[u8]) -> Result<Option<(usize, usize)>, String> {
    let read = message::credentials(input).map_err(|reject| reject.detail)?;
    Ok(read.map(|(read, _)| (read.user.len(), read.password.len())))
}

/// Reads a request.
///
/// # Errors
/// What is wrong with it.
pub fn socks_request(input: &[u8]) -> Result<Option<SocksMessage>, String> {
    let read = message::request(input).map_err(|error| format!("{error:?}"))?;
    Ok(read.map(|(request, rest)| SocksMessage {
        length: input.len() - rest.len(),
        authority: (request.command == Command::Connect)
            .then(|| request.authority().ok())
            .flatten()
            .map(|authority| authority.to_string()),
        target: request.target(),
    }))
}

/// What a connection's first bytes say, when they are looked at in pieces of `step` bytes: the name
/// of TLS or the text of `Host`, and after how many bytes.
///
/// # Errors
/// What is wrong with them.
pub fn sniff(input: &[u8], step: usize) -> Result<Option<(usize, Option<String>)>, String> {
    let mut sniffer = Sniffer::new();
    let mut end = 0;
    while end < input.len() {
        end = input.len().min(end + step.max(1));
        let come = input.get(..end).unwrap_or_default();
        let found = sniffer.look(come).map_err(|reject| reject.detail)?;
        if let Some(found) = found {
            let name = match found {
                Sniffed::Tls(name) => name.map(|name| name.as_str().to_owned()),
                Sniffed::Http(host) => host,
                Sniffed::Other => None,
            };
            return Ok(Some((end, name)));
        }
    }
    Ok(None)
}
