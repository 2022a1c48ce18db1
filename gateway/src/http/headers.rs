//! Which header fields go from one side to the other.
//!
//! A field about one connection stays on it (RFC 9110 section 7.6.1); every other goes on unchanged
//! and in its order, in the case that it had where both sides speak HTTP/1. Nothing is added that
//! would tell an upstream of the gateway. Maps are built anew instead of being pruned: removing
//! from a `HeaderMap` changes its order.

use http::header::{
    ALT_SVC, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

/// Fields about one connection that have no constant in `http`.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The fields of a guest's request that go upstream. `Host` keeps its place; its value is made from
/// the permit when the request is sent.
///
/// `Expect` stays behind: the gateway answers it. Cookie crumbs of HTTP/2 become the one field that
/// HTTP/1 knows (RFC 9113 section 8.2.3).
pub(super) fn for_upstream(guest: &HeaderMap, version: Version) -> HeaderMap {
    let mut sent = HeaderMap::with_capacity(guest.len());
    let named = connection_options(guest);
    for (name, value) in guest {
        // What is said to a proxy stays with it, known fields and unknown ones alike.
        let stays = *name == EXPECT || name.as_str().starts_with("proxy-");
        if *name == TE {
            if has_token(guest, &TE, "trailers") {
                sent.insert(TE, HeaderValue::from_static("trailers"));
            }
        } else if *name == COOKIE && version == Version::HTTP_2 {
            if !sent.contains_key(COOKIE) {
                sent.insert(COOKIE, joined_cookies(guest));
            }
        } else if !stays && !is_hop_by_hop(name, &named) {
            sent.append(name.clone(), value.clone());
        }
    }
    sent
}

/// The fields of an upstream's response that go to the guest.
///
/// `Alt-Svc` stays behind: it would lead the guest to a port that nobody intercepts. A length goes
/// on only if it is `exact`, the length of the content as it was framed, or there is no content.
pub(super) fn for_guest(upstream: &HeaderMap, exact: Option<u64>) -> HeaderMap {
    let mut sent = HeaderMap::with_capacity(upstream.len());
    let named = connection_options(upstream);
    let is_wrong_length = |value: &HeaderValue| {
        let said = value
            .to_str()
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        said.is_none() || (exact != said && exact != Some(0))
    };
    for (name, value) in upstream {
        let stays =
            *name == ALT_SVC || *name == TE || (*name == CONTENT_LENGTH && is_wrong_length(value));
        if !stays && !is_hop_by_hop(name, &named) {
            sent.append(name.clone(), value.clone());
        }
    }
    sent
}

/// Whether a request asks to turn the connection into a WebSocket. Any other upgrade may be, and
/// is, ignored (RFC 9110 section 7.8).
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, &CONNECTION, "upgrade") && has_token(headers, &UPGRADE, "websocket")
}

/// Whether a comma-separated field has `token`, in any case. Exactly the token: `notupgrade` is
/// none.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    list(headers, name).any(|item| item.eq_ignore_ascii_case(token))
}

/// The items of a comma-separated field, over all its lines, without their parameters.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|item| item.split(';').next())
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// The fields that `Connection` says are about this connection only.
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    list(headers, &CONNECTION)
        .filter_map(|option| option.parse().ok())
        .collect()
}

fn is_hop_by_hop(name: &HeaderName, named: &[HeaderName]) -> bool {
    [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        HTTP2_SETTINGS,
    ]
    .contains(name)
        || named.contains(name)
}

fn joined_cookies(headers: &HeaderMap) -> HeaderValue {
    let crumbs: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    // Bytes of valid values with "; " between them are a valid value.
    HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
        .unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn lines(map: &HeaderMap) -> Vec<(&str, &str)> {
        map.iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect()
    }

    fn upstream(headers: &[(&str, &str)], version: Version) -> Vec<(String, String)> {
        let sent = for_upstream(&map(headers), version);
        lines(&sent)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
        headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn b025_connection_options_are_tokens_and_the_fields_they_name_stay_behind() {
        let sent = upstream(
            &[
                ("accept", "*/*"),
                ("host", "a.test"),
                ("connection", "notupgrade, X-Secret, te"),
                ("connection", "close"),
                ("upgrade", "websocket"),
                ("x-secret", "1"),
                ("te", "trailers, gzip;q=1"),
                ("keep-alive", "timeout=5"),
                ("proxy-connection", "keep-alive"),
                ("proxy-authorization", "Basic eA=="),
                ("proxy-x-trace", "1"),
                ("transfer-encoding", "chunked"),
                ("expect", "100-continue"),
                ("x-forwarded-for", "10.0.0.1"),
                ("notupgraded", "2"),
            ],
            Version::HTTP_11,
        );
        let expected = [
            ("accept", "*/*"),
            ("host", "a.test"),
            ("te", "trailers"),
            ("x-forwarded-for", "10.0.0.1"),
            ("notupgraded", "2"),
        ];
        assert_eq!(sent, owned(&expected));
    }

    #[test]
    fn b061_end_to_end_fields_pass_in_order() {
        let fields = [
            ("host", "a.test"),
            ("x-stainless-lang", "python"),
            ("anthropic-beta", "x"),
            ("anthropic-beta", "y"),
            ("user-agent", "u"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ];
        assert_eq!(upstream(&fields, Version::HTTP_11), owned(&fields));
    }

    #[test]
    fn cookie_crumbs_of_http2_become_one_field() {
        let sent = upstream(
            &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")],
            Version::HTTP_2,
        );
        assert_eq!(sent, owned(&[("cookie", "a=1; b=2"), ("x", "y")]));
    }

    #[test]
    fn c17_alternative_services_and_connection_fields_of_a_response_stay_behind() {
        let response = map(&[
            ("server", "s"),
            ("alt-svc", "h3=\":443\""),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("upgrade", "h2c"),
            ("x-accel-buffering", "no"),
            ("trailer", "x-sum"),
            ("content-length", "5"),
        ]);
        let kept = [
            ("server", "s"),
            ("x-accel-buffering", "no"),
            ("trailer", "x-sum"),
        ];
        assert_eq!(
            lines(&for_guest(&response, None)),
            kept,
            "a length beside chunked is dropped"
        );
        let with_length = [&kept[..], &[("content-length", "5")]].concat();
        assert_eq!(lines(&for_guest(&response, Some(5))), with_length);
        assert_eq!(lines(&for_guest(&response, Some(0))), with_length, "HEAD");
        assert_eq!(lines(&for_guest(&response, Some(6))), kept);
    }

    #[test]
    fn only_a_whole_websocket_upgrade_is_one() {
        let asks = |connection, upgrade| {
            asks_for_websocket(&map(&[("connection", connection), ("upgrade", upgrade)]))
        };
        assert!(asks("keep-alive, Upgrade", "WebSocket"));
        assert!(!asks("notupgrade", "websocket"));
        assert!(!asks("upgrade", "h2c"));
        assert!(!asks("keep-alive", "websocket"));
    }
}
