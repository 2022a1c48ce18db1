//! Fetches credentials and numbers their values.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outgate_policy::{CredentialName, CredentialSpec};

use super::attach::Credential;
use super::secret::Secret;
use super::{CredentialError, source};

/// Fetches credentials. Cheap to clone.
///
/// What it remembers is bounded by the policy: one value per credential name.
#[derive(Clone, Default)]
pub struct Broker(Arc<Mutex<HashMap<CredentialName, Known>>>);

/// The value last seen for a name.
struct Known {
    secret: Secret,
    version: u64,
}

impl Broker {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The credential with the value that its source holds now. Call it after the request was
    /// allowed, for each request: a rotated secret counts from the next call on.
    ///
    /// # Errors
    /// [`CredentialError`] if there is no usable value; the request must then not be sent.
    pub async fn fetch(&self, spec: &CredentialSpec) -> Result<Credential, CredentialError> {
        let secret = source::read(spec).await?;
        Ok(Credential {
            name: spec.name.clone(),
            version: self.version(&spec.name, &secret),
            headers: spec.attach.clone(),
            secret,
        })
    }

    fn version(&self, name: &CredentialName, secret: &Secret) -> u64 {
        // One count for the process: no two values ever share a version, of whatever credential.
        static VERSIONS: AtomicU64 = AtomicU64::new(1);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(name) {
            Some(known) if known.secret.is_same(secret) => known.version,
            _ => {
                let version = VERSIONS.fetch_add(1, Ordering::Relaxed);
                known.insert(
                    name.clone(),
                    Known {
                        secret: secret.clone(),
                        version,
                    },
                );
                version
            }
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_policy::{named, spec, specs_with_file};
    use super::*;

    use std::fs;

    use http::{HeaderMap, HeaderValue};
    use outgate_policy::Reason;
    use tempfile::TempDir;

    /// A credential whose file holds `contents`.
    fn in_file(dir: &TempDir, contents: &[u8]) -> CredentialSpec {
        let path = dir.path().join("key");
        fs::write(&path, contents).unwrap();
        named(specs_with_file(path.to_str().unwrap()), "model")
    }

    fn attached(credential: &Credential, mut headers: HeaderMap) -> HeaderMap {
        credential.attach(&mut headers).unwrap();
        headers
    }

    #[tokio::test]
    async fn a_secret_is_attached_sensitive_and_replaces_what_the_guest_sent() {
        let dir = TempDir::new().unwrap();
        let credential = Broker::new()
            .fetch(&in_file(&dir, b"s3cr3t\n"))
            .await
            .unwrap();
        let mut headers = HeaderMap::new();
        headers.append("x-api-key", HeaderValue::from_static("guest"));
        headers.append("x-api-key", HeaderValue::from_static("again"));
        headers.append("x-other", HeaderValue::from_static("kept"));
        let headers = attached(&credential, headers);

        let sent: Vec<_> = headers.get_all("x-api-key").iter().collect();
        assert_eq!(sent, ["s3cr3t"]);
        assert!(sent[0].is_sensitive());
        assert_eq!(headers["x-also"], "<s3cr3t>");
        assert_eq!(headers["x-other"], "kept");
        assert_eq!(
            credential.headers().collect::<Vec<_>>(),
            ["x-api-key", "x-also"]
        );
    }

    #[tokio::test]
    async fn b181_a_rotated_secret_has_another_version_and_counts_at_once() {
        let dir = TempDir::new().unwrap();
        let broker = Broker::new();
        let spec = in_file(&dir, b"one");
        let first = broker.fetch(&spec).await.unwrap();
        let same = broker.fetch(&spec).await.unwrap();
        assert_eq!(first.version(), same.version());

        in_file(&dir, b"two");
        let rotated = broker.fetch(&spec).await.unwrap();
        assert_ne!(first.version(), rotated.version());
        assert_eq!(attached(&rotated, HeaderMap::new())["x-api-key"], "two");

        // Another sandbox's broker never hands out the same version for another value.
        let other = Broker::new().fetch(&spec).await.unwrap();
        assert!(![first.version(), rotated.version()].contains(&other.version()));
    }

    #[tokio::test]
    async fn only_the_last_line_break_of_a_file_is_not_part_of_the_secret() {
        let dir = TempDir::new().unwrap();
        for contents in ["key", "key\n", "key\r\n"] {
            let credential = Broker::new()
                .fetch(&in_file(&dir, contents.as_bytes()))
                .await
                .unwrap();
            assert_eq!(attached(&credential, HeaderMap::new())["x-api-key"], "key");
        }
    }

    #[tokio::test]
    async fn a_secret_that_cannot_be_had_is_an_error_that_says_what_to_do() {
        let dir = TempDir::new().unwrap();
        let told = async |spec: CredentialSpec| {
            let error = Broker::new().fetch(&spec).await.unwrap_err();
            assert_eq!(error.reason(), Reason::CredentialUnavailable);
            error.to_string()
        };
        assert_eq!(
            told(spec("github")).await,
            "credential `github`: the gateway has no environment variable `OUTGATE_TEST_UNSET`; \
             start it with one"
        );
        assert_eq!(
            told(spec("model")).await,
            "credential `model`: can't read `/nonexistent/model-key`: No such file or directory \
             (os error 2); create it, readable by the gateway"
        );
        for empty in ["", "\n", "\r\n"] {
            let told = told(in_file(&dir, empty.as_bytes())).await;
            assert!(told.contains("the secret is empty"), "{told}");
        }
        for broken in ["a\nb", "a\r\n\n", "a\0b", "a\x7f", "\ta"] {
            let told = told(in_file(&dir, broken.as_bytes())).await;
            assert!(told.contains("control byte"), "{told}");
        }
        let told_large = told(in_file(&dir, &[b'x'; 20_000])).await;
        assert!(
            told_large.contains("larger than 16384 bytes"),
            "{told_large}"
        );
        let mut device = in_file(&dir, b"x");
        device.source = outgate_policy::CredentialSource::File {
            path: "/dev/zero".into(),
        };
        assert!(told(device).await.contains("not a regular file"));
    }

    #[tokio::test]
    async fn an_environment_variable_is_taken_as_it_is() {
        let credential = Broker::new().fetch(&spec("plain")).await.unwrap();
        let expected = format!("Token {}", std::env::var("CARGO_MANIFEST_DIR").unwrap());
        assert_eq!(
            attached(&credential, HeaderMap::new())["authorization"],
            expected.as_str()
        );
    }

    #[tokio::test]
    async fn c14_no_debug_output_holds_a_secret() {
        let dir = TempDir::new().unwrap();
        let broker = Broker::new();
        let credential = broker.fetch(&in_file(&dir, b"s3cr3t")).await.unwrap();
        let headers = attached(&credential, HeaderMap::new());
        let printed = format!("{broker:?} {credential:?} {headers:?}");
        assert!(!printed.contains("s3cr3t"), "{printed}");
    }
}
