//! Which sandbox a connection belongs to: by id and token, or by the listener that it came in on.
//!
//! A token is known by its SHA-256 only, so a configuration file and a memory image hold nothing
//! that could be presented. Whether an id exists or a token is wrong can't be told apart, not by
//! the answer and not by how long it takes.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::Presented;
use crate::sandbox::SandboxContext;

/// Connections that one sandbox may have open over all listeners. Each of them can hold the buffers
/// of a TLS session, so this bounds the memory of a sandbox.
pub const MAX_CONNECTIONS_PER_SANDBOX: usize = 1024;
/// Bytes of a token at least: 128 bits in hexadecimal. It is not guessed, whatever a client tries.
pub(super) const MIN_TOKEN_BYTES: usize = 32;
/// Bytes of a credential at most, decoded or not; far beyond an id and a token.
const MAX_CREDENTIAL_BYTES: usize = 1024;

/// SHA-256 of a sandbox's token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of `token`.
    ///
    /// # Errors
    /// When the token is shorter than `MIN_TOKEN_BYTES` or has bytes beyond visible ASCII.
    pub fn of(token: &[u8]) -> Result<Self, BadToken> {
        if token.len() < MIN_TOKEN_BYTES || !token.iter().all(u8::is_ascii_graphic) {
            return Err(BadToken);
        }
        Ok(Self(Sha256::digest(token).into()))
    }

    fn is_of(&self, token: &[u8]) -> bool {
        let presented: [u8; 32] = Sha256::digest(token).into();
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &presented).is_ok()
    }
}

/// Sixty-four hexadecimal digits, as `sha256sum` writes them.
impl FromStr for TokenHash {
    type Err = BadTokenHash;

    fn from_str(text: &str) -> Result<Self, BadTokenHash> {
        let digits = text.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return Err(BadTokenHash);
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| {
                let digit = pair.get(at).and_then(|byte| char::from(*byte).to_digit(16));
                digit.and_then(|digit| u8::try_from(digit).ok())
            };
            let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                return Err(BadTokenHash);
            };
            *byte = (high << 4) | low;
        }
        Ok(Self(hash))
    }
}

/// Shows nothing: a hash of a weak token is as good as the token.
impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// A token that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token is at least {MIN_TOKEN_BYTES} visible ASCII characters; make one with `openssl rand -hex 32`"
)]
pub struct BadToken;

/// A hash that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 is 64 hexadecimal digits; make one with `printf %s \"$TOKEN\" | sha256sum`")]
pub struct BadTokenHash;

/// How listeners recognise a sandbox.
#[derive(Clone, Debug)]
pub struct Recognised {
    /// The sandbox.
    pub sandbox: Arc<SandboxContext>,
    /// Its token, if it may present one.
    pub token: Option<TokenHash>,
}

/// The sandboxes that listeners may serve. Never changed; another one takes its place.
#[derive(Debug, Default)]
pub struct Directory {
    by_id: HashMap<Box<str>, Entry>,
}

/// A guest, and what ends all that was opened for it once no directory has it any more.
#[derive(Clone, Debug)]
struct Entry {
    guest: Arc<Guest>,
    _open: Arc<DropGuard>,
}

/// A sandbox as listeners serve it.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) sandbox: Arc<SandboxContext>,
    token: Option<TokenHash>,
    connections: Arc<Semaphore>,
    open: CancellationToken,
}

impl Directory {
    /// A directory of `sandboxes`, whose ids are unique as [`crate::gateway`] takes no two alike.
    #[must_use]
    pub fn new(sandboxes: impl IntoIterator<Item = Recognised>) -> Self {
        Self::default().followed_by(sandboxes)
    }

    /// The directory that takes this one's place. A sandbox that is in both, with the same token,
    /// keeps its connections; those of all others end when this one is dropped.
    #[must_use]
    pub fn followed_by(&self, sandboxes: impl IntoIterator<Item = Recognised>) -> Self {
        let entry = |Recognised { sandbox, token }: Recognised| {
            let id = Box::from(sandbox.id());
            let known = self.by_id.get(&id).filter(|known| {
                Arc::ptr_eq(&known.guest.sandbox, &sandbox) && known.guest.token == token
            });
            let entry = known.cloned().unwrap_or_else(|| Entry::new(sandbox, token));
            (id, entry)
        };
        Self {
            by_id: sandboxes.into_iter().map(entry).collect(),
        }
    }

    /// The sandbox with this id, for a listener that serves nobody else.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Guest>> {
        self.by_id.get(id).map(|entry| Arc::clone(&entry.guest))
    }

    /// The sandbox that `presented` proves.
    pub(crate) fn prove(&self, presented: Presented<'_>) -> Option<Arc<Guest>> {
        match presented {
            Presented::Nothing => None,
            Presented::Password(id, token) => self.prove_password(id, token),
            Presented::Basic(value) => {
                let (id, token) = basic(value)?;
                self.prove_password(&id, &token)
            }
        }
    }

    fn prove_password(&self, id: &[u8], token: &[u8]) -> Option<Arc<Guest>> {
        // Compared with in place of one that is not there, so that it takes as long.
        const NOBODY: TokenHash = TokenHash([0; 32]);
        let guest = std::str::from_utf8(id)
            .ok()
            .and_then(|id| self.by_id.get(id))
            .map(|entry| &entry.guest);
        let known = guest.and_then(|guest| guest.token);
        let is_right = known.unwrap_or(NOBODY).is_of(token);
        guest
            .filter(|_| known.is_some() && is_right)
            .map(Arc::clone)
    }
}

impl Entry {
    fn new(sandbox: Arc<SandboxContext>, token: Option<TokenHash>) -> Self {
        let open = CancellationToken::new();
        Self {
            _open: Arc::new(open.clone().drop_guard()),
            guest: Arc::new(Guest {
                sandbox,
                token,
                connections: Arc::new(Semaphore::new(MAX_CONNECTIONS_PER_SANDBOX)),
                open,
            }),
        }
    }
}

impl Guest {
    /// A place among [`MAX_CONNECTIONS_PER_SANDBOX`], if there is one left.
    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }

    /// Runs `work` until it is done, or the sandbox is served no longer: then `None`.
    pub(crate) async fn while_served<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.open.run_until_cancelled(work).await
    }
}

impl Presented<'_> {
    /// Whether this is a credential of `guest`.
    pub(super) fn proves(self, guest: &Guest) -> bool {
        let is_right = |id: &[u8], token: &[u8]| {
            id == guest.sandbox.id().as_bytes() && guest.token.is_some_and(|own| own.is_of(token))
        };
        match self {
            Self::Nothing => false,
            Self::Password(id, token) => is_right(id, token),
            Self::Basic(value) => basic(value).is_some_and(|(id, token)| is_right(&id, &token)),
        }
    }
}

/// User and password of `Basic …` (RFC 7617): the id and the token.
fn basic(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    if value.len() > MAX_CREDENTIAL_BYTES {
        return None;
    }
    let (scheme, rest) = value.split_at_checked(value.iter().position(|byte| *byte == b' ')?)?;
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut id = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = id.iter().position(|byte| *byte == b':')?;
    let token = id.split_off(colon + 1);
    id.pop();
    Some((id, token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{Lab, allow};

    const TOKEN: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn directory(lab: &Lab, token: Option<TokenHash>) -> Directory {
        let sandbox = Arc::clone(&lab.sandbox);
        Directory::new([Recognised { sandbox, token }])
    }

    fn header(user: &str, password: &[u8]) -> Vec<u8> {
        let pair = [user.as_bytes(), b":", password].concat();
        format!("Basic {}", STANDARD.encode(pair)).into_bytes()
    }

    #[tokio::test]
    async fn a_sandbox_is_known_by_id_and_token_and_nothing_less() {
        let lab = Lab::new(&allow("https", 443, ""), None);
        let known = directory(&lab, Some(TokenHash::of(TOKEN).unwrap()));
        let proves = |value: &[u8]| {
            let proven = known.prove(Presented::Basic(value)).is_some();
            let guest = known.get("s1").unwrap();
            assert_eq!(proven, Presented::Basic(value).proves(&guest));
            proven
        };
        assert!(proves(&header("s1", TOKEN)));
        let scheme_in_capitals = header("s1", TOKEN).to_ascii_uppercase();
        assert!(!proves(&scheme_in_capitals), "base64 has cases");
        let mut lower = header("s1", TOKEN);
        lower[..5].make_ascii_lowercase();
        assert!(proves(&lower));
        for wrong in [
            header("s1", b"0123456789abcdef0123456789abcdee"),
            header("s1", b""),
            header("s2", TOKEN),
            header("", TOKEN),
            header("S1", TOKEN),
            b"Basic".to_vec(),
            b"Basic ".to_vec(),
            b"Basic czE=".to_vec(),
            b"Bearer czE6eA==".to_vec(),
            [b"Basic ".to_vec(), vec![b'A'; 100_000]].concat(),
        ] {
            assert!(!proves(&wrong), "{}", wrong.escape_ascii());
        }
    }

    #[tokio::test]
    async fn without_a_token_no_credential_is_right() {
        let lab = Lab::new(&allow("https", 443, ""), None);
        let known = directory(&lab, None);
        let header = header("s1", TOKEN);
        for presented in [
            Presented::Basic(&header),
            Presented::Password(b"s1", TOKEN),
            Presented::Password(b"s1", b""),
            Presented::Nothing,
        ] {
            assert!(known.prove(presented).is_none());
        }
        assert!(known.get("s1").is_some() && known.get("s2").is_none());
    }

    #[test]
    fn tokens_are_long_and_hashes_are_hashes() {
        assert_eq!(TokenHash::of(b"short"), Err(BadToken));
        assert_eq!(TokenHash::of(&[b' '; 64]), Err(BadToken));
        let hash = "24A3aCb1cd3ea0a4d0d2d4e1ed3fbd7c7ba1d1b1aabf8d2c8a4ec2a1a2b3c4d5";
        assert!(hash.parse::<TokenHash>().is_ok());
        assert_eq!(hash[1..].parse::<TokenHash>(), Err(BadTokenHash));
        assert_eq!(
            hash.replace('a', "+").parse::<TokenHash>(),
            Err(BadTokenHash)
        );
        let own = Sha256::digest(TOKEN);
        let own: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            own.parse::<TokenHash>(),
            TokenHash::of(TOKEN).map_err(|_| BadTokenHash)
        );
    }

    #[tokio::test]
    async fn what_was_opened_ends_with_the_directory() {
        let lab = Lab::new(&allow("https", 443, ""), None);
        let known = directory(&lab, None);
        let guest = known.get("s1").unwrap();
        drop(known);
        assert_eq!(guest.while_served(std::future::pending::<()>()).await, None);
    }
}
