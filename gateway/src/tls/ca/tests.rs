//! The authority and its leaves, judged by our own parser and by the real `openssl`.

use super::*;
use crate::tls::leaf::{self, LeafName};

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use rcgen::PKCS_RSA_SHA256;
use tempfile::TempDir;
use x509_parser::extensions::ParsedExtension;

const HOUR: Duration = Duration::from_hours(1);

fn leaf_of(ca: &CertificateAuthority, name: &str) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let name = LeafName::parse(name).unwrap();
    leaf::mint(ca, &name, &key, SystemTime::now())
        .unwrap()
        .certificate
}

/// Runs the real `openssl`; `None` where there is none.
fn openssl(args: &[&str]) -> Option<Output> {
    Command::new("openssl").args(args).output().ok()
}

/// The names of the extensions of `certificate`, an exclamation mark after critical ones.
fn extensions(certificate: &CertificateDer<'_>) -> Vec<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).unwrap();
    let mut names: Vec<_> = certificate
        .iter_extensions()
        .map(|extension| {
            let name = match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(_) => "authorityKeyIdentifier",
                ParsedExtension::BasicConstraints(_) => "basicConstraints",
                ParsedExtension::ExtendedKeyUsage(_) => "extendedKeyUsage",
                ParsedExtension::KeyUsage(_) => "keyUsage",
                ParsedExtension::SubjectAlternativeName(_) => "subjectAltName",
                ParsedExtension::SubjectKeyIdentifier(_) => "subjectKeyIdentifier",
                other => panic!("unexpected {other:?}"),
            };
            format!("{name}{}", if extension.critical { "!" } else { "" })
        })
        .collect();
    names.sort();
    names
}

#[test]
fn b036_b037_both_certificates_have_exactly_what_strict_verifiers_ask_for() {
    let ca = CertificateAuthority::generate().unwrap();
    assert_eq!(
        extensions(&ca.0.chain[0]),
        [
            "authorityKeyIdentifier",
            "basicConstraints!",
            "keyUsage!",
            "subjectKeyIdentifier"
        ]
    );
    let leaf = leaf_of(&ca, "a.test");
    assert_eq!(
        extensions(&leaf),
        [
            "authorityKeyIdentifier",
            "basicConstraints!",
            "extendedKeyUsage",
            "keyUsage!",
            "subjectAltName",
            "subjectKeyIdentifier",
        ]
    );
    let (_, authority) = X509Certificate::from_der(&ca.0.chain[0]).unwrap();
    let constraints = authority.basic_constraints().unwrap().unwrap().value;
    assert_eq!(
        (constraints.ca, constraints.path_len_constraint),
        (true, Some(0))
    );
    let usage = authority.key_usage().unwrap().unwrap().value;
    assert_eq!(usage.flags, 0b110_0000, "keyCertSign and cRLSign");
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    assert_eq!(
        leaf.key_usage().unwrap().unwrap().value.flags,
        1,
        "digitalSignature"
    );
}

#[test]
fn openssl_verifies_both_strictly() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let ca = CertificateAuthority::generate().unwrap();
    fs::write(path("ca.pem"), ca.certificate_pem()).unwrap();
    for (name, flag) in [
        ("a.test", "-verify_hostname"),
        ("10.9.8.7", "-verify_ip"),
        ("[2001:db8::1]", "-verify_ip"),
    ] {
        fs::write(path("leaf.pem"), pem_of(&leaf_of(&ca, name))).unwrap();
        let wanted = name.trim_matches(['[', ']']);
        let (ca, leaf) = (path("ca.pem"), path("leaf.pem"));
        let verify = ["verify", "-x509_strict", "-CAfile", &ca];
        let server = [&verify[..], &["-purpose", "sslserver", flag, wanted, &leaf]].concat();
        for args in [&server[..], &[&verify[..], &[&ca]].concat()] {
            let Some(output) = openssl(args) else { return };
            assert!(output.status.success(), "{args:?}: {output:?}");
        }
    }
}

#[test]
fn b205_b206_leaf_and_authority_are_backdated_for_guests_that_lag() {
    let now = SystemTime::now();
    let ca = CertificateAuthority::generate().unwrap();
    let der = leaf_of(&ca, "a.test");
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    let from = system_time(leaf.validity().not_before.timestamp());
    let until = system_time(leaf.validity().not_after.timestamp());
    assert!(from <= now - 47 * HOUR && from >= now - 49 * HOUR);
    assert!(ca.not_before() <= now - 9 * 24 * HOUR);
    assert!(until > now + 6 * 24 * HOUR && until < now + 8 * 24 * HOUR);
}

#[test]
fn a_leaf_never_leaves_the_validity_of_its_authority() {
    let made = SystemTime::now() - (LIFETIME - 3 * 24 * HOUR);
    let (certificate, key) = new_authority(made).unwrap();
    let ca = CertificateAuthority::from_pem(&certificate, &key).unwrap();
    let key = KeyPair::generate().unwrap();
    let name = LeafName::parse("a.test").unwrap();
    for now in [ca.not_before() + HOUR, ca.not_after() - HOUR] {
        let leaf = leaf::mint(&ca, &name, &key, now).unwrap();
        let (_, leaf) = X509Certificate::from_der(&leaf.certificate).unwrap();
        assert!(system_time(leaf.validity().not_before.timestamp()) >= ca.not_before());
        assert!(system_time(leaf.validity().not_after.timestamp()) <= ca.not_after());
    }
}

#[test]
fn serials_are_positive_and_never_the_same() {
    let serials: std::collections::HashSet<_> = (0..100)
        .map(|_| random_serial().unwrap().to_bytes())
        .collect();
    assert_eq!(serials.len(), 100);
    assert!(
        serials
            .iter()
            .all(|serial| serial.len() == 16 && (0x40..0x80).contains(&serial[0]))
    );
}

#[test]
fn a_directory_is_filled_once_and_read_from_then_on() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("state/ca");
    let made = CertificateAuthority::load_or_create(&dir).unwrap();
    let read = CertificateAuthority::load_or_create(&dir).unwrap();
    assert_eq!(made.certificate_pem(), read.certificate_pem());
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&dir.join(KEY_FILE))), (0o700, 0o600));
    let left: Vec<_> = fs::read_dir(dir.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "no draft stays behind");
}

#[test]
fn gateways_that_start_at_once_agree_on_one_authority() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("ca");
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| CertificateAuthority::load_or_create(&dir)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    });
    assert!(
        made.iter()
            .all(|ca| ca.certificate_pem() == made[0].certificate_pem())
    );
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("notes"), "mine").unwrap();
    let error = CertificateAuthority::load_or_create(dir.path()).unwrap_err();
    assert!(error.to_string().contains("ca.pem"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_key_that_others_can_read_is_refused_with_the_remedy() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("ca");
    CertificateAuthority::load_or_create(&dir).unwrap();
    let key = dir.join(KEY_FILE);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let error = CertificateAuthority::load_or_create(&dir).unwrap_err();
    let expected = format!(
        "unusable certificate authority: `{key}` is open to other users (mode 0640); \
         run `chmod 600 {key}`",
        key = key.display()
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_must_not_sign_is_refused() {
    let (certificate, key) = new_authority(SystemTime::now()).unwrap();
    let (expired, expired_key) = new_authority(SystemTime::now() - LIFETIME - HOUR).unwrap();
    let (_, foreign_key) = new_authority(SystemTime::now()).unwrap();
    let ca = CertificateAuthority::from_pem(&certificate, &key).unwrap();
    let leaf_key = KeyPair::generate().unwrap();
    let name = LeafName::parse("a.test").unwrap();
    let leaf = leaf::mint(&ca, &name, &leaf_key, SystemTime::now())
        .unwrap()
        .certificate;
    let leaf_key = leaf_key.serialize_pem();
    for (certificate, key, expected) in [
        ("", key.as_str(), "holds no certificate"),
        (&certificate, "no key", "private key can't be read"),
        (&certificate, &foreign_key, "belongs to another certificate"),
        (&pem_of(&leaf), &leaf_key, "not marked as an authority"),
        (&expired, &expired_key, "expired at"),
    ] {
        let error = CertificateAuthority::from_pem(certificate, key)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// An organisation's issuing authority below its root, with a name that repeats a component
/// and an RSA key.
#[test]
fn an_authority_brought_along_keeps_its_chain_and_its_name() {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    root.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let root = rcgen::CertifiedIssuer::self_signed(root, root_key).unwrap();

    let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.use_authority_key_identifier_extension = true;
    params
        .distinguished_name
        .push(DnType::OrganizationalUnitName, "One");
    let issuing = params.signed_by(&key, &root).unwrap();

    let mut chain = format!("{}{}", issuing.pem(), root.pem());
    let ca = CertificateAuthority::from_pem(&chain, &key.serialize_pem()).unwrap();
    assert_eq!(ca.certificate_pem(), chain);
    let leaf = leaf_of(&ca, "a.test");
    let (_, parsed) = X509Certificate::from_der(&leaf).unwrap();
    assert_eq!(parsed.issuer().as_raw(), ca.subject());
    let sent: Vec<_> = ca.intermediates().collect();
    assert_eq!(sent, [issuing.der()], "the root is not sent");

    // A file that holds the key too does not hand it to the guest.
    chain.push_str(&key.serialize_pem());
    let ca = CertificateAuthority::from_pem(&chain, &key.serialize_pem()).unwrap();
    assert!(!ca.certificate_pem().contains("PRIVATE"));
}

#[test]
fn a_name_that_repeats_components_still_joins_leaf_and_authority() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("corp.pem"), path("corp.key"));
    let made = openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/DC=test/DC=corp/OU=One/OU=Two/CN=Corp Issuing",
        "-days",
        "30",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ]);
    let Some(made) = made else { return };
    assert!(made.status.success(), "{made:?}");
    let read = |path: &str| fs::read_to_string(path).unwrap();
    let ca = CertificateAuthority::from_pem(&read(&certificate), &read(&key)).unwrap();
    let leaf = path("leaf.pem");
    fs::write(&leaf, pem_of(&leaf_of(&ca, "a.test"))).unwrap();
    let verified = openssl(&["verify", "-x509_strict", "-CAfile", &certificate, &leaf]).unwrap();
    assert!(verified.status.success(), "{verified:?}");
}
