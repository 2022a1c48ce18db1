//! Keeps placeholders from leaving to a destination that they do not belong to.
//!
//! A placeholder is worth nothing, but sent to a foreign host it says which credential the sandbox
//! was promised, and a client that does so is confused or hostile. It is looked for where clients put
//! credentials: in the target, in header fields and in trailers. Content is not searched.

use std::sync::Arc;

use http::HeaderMap;
use outgate_policy::{CredentialName, Reason, Reject};

use crate::sandbox::SandboxContext;

/// Which placeholders one request may carry: that of the credential its rule attaches, or none.
#[derive(Clone)]
pub(super) struct Scope {
    pub(super) sandbox: Arc<SandboxContext>,
    pub(super) own: Option<CredentialName>,
}

impl Scope {
    pub(super) fn check_target(&self, target: &str) -> Result<(), Reject> {
        self.check(target.as_bytes(), "the target")
    }

    pub(super) fn check_headers(&self, headers: &HeaderMap) -> Result<(), Reject> {
        headers
            .iter()
            .try_for_each(|(name, value)| self.check(value.as_bytes(), name.as_str()))
    }

    fn check(&self, bytes: &[u8], place: &str) -> Result<(), Reject> {
        let placeholders = self.sandbox.services().placeholders.load();
        placeholders
            .find_foreign(bytes, self.own.as_ref())
            .map_or(Ok(()), |found| {
                let detail = format!("the placeholder of `{found}` in {place}");
                Err(Reject::new(Reason::PlaceholderOutOfScope, detail))
            })
    }
}
