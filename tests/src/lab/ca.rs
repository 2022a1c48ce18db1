//! The lab's certificate authority: a root that the gateway is told to trust, leaves minted for
//! whatever name a client asks for, and the deliberately broken certificates of the bad upstreams.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// A root with its key.
pub struct LabCa {
    root: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for LabCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LabCa").finish_non_exhaustive()
    }
}

impl LabCa {
    /// A new root; `common_name` tells roots apart in error messages.
    pub fn generate(common_name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 1, 1));
        Ok(Self {
            root: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
        })
    }

    /// The root certificate in PEM.
    pub fn pem(&self) -> String {
        self.root.pem()
    }

    /// A leaf for one DNS name or IP address, changed by `tweak` before it is signed.
    pub fn leaf(
        &self,
        name: &str,
        tweak: impl FnOnce(&mut CertificateParams),
    ) -> Result<Arc<CertifiedKey>> {
        let params = leaf_params(name, tweak)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.root)?;
        certified(
            vec![certificate.der().clone(), self.root.der().clone()],
            &key,
        )
    }

    /// A leaf for several DNS names or IP addresses, as PEM: its chain and its key.
    pub fn leaf_pem(&self, names: &[&str]) -> Result<(String, String)> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(2048, 1, 1));
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.root)?;
        Ok((certificate.pem() + &self.root.pem(), key.serialize_pem()))
    }

    /// The root itself as PEM, certificate and key, for a program that signs with it.
    pub fn into_pem(self) -> (String, String) {
        (self.root.pem(), self.root.key().serialize_pem())
    }

    /// A certificate that vouches for itself.
    pub fn self_signed(name: &str) -> Result<Arc<CertifiedKey>> {
        let key = KeyPair::generate()?;
        let certificate = leaf_params(name, |_| ())?.self_signed(&key)?;
        certified(vec![certificate.der().clone()], &key)
    }
}

fn leaf_params(
    name: &str,
    tweak: impl FnOnce(&mut CertificateParams),
) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2048, 1, 1));
    tweak(&mut params);
    Ok(params)
}

fn certified(
    chain: Vec<rustls_pki_types::CertificateDer<'static>>,
    key: &KeyPair,
) -> Result<Arc<CertifiedKey>> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(Arc::new(CertifiedKey::new(
        chain,
        aws_lc_rs::sign::any_ecdsa_type(&key)?,
    )))
}

/// Answers every ClientHello with a leaf for exactly the name it asked for, or for the address of
/// the listener where it asked for none: one origin that is every name's origin, as a CDN is.
#[derive(Debug)]
pub(super) struct AnyName {
    ca: Arc<LabCa>,
    address: Ipv4Addr,
    minted: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl AnyName {
    /// Leaves by `ca`; `address` is the IP SAN given to clients that send no SNI.
    pub(super) fn new(ca: Arc<LabCa>, address: Ipv4Addr) -> Self {
        Self {
            ca,
            address,
            minted: Mutex::default(),
        }
    }
}

impl ResolvesServerCert for AnyName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello
            .server_name()
            .map_or_else(|| self.address.to_string(), str::to_owned);
        let mut minted = self.minted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = minted.get(&name) {
            return Some(Arc::clone(key));
        }
        let key = self.ca.leaf(&name, |_| ()).ok()?;
        minted.insert(name, Arc::clone(&key));
        Some(key)
    }
}

/// Always the same certificate, whatever was asked for.
#[derive(Debug)]
pub(super) struct OneCertificate(pub(super) Arc<CertifiedKey>);

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}
