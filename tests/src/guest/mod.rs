//! A guest without a virtual machine: namespaces of its own, a TAP interface, and a pump to the
//! link. The gateway sees what a VM would give it (frames of a real Linux network stack, real
//! clients behind it) milliseconds after it was asked for.

mod http;
mod namespace;
mod program;
mod pump;
mod socket;
mod tap;

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use tempfile::TempDir;

pub use http::Reply;
pub(crate) use program::PATH;
pub use program::{Finished, Program};
pub use socket::{DnsReply, Ending, TlsStream, exchange, handshake, read_response, read_to_end};

pub use namespace::own_network;

use namespace::Namespace;
use pump::Pump;

/// What a full-size TCP window needs in flight as datagrams on one end of a link.
const LINK_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// The variables by which common clients find their trust anchors.
const CA_VARIABLES: [&str; 10] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

/// The network that the gateway assigns to a guest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GuestNetwork {
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub gateway: Ipv4Addr,
    pub dns: Ipv4Addr,
    /// IP MTU in bytes.
    pub mtu: u32,
    pub mac: String,
}

/// The two ends of a new link: the guest's and the gateway's.
pub fn link() -> io::Result<(OwnedFd, OwnedFd)> {
    let (guest, gateway) = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    for end in [&guest, &gateway] {
        // Without privileges the system's own limit stands, and the link is only slower.
        if sockopt::set_socket_send_buffer_size_force(end, LINK_BUFFER_BYTES).is_err() {
            sockopt::set_socket_send_buffer_size(end, LINK_BUFFER_BYTES)?;
        }
    }
    Ok((guest, gateway))
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    namespace: Namespace,
    _pump: Pump,
    network: GuestNetwork,
    environment: BTreeMap<String, String>,
    trust: Arc<RootCertStore>,
    folder: TempDir,
}

impl Guest {
    /// Puts a guest on its end of a link, with what the gateway said at registration: network,
    /// CA and placeholders.
    pub fn start(
        link: OwnedFd,
        network: GuestNetwork,
        ca_pem: &str,
        placeholders: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let bundle = folder.path().join("ca.pem");
        std::fs::write(&bundle, ca_pem)?;
        let mut trust = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            trust.add(certificate.context("the gateway's CA is not PEM")?)?;
        }
        let bundle = bundle.to_string_lossy().into_owned();
        let mut environment = placeholders.clone();
        environment.extend(CA_VARIABLES.map(|name| (name.to_owned(), bundle.clone())));
        let (namespace, tap) = Namespace::enter(&network, folder.path())?;
        let pump = Pump::start(tap, link)?;
        let trust = Arc::new(trust);
        Ok(Self {
            namespace,
            _pump: pump,
            network,
            environment,
            trust,
            folder,
        })
    }

    /// A program of this host, to be run inside.
    pub fn program(&self, name: &str) -> Program<'_> {
        Program::new(self, name)
    }

    /// The variables every program inside gets: trust anchors and placeholders.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// The guest's home and working folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The network as the gateway assigned it.
    pub fn network(&self) -> &GuestNetwork {
        &self.network
    }

    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn trust(&self) -> &Arc<RootCertStore> {
        &self.trust
    }
}
