//! The configuration file as it is written. `docs/gateway.md` explains each key and is tested against
//! these types.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::link::DeniedNames;
use crate::upstream::NextHopConfig;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySpec {
    /// Version of the language of this file: 1.
    pub version: Spanned<u32>,
    /// Where nodes register sandboxes.
    #[serde(default)]
    pub admin: Option<AdminSpec>,
    /// The audit log.
    #[serde(default)]
    pub audit: AuditSpec,
    /// The certificate authority.
    #[serde(default)]
    pub ca: CaSpec,
    /// How upstreams are reached.
    #[serde(default)]
    pub upstream: UpstreamSpec,
    /// What guests are told of names.
    #[serde(default)]
    pub names: NamesSpec,
    /// Listeners for clients that are told to use a proxy.
    #[serde(default)]
    pub proxies: Vec<ProxySpec>,
    /// Listeners for connections that the network leads here.
    #[serde(default)]
    pub transparent: Vec<TransparentSpec>,
    /// The sandboxes that listeners serve.
    #[serde(default)]
    pub sandboxes: Vec<SandboxSpec>,
}

/// Where nodes register sandboxes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminSpec {
    /// Path of the unix socket, made with mode 0600.
    pub socket: String,
}

/// The audit log.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSpec {
    /// Its folder.
    #[serde(default)]
    pub dir: Option<String>,
    /// `buffered` (a record is handed to the system before its request goes on) or `fsync` (it is on
    /// the disk).
    #[serde(default)]
    pub durability: DurabilitySpec,
}

/// How sure it is that a record is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilitySpec {
    /// Survives the gateway.
    #[default]
    Buffered,
    /// Survives the machine.
    Fsync,
}

/// The certificate authority.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaSpec {
    /// Its folder; made on first start.
    #[serde(default)]
    pub dir: Option<String>,
}

/// How upstreams are reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSpec {
    /// Name servers, as in [`DnsServer`](crate::upstream::DnsServer); the system's if there are none.
    #[serde(default)]
    pub dns: Vec<Spanned<String>>,
    /// PEM files of roots that are trusted beside the system's.
    #[serde(default)]
    pub roots: Vec<String>,
    /// The organisation's own proxy, if connections have to go through one.
    #[serde(default)]
    pub next_hop: Option<NextHopConfig>,
}

/// What guests are told of names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamesSpec {
    /// Of names that no rule can match.
    #[serde(default)]
    pub denied: DeniedNames,
}

/// A listener for clients that are told to use a proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxySpec {
    /// Names it in records and messages; unique.
    pub name: Spanned<String>,
    /// `IP:PORT`, or `unix:PATH`.
    pub listen: Spanned<String>,
    /// Permission bits of a unix socket, in octal; `"0600"` where nothing is said.
    #[serde(default)]
    pub mode: Option<Spanned<String>>,
    /// What may be spoken: `http` (CONNECT and absolute URLs) and `socks5`; both where nothing is said.
    #[serde(default)]
    pub protocols: Option<Spanned<Vec<ProxyProtocol>>>,
    /// TLS around all of it; clear text is then refused.
    #[serde(default)]
    pub tls: Option<TlsSpec>,
    /// The id of the one sandbox that everybody who can connect belongs to. Without it, clients
    /// present the id and token of theirs.
    #[serde(default)]
    pub sandbox: Option<Spanned<String>>,
    /// Connections at a time, 1 to 65536; 4096 where nothing is said.
    #[serde(default)]
    pub max_connections: Option<Spanned<u32>>,
}

/// A listener for connections to somebody else, that the operator's network leads here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransparentSpec {
    /// Names it in records and messages; unique.
    pub name: Spanned<String>,
    /// `IP:PORT`.
    pub listen: Spanned<String>,
    /// The rule that leads connections here: `redirect` or `tproxy`.
    pub mode: TransparentMode,
    /// The id of the one sandbox whose connections come here.
    #[serde(default)]
    pub sandbox: Option<Spanned<String>>,
    /// Or the ids of the sandboxes that connections from these networks belong to. The network must
    /// not let anybody forge an address.
    #[serde(default)]
    pub sources: BTreeMap<String, Spanned<String>>,
    /// Connections at a time, 1 to 65536; 4096 where nothing is said.
    #[serde(default)]
    pub max_connections: Option<Spanned<u32>>,
}

/// How connections are led to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransparentMode {
    /// By a `REDIRECT` rule: whom they were made to is kept with their NAT.
    Redirect,
    /// By a `TPROXY` rule: the socket has the address they were made to.
    Tproxy,
}

/// What may be spoken on a proxy listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyProtocol {
    /// HTTP/1: CONNECT and absolute URLs.
    Http,
    /// SOCKS5: CONNECT.
    Socks5,
}

/// The certificate of a listener: one of the two.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsSpec {
    /// Minted for this name by the gateway's authority, and again before it ends.
    Minted(Spanned<String>),
    /// The operator's own.
    Files(TlsFilesSpec),
}

/// PEM files.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFilesSpec {
    /// The certificate, with what leads up to its root.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// A sandbox that listeners serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// Names it in records, and is the user name of its credential; unique.
    pub id: Spanned<String>,
    /// What runs it, recorded as is; `external` where nothing is said.
    #[serde(default)]
    pub tier: Option<String>,
    /// Recorded with every event; policies in folders may select by them.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Policy files, or folders of them; it may do what all of them allow. Without any it reaches
    /// nothing.
    #[serde(default)]
    pub policies: Vec<String>,
    /// Where its token comes from, if it presents one.
    #[serde(default)]
    pub token: Option<TokenSpec>,
}

/// Where a token comes from: one of the three.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSpec {
    /// The SHA-256 of the token, in hexadecimal.
    Sha256(Spanned<String>),
    /// A file whose first line is the token.
    File(String),
    /// The variable of the gateway's environment that holds the token.
    Env(String),
}
