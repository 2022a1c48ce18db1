//! Credentials: where a secret is from, how it is attached, what the sandbox sees.

use std::ops::Range;

use schemars::JsonSchema;

use super::At;

/// A secret that the gateway attaches.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Credential", deny_unknown_fields)]
pub(crate) struct CredentialEntry {
    /// Unique name: letters, digits, `.`, `_` and `-`.
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$"))]
    pub(crate) name: At<String>,
    /// Where the gateway gets the secret.
    pub(crate) source: At<SourceSpec>,
    /// What the sandbox sees in its place.
    pub(crate) expose: Option<ExposeSpec>,
    /// Headers to set.
    #[schemars(length(min = 1))]
    pub(crate) attach: Vec<HeaderSpec>,
    /// Where `attach` or the entry is written.
    #[schemars(skip)]
    pub(crate) span: Range<usize>,
}

/// Where the gateway gets a secret.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(
    rename = "CredentialSource",
    rename_all = "lowercase",
    deny_unknown_fields
)]
pub(crate) enum SourceSpec {
    /// Name of an environment variable of the gateway.
    Env(String),
    /// Absolute path of a file on the gateway's machine.
    File(String),
    /// A field of a secret in Vault or OpenBao, at the server that the gateway is configured for.
    Vault(VaultSpec),
}

/// A field of a secret in Vault or OpenBao.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(rename = "Vault", deny_unknown_fields)]
pub(crate) struct VaultSpec {
    /// Mount of the secrets engine.
    pub(crate) mount: At<String>,
    /// Path of the secret below the mount.
    pub(crate) path: At<String>,
    /// Name of the field.
    pub(crate) field: At<String>,
}

/// A placeholder for the sandbox.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Expose", deny_unknown_fields)]
pub(crate) struct ExposeSpec {
    /// Environment variable in the sandbox.
    pub(crate) env: At<String>,
    /// How the placeholder looks: text around one `{n}`, n random letters and digits.
    pub(crate) shape: Option<At<String>>,
}

/// A header that carries the secret.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Header", deny_unknown_fields)]
pub(crate) struct HeaderSpec {
    /// Header name.
    pub(crate) header: At<String>,
    /// Header value with exactly one `{}` for the secret.
    pub(crate) format: At<String>,
}
