//! What a gateway is started with: the configuration file and the command line, put together.
//!
//! Everything is read before anything is opened, so that a mistake leaves nothing half started. What
//! the command line says wins over the file.

use std::fs;
use std::path::{Path, PathBuf};

use outgate_gateway::admin::protocol::Registration;
use outgate_gateway::config::{
    FileListener, GatewayFile, ListenerCertificate, ListenerKind, StaticSandbox, Token,
};
use outgate_gateway::gateway::{CertificateAuthoritySource, ENFORCED, GatewayConfig};
use outgate_gateway::listener::{ServerTls, TokenHash};

use super::{GatewayArgs, certificates};
use crate::exit::{Code, Failure};
use crate::output::printable_lines;
use crate::{places, policy};

/// Bytes of a configuration file at most.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// All of it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) config: GatewayConfig,
    pub(super) admin: Option<PathBuf>,
    pub(super) listeners: Vec<PlannedListener>,
    pub(super) sandboxes: Vec<(Registration, Option<TokenHash>)>,
}

/// A listener whose files were read.
#[derive(Debug)]
pub(super) struct PlannedListener {
    pub(super) listener: FileListener,
    /// Of a certificate in files.
    pub(super) tls: Option<ServerTls>,
}

/// What can't change while a gateway runs, by the key of the configuration file.
#[derive(Debug)]
pub(super) struct Fixed(Vec<(&'static str, String)>);

impl Fixed {
    /// The keys whose values differ.
    pub(super) fn changed(&self, other: &Self) -> Vec<String> {
        let differ = self
            .0
            .iter()
            .zip(&other.0)
            .filter(|(one, other)| one != other);
        differ.map(|((key, _), _)| (*key).to_owned()).collect()
    }
}

impl Plan {
    /// What a later plan is compared with. Nothing in it is secret: those are in sandboxes.
    pub(super) fn fixed(&self) -> Fixed {
        Fixed(vec![
            ("admin", format!("{:?}", self.admin)),
            ("audit", format!("{:?}", self.config.audit)),
            ("ca", format!("{:?}", self.config.ca)),
            ("upstream", format!("{:?}", self.config.upstream)),
            ("proxies", format!("{:?}", self.listeners)),
        ])
    }

    /// Reads the file, and what it names: policies, tokens, certificates.
    ///
    /// # Errors
    /// A [`Failure`] with [`Code::Usage`].
    pub(super) fn new(args: &GatewayArgs) -> anyhow::Result<Self> {
        let file = args.config.as_deref().map(read).transpose()?;
        let state = places::state_dir();
        let mut upstream = args.upstream.upstream_config()?;
        let Some(file) = file else {
            let audit = args.audit_dir.clone();
            let ca = args.ca_dir.clone();
            return Ok(Self {
                config: GatewayConfig {
                    ca: CertificateAuthoritySource::Directory(
                        ca.unwrap_or_else(|| state.join("ca")),
                    ),
                    audit: args
                        .upstream
                        .audit_config(audit.unwrap_or_else(|| state.join("audit").join("gateway"))),
                    upstream,
                    denied_names: args.upstream.denied_names().unwrap_or_default(),
                },
                admin: args.admin.clone(),
                listeners: Vec::new(),
                sandboxes: Vec::new(),
            });
        };
        if upstream.resolver.servers.is_empty() {
            upstream.resolver.servers = file.dns;
        }
        upstream.next_hop = upstream.next_hop.or(file.next_hop);
        for root in &file.roots {
            upstream.extra_roots.extend(certificates("roots", root)?);
        }
        let audit_dir = args.audit_dir.clone().or(file.audit_dir);
        let ca_dir = args.ca_dir.clone().or(file.ca_dir);
        let mut audit = args
            .upstream
            .audit_config(audit_dir.unwrap_or_else(|| state.join("audit").join("gateway")));
        if !args.upstream.audit_fsync {
            audit.durability = file.durability;
        }
        let listeners = file.listeners.into_iter().map(listener);
        let sandboxes = file.sandboxes.into_iter().map(sandbox);
        Ok(Self {
            config: GatewayConfig {
                ca: CertificateAuthoritySource::Directory(
                    ca_dir.unwrap_or_else(|| state.join("ca")),
                ),
                audit,
                upstream,
                denied_names: args.upstream.denied_names().unwrap_or(file.denied_names),
            },
            admin: args.admin.clone().or(file.admin),
            listeners: listeners.collect::<Result<_, _>>()?,
            sandboxes: sandboxes.collect::<Result<_, _>>()?,
        })
    }
}

fn read(path: &Path) -> Result<GatewayFile, Failure> {
    let name = path.display().to_string();
    let failed = |why: String| {
        let message = format!("the configuration file `{name}` {why}");
        Failure::new(Code::Usage, message)
    };
    let unreadable = |error: std::io::Error| failed(format!("can't be read: {error}"));
    if fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
        return Err(failed(format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let whole = std::path::absolute(path).map_err(unreadable)?;
    let folder = whole.parent().unwrap_or(&whole);
    GatewayFile::parse(&name, &text, folder).map_err(|error| {
        let found = printable_lines(&error.to_string()).to_string();
        failed(format!("does not load\n\n{found}"))
    })
}

fn listener(listener: FileListener) -> Result<PlannedListener, Failure> {
    let tls = match &listener.kind {
        ListenerKind::Proxy(_, Some(ListenerCertificate::Files(certificate, key))) => {
            let tls = ServerTls::from_files(certificate, key);
            Some(tls.map_err(|error| Failure::new(Code::Usage, error))?)
        }
        ListenerKind::Proxy(..) | ListenerKind::Transparent(_) => None,
    };
    Ok(PlannedListener { listener, tls })
}

/// A sandbox with its policies, which load and can be kept.
fn sandbox(sandbox: StaticSandbox) -> Result<(Registration, Option<TokenHash>), Failure> {
    let StaticSandbox {
        id,
        tier,
        labels,
        policies,
        token,
    } = sandbox;
    let failed = |why: String| Failure::new(Code::Usage, format!("sandbox `{id}`: {why}"));
    let sources = policy::select(&policies, &labels).map_err(|error| failed(error.to_string()))?;
    if !sources.is_empty() {
        let loaded = policy::load(&sources).map_err(|error| failed(error.to_string()))?;
        loaded
            .require(ENFORCED)
            .map_err(|error| failed(printable_lines(&error.render()).to_string()))?;
    }
    let token = token
        .map(|token| hash(&token).map_err(failed))
        .transpose()?;
    let registration = Registration {
        id,
        tier,
        labels,
        policy: sources,
        mtu: None,
        placeholders: Default::default(),
    };
    Ok((registration, token))
}

/// What is kept of a token. No message quotes any of it.
fn hash(token: &Token) -> Result<TokenHash, String> {
    match token {
        Token::Hash(hash) => Ok(*hash),
        Token::Environment(name) => match std::env::var(name) {
            Ok(value) => TokenHash::of(value.as_bytes())
                .map_err(|error| format!("the variable `{name}` holds no token: {error}")),
            Err(_) => Err(format!("the variable `{name}` of the token is not set")),
        },
        Token::File(path) => {
            let shown = path.display();
            let text = fs::read_to_string(path)
                .map_err(|error| format!("the token file `{shown}` can't be read: {error}"))?;
            TokenHash::of(text.lines().next().unwrap_or_default().as_bytes())
                .map_err(|error| format!("`{shown}` holds no token: {error}"))
        }
    }
}
