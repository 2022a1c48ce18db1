//! What the words of a file mean, and whether they fit together. Collects everything that is wrong.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_saphyr::{Location, Spanned};

use outgate_policy::Destination;

use super::spec::{
    DurabilitySpec, GatewaySpec, ProxyProtocol, ProxySpec, SandboxSpec, TlsSpec, TokenSpec,
    TransparentMode, TransparentSpec,
};
use super::{
    FileListener, GatewayFile, ListenerCertificate, ListenerKind, Problem, StaticSandbox, Token,
};
use crate::audit::Durability;
use crate::listener::{ListenAt, MAX_CONNECTIONS, Origin, Protocols, Who};
use crate::upstream::{DnsServer, NextHopConfig, ProxyCredentials};

/// The version of the language.
const VERSION: u32 = 1;
/// Connections that a listener may be given: what a process may have descriptors for.
const MOST_CONNECTIONS: u32 = 65_536;
/// Permission bits of a unix socket where nothing is said.
const SOCKET_MODE: u32 = 0o600;

/// The meaning of `spec`; relative paths start at `folder`.
pub(super) fn check(spec: GatewaySpec, folder: &Path) -> Result<GatewayFile, Vec<Problem>> {
    let mut checker = Checker {
        folder,
        problems: Vec::new(),
    };
    let file = checker.file(spec);
    if checker.problems.is_empty() {
        Ok(file)
    } else {
        Err(checker.problems)
    }
}

struct Checker<'a> {
    folder: &'a Path,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn file(&mut self, spec: GatewaySpec) -> GatewayFile {
        let GatewaySpec {
            version,
            admin,
            audit,
            ca,
            upstream,
            names: guest_names,
            proxies,
            transparent,
            sandboxes,
        } = spec;
        if version.value != VERSION {
            let message = format!("this is version {} of the language", version.value);
            self.add(
                version.referenced,
                message,
                format!("this gateway reads version {VERSION}"),
            );
        }
        self.unique(
            sandboxes
                .iter()
                .map(|sandbox| (&sandbox.id.value, sandbox.id.referenced)),
        );
        let names = proxies.iter().map(|proxy| (&proxy.name, &proxy.listen));
        let led = transparent.iter().map(|led| (&led.name, &led.listen));
        let named: Vec<_> = names.chain(led).collect();
        self.unique(named.iter().map(|(name, _)| (&name.value, name.referenced)));
        self.unique(named.iter().map(|(_, at)| (&at.value, at.referenced)));
        if admin.is_none() && named.is_empty() {
            let message =
                "there is neither a listener nor an admin socket, so nobody could be served";
            let help = "add `proxies:`, `transparent:` or `admin:`";
            self.add(version.referenced, message, help);
        }
        let mut listeners = Vec::with_capacity(named.len());
        for proxy in &proxies {
            listeners.extend(self.proxy(proxy, &sandboxes));
        }
        for led in &transparent {
            listeners.extend(self.transparent(led, &sandboxes));
        }
        GatewayFile {
            admin: admin.map(|admin| self.path(&admin.socket)),
            audit_dir: audit.dir.map(|dir| self.path(&dir)),
            durability: match audit.durability {
                DurabilitySpec::Buffered => Durability::Buffered,
                DurabilitySpec::Fsync => Durability::Fsync,
            },
            ca_dir: ca.dir.map(|dir| self.path(&dir)),
            dns: upstream
                .dns
                .iter()
                .filter_map(|server| self.dns_server(server))
                .collect(),
            next_hop: upstream.next_hop.map(|hop| NextHopConfig {
                credentials: hop.credentials.map(|place| match place {
                    ProxyCredentials::File(path) => ProxyCredentials::File(self.folder.join(path)),
                    place @ ProxyCredentials::Env(_) => place,
                }),
                ..hop
            }),
            denied_names: guest_names.denied,
            roots: upstream.roots.iter().map(|root| self.path(root)).collect(),
            listeners,
            sandboxes: sandboxes
                .into_iter()
                .map(|sandbox| self.sandbox(sandbox))
                .collect(),
        }
    }

    fn proxy(&mut self, proxy: &ProxySpec, sandboxes: &[SandboxSpec]) -> Option<FileListener> {
        let who = match &proxy.sandbox {
            Some(id) => Who::Only(self.known(id, sandboxes)),
            None => Who::Proven,
        };
        if who == Who::Proven && sandboxes.iter().all(|sandbox| sandbox.token.is_none()) {
            let message = format!(
                "nobody could use `{}`: no sandbox has a token",
                proxy.name.value
            );
            let help = "give a sandbox a `token:`, or name the one that this listener is for: `sandbox: ID`";
            self.add(proxy.name.referenced, message, help);
        }
        let tls = proxy.tls.as_ref().and_then(|tls| self.certificate(tls));
        Some(FileListener {
            name: proxy.name.value.clone(),
            at: self.listen_at(proxy)?,
            who,
            kind: ListenerKind::Proxy(self.protocols(proxy), tls),
            max_connections: self.connections(proxy.max_connections.as_ref()),
        })
    }

    fn transparent(
        &mut self,
        led: &TransparentSpec,
        sandboxes: &[SandboxSpec],
    ) -> Option<FileListener> {
        let (who, origin) = (self.who(led, sandboxes), led.mode);
        let address = self.tcp(&led.listen)?;
        let (at, origin) = match origin {
            TransparentMode::Redirect => (ListenAt::Tcp(address), Origin::Redirect),
            TransparentMode::Tproxy => (ListenAt::Transparent(address), Origin::Tproxy),
        };
        Some(FileListener {
            name: led.name.value.clone(),
            at,
            who,
            kind: ListenerKind::Transparent(origin),
            max_connections: self.connections(led.max_connections.as_ref()),
        })
    }

    fn who(&mut self, led: &TransparentSpec, sandboxes: &[SandboxSpec]) -> Who {
        match (&led.sandbox, led.sources.is_empty()) {
            (Some(id), true) => Who::Only(self.known(id, sandboxes)),
            (None, false) => {
                let mut networks = Vec::with_capacity(led.sources.len());
                for (network, id) in &led.sources {
                    let id = Spanned {
                        value: self.known(id, sandboxes),
                        ..*id
                    };
                    match network.parse::<IpNet>() {
                        Ok(parsed) if parsed.trunc() == parsed => networks.push((parsed, id.value)),
                        _ => {
                            let message = format!("`{network}` is no network");
                            self.add(id.referenced, message, "write it as in \"10.200.0.0/24\"");
                        }
                    }
                }
                Who::Sources(networks)
            }
            _ => {
                let message = format!(
                    "it is not said whose connections come to `{}`",
                    led.name.value
                );
                let help = "write `sandbox: ID`, or `sources:` with networks and the ids of their sandboxes";
                self.add(led.name.referenced, message, help);
                Who::Sources(Vec::new())
            }
        }
    }

    /// The id of a sandbox that there is.
    fn known(&mut self, id: &Spanned<String>, sandboxes: &[SandboxSpec]) -> String {
        if sandboxes.iter().all(|sandbox| sandbox.id.value != id.value) {
            let message = format!("there is no sandbox `{}`", id.value);
            self.add(
                id.referenced,
                message,
                "name one of those under `sandboxes:`",
            );
        }
        id.value.clone()
    }

    fn connections(&mut self, most: Option<&Spanned<u32>>) -> usize {
        let Some(most) = most else {
            return MAX_CONNECTIONS;
        };
        if !(1..=MOST_CONNECTIONS).contains(&most.value) {
            let message = format!("`{}` is no number of connections", most.value);
            let help = format!("write 1 to {MOST_CONNECTIONS}");
            self.add(most.referenced, message, help);
        }
        usize::try_from(most.value).unwrap_or(MAX_CONNECTIONS)
    }

    fn protocols(&mut self, proxy: &ProxySpec) -> Protocols {
        let Some(named) = &proxy.protocols else {
            return Protocols {
                http: true,
                socks5: true,
            };
        };
        if named.value.is_empty() {
            let message = "a listener that speaks nothing";
            self.add(
                named.referenced,
                message,
                "write `[http]`, `[socks5]` or both",
            );
        }
        Protocols {
            http: named.value.contains(&ProxyProtocol::Http),
            socks5: named.value.contains(&ProxyProtocol::Socks5),
        }
    }

    fn certificate(&mut self, tls: &TlsSpec) -> Option<ListenerCertificate> {
        match tls {
            TlsSpec::Files(files) => Some(ListenerCertificate::Files(
                self.path(&files.certificate),
                self.path(&files.key),
            )),
            TlsSpec::Minted(name) => match Destination::parse(&name.value) {
                Ok(name) => Some(ListenerCertificate::Minted(name)),
                Err(reject) => {
                    let help = "write the name or address by which clients reach the listener";
                    self.add(name.referenced, reject.detail, help);
                    None
                }
            },
        }
    }

    fn listen_at(&mut self, proxy: &ProxySpec) -> Option<ListenAt> {
        let ProxySpec { listen, mode, .. } = proxy;
        if let Some(path) = listen.value.strip_prefix("unix:") {
            let mode = match mode {
                None => SOCKET_MODE,
                Some(mode) => self.mode(mode)?,
            };
            let path = self.path(path);
            return Some(ListenAt::Unix { path, mode });
        }
        if let Some(mode) = mode {
            let message = "`mode:` is for unix sockets";
            self.add(
                mode.referenced,
                message,
                "remove it, or listen on `unix:PATH`",
            );
        }
        self.tcp(listen).map(ListenAt::Tcp)
    }

    fn tcp(&mut self, listen: &Spanned<String>) -> Option<SocketAddr> {
        let address = listen.value.parse().ok();
        if address.is_none() {
            let message = format!("`{}` is no place to listen", listen.value);
            let help = "write `IP:PORT` or `[IPv6]:PORT`; a proxy may be at `unix:PATH` too";
            self.add(listen.referenced, message, help);
        }
        address
    }

    fn mode(&mut self, mode: &Spanned<String>) -> Option<u32> {
        let octal = u32::from_str_radix(&mode.value, 8).ok();
        let bits = octal.filter(|bits| *bits <= 0o777 && mode.value.len() >= 3);
        if bits.is_none() {
            let message = format!("`{}` are no permission bits", mode.value);
            self.add(
                mode.referenced,
                message,
                "write them in octal and in quotes, as \"0660\"",
            );
        }
        bits
    }

    fn sandbox(&mut self, sandbox: SandboxSpec) -> StaticSandbox {
        let token = match sandbox.token {
            None => None,
            Some(TokenSpec::File(path)) => Some(Token::File(self.path(&path))),
            Some(TokenSpec::Env(name)) => Some(Token::Environment(name)),
            Some(TokenSpec::Sha256(hash)) => match hash.value.parse() {
                Ok(parsed) => Some(Token::Hash(parsed)),
                Err(error) => {
                    // It may be the token itself.
                    let problem = Problem::at(hash.referenced, "this is no SHA-256 of a token");
                    self.problems
                        .push(problem.help(error.to_string()).unshown());
                    None
                }
            },
        };
        StaticSandbox {
            id: sandbox.id.value,
            tier: sandbox.tier.unwrap_or_else(|| "external".to_owned()),
            labels: sandbox.labels,
            policies: sandbox
                .policies
                .iter()
                .map(|path| self.policy(path))
                .collect(),
            token,
        }
    }

    /// A policy's path, unless it names a preset.
    fn policy(&self, path: &str) -> PathBuf {
        if path.starts_with("preset:") {
            path.into()
        } else {
            self.path(path)
        }
    }

    fn dns_server(&mut self, text: &Spanned<String>) -> Option<DnsServer> {
        match text.value.parse::<DnsServer>() {
            Ok(server) => Some(server),
            Err(error) => {
                let message = format!("`{}` is no name server", text.value);
                self.add(text.referenced, message, error.to_string());
                None
            }
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    fn unique<'t, T: Eq + Hash + std::fmt::Display + 't>(
        &mut self,
        named: impl Iterator<Item = (&'t T, Location)>,
    ) {
        let mut seen = HashMap::new();
        for (name, at) in named {
            if let Some(first) = seen.insert(name, at) {
                let message = format!("`{name}` is there twice");
                self.add(at, message, format!("it is in line {} first", first.line()));
            }
        }
    }

    fn add(&mut self, at: Location, message: impl Into<String>, help: impl Into<String>) {
        self.problems.push(Problem::at(at, message).help(help));
    }
}
