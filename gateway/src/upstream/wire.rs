//! Puts the address on a request.
//!
//! Whatever the request says, its target authority on the wire is that of the permit: `Host` on
//! HTTP/1.1, `:scheme` and `:authority` on HTTP/2. Judged, dialled, verified and sent authority are
//! thereby one value.

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version, header};
use outgate_policy::{Authority, Protocol};

use super::error::UpstreamError;

/// Addresses `request` to `authority` as `version` does. Can be repeated for another version.
pub(super) fn address<B>(
    request: &mut Request<B>,
    authority: &Authority,
    protocol: Protocol,
    version: Version,
) -> Result<(), UpstreamError> {
    let scheme = match protocol {
        Protocol::Https => Scheme::HTTPS,
        Protocol::Http => Scheme::HTTP,
        Protocol::Tcp | Protocol::Udp | Protocol::Tls => {
            return Err(UpstreamError::Request(format!(
                "{protocol} carries no HTTP requests"
            )));
        }
    };
    let target = request.uri().path_and_query().cloned();
    let target = target.ok_or_else(|| UpstreamError::Request("it has no target".into()))?;
    let host = host(authority, protocol);
    if version == Version::HTTP_2 {
        request.headers_mut().remove(header::HOST);
        *request.uri_mut() = absolute(scheme, &host, target)?;
    } else {
        let host = HeaderValue::try_from(host)
            .map_err(|error| UpstreamError::Request(error.to_string()))?;
        request.headers_mut().insert(header::HOST, host);
        *request.uri_mut() = Uri::from(target);
    }
    *request.version_mut() = version;
    Ok(())
}

/// The authority as requests carry it: a default port goes without saying (RFC 9110 section 7.2).
fn host(authority: &Authority, protocol: Protocol) -> String {
    if protocol.default_port() == Some(authority.port) {
        authority.destination.to_string()
    } else {
        authority.to_string()
    }
}

fn absolute(scheme: Scheme, host: &str, target: PathAndQuery) -> Result<Uri, UpstreamError> {
    Uri::builder()
        .scheme(scheme)
        .authority(host)
        .path_and_query(target)
        .build()
        .map_err(|error| UpstreamError::Request(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addressed(authority: &str, target: &str, version: Version) -> Request<()> {
        let authority = Authority::parse(authority, 443).unwrap();
        let mut request = Request::builder()
            .uri(target)
            .header("host", "forged.test")
            .body(())
            .unwrap();
        address(&mut request, &authority, Protocol::Https, version).unwrap();
        request
    }

    #[test]
    fn http1_gets_a_host_and_the_origin_form() {
        let request = addressed("a.test:443", "/x?y=%2F", Version::HTTP_11);
        assert_eq!(request.uri(), "/x?y=%2F");
        assert_eq!(request.headers()["host"], "a.test");
        let request = addressed("[2001:db8::1]:8443", "/", Version::HTTP_11);
        assert_eq!(request.headers()["host"], "[2001:db8::1]:8443");
    }

    #[test]
    fn http2_gets_an_authority_and_no_host() {
        let request = addressed("a.test:8443", "/x?y=%2F", Version::HTTP_2);
        assert_eq!(request.uri(), "https://a.test:8443/x?y=%2F");
        assert!(!request.headers().contains_key("host"));
    }

    #[test]
    fn a_request_can_be_addressed_again_for_another_version() {
        let mut request = addressed("a.test", "/x", Version::HTTP_2);
        let authority = Authority::parse("a.test", 443).unwrap();
        address(&mut request, &authority, Protocol::Https, Version::HTTP_11).unwrap();
        assert_eq!(
            (
                request.uri().to_string().as_str(),
                &request.headers()["host"]
            ),
            ("/x", &HeaderValue::from_static("a.test"),)
        );
    }

    #[test]
    fn the_asterisk_form_survives_both_versions() {
        assert_eq!(addressed("a.test", "*", Version::HTTP_11).uri(), "*");
        let h2 = addressed("a.test", "*", Version::HTTP_2);
        assert_eq!(
            h2.uri().path_and_query().map(PathAndQuery::as_str),
            Some("*")
        );
    }
}
