//! One certificate for one name.
//!
//! A leaf never carries a second name: a client that reuses a connection for every name on its
//! certificate (RFC 9113 section 9.1.1) would otherwise send one host's requests to another.

use std::time::{Duration, SystemTime};

use outgate_policy::Destination;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;

use super::TlsError;
use super::ca::{CertificateAuthority, random_serial, set_validity};
use super::issuer::with_issuer;

/// What a leaf is for: a host name or an IP address.
pub type LeafName = Destination;

/// How far back a leaf is valid, for guests whose clock lags (field cases B038, B205, B206).
const BACKDATE: Duration = Duration::from_hours(48);
/// How long a leaf is valid from its making.
const LIFETIME: Duration = Duration::from_hours(7 * 24);
/// The longest common name (RFC 5280 appendix A.1, ub-common-name), in bytes.
const MAX_COMMON_NAME: usize = 64;

/// A signed leaf.
pub(super) struct Leaf {
    pub(super) certificate: CertificateDer<'static>,
    /// From here on a new one is made: two thirds of its life are over.
    pub(super) renew_at: SystemTime,
}

/// Signs a leaf for `name` and the public half of `key`, valid around `now` but never outside the
/// authority's own validity.
pub(super) fn mint(
    ca: &CertificateAuthority,
    name: &LeafName,
    key: &KeyPair,
    now: SystemTime,
) -> Result<Leaf, TlsError> {
    let failed = |detail: String| TlsError::Mint {
        name: name.clone(),
        detail,
    };
    let not_after = (now + LIFETIME).min(ca.not_after());
    let mut params = CertificateParams::default();
    set_validity(
        &mut params,
        (now - BACKDATE).max(ca.not_before()),
        not_after,
    );
    params.serial_number = Some(random_serial()?);
    params.distinguished_name = subject(name);
    params.subject_alt_names = vec![match name {
        Destination::Name(host) => SanType::DnsName(
            host.as_str()
                .try_into()
                .map_err(|error: rcgen::Error| failed(error.to_string()))?,
        ),
        Destination::Ip(ip) => SanType::IpAddress(*ip),
    }];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;

    let issuer = ca.issuer();
    let draft = params
        .signed_by(key, issuer)
        .map_err(|error| failed(error.to_string()))?;
    let certificate = with_issuer(draft.der(), ca.subject(), issuer.key())
        .ok_or_else(|| failed("the authority's key can't sign".into()))?;
    Ok(Leaf {
        certificate: certificate.into(),
        renew_at: now + not_after.duration_since(now).unwrap_or_default() * 2 / 3,
    })
}

/// Verifiers read the alternative name; the subject is for people, and for the few clients that
/// stumble over an empty one. A name too long for it stands in the alternative name alone.
fn subject(name: &LeafName) -> DistinguishedName {
    let text = name.to_string();
    let mut subject = DistinguishedName::new();
    subject.push(
        DnType::CommonName,
        if text.len() <= MAX_COMMON_NAME {
            text
        } else {
            "Outgate".into()
        },
    );
    subject
}
