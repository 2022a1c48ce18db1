//! The file that a gateway of its own is started with: `outgate gateway --config FILE`.
//!
//! [`spec`] is the file as it is written, [`GatewayFile`] what it means. Reading is strict: an unknown
//! key, a doubtful value or a reference to nothing is an error with its line, and then nothing is
//! started. No other file is looked at here and nothing is opened.

mod check;
mod problem;
pub mod spec;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outgate_policy::Destination;

pub use self::problem::{ConfigError, Problem};
use crate::audit::Durability;
use crate::link::DeniedNames;
use crate::listener::{ListenAt, Origin, Protocols, TokenHash, Who};
use crate::upstream::{DnsServer, NextHopConfig};

/// A checked file.
#[derive(Clone, Debug)]
pub struct GatewayFile {
    /// Where nodes register sandboxes; nowhere if none.
    pub admin: Option<PathBuf>,
    /// Folder of the audit log.
    pub audit_dir: Option<PathBuf>,
    /// What a record has gone through before its request goes on.
    pub durability: Durability,
    /// Folder of the certificate authority.
    pub ca_dir: Option<PathBuf>,
    /// Name servers; the system's if empty.
    pub dns: Vec<DnsServer>,
    /// The organisation's own proxy.
    pub next_hop: Option<NextHopConfig>,
    /// What guests are told of names that no rule can match.
    pub denied_names: DeniedNames,
    /// PEM files of roots trusted upstream beside the system's.
    pub roots: Vec<PathBuf>,
    /// Listeners, in the order of the file.
    pub listeners: Vec<FileListener>,
    /// Sandboxes that listeners serve.
    pub sandboxes: Vec<StaticSandbox>,
}

/// A listener.
#[derive(Clone, Debug)]
pub struct FileListener {
    /// Names it in records and messages.
    pub name: String,
    /// Where it listens.
    pub at: ListenAt,
    /// Whose connections they are.
    pub who: Who,
    /// What comes in on them.
    pub kind: ListenerKind,
    /// Most connections at a time.
    pub max_connections: usize,
}

/// What comes in on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Clients that were told to use a proxy, and the certificate that they are shown.
    Proxy(Protocols, Option<ListenerCertificate>),
    /// Connections that the network led here.
    Transparent(Origin),
}

/// The certificate of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerCertificate {
    /// Minted for this name or address.
    Minted(Destination),
    /// In these PEM files: certificate and key.
    Files(PathBuf, PathBuf),
}

/// A sandbox that is there as long as the gateway.
#[derive(Clone, Debug)]
pub struct StaticSandbox {
    /// Names it in records; the user name of its credential.
    pub id: String,
    /// What runs it, recorded as is.
    pub tier: String,
    /// Recorded with every event; policies may select by them.
    pub labels: BTreeMap<String, String>,
    /// Policy files, or folders of them.
    pub policies: Vec<PathBuf>,
    /// Where its token comes from.
    pub token: Option<Token>,
}

/// Where a token comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// Its hash is written in the file.
    Hash(TokenHash),
    /// The first line of a file.
    File(PathBuf),
    /// A variable of the gateway's environment.
    Environment(String),
}

impl GatewayFile {
    /// Reads `text`, which is called `name` in messages. Relative paths in it start at `folder`.
    ///
    /// # Errors
    /// Everything that is wrong with it, as far as it could be read.
    pub fn parse(name: &str, text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            strict_booleans: true,
            reject_unsupported_tags: true,
            merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
        };
        let failed = |problems| ConfigError::new(name, text, problems);
        let spec: spec::GatewaySpec = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| failed(vec![Problem::from(&error)]))?;
        check::check(spec, folder).map_err(failed)
    }
}
