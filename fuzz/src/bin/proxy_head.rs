//! The head of a request to a proxy: CONNECT, or an absolute URL.
//!
//! What we accept, `httparse` (the reader inside of hyper) reads as the same method and target, and
//! the URL library sends to the same host and port. No prefix of a head is a head.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use outgate_gateway::fuzzing::proxy_head;
use url::{Host, Url};

fuzz_target!(|data: &[u8]| {
    let Ok(Some(head)) = proxy_head(data) else {
        return;
    };
    assert_eq!(proxy_head(&data[..head.length - 1]), Ok(None));

    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut request = httparse::Request::new(&mut fields);
    let read = request
        .parse(data)
        .expect("a lenient reader takes what a strict one does");
    assert_eq!(read, httparse::Status::Complete(head.length));
    assert_eq!(request.method, Some(head.method.as_str()));
    assert_eq!(request.path, Some(head.target.as_str()));
    let named = |name: &str| {
        let fields = request.headers.iter();
        fields
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .count()
    };
    assert!(named("host") <= 1 && named("content-length") <= 1);
    assert!(named("content-length") + named("transfer-encoding") <= 1);
    if head.method == "CONNECT" {
        let credentials = request
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case("proxy-authorization"));
        assert_eq!(
            credentials.map(|field| field.value),
            head.credentials.as_deref().map(<[u8]>::trim_ascii)
        );
    }

    let url = match head.method.as_str() {
        "CONNECT" => format!("https://{}/", head.target),
        _ => head.target.clone(),
    };
    // Where it disagrees that this is a URL at all, there is nobody to be fooled.
    let Ok(url) = Url::parse(&url) else { return };
    let port = url.port_or_known_default().expect("a scheme with a port");
    let host = match url.host().expect("a host") {
        // One that only wraps an IPv4 address is that address to us.
        Host::Ipv6(ip) => match IpAddr::V6(ip).to_canonical() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        },
        other => other.to_string().trim_end_matches('.').to_owned(),
    };
    assert_eq!(format!("{host}:{port}"), head.authority, "{}", head.target);
});
