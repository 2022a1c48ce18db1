//! Puts a secret on a request.

use http::{HeaderMap, HeaderName, HeaderValue};
use outgate_policy::{CredentialName, HeaderAttach};
use zeroize::Zeroizing;

use super::CredentialError;
use super::secret::Secret;

/// A fetched credential, good for one request.
#[derive(Clone, Debug)]
pub struct Credential {
    pub(super) name: CredentialName,
    pub(super) version: u64,
    pub(super) headers: Vec<HeaderAttach>,
    pub(super) secret: Secret,
}

impl Credential {
    /// The name that rules use.
    pub fn name(&self) -> &CredentialName {
        &self.name
    }

    /// Changes whenever the secret does, and is never the same for two credentials of this process.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The headers that carry the secret, in lower case.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|attach| attach.header.as_str())
    }

    /// Sets the credential's headers. Whatever the guest had put there is gone; the values are
    /// marked sensitive, so that they are not printed and never enter an HPACK table (RFC 7541
    /// section 7.1.3). All headers are set, or none.
    ///
    /// # Errors
    /// [`CredentialError::HeaderName`] and [`CredentialError::ControlByte`] for what can't be sent.
    pub fn attach(&self, request: &mut HeaderMap) -> Result<(), CredentialError> {
        let values: Vec<_> = self
            .headers
            .iter()
            .map(|attach| self.value(attach))
            .collect::<Result<_, _>>()?;
        for (header, value) in values {
            request.insert(header, value);
        }
        Ok(())
    }

    fn value(&self, attach: &HeaderAttach) -> Result<(HeaderName, HeaderValue), CredentialError> {
        let header =
            HeaderName::try_from(&attach.header).map_err(|_| CredentialError::HeaderName {
                name: self.name.clone(),
                header: attach.header.clone(),
            })?;
        let (before, after) = attach.around();
        let value = [before.as_bytes(), self.secret.expose(), after.as_bytes()].concat();
        let value = Zeroizing::new(value);
        let mut value =
            HeaderValue::from_bytes(&value).map_err(|_| CredentialError::ControlByte {
                name: self.name.clone(),
            })?;
        value.set_sensitive(true);
        Ok((header, value))
    }
}
