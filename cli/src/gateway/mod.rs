//! `outgate gateway`: a gateway process of its own, for nodes and for other people's isolation.

mod ask;
mod notify;
mod plan;
mod reload;
mod serve;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use outgate_gateway::audit::{AuditConfig, Durability};
use outgate_gateway::link::DeniedNames;
use outgate_gateway::upstream::{
    DnsServer, NextHopConfig, NoProxy, ProxyAddress, ProxyCredentials, ResolverConfig,
    UpstreamConfig,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::exit::{Code, Failure};

use self::ask::Ask;
use self::plan::Plan;

/// How a gateway reaches upstreams: shared by `outgate run` and `outgate gateway`.
#[derive(Debug, Args)]
pub(crate) struct UpstreamArgs {
    /// Trust these root certificates (PEM) upstream, beside the system's
    #[arg(long = "upstream-ca", value_name = "FILE")]
    upstream_ca: Vec<PathBuf>,
    /// Ask this name server instead of the system's: IP or IP:PORT, tcp://IP, tls://IP#NAME or
    /// https://IP/PATH#NAME, where NAME is in the server's certificate; may be given several times
    #[arg(long, value_name = "SERVER")]
    dns: Vec<DnsServer>,
    /// Go through this proxy by CONNECT: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "PROXY")]
    next_hop: Option<ProxyAddress>,
    /// Where the next hop's `user:password` is: env:VARIABLE or file:PATH
    #[arg(long, value_name = "PLACE", requires = "next_hop")]
    next_hop_credentials: Option<ProxyCredentials>,
    /// Go past the next hop to these, separated by commas: names, `*.` and a name for all below it,
    /// addresses, networks
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        requires = "next_hop"
    )]
    no_proxy: Vec<NoProxy>,
    /// Ask the next hop for names, so that only the proxy decides which address they lead to
    #[arg(long, requires = "next_hop")]
    danger_next_hop_resolves: bool,
    /// Tell guests that names no rule can match do not exist, or that they are refused
    /// [default: nxdomain]
    #[arg(long, value_name = "ANSWER", value_enum)]
    denied_names: Option<DeniedNamesArg>,
    /// Write each audit record through to the disk before the request goes on
    #[arg(long)]
    audit_fsync: bool,
}

/// What guests are told of names that no rule can match.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeniedNamesArg {
    Nxdomain,
    Refused,
}

impl UpstreamArgs {
    /// # Errors
    /// When a root file can't be read or holds no certificate.
    pub(crate) fn upstream_config(&self) -> anyhow::Result<UpstreamConfig> {
        let mut config = UpstreamConfig {
            next_hop: self.next_hop.clone().map(|proxy| NextHopConfig {
                proxy,
                credentials: self.next_hop_credentials.clone(),
                no_proxy: self.no_proxy.clone(),
                danger_proxy_resolves: self.danger_next_hop_resolves,
            }),
            resolver: ResolverConfig {
                servers: self.dns.clone(),
            },
            ..UpstreamConfig::default()
        };
        for path in &self.upstream_ca {
            config
                .extra_roots
                .extend(certificates("--upstream-ca", path)?);
        }
        Ok(config)
    }

    pub(crate) fn denied_names(&self) -> Option<DeniedNames> {
        self.denied_names.map(|answer| match answer {
            DeniedNamesArg::Nxdomain => DeniedNames::NxDomain,
            DeniedNamesArg::Refused => DeniedNames::Refused,
        })
    }

    pub(crate) fn audit_config(&self, dir: PathBuf) -> AuditConfig {
        let durability = if self.audit_fsync {
            Durability::Fsync
        } else {
            Durability::Buffered
        };
        AuditConfig {
            durability,
            ..AuditConfig::new(dir)
        }
    }
}

/// The certificates of a PEM file that `option` names.
fn certificates(option: &str, path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| {
            let message = format!("{option} `{}` can't be read: {error}", path.display());
            Failure::new(Code::Usage, message)
        })?;
    if found.is_empty() {
        let message = format!("{option} `{}` holds no PEM certificate", path.display());
        return Err(Failure::new(Code::Usage, message).into());
    }
    Ok(found)
}

/// Run a gateway of its own.
///
/// Nodes hand over links on the admin socket (`outgate run --gateway SOCKET`), and clients of other
/// people's isolation connect to the listeners of the configuration file (docs/gateway.md). The gateway
/// may be stopped, killed and started again: links come back by themselves, and while it is down the
/// sandboxes have no network. SIGHUP reads the configuration file again. Ends on SIGTERM or Ctrl-C.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    ask: Option<Ask>,
    /// Configuration file: listeners, sandboxes, and everything below
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read the configuration and all that it names, say what is wrong, and start nothing
    #[arg(long, requires = "config")]
    check: bool,
    /// Unix socket that nodes register at
    #[arg(long, value_name = "SOCKET", required_unless_present = "config")]
    admin: Option<PathBuf>,
    /// At the end, how long answers under way may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
    /// Folder of the audit log [default: `audit/gateway` in the state folder]
    #[arg(long, value_name = "DIR")]
    audit_dir: Option<PathBuf>,
    /// Folder of the certificate authority, made on first start [default: `ca` in the state folder]
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<PathBuf>,
    #[command(flatten)]
    upstream: UpstreamArgs,
}

/// Runs until a signal.
///
/// # Errors
/// When the gateway can't start; nothing is listening then.
pub(crate) fn main(args: &GatewayArgs) -> anyhow::Result<ExitCode> {
    if let Some(ask) = &args.ask {
        return ask::main(ask);
    }
    let plan = Plan::new(args)?;
    if args.check {
        println!(
            "the configuration loads: {} listeners, {} sandboxes",
            plan.listeners.len(),
            plan.sandboxes.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Runtime::new().context("the async runtime can't start")?;
    runtime.block_on(serve::serve(args, plan))?;
    Ok(ExitCode::SUCCESS)
}
