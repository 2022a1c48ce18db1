//! What the sandbox must never see.
//!
//! [`Broker`] fetches a secret after a request was allowed, [`Credential::attach`] puts it on that
//! request, and [`Placeholders`] is what the guest holds in its place: random text that opens
//! nothing, and that is recognised when it turns up where it does not belong. A secret that can't
//! be had is an error, never an empty header or yesterday's value.

mod attach;
mod broker;
mod placeholder;
mod secret;
mod source;
#[cfg(test)]
mod test_policy;

use std::io;
use std::path::PathBuf;

use outgate_policy::{CredentialName, Reason};

pub use attach::Credential;
pub use broker::Broker;
pub use placeholder::Placeholders;
pub use secret::Secret;

/// Why there is no credential. The text is for the log: it names where the secret should be, and
/// never what it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The environment variable is not set.
    #[error(
        "credential `{name}`: the gateway has no environment variable `{var}`; start it with one"
    )]
    EnvMissing { name: CredentialName, var: String },
    /// The file can't be read.
    #[error(
        "credential `{name}`: can't read `{}`: {source}; create it, readable by the gateway",
        path.display()
    )]
    FileUnreadable {
        name: CredentialName,
        path: PathBuf,
        source: io::Error,
    },
    /// This gateway reaches no Vault.
    #[error("credential `{name}`: this gateway fetches nothing from Vault; use `env` or `file`")]
    NoVault { name: CredentialName },
    /// There is nothing in the variable or file.
    #[error("credential `{name}`: the secret is empty; put the value where `source:` says")]
    Empty { name: CredentialName },
    /// The secret is larger than a header may be.
    #[error("credential `{name}`: the secret is larger than {limit} bytes; is it the right file?")]
    TooLarge { name: CredentialName, limit: usize },
    /// The secret can't stand in a header.
    #[error(
        "credential `{name}`: the secret holds a line break or another control byte; \
         it has to be one line of text"
    )]
    ControlByte { name: CredentialName },
    /// The policy names a header that HTTP does not have.
    #[error("credential `{name}`: `{header}` is no header name")]
    HeaderName {
        name: CredentialName,
        header: String,
    },
    /// The system has no randomness for placeholders.
    #[error("the system has no randomness")]
    Randomness,
    /// The table of placeholders can't be built.
    #[error("can't build the table of placeholders: {0}")]
    Table(String),
}

impl CredentialError {
    /// The stable reason code, which is all the guest may know.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Randomness | Self::Table(_) => Reason::Internal,
            _ => Reason::CredentialUnavailable,
        }
    }
}
