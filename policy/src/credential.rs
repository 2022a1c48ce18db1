//! What a policy says of a credential: where the gateway fetches it, how it is attached, what the
//! sandbox sees in its place. Never the secret itself.

use std::borrow::Borrow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Name of a credential, unique in a policy. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CredentialName(Arc<str>);

impl CredentialName {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CredentialName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for CredentialName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A credential of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialSpec {
    /// The name that rules use.
    pub name: CredentialName,
    /// Where the gateway gets the secret.
    pub source: CredentialSource,
    /// Headers to set; never empty.
    pub attach: Vec<HeaderAttach>,
    /// What the sandbox sees, if anything.
    pub expose: Option<Expose>,
}

/// Where the gateway gets a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// An environment variable of the gateway.
    Env {
        /// Its name.
        var: String,
    },
    /// A file on the gateway's machine, read again when it changes.
    File {
        /// Its absolute path.
        path: PathBuf,
    },
    /// A field of a secret in Vault or OpenBao.
    Vault {
        /// Mount of the secrets engine.
        mount: String,
        /// Path of the secret below the mount.
        path: String,
        /// Name of the field.
        field: String,
    },
}

/// A header that carries the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderAttach {
    /// Name, in lower case.
    pub header: String,
    format: String,
}

impl HeaderAttach {
    /// `None` unless `format` is a header value with exactly one `{}`.
    pub(crate) fn new(header: &str, format: &str) -> Option<Self> {
        let fits =
            format.matches("{}").count() == 1 && format.bytes().all(|b| (0x20..0x7f).contains(&b));
        fits.then(|| Self {
            header: header.to_ascii_lowercase(),
            format: format.to_owned(),
        })
    }

    /// The format as written: a header value with exactly one `{}`.
    #[must_use]
    pub fn format(&self) -> &str {
        &self.format
    }

    /// What stands before and after the secret.
    #[must_use]
    pub fn around(&self) -> (&str, &str) {
        self.format.split_once("{}").unwrap_or((&self.format, ""))
    }
}

/// The placeholder that the sandbox gets in its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expose {
    /// Environment variable in the guest.
    pub env: String,
    /// How the placeholder looks.
    pub shape: Shape,
}

/// The form of a placeholder: fixed text around exactly one run of random letters and digits,
/// written `prefix{36}suffix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    prefix: String,
    random: usize,
    suffix: String,
}

impl Shape {
    /// Fewest random characters: 62^16 values can be neither guessed nor met by chance.
    pub const MIN_RANDOM: usize = 16;
    /// Most random characters: a placeholder has to fit into a header.
    pub const MAX_RANDOM: usize = 1024;

    /// The shape where a policy gives none.
    pub(crate) fn opaque() -> Self {
        Self {
            prefix: "outgate_".to_owned(),
            random: 32,
            suffix: String::new(),
        }
    }

    /// `None` unless the text has exactly one `{n}` in bounds and is otherwise URL-safe text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (prefix, rest) = text.split_once('{')?;
        let (count, suffix) = rest.split_once('}')?;
        let plain = |part: &str| {
            part.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b))
        };
        let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
        let random = count
            .parse()
            .ok()
            .filter(|n| (Self::MIN_RANDOM..=Self::MAX_RANDOM).contains(n))?;
        (digits && plain(prefix) && plain(suffix)).then(|| Self {
            prefix: prefix.to_owned(),
            random,
            suffix: suffix.to_owned(),
        })
    }

    /// Text before the random part.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How many random characters of `[A-Za-z0-9]`.
    #[must_use]
    pub const fn random(&self) -> usize {
        self.random
    }

    /// Text after the random part.
    #[must_use]
    pub fn suffix(&self) -> &str {
        &self.suffix
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{{}}}{}", self.prefix, self.random, self.suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_exactly_one_place_for_the_secret() {
        assert_eq!(
            HeaderAttach::new("Authorization", "Bearer {}")
                .unwrap()
                .around(),
            ("Bearer ", "")
        );
        for format in ["Bearer", "{}{}", "{ }", "{}\n", "é{}"] {
            assert_eq!(HeaderAttach::new("Authorization", format), None, "{format}");
        }
    }

    #[test]
    fn a_shape_has_exactly_one_random_run_that_cannot_be_guessed() {
        let shape = Shape::parse("ghp_{36}").unwrap();
        assert_eq!(
            (shape.prefix(), shape.random(), shape.suffix()),
            ("ghp_", 36, "")
        );
        assert_eq!(shape.to_string(), "ghp_{36}");
        for text in [
            "", "ghp_", "{}", "{15}", "{1025}", "{+20}", "a b{20}", "{20}{20}", "x{20", "{20}}",
        ] {
            assert_eq!(Shape::parse(text), None, "{text}");
        }
    }
}
