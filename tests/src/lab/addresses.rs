//! Loopback addresses of one lab: a block of 127.0.0.0/8 that no other lab on this machine uses,
//! so that suites run side by side on the real ports. Never an address outside loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context as _, Result, bail};

/// How many blocks are tried before giving up; far more than tests ever run at once.
const ATTEMPTS: u32 = 4096;

/// Blocks are /24 networks from 127.64.0.0 up: 16,384 of them, clear of 127.0.0.1 and of 127.0.0.53.
const BLOCKS: u32 = 16_384;

/// The port whose listener marks a block as taken. Nothing ever connects to it.
const MARKER_PORT: u16 = 65_000;

/// A reserved block; free again when dropped.
#[derive(Debug)]
pub(super) struct AddressBlock {
    base: u32,
    _marker: TcpListener,
}

impl AddressBlock {
    /// Takes the first free block, starting at one derived from the process id.
    pub(super) fn reserve() -> Result<Self> {
        let first = std::process::id() % BLOCKS;
        for attempt in 0..ATTEMPTS {
            let block = (first + attempt) % BLOCKS;
            let base = (127 << 24) | (64 << 16) | (block << 8);
            let marker = SocketAddr::from((Ipv4Addr::from(base | 1), MARKER_PORT));
            if let Ok(marker) = TcpListener::bind(marker) {
                return Ok(Self {
                    base,
                    _marker: marker,
                });
            }
        }
        bail!("no free block of loopback addresses after {ATTEMPTS} attempts")
    }

    /// The `n`th address of the block, `1..=254`.
    pub(super) fn address(&self, n: u8) -> Ipv4Addr {
        Ipv4Addr::from(self.base | u32::from(n))
    }
}

/// A listener, ready for tokio.
pub(super) fn listen(address: Ipv4Addr, port: u16) -> Result<tokio::net::TcpListener> {
    let at = SocketAddr::from((address, port));
    let listener = TcpListener::bind(at).with_context(|| match port {
        ..1024 => {
            format!("cannot listen on {at}: run as root, or by `unshare --map-root-user --net`")
        }
        _ => format!("cannot listen on {at}"),
    })?;
    listener.set_nonblocking(true)?;
    Ok(tokio::net::TcpListener::from_std(listener)?)
}
