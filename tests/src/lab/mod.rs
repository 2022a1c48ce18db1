//! The lab: everything that stands on the far side of a gateway under test, on loopback
//! addresses of its own. Upstreams record what they received, the name server records what it was
//! asked, and one upstream exists only to prove that nothing reached it.
//!
//! Names: `a.test`, `b.test`, `*.c.test` and any name set by [`Lab::name`] lead to one HTTPS and
//! HTTP origin that answers to every name, as a shared CDN does. `evil.test` is the sink.

mod addresses;
mod bad_tls;
mod body;
mod ca;
mod control;
mod dns;
mod gates;
mod git;
mod journal;
mod raw;
mod routes;
mod server;
mod sink;
mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;

pub use bad_tls::BadTls;
pub use body::{hex, pattern, pattern_sha256};
pub use ca::LabCa;
pub use dns::{DnsQuery, LabDns};
pub use gates::Gates;
pub use git::README as GIT_README;
pub use journal::{Journal, Received, ResponseState};
pub use raw::RawUpstream;
pub use sink::{SinkLog, Touch};
pub use wire::find;

use addresses::{AddressBlock, listen};
use ca::AnyName;
use control::Control;
use routes::Routes;

/// Which address of the block does what.
const ORIGIN: u8 = 1;
const SINK: u8 = 2;
const NAME_SERVER: u8 = 3;
const RAW: u8 = 4;
const FIRST_BAD_TLS: u8 = 16;

const HTTPS: u16 = 443;
const HTTP: u16 = 80;
const DNS: u16 = 53;
const CONTROL: u16 = 8080;

/// Ports of the sink: the web's, and what people leave open by accident.
const SINK_PORTS: [u16; 8] = [HTTP, HTTPS, 22, 853, 2375, 5432, 6379, 8080];

/// A running lab. Dropping it ends its servers.
#[derive(Debug)]
pub struct Lab {
    /// What the origin received.
    pub journal: Journal,
    /// Holds the origin back until a test lets it go on.
    pub gates: Gates,
    /// The name server's zone and log.
    pub dns: LabDns,
    /// What reached `evil.test`.
    pub sink: SinkLog,
    /// The upstream at `raw.test`.
    pub raw: RawUpstream,
    ca: Arc<LabCa>,
    block: AddressBlock,
    folder: TempDir,
    routes: Routes,
    // Last: the servers run until everything that refers to them is gone.
    runtime: Runtime,
}

impl Lab {
    /// Starts everything; returns once all sockets listen.
    pub fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("lab")
            .enable_all()
            .build()?;
        let (journal, gates) = (Journal::default(), Gates::default());
        let routes = Routes {
            journal: journal.clone(),
            gates: gates.clone(),
            git: Arc::default(),
        };
        let lab = Self {
            journal,
            gates,
            dns: LabDns::default(),
            sink: SinkLog::default(),
            raw: RawUpstream::default(),
            ca: Arc::new(LabCa::generate("Outgate lab root")?),
            block: AddressBlock::reserve()?,
            folder: tempfile::tempdir().context("cannot make a folder for the lab")?,
            routes,
            runtime,
        };
        std::fs::write(lab.root_certificate(), lab.ca.pem())?;
        lab.serve()?;
        for name in ["a.test", "b.test", "c.test", "*.c.test"] {
            lab.name(name);
        }
        for name in ["evil.test", "*.evil.test"] {
            lab.dns.set(name, &[lab.sink_address().into()]);
        }
        lab.dns.set("raw.test", &[lab.block.address(RAW).into()]);
        Ok(lab)
    }

    /// Lets `name` lead to the origin; `*.` in front stands for any name below.
    pub fn name(&self, name: &str) {
        self.dns.set(name, &[self.origin_address().into()]);
    }

    /// Lets the origin listen on another address too.
    pub fn serve_origin_at(&self, address: Ipv4Addr) -> Result<()> {
        let _context = self.runtime.enter();
        server::spawn(
            listen(address, HTTPS)?,
            Some(self.any_name(address)),
            self.routes.clone(),
        );
        server::spawn(listen(address, HTTP)?, None, self.routes.clone());
        Ok(())
    }

    /// Where the origin listens.
    pub fn origin_address(&self) -> Ipv4Addr {
        self.block.address(ORIGIN)
    }

    /// Where the sink listens.
    pub fn sink_address(&self) -> Ipv4Addr {
        self.block.address(SINK)
    }

    /// The root that signed the upstreams' certificates, in PEM.
    pub fn root_certificate(&self) -> PathBuf {
        self.folder.path().join("root.pem")
    }

    /// A folder that lives as long as the lab.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the name server takes queries.
    pub fn dns_address(&self) -> SocketAddr {
        (self.block.address(NAME_SERVER), DNS).into()
    }

    /// What a program outside needs to use this lab.
    pub fn description(&self) -> LabDescription {
        LabDescription {
            root_certificate: self.root_certificate(),
            dns: self.dns_address(),
            control: format!("http://{}:{CONTROL}", self.block.address(NAME_SERVER)),
            origin: self.origin_address().into(),
            sink: self.sink_address().into(),
        }
    }

    fn serve(&self) -> Result<()> {
        let _context = self.runtime.enter();
        self.serve_origin_at(self.origin_address())?;
        let raw = self.block.address(RAW);
        self.raw.spawn(listen(raw, HTTPS)?, &self.any_name(raw));
        for port in SINK_PORTS {
            self.sink.listen(listen(self.sink_address(), port)?);
        }
        let datagrams = std::net::UdpSocket::bind((self.sink_address(), HTTPS))?;
        datagrams.set_nonblocking(true)?;
        self.sink.receive(UdpSocket::from_std(datagrams)?);
        dns::spawn(&self.dns, self.dns_address())?;
        let control = Control {
            journal: self.journal.clone(),
            dns: self.dns.clone(),
            sink: self.sink.clone(),
            gates: self.gates.clone(),
        };
        control.spawn(listen(self.block.address(NAME_SERVER), CONTROL)?);
        self.serve_bad_tls()
    }

    fn serve_bad_tls(&self) -> Result<()> {
        for (n, fault) in (FIRST_BAD_TLS..).zip(BadTls::ALL) {
            let address = self.block.address(n);
            let listener = listen(address, HTTPS)?;
            self.dns.set(fault.name(), &[address.into()]);
            match fault.server_config(&self.ca)? {
                Some(tls) => server::spawn(listener, Some(tls), self.routes.clone()),
                None if fault == BadTls::ResetAtHello => bad_tls::spawn_resetting(listener),
                None => server::spawn(listener, None, self.routes.clone()),
            }
        }
        Ok(())
    }

    fn any_name(&self, address: Ipv4Addr) -> Arc<ServerConfig> {
        server::tls_config(Arc::new(AnyName::new(Arc::clone(&self.ca), address)))
    }
}

/// The one line that `outgate-lab` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LabDescription {
    /// PEM file of the root that signed the upstreams' certificates.
    pub root_certificate: PathBuf,
    /// Where the name server takes queries.
    pub dns: SocketAddr,
    /// Base URL: `/requests`, `/dns`, `/sink`, `/release/GATE`.
    pub control: String,
    /// Where `a.test`, `b.test` and `*.c.test` are served, on ports 443 and 80.
    pub origin: IpAddr,
    /// Where `evil.test` is served.
    pub sink: IpAddr,
}
