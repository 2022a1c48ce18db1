//! What the words of a file mean, and whether they fit together. Collects everything that is wrong.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_saphyr::{Location, Spanned};

use super::spec::{DurabilitySpec, GatewaySpec, ProxySpec, SandboxSpec, TokenSpec};
use super::{GatewayFile, Problem, StaticSandbox, Token};
use crate::audit::Durability;
use crate::listener::{ListenAt, ListenerConfig, MAX_CONNECTIONS};

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
            proxies,
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
        self.unique(
            proxies
                .iter()
                .map(|proxy| (&proxy.name.value, proxy.name.referenced)),
        );
        self.unique(
            proxies
                .iter()
                .map(|proxy| (&proxy.listen.value, proxy.listen.referenced)),
        );
        for proxy in &proxies {
            self.serves_somebody(proxy, &sandboxes);
        }
        if admin.is_none() && proxies.is_empty() {
            let message =
                "there is neither a listener nor an admin socket, so nobody could be served";
            self.add(version.referenced, message, "add `proxies:` or `admin:`");
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
                .filter_map(|server| self.address(server))
                .collect(),
            roots: upstream.roots.iter().map(|root| self.path(root)).collect(),
            proxies: proxies
                .iter()
                .filter_map(|proxy| self.proxy(proxy))
                .collect(),
            sandboxes: sandboxes
                .into_iter()
                .map(|sandbox| self.sandbox(sandbox))
                .collect(),
        }
    }

    fn proxy(&mut self, proxy: &ProxySpec) -> Option<(ListenAt, ListenerConfig)> {
        let at = self.listen_at(proxy)?;
        let most = proxy.max_connections.as_ref();
        if let Some(most) = most.filter(|most| !(1..=MOST_CONNECTIONS).contains(&most.value)) {
            let message = format!("`{}` is no number of connections", most.value);
            self.add(
                most.referenced,
                message,
                format!("write 1 to {MOST_CONNECTIONS}"),
            );
        }
        let most = most.map(|most| usize::try_from(most.value).unwrap_or(MAX_CONNECTIONS));
        let config = ListenerConfig {
            name: proxy.name.value.clone(),
            sandbox: proxy.sandbox.as_ref().map(|id| id.value.clone()),
            max_connections: most.unwrap_or(MAX_CONNECTIONS),
        };
        Some((at, config))
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
        match listen.value.parse() {
            Ok(address) => Some(ListenAt::Tcp(address)),
            Err(_) => {
                let message = format!("`{}` is no place to listen", listen.value);
                self.add(
                    listen.referenced,
                    message,
                    "write `IP:PORT`, `[IPv6]:PORT` or `unix:PATH`",
                );
                None
            }
        }
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

    /// A listener without a sandbox of its own needs one that has a token.
    fn serves_somebody(&mut self, proxy: &ProxySpec, sandboxes: &[SandboxSpec]) {
        match &proxy.sandbox {
            Some(id) if sandboxes.iter().all(|sandbox| sandbox.id.value != id.value) => {
                let message = format!("there is no sandbox `{}`", id.value);
                self.add(
                    id.referenced,
                    message,
                    "name one of those under `sandboxes:`",
                );
            }
            None if sandboxes.iter().all(|sandbox| sandbox.token.is_none()) => {
                let message = format!(
                    "nobody could use `{}`: no sandbox has a token",
                    proxy.name.value
                );
                let help = "give a sandbox a `token:`, or name the one that this listener is for: `sandbox: ID`";
                self.add(proxy.name.referenced, message, help);
            }
            _ => {}
        }
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

    fn address(&mut self, text: &Spanned<String>) -> Option<SocketAddr> {
        let address = text.value.parse().ok();
        if address.is_none() {
            let message = format!("`{}` is no address of a name server", text.value);
            self.add(
                text.referenced,
                message,
                "write `IP:PORT`, as in \"9.9.9.9:53\"",
            );
        }
        address
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
