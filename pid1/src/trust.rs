//! Makes the guest's programs trust the gateway's certificate authority.
//!
//! Two ways at once, since each misses some programs: the authority goes into the trust stores of
//! the distribution (programs that ignore the environment, such as Go's), and every known variable
//! names one merged bundle (programs that bring their own store). `SSL_CERT_DIR` is never set: it
//! masks `SSL_CERT_FILE` in OpenSSL's users.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Bundles that distributions ship, by layout: Debian and Alpine, RHEL, and what OpenSSL defaults to.
const BUNDLES: [&str; 4] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/cert.pem",
];

/// Folders from which a distribution's own tool rebuilds its bundle.
const ANCHORS: [&str; 2] = [
    "usr/local/share/ca-certificates",
    "etc/pki/ca-trust/source/anchors",
];

/// The merged bundle that the environment names; the first of [`BUNDLES`] whatever the image has.
pub(crate) const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Variables that name a bundle, each the only way to reach some tool.
const VARIABLES: [&str; 12] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "UV_SSL_CERT_FILE",
    "npm_config_cafile",
];

/// Adds `ca_pem` to every store of the image under `root`; says which. Doing it twice changes
/// nothing.
pub(crate) fn install(root: &Path, ca_pem: &str) -> io::Result<Vec<String>> {
    let mut done = Vec::new();
    for (position, bundle) in BUNDLES.iter().enumerate() {
        let path = root.join(bundle);
        if position > 0 && !path.exists() {
            continue;
        }
        append(&path, ca_pem)?;
        done.push(format!("ca:/{bundle}"));
    }
    for anchor in ANCHORS {
        let folder = root.join(anchor);
        if folder.is_dir() {
            fs::write(folder.join("outgate.crt"), ca_pem)?;
            done.push(format!("ca:/{anchor}"));
        }
    }
    Ok(done)
}

/// The variables that make tools use the bundle.
pub(crate) fn environment() -> BTreeMap<String, String> {
    VARIABLES
        .iter()
        .map(|name| ((*name).to_owned(), BUNDLE.to_owned()))
        .collect()
}

/// Java's stores, which hold no PEM and are left as they are.
pub(crate) fn java_stores(root: &Path) -> Vec<String> {
    let runtimes = fs::read_dir(root.join("usr/lib/jvm"))
        .into_iter()
        .flatten()
        .flatten();
    let own = runtimes.map(|runtime| runtime.path().join("lib/security/cacerts"));
    let mut found: Vec<String> = std::iter::once(root.join("etc/ssl/certs/java/cacerts"))
        .chain(own)
        .filter(|store| store.is_file())
        .map(|store| {
            format!(
                "java:/{}",
                store.strip_prefix(root).unwrap_or(&store).display()
            )
        })
        .collect();
    found.sort();
    found
}

/// A bundle may hold comments in any encoding.
fn append(path: &Path, ca_pem: &str) -> io::Result<()> {
    let mut bundle = match fs::read(path) {
        Ok(bundle) => bundle,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let certificate = ca_pem.trim().as_bytes();
    if bundle
        .windows(certificate.len().max(1))
        .any(|found| found == certificate)
    {
        return Ok(());
    }
    if !bundle.is_empty() && !bundle.ends_with(b"\n") {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(certificate);
    bundle.push(b'\n');
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bundle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CA: &str = "-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n";

    #[test]
    fn b041_the_store_itself_trusts_the_authority_in_every_layout() {
        for (bundle, anchors) in [
            (
                "etc/ssl/certs/ca-certificates.crt",
                "usr/local/share/ca-certificates",
            ),
            (
                "etc/pki/tls/certs/ca-bundle.crt",
                "etc/pki/ca-trust/source/anchors",
            ),
            ("etc/ssl/cert.pem", "usr/local/share/ca-certificates"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let bundle = root.path().join(bundle);
            fs::create_dir_all(bundle.parent().unwrap()).unwrap();
            fs::write(&bundle, b"theirs \xff").unwrap();
            fs::create_dir_all(root.path().join(anchors)).unwrap();
            for _ in 0..2 {
                install(root.path(), CA).unwrap();
            }
            let expected = [b"theirs \xff\n", CA.as_bytes()].concat();
            assert_eq!(fs::read(&bundle).unwrap(), expected);
            let anchor = root.path().join(anchors).join("outgate.crt");
            assert_eq!(fs::read_to_string(anchor).unwrap(), CA);
        }
    }

    #[test]
    fn an_image_without_any_store_gets_one() {
        let root = tempfile::tempdir().unwrap();
        let done = install(root.path(), CA).unwrap();
        assert_eq!(done, ["ca:/etc/ssl/certs/ca-certificates.crt"]);
        assert_eq!(
            fs::read_to_string(root.path().join(&BUNDLE[1..])).unwrap(),
            CA
        );
    }

    #[test]
    fn no_variable_masks_another() {
        let environment = environment();
        assert!(!environment.contains_key("SSL_CERT_DIR"));
        assert!(environment.values().all(|value| value == BUNDLE));
    }
}
