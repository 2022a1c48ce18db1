//! Requests: the first line is `METHOD TARGET`, the second an authority as on the wire.
//!
//! What has a canonical form has one: reading it again gives the same, what was matched is what is
//! serialised, and other parsers read the same host and path.

#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use outgate_fuzz::text;
use outgate_policy::fuzzing::PathPattern;
use outgate_policy::{
    Authority, CanonicalRequest, Destination, Host, Protocol, RequestParts, RequestUrl,
};

/// A request as text, so that seeds can be read and written by people.
#[derive(Debug)]
struct Message<'a> {
    method: &'a str,
    target: &'a str,
    authority: &'a str,
}

impl<'a> Arbitrary<'a> for Message<'a> {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let all = text(input.bytes(input.len())?);
        let (line, authority) = all
            .split_once('\n')
            .ok_or(arbitrary::Error::NotEnoughData)?;
        let (method, target) = line
            .split_once(' ')
            .ok_or(arbitrary::Error::NotEnoughData)?;
        Ok(Self {
            method,
            target,
            authority,
        })
    }
}

fuzz_target!(|message: Message<'_>| {
    let Message {
        method,
        target,
        authority,
    } = message;
    policy_name(authority);
    let parsed = Authority::parse(authority, 443).ok();
    if let Some(parsed) = &parsed {
        one_authority(authority, parsed);
    }
    // A target that is fine must be looked at whatever the authority is.
    let authority =
        parsed.unwrap_or_else(|| Authority::parse("a.test", 443).expect("is canonical"));
    for protocol in [Protocol::Https, Protocol::Http] {
        let parts = RequestParts {
            protocol,
            authority: &authority,
            method,
            target,
            body_len: None,
        };
        if let Ok(request) = CanonicalRequest::new(parts) {
            one_request(parts, &request);
        }
    }
    let line = format!("{method} https://{authority}{target}");
    if target.starts_with('/')
        && let Ok(request) = CanonicalRequest::from_line(&line)
    {
        assert_eq!(request.authority(), &authority, "{line}");
    }
});

fn one_authority(text: &str, parsed: &Authority) {
    let shown = parsed.to_string();
    assert!(shown.is_ascii());
    assert_eq!(
        Authority::parse(&shown, None).as_ref(),
        Ok(parsed),
        "{text:?}"
    );
    let bare = parsed.destination.to_string();
    assert_eq!(
        Destination::parse(&bare).as_ref(),
        Ok(&parsed.destination),
        "{text:?}"
    );
    if let Destination::Name(host) = &parsed.destination {
        assert_eq!(Host::parse(host.as_str()).as_ref(), Ok(host));
        assert_eq!(Host::from_unicode(host.as_str()).as_ref(), Ok(host));
        assert!(bare.parse::<std::net::IpAddr>().is_err(), "{text:?}");
    }
    others_read_the_same_host(text, parsed);
}

/// The URL parser of browsers, which is more lenient: where we read a host, it reads the same.
fn others_read_the_same_host(text: &str, parsed: &Authority) {
    let url = url::Url::parse(&format!("https://{text}/"));
    let url = url.unwrap_or_else(|error| panic!("`{text}` is no host to others: {error}"));
    assert_eq!(url.port_or_known_default(), Some(parsed.port), "{text:?}");
    match (url.host(), &parsed.destination) {
        (Some(url::Host::Domain(theirs)), Destination::Name(ours)) => {
            assert_eq!(
                theirs.strip_suffix('.').unwrap_or(theirs),
                ours.as_str(),
                "{text:?}"
            );
        }
        (Some(url::Host::Ipv4(theirs)), Destination::Ip(ours)) => {
            assert_eq!(theirs, *ours, "{text:?}")
        }
        (Some(url::Host::Ipv6(theirs)), Destination::Ip(ours)) => {
            assert_eq!(
                std::net::IpAddr::V6(theirs).to_canonical(),
                *ours,
                "{text:?}"
            );
        }
        other => panic!("{text:?} is {other:?}"),
    }
}

/// A name as a person may write it in a policy file.
fn policy_name(text: &str) {
    if let Ok(host) = Host::from_unicode(text) {
        assert_eq!(Host::parse(host.as_str()).as_ref(), Ok(&host), "{text:?}");
        if let Ok(again) = Host::from_unicode(&host.to_unicode()) {
            assert_eq!(again, host, "{text:?}");
        }
    }
}

fn one_request(parts: RequestParts<'_>, request: &CanonicalRequest) {
    let forwarded = request.forward_target();
    let same = RequestParts {
        target: &forwarded,
        ..parts
    };
    let again = CanonicalRequest::new(same).expect("what is forwarded is canonical");
    assert_eq!(again.path(), request.path());
    assert_eq!(again.query(), request.query());
    assert_eq!(again.forward_target(), forwarded);
    assert_eq!(again.has_encoded_slash(), request.has_encoded_slash());
    let path = forwarded.split('?').next().unwrap_or_default();
    assert_eq!(path, request.path());
    forwarded
        .parse::<http::Uri>()
        .expect("HTTP libraries take what is forwarded");
    assert!(request.query_pairs().count() <= forwarded.len());

    let url = RequestUrl::parse(&request.url()).expect("a request can be shown as a URL");
    assert_eq!(&url.authority, request.authority());
    if path != "*" {
        a_pattern_can_speak_of_it(path);
        others_read_the_same_path(parts.target, request);
    }
}

/// Every canonical path can be written as a pattern, and that matches it.
fn a_pattern_can_speak_of_it(path: &str) {
    let literal: String = path
        .chars()
        .map(|c| match c {
            '*' | '?' | '[' | ']' | '{' | '}' => format!("[{c}]"),
            _ => c.to_string(),
        })
        .collect();
    if let Some(pattern) = PathPattern::parse(&literal) {
        assert_eq!(pattern.allows(path), Some(true), "{path}");
        assert_eq!(pattern.denies(path), Some(true), "{path}");
    } else {
        assert!(literal.len() > 1024, "{path} can't be written as a pattern");
    }
}

/// The crate `url` keeps what looks like the letter of a Windows drive before `..`; the standard
/// does that for files only.
fn has_drive_letter(target: &str) -> bool {
    target.split('/').any(|segment| {
        let bytes = segment.as_bytes();
        matches!(bytes, [letter, b':' | b'|'] if letter.is_ascii_alphabetic())
    })
}

fn others_read_the_same_path(target: &str, request: &CanonicalRequest) {
    if has_drive_letter(target) {
        return;
    }
    let url = url::Url::parse(&format!("https://a.test{target}")).expect("is a URL to others");
    assert_eq!(url.query().is_some(), request.query().is_some(), "{target}");
    let authority = Authority::parse("a.test", 443).expect("is canonical");
    let theirs = CanonicalRequest::new(RequestParts {
        protocol: Protocol::Https,
        authority: &authority,
        method: "GET",
        target: url.path(),
        body_len: None,
    });
    let theirs = theirs.expect("others find nothing that we would refuse");
    // Characters that RFC 3986 has no place for, and that we pass on as they came.
    let escaped: String = request
        .path()
        .chars()
        .map(|c| match c {
            '"' | '^' | '{' | '}' => format!("%{:02X}", u32::from(c)),
            _ => c.to_string(),
        })
        .collect();
    assert_eq!(theirs.path().replace('^', "%5E"), escaped, "{target}");
}
