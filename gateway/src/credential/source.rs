//! Reads a secret from where the policy says.
//!
//! Nothing is cached: a file is small, and the value in force is the value that is there now. A
//! rotated secret is therefore used by the next request, and a removed one stops the next request.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use outgate_policy::{CredentialName, CredentialSource, CredentialSpec};
use zeroize::Zeroizing;

use super::CredentialError;
use super::secret::Secret;

/// Largest secret, in bytes: what origins accept as one header field.
const MAX_SECRET: usize = 16 << 10;

/// The secret of `spec` as it is now.
///
/// A file's last line break is not part of the secret; an environment variable is taken as it is.
pub(super) async fn read(spec: &CredentialSpec) -> Result<Secret, CredentialError> {
    let name = &spec.name;
    let bytes = match &spec.source {
        CredentialSource::Env { var } => from_env(std::env::var_os(var), name, var)?,
        // A gateway without Vault refuses such a policy before it gets here.
        CredentialSource::Vault { .. } => {
            return Err(CredentialError::NoVault { name: name.clone() });
        }
        CredentialSource::File { path } => {
            let unreadable = |source| CredentialError::FileUnreadable {
                name: name.clone(),
                path: path.clone(),
                source,
            };
            let file = path.clone();
            tokio::task::spawn_blocking(move || read_file(&file))
                .await
                .map_err(|error| unreadable(error.into()))?
                .map_err(unreadable)?
        }
    };
    check(&bytes, name)
}

fn from_env(
    value: Option<OsString>,
    name: &CredentialName,
    var: &str,
) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let missing = || CredentialError::EnvMissing {
        name: name.clone(),
        var: var.to_owned(),
    };
    Ok(Zeroizing::new(value.ok_or_else(missing)?.into_vec()))
}

/// The contents up to one byte more than is allowed, without a last line break.
fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = File::open(path)?;
    // A pipe would hold the reader for as long as its writer likes.
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    // Reserved at once: growing would leave copies of the secret behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_SECRET + 3));
    file.take(MAX_SECRET as u64 + 3).read_to_end(&mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(bytes)
}

fn check(bytes: &Zeroizing<Vec<u8>>, name: &CredentialName) -> Result<Secret, CredentialError> {
    let name = || name.clone();
    if bytes.is_empty() {
        return Err(CredentialError::Empty { name: name() });
    }
    if bytes.len() > MAX_SECRET {
        return Err(CredentialError::TooLarge {
            name: name(),
            limit: MAX_SECRET,
        });
    }
    if bytes.iter().any(u8::is_ascii_control) {
        return Err(CredentialError::ControlByte { name: name() });
    }
    Ok(Secret::new(bytes))
}
