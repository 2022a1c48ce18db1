//! gRPC: which method of which service a request calls.
//!
//! The path says it, `/package.Service/Method`, and nothing else does; messages aren't looked into.
//! gRPC-Web calls the same methods by the same paths, through a translating proxy, so it is the same
//! fact. Other protocols do so too (Connect: JSON or bare messages); such a request could be a call
//! and could be anything else, which [`Carrier::Unknown`] says.

use super::{Content, Unclear, shown};
use crate::CanonicalRequest;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcCall<'a> {
    /// With its package: `google.pubsub.v1.Publisher`. Case counts.
    pub(crate) service: &'a str,
    /// Case counts.
    pub(crate) method: &'a str,
    pub(crate) carrier: Carrier,
}

/// What carries the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Grpc,
    GrpcWeb,
    /// The path has the form of a call and the content type is another. An allow rule for gRPC must
    /// not match this; a deny rule that names the service must.
    Unknown,
}

/// Reads a request.
pub(crate) fn grpc_call<'a>(
    request: &'a CanonicalRequest,
    content: &Content<'_>,
) -> Result<Option<GrpcCall<'a>>, Unclear> {
    let carrier = match content.media_type()? {
        Some(media_type) => carrier(media_type.essence()),
        None => Carrier::Unknown,
    };
    let called = method_of(request.path());
    if carrier != Carrier::Unknown {
        if request.method() != "POST" {
            return Err(Unclear::new("gRPC is called with POST"));
        }
        if called.is_none() {
            let why = format!("`{}` names no gRPC method", shown(request.path()));
            return Err(Unclear::new(why));
        }
    }
    Ok(called.map(|(service, method)| GrpcCall {
        service,
        method,
        carrier,
    }))
}

/// By the content type: the message format behind the plus sign makes no difference.
fn carrier(essence: &str) -> Carrier {
    let subtype = essence.strip_prefix("application/").unwrap_or_default();
    match subtype.split('+').next() {
        Some("grpc") => Carrier::Grpc,
        Some("grpc-web" | "grpc-web-text") => Carrier::GrpcWeb,
        _ => Carrier::Unknown,
    }
}

/// Service and method of a path that names some.
fn method_of(path: &str) -> Option<(&str, &str)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (is_full_name(service) && is_identifier(method)).then_some((service, method))
}

/// A dotted name of Protocol Buffers.
fn is_full_name(name: &str) -> bool {
    name.split('.').all(is_identifier)
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{coded, content, request};
    use super::*;
    use proptest::prelude::*;

    const PUBLISH: &str = "/google.pubsub.v1.Publisher/Publish";

    fn carrier_of(
        method: &str,
        target: &str,
        media_type: &str,
    ) -> Result<Option<Carrier>, Unclear> {
        let request = request(method, target);
        let call = grpc_call(&request, &content(media_type, b"\0\0\0\0\0"));
        call.map(|call| call.map(|call| call.carrier))
    }

    #[test]
    fn a_call_is_its_path() {
        let request = request("POST", PUBLISH);
        assert_eq!(
            grpc_call(&request, &content("application/grpc", b"")),
            Ok(Some(GrpcCall {
                service: "google.pubsub.v1.Publisher",
                method: "Publish",
                carrier: Carrier::Grpc,
            }))
        );
        // Messages are coded within the body; a content coding doesn't change what is called.
        assert!(grpc_call(&request, &coded("application/grpc", "gzip", b"")).is_ok());
    }

    #[test]
    fn the_content_type_tells_the_carrier() {
        for (media_type, carrier) in [
            ("application/grpc", Carrier::Grpc),
            ("Application/GRPC", Carrier::Grpc),
            ("application/grpc+proto", Carrier::Grpc),
            ("application/grpc+json", Carrier::Grpc),
            ("application/grpc;x=y", Carrier::Grpc),
            ("application/grpc-web", Carrier::GrpcWeb),
            ("application/grpc-web+proto", Carrier::GrpcWeb),
            ("application/grpc-web-text", Carrier::GrpcWeb),
            ("application/grpc-web-text+proto", Carrier::GrpcWeb),
            ("application/grpcx", Carrier::Unknown),
            ("application/grpc-webx", Carrier::Unknown),
            ("text/grpc", Carrier::Unknown),
            ("application/json", Carrier::Unknown),
            ("application/connect+proto", Carrier::Unknown),
            ("", Carrier::Unknown),
        ] {
            assert_eq!(
                carrier_of("POST", PUBLISH, media_type),
                Ok(Some(carrier)),
                "{media_type}"
            );
        }
        for media_type in ["application/grpc, text/plain", "application/grpc ;", "grpc"] {
            let clear = carrier_of("POST", PUBLISH, media_type).is_ok();
            assert_eq!(clear, media_type == "application/grpc ;", "{media_type}");
        }
    }

    #[test]
    fn a_grpc_request_that_names_no_method_is_unclear() {
        for path in [
            "/",
            "/x.Y",
            "/x.Y/",
            "//Z",
            "//x.Y/Z",
            "/x.Y/Z/",
            "/p/x.Y/Z",
            "/x..Y/Z",
            "/.x/Z",
            "/x./Z",
            "/1x/Z",
            "/x/1Z",
            "/x-y/Z",
            "/x.Y/Z;v=1",
            "/x.Y%2FZ",
            "/x.Y/Z%20",
            "/x.Y/%C3%A9",
            "/x.Y/*",
        ] {
            assert!(
                carrier_of("POST", path, "application/grpc").is_err(),
                "{path}"
            );
            assert_eq!(
                carrier_of("POST", path, "application/json"),
                Ok(None),
                "{path}"
            );
        }
        for method in ["GET", "PUT", "post", "OPTIONS"] {
            assert!(
                carrier_of(method, PUBLISH, "application/grpc-web").is_err(),
                "{method}"
            );
        }
    }

    #[test]
    fn another_protocol_by_the_path_of_a_call_is_said_to_be_one() {
        for method in ["GET", "POST", "PUT"] {
            let carrier = carrier_of(method, "/a.Admin/Delete?message=x", "application/json");
            assert_eq!(carrier, Ok(Some(Carrier::Unknown)), "{method}");
        }
        // A query says nothing to gRPC.
        let asked = carrier_of("POST", "/a.Admin/Delete?/b.C/D", "application/grpc");
        assert_eq!(asked, Ok(Some(Carrier::Grpc)));
    }

    proptest! {
        #[test]
        fn names_have_one_spelling(path in "/[a-zA-Z_.%;/0-9-]{0,12}(/[a-z;%/]{0,3})?") {
            if let Some((service, method)) = method_of(&path) {
                prop_assert_eq!(&path, &format!("/{service}/{method}"));
                let good = |name: &str| {
                    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())
                };
                prop_assert!(service.split('.').chain([method]).all(good));
                prop_assert!(!path.contains(['%', ';', '-']));
            }
        }
    }
}
