//! Which origins are believed, and what is said of the others.

use std::time::{Duration, SystemTime};

use outgate_policy::{Protocol, Reason};
use rcgen::{CertificateParams, KeyPair};
use rustls::{AlertDescription, ServerConfig};
use tokio::sync::mpsc;

use super::lab::{
    LabRoot, Origin, config, get, https, leaf_params, permit, sandbox, send, server_config, text,
};
use crate::tls::{read_client_hello, set_validity};
use crate::upstream::{SendOptions, TlsFailure, Upstream, UpstreamError};

const DAY: Duration = Duration::from_hours(24);

/// Why an origin with this configuration is refused, and that nothing was told to it.
async fn failure(root: &LabRoot, server: ServerConfig) -> TlsFailure {
    let origin = Origin::https(server).await;
    let error = send(&sandbox(root), &https(&origin), get("/secret"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::UpstreamTls);
    assert_eq!(error.peer(), Some(origin.address));
    let UpstreamError::Tls { failure, .. } = error else {
        panic!("{error}")
    };
    failure
}

#[tokio::test]
async fn a_trusted_origin_is_spoken_to_in_the_protocol_it_prefers() {
    let root = LabRoot::new();
    for (alpn, version) in [
        (&["h2", "http/1.1"][..], "HTTP/2.0"),
        (&["http/1.1"], "HTTP/1.1"),
    ] {
        let origin = Origin::https(root.server("a.test", alpn, |_| {})).await;
        let sent = send(&sandbox(&root), &https(&origin), get("/x?y=%2F"))
            .await
            .unwrap();
        assert_eq!(sent.peer, origin.address);
        assert_eq!(sent.certificate_sha256.as_ref().map(String::len), Some(64));
        assert!(sent.timings.tls.is_some() && sent.timings.first_byte.is_some());
        let port = origin.address.port();
        assert_eq!(
            text(sent).await,
            format!("{version} GET a.test:{port} /x?y=%2F\n\n")
        );
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let root = LabRoot::new();
    let now = SystemTime::now();
    let old = |params: &mut CertificateParams| set_validity(params, now - 9 * DAY, now - DAY);
    assert_eq!(
        failure(&root, root.server("a.test", &[], old)).await,
        TlsFailure::Expired
    );
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_yet_is_refused() {
    let root = LabRoot::new();
    let now = SystemTime::now();
    let early = |params: &mut CertificateParams| set_validity(params, now + DAY, now + 9 * DAY);
    assert_eq!(
        failure(&root, root.server("a.test", &[], early)).await,
        TlsFailure::NotValidYet
    );
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_and_the_names_are_told() {
    let root = LabRoot::new();
    let failure = failure(&root, root.server("b.test", &[], |_| {})).await;
    let TlsFailure::WrongName(names) = failure else {
        panic!("{failure}")
    };
    assert!(names.contains("b.test"), "{names}");
}

#[tokio::test]
async fn a_certificate_of_an_unknown_root_is_refused() {
    let (root, stranger) = (LabRoot::new(), LabRoot::new());
    let server = stranger.server("a.test", &[], |_| {});
    assert_eq!(failure(&root, server).await, TlsFailure::UnknownIssuer);
}

#[tokio::test]
async fn a_self_signed_certificate_is_refused() {
    let root = LabRoot::new();
    let key = KeyPair::generate().unwrap();
    let certificate = leaf_params("a.test").self_signed(&key).unwrap();
    let server = server_config(certificate.der().clone(), &key, &[]);
    assert_eq!(failure(&root, server).await, TlsFailure::UnknownIssuer);
}

#[tokio::test]
async fn b043_an_origin_that_cuts_the_handshake_is_named_and_no_tunnel_is_tried() {
    let root = LabRoot::new();
    let origin = Origin::raw(async |stream| drop(stream)).await;
    let error = send(&sandbox(&root), &https(&origin), get("/"))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            UpstreamError::Tls {
                failure: TlsFailure::Closed(_),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn an_origin_that_speaks_only_http2_can_not_leave_http() {
    let root = LabRoot::new();
    let origin = Origin::https(root.server("a.test", &["h2"], |_| {})).await;
    let options = SendOptions {
        upgrade: true,
        ..SendOptions::default()
    };
    let permit = https(&origin);
    let error = sandbox(&root)
        .send(&permit, Protocol::Https, get("/"), options)
        .await
        .unwrap_err();
    let UpstreamError::Tls { failure, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        failure,
        TlsFailure::Alert(AlertDescription::NoApplicationProtocol)
    );
}

#[tokio::test]
async fn b042_the_server_name_is_the_judged_host_and_none_for_an_address() {
    let root = LabRoot::new();
    let (heard, mut hellos) = mpsc::channel(2);
    let origin = Origin::raw(move |stream| {
        let heard = heard.clone();
        async move {
            let hello = read_client_hello(stream).await.unwrap();
            heard.send(hello.facts().clone()).await.unwrap();
        }
    })
    .await;
    let sandbox = sandbox(&root);
    for (authority, expected) in [
        (format!("A.test.:{}", origin.address.port()), Some("a.test")),
        (origin.address.to_string(), None),
    ] {
        let permit = permit(Protocol::Https, &authority, true);
        send(&sandbox, &permit, get("/")).await.unwrap_err();
        let hello = hellos.recv().await.unwrap();
        assert_eq!(hello.sni.as_ref().map(|host| host.as_str()), expected);
        assert_eq!(hello.alpn, [b"h2".to_vec(), b"http/1.1".to_vec()]);
    }
}

#[tokio::test]
async fn an_address_is_verified_by_its_address() {
    let root = LabRoot::new();
    for (name, trusted) in [("127.0.0.1", true), ("a.test", false)] {
        let origin = Origin::https(root.server(name, &[], |_| {})).await;
        let permit = permit(Protocol::Https, &origin.address.to_string(), true);
        assert_eq!(
            send(&sandbox(&root), &permit, get("/")).await.is_ok(),
            trusted,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_permit_for_one_protocol_sends_no_other() {
    let root = LabRoot::new();
    let origin = Origin::https(root.server("a.test", &[], |_| {})).await;
    let options = SendOptions::default();
    let error = sandbox(&root)
        .send(&https(&origin), Protocol::Http, get("/"), options)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "request can't be sent: the permit is for https, not http"
    );
    assert_eq!(origin.connections(), 0);
}

#[test]
fn an_unusable_extra_root_is_an_error() {
    let mut config = config(None);
    config.extra_roots = vec![b"not a certificate".to_vec().into()];
    let error = Upstream::new(config).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("extra root certificate number 1"),
        "{error}"
    );
}
