//! The head of a proxy's request, for the fuzz targets.

use super::super::front::{Role, connect, head};
use super::requests::destination;

/// What a head was read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHead {
    /// Bytes of the head.
    pub length: usize,
    /// The method.
    pub method: String,
    /// Where it goes, in canonical form.
    pub authority: String,
    /// The target as it was sent.
    pub target: String,
    /// The value of `Proxy-Authorization` in a CONNECT.
    pub credentials: Option<Vec<u8>>,
}

/// Reads a head. `None` when more is needed.
///
/// # Errors
/// What is wrong with it.
pub fn proxy_head(input: &[u8]) -> Result<Option<ProxyHead>, String> {
    let mut seen = 0;
    let Some(length) = head::find_end(input, &mut seen).map_err(|reject| reject.detail)? else {
        return Ok(None);
    };
    let bytes = input.get(..length).unwrap_or_default();
    if connect::is_connect(bytes) {
        let read = connect::parse(bytes).map_err(|reject| reject.detail)?;
        let authority = read.authority().map_err(|reject| reject.detail)?;
        return Ok(Some(ProxyHead {
            length,
            method: "CONNECT".to_owned(),
            authority: authority.to_string(),
            target: read.target(),
            credentials: read.credentials,
        }));
    }
    let read = head::parse(bytes, Role::Proxy).map_err(|reject| reject.detail)?;
    let url = destination(&read.target).map_err(|reject| reject.detail)?;
    Ok(Some(ProxyHead {
        length,
        method: read.method,
        authority: url.authority.to_string(),
        target: read.target,
        credentials: None,
    }))
}
