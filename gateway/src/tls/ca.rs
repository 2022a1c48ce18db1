//! The certificate authority that sandboxes trust.
//!
//! Made in memory for one run, kept in a directory, or brought along by an organisation, whose
//! chain and names are then used untouched. It refuses a key that others on the machine can read,
//! a key that does not belong to the certificate, and a certificate that strict verifiers would
//! refuse at the guest: better a clear error here than a hundred failing builds there.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

use super::TlsError;

/// The certificate chain inside the authority's directory, the signing certificate first.
const CERTIFICATE_FILE: &str = "ca.pem";
/// The private key inside the authority's directory.
const KEY_FILE: &str = "ca.key";

/// How far back a new authority is valid: a guest restored from an old snapshot lags until its
/// clock is set, and leaves are backdated into this span (field case B206).
const BACKDATE: Duration = Duration::from_hours(10 * 24);
/// How long a new authority is valid.
const LIFETIME: Duration = Duration::from_hours(365 * 24);

/// A certificate authority: a private key, its certificate and what leads up to a root.
///
/// Cheap to clone. The key never leaves it.
#[derive(Clone)]
pub struct CertificateAuthority(Arc<Inner>);

struct Inner {
    chain: Vec<CertificateDer<'static>>,
    pem: String,
    /// The encoded subject of the signing certificate.
    subject: Vec<u8>,
    not_before: SystemTime,
    not_after: SystemTime,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// A new authority that lives as long as this process.
    ///
    /// # Errors
    /// [`TlsError::Authority`] if the system's randomness fails.
    pub fn generate() -> Result<Self, TlsError> {
        let (certificate, key) = new_authority(SystemTime::now())?;
        Self::from_pem(&certificate, &key)
    }

    /// The authority kept in `dir` as `ca.pem` and `ca.key`, made on first use.
    ///
    /// `dir` belongs to the authority alone. A new one appears there whole or not at all, also
    /// when two gateways start at once or the machine loses power.
    ///
    /// # Errors
    /// [`TlsError::AuthorityFile`] if the files can't be read or made; [`TlsError::Authority`] if
    /// they must not be used (readable by others, not belonging together, expired).
    pub fn load_or_create(dir: &Path) -> Result<Self, TlsError> {
        match Self::load(dir) {
            Err(TlsError::AuthorityFile { source, .. })
                if source.kind() == io::ErrorKind::NotFound && is_vacant(dir) =>
            {
                create(dir)?;
                Self::load(dir)
            }
            outcome => outcome,
        }
    }

    /// An authority from a PEM chain, the signing certificate first, and its PEM private key.
    ///
    /// # Errors
    /// [`TlsError::Authority`] with what is wrong: unreadable, not a certificate authority, not
    /// allowed to sign certificates, expired, or a key of another certificate.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, TlsError> {
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(|error| unusable(format!("its certificate is not PEM: {error}")))?;
        let signing = certificates
            .first()
            .ok_or_else(|| unusable("its certificate file holds no certificate"))?;
        let (_, certificate) = X509Certificate::from_der(signing)
            .map_err(|error| unusable(format!("its certificate is malformed: {error}")))?;
        let key = KeyPair::from_pem(key)
            .map_err(|error| unusable(format!("its private key can't be read: {error}")))?;

        check_usable(&certificate, &key)?;
        let subject = certificate.subject().as_raw().to_vec();
        let not_before = system_time(certificate.validity().not_before.timestamp());
        let not_after = system_time(certificate.validity().not_after.timestamp());
        if not_after <= SystemTime::now() {
            return Err(unusable(format!(
                "its certificate expired at {}; remove it to make a new one, and let guests trust that",
                certificate.validity().not_after
            )));
        }
        let params = issuer_params(&certificate, &key);
        Ok(Self(Arc::new(Inner {
            pem: certificates
                .iter()
                .map(|certificate| pem_of(certificate))
                .collect(),
            chain: certificates,
            subject,
            not_before,
            not_after,
            issuer: Issuer::new(params, key),
        })))
    }

    /// What a guest has to trust, in PEM: the signing certificate and, if it came with one, the
    /// chain above it.
    pub fn certificate_pem(&self) -> &str {
        &self.0.pem
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.0.issuer
    }

    /// The encoded subject, which is the issuer of every leaf.
    pub(super) fn subject(&self) -> &[u8] {
        &self.0.subject
    }

    pub(super) fn not_before(&self) -> SystemTime {
        self.0.not_before
    }

    pub(super) fn not_after(&self) -> SystemTime {
        self.0.not_after
    }

    /// The certificates to send after a leaf: the chain without its root, which the verifier must
    /// hold anyway (RFC 8446 section 4.4.2).
    pub(super) fn intermediates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.0
            .chain
            .iter()
            .filter(|certificate| !is_self_issued(certificate))
    }

    fn load(dir: &Path) -> Result<Self, TlsError> {
        let certificate_path = dir.join(CERTIFICATE_FILE);
        let key_path = dir.join(KEY_FILE);
        let chain = fs::read_to_string(&certificate_path).map_err(file_error(&certificate_path))?;
        // No other user may read the key, whoever put it there.
        let mode = fs::metadata(&key_path)
            .map_err(file_error(&key_path))?
            .mode();
        if mode & 0o077 != 0 {
            return Err(unusable(format!(
                "`{path}` is open to other users (mode {:04o}); run `chmod 600 {path}`",
                mode & 0o7777,
                path = key_path.display(),
            )));
        }
        let key = Zeroizing::new(fs::read_to_string(&key_path).map_err(file_error(&key_path))?);
        Self::from_pem(&chain, &key)
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("certificates", &self.0.chain.len())
            .field("not_after", &self.0.not_after)
            .finish_non_exhaustive()
    }
}

/// A serial number of 126 random bits: positive, never shorter, within the 20 octets of
/// RFC 5280 section 4.1.2.2.
pub(super) fn random_serial() -> Result<SerialNumber, TlsError> {
    let mut serial = [0u8; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| unusable("the system has no randomness"))?;
    serial[0] = serial[0] & 0x3f | 0x40;
    Ok(SerialNumber::from_slice(&serial))
}

/// Makes an authority; certificate and key in PEM.
fn new_authority(now: SystemTime) -> Result<(String, Zeroizing<String>), TlsError> {
    let sign = |error| unusable(format!("can't make a new one: {error}"));
    let key = KeyPair::generate().map_err(sign)?;
    let serial = random_serial()?;
    let mut params = CertificateParams::default();
    set_validity(&mut params, now - BACKDATE, now + LIFETIME);
    // Part of the serial in the name keeps two authorities apart in one trust store.
    let tag: String = serial
        .as_ref()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Outgate");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Outgate CA {tag}"));
    params.serial_number = Some(serial);
    // No certificate authority may ever hang below this one.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.self_signed(&key).map_err(sign)?;
    Ok((certificate.pem(), Zeroizing::new(key.serialize_pem())))
}

/// Fills a directory beside `dir`, then moves it there in one step: whoever loses the race, or
/// finds half of it after a crash, finds nothing of ours in `dir`.
fn create(dir: &Path) -> Result<(), TlsError> {
    let (certificate, key) = new_authority(SystemTime::now())?;
    let name = dir
        .file_name()
        .ok_or_else(|| unusable("its directory has no name"))?;
    let parent = dir.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(parent).map_err(file_error(parent))?;
    let draft = parent.join(format!(".{}.{}", name.display(), random_serial()?));
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&draft)
        .map_err(file_error(&draft))?;

    let filled = write_private(&draft.join(KEY_FILE), key.as_bytes())
        .and_then(|()| write_private(&draft.join(CERTIFICATE_FILE), certificate.as_bytes()))
        .and_then(|()| sync_directory(&draft));
    let moved = filled.and_then(|()| match fs::rename(&draft, dir) {
        // Lost the race; the winner's authority is as good as ours.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        Err(source) => Err(TlsError::AuthorityFile {
            path: dir.to_owned(),
            source,
        }),
        Ok(()) => sync_directory(parent),
    });
    // After a successful move there is nothing left to remove, and a leftover draft is harmless.
    let _ = fs::remove_dir_all(&draft);
    moved
}

fn write_private(path: &Path, contents: &[u8]) -> Result<(), TlsError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .map_err(file_error(path))
}

fn sync_directory(path: &Path) -> Result<(), TlsError> {
    fs::File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(file_error(path))
}

/// Whether an authority may be put at `dir`: nothing is there, or an empty directory.
fn is_vacant(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Refuses a certificate that strict verifiers would not accept as an issuer, and a foreign key.
fn check_usable(certificate: &X509Certificate<'_>, key: &KeyPair) -> Result<(), TlsError> {
    if certificate.public_key().raw != key.subject_public_key_info() {
        return Err(unusable("its private key belongs to another certificate"));
    }
    if !certificate.is_ca() {
        return Err(unusable(
            "its first certificate is not marked as an authority (CA:TRUE)",
        ));
    }
    let may_sign = certificate
        .key_usage()
        .ok()
        .flatten()
        .is_none_or(|usage| usage.value.key_cert_sign());
    if !may_sign {
        return Err(unusable("its key usage does not include keyCertSign"));
    }
    Ok(())
}

/// What `rcgen` has to know of the issuer. The name is put in later, as it is (see `issuer.rs`).
fn issuer_params(certificate: &X509Certificate<'_>, key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let identifier =
        certificate
            .iter_extensions()
            .find_map(|extension| match extension.parsed_extension() {
                x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => {
                    Some(id.0.to_vec())
                }
                _ => None,
            });
    let identifier = identifier.unwrap_or_else(|| params.key_identifier(key));
    params.key_identifier_method = KeyIdMethod::PreSpecified(identifier);
    params
}

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.subject() == certificate.issuer())
}

/// `certificate` in PEM, with nothing that stood around it in the file it came from.
fn pem_of(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let body = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64)); // RFC 7468: lines of 64 characters
        pem.push_str(line);
        pem.push('\n');
        rest = tail;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// Certificates count in whole seconds, from the epoch on.
pub(crate) fn set_validity(params: &mut CertificateParams, from: SystemTime, until: SystemTime) {
    let calendar = |time: SystemTime| {
        let since_epoch = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(since_epoch.as_secs())
    };
    params.not_before = calendar(from);
    params.not_after = calendar(until);
}

fn system_time(unix_seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds.try_into().unwrap_or(0))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> TlsError {
    let path = path.to_owned();
    move |source| TlsError::AuthorityFile { path, source }
}

fn unusable(detail: impl Into<String>) -> TlsError {
    TlsError::Authority(detail.into())
}

#[cfg(test)]
mod tests;
