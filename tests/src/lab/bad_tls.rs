//! Upstreams whose TLS must not be accepted. Each has its own address and its own name; the
//! gateway must refuse it, say why, and never show the guest a valid certificate's worth of it.

use std::sync::Arc;

use anyhow::Result;
use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use rustls::ServerConfig;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::ca::{LabCa, OneCertificate};
use super::server::tls_config;

/// What is wrong with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadTls {
    Expired,
    NotYetValid,
    WrongHost,
    SelfSigned,
    UnknownRoot,
    WrongUsage,
    /// Reads the ClientHello and resets the connection.
    ResetAtHello,
    /// Answers plain HTTP where TLS was expected.
    PlainText,
}

impl BadTls {
    pub const ALL: [Self; 8] = [
        Self::Expired,
        Self::NotYetValid,
        Self::WrongHost,
        Self::SelfSigned,
        Self::UnknownRoot,
        Self::WrongUsage,
        Self::ResetAtHello,
        Self::PlainText,
    ];

    /// The name under which it is found.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired.test",
            Self::NotYetValid => "not-yet-valid.test",
            Self::WrongHost => "wrong-host.test",
            Self::SelfSigned => "self-signed.test",
            Self::UnknownRoot => "unknown-root.test",
            Self::WrongUsage => "wrong-usage.test",
            Self::ResetAtHello => "reset-at-hello.test",
            Self::PlainText => "plain-text.test",
        }
    }

    /// TLS settings with the fault, or `None` where it does not come to TLS at all.
    pub(super) fn server_config(self, ca: &LabCa) -> Result<Option<Arc<ServerConfig>>> {
        let name = self.name();
        let certificate = match self {
            Self::Expired => ca.leaf(name, |leaf| leaf.not_after = date_time_ymd(2021, 1, 1))?,
            Self::NotYetValid => {
                ca.leaf(name, |leaf| leaf.not_before = date_time_ymd(2047, 1, 1))?
            }
            Self::WrongHost => ca.leaf("somebody-else.test", |_| ())?,
            Self::SelfSigned => LabCa::self_signed(name)?,
            Self::UnknownRoot => LabCa::generate("A root nobody trusts")?.leaf(name, |_| ())?,
            Self::WrongUsage => ca.leaf(name, |leaf| {
                leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            })?,
            Self::ResetAtHello | Self::PlainText => return Ok(None),
        };
        Ok(Some(tls_config(Arc::new(OneCertificate(certificate)))))
    }
}

/// Accepts, waits for the first bytes and resets.
pub(super) fn spawn_resetting(listener: TcpListener) {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 1];
            // One byte read of many: closing with unread data makes the kernel send RST.
            let _ = stream.read(&mut hello).await;
        }
    });
}
