//! A value that can't be printed, compared by accident or left behind in freed memory.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretSlice};
use zeroize::Zeroizing;

/// A secret. Its memory is overwritten when it goes.
#[derive(Clone)]
pub struct Secret(SecretSlice<u8>);

impl Secret {
    pub(super) fn new(bytes: &Zeroizing<Vec<u8>>) -> Self {
        // A boxed slice has no spare room: no growth leaves a copy behind.
        Self(SecretSlice::from(bytes.to_vec()))
    }

    /// The value itself. Whoever calls this answers for where it goes.
    pub(super) fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// Whether both hold the same value. In constant time: values of two generations of a secret
    /// are compared while an attacker may be timing requests.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.expose(), other.expose()).is_ok()
    }
}

/// Tells that there is a secret and nothing else, not even its length.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
