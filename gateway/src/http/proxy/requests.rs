//! Requests with an absolute URL on one connection to a proxy (RFC 9112 section 3.2.2).
//!
//! Each is judged alone: it proves its sandbox by itself and goes where its own target says, whatever
//! the request before it said. `https` is a request over verified TLS to that host; only the way to
//! the proxy was in clear text, or in the proxy's own TLS. `Host` adds nothing, and so may not say
//! anything else. `ws` and `wss` are `http` and `https` that ask for a WebSocket.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use http::header::PROXY_AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outgate_policy::{Reason, Reject, RequestUrl};

use super::super::body::ResponseBody;
use super::super::denial::{Asker, Denial};
use super::super::exchange::Channel;
use super::super::front::head::{Head, bad};
use super::super::front::{Front, Verdict};
use super::super::serve::{http1_server, linger};
use super::answer::{challenge, to_reject};
use super::{Connection, too_many_connections};
use crate::audit::Ingress;
use crate::listener::{Client, Guest, Presented, Unknown, record_reject};

/// Serves requests until the connection ends, or gives it back in front of a CONNECT.
pub(super) async fn serve(connection: Connection, client: &Client<'_>) -> Option<Connection> {
    let Connection { stream, input } = connection;
    let mut front = Front::of_proxy(stream, input);
    let verdicts = front.verdicts();
    let service = service_fn(|request| {
        let verdict = verdicts.take();
        async move { Ok::<_, Infallible>(respond(client, verdict, request).await) }
    });
    let server = http1_server().serve_connection(TokioIo::new(&mut front), service);
    let mut server = pin!(server);
    let served = tokio::select! {
        biased;
        served = server.as_mut() => served,
        guest = client.known_in_time() => {
            let guest = guest?;
            let draining = guest.sandbox.draining();
            let rest = async {
                tokio::select! {
                    biased;
                    served = server.as_mut() => served,
                    () = draining.cancelled() => {
                        server.as_mut().graceful_shutdown();
                        server.await
                    }
                }
            };
            guest.while_served(rest).await?
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a proxy connection broke off");
        return None;
    }
    match front.into_connect() {
        Ok((stream, input)) => Some(Connection { stream, input }),
        Err(stream) => {
            linger(stream).await;
            None
        }
    }
}

async fn respond(
    client: &Client<'_>,
    verdict: Option<Verdict>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let head = match verdict {
        Some(Verdict::Accepted(head)) if head.is_read_as(&request) => head,
        Some(Verdict::Rejected(reject)) => return to_reject(client, &reject).await,
        // Never seen; if it is, the server read something else than what was judged.
        Some(Verdict::Accepted(_)) | None => {
            let reject = Reject::new(Reason::Internal, "the server and its front disagree");
            return to_reject(client, &reject).await;
        }
    };
    let what = format!("{} {}", head.method, authority_of(&head.target));
    let guest = match client.identify(presented(request.headers()), &what) {
        Ok(guest) => guest,
        Err(Unknown::Unproven { last }) => return challenge(last),
        Err(Unknown::Full(guest)) => {
            return refuse(&guest, &head, &request, &too_many_connections()).await;
        }
    };
    match destination(&head.target) {
        Ok(url) => {
            let channel = Channel {
                sandbox: Arc::clone(&guest.sandbox),
                ingress: Ingress::ExplicitProxy,
                authority: url.authority,
                protocol: url.protocol,
            };
            let request = in_origin_form(&head, request);
            Arc::new(channel).respond(request).await
        }
        Err(reject) => refuse(guest, &head, &request, &reject).await,
    }
}

/// The one credential of a request. Two are none: nobody could say which one counts.
fn presented(headers: &HeaderMap) -> Presented<'_> {
    let mut values = headers.get_all(PROXY_AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Presented::Basic(value.as_bytes()),
        _ => Presented::Nothing,
    }
}

/// The request as it is asked where it goes.
fn in_origin_form(head: &Head, mut request: Request<Incoming>) -> Request<Incoming> {
    let target = request.uri().path_and_query().cloned();
    let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
    // Of an absolute URL without a path, OPTIONS asks for the server as a whole.
    let is_whole = request.method() == Method::OPTIONS && !has_path(&head.target);
    *request.uri_mut() = if is_whole {
        Uri::from_static("*")
    } else {
        Uri::from(target)
    };
    request
}

/// The URL of a target that the front has found to be absolute.
pub(super) fn destination(target: &str) -> Result<RequestUrl, Reject> {
    let Some((scheme, rest)) = target.split_once("://") else {
        return Err(bad("the target is no absolute URL"));
    };
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => "http",
        "https" | "wss" => "https",
        _ => return Err(bad("the target's scheme is not one of a request")),
    };
    RequestUrl::parse(&format!("{scheme}://{rest}"))
}

fn has_path(target: &str) -> bool {
    let rest = target.split_once("://").map_or("", |(_, rest)| rest);
    rest.contains(['/', '?'])
}

/// The host and port of a target, for a record: not what may be secret in its query.
fn authority_of(target: &str) -> &str {
    let rest = target.split_once("://").map_or(target, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default()
}

/// Records what has no destination, and gives the answer to it.
async fn refuse(
    guest: &Guest,
    head: &Head,
    request: &Request<Incoming>,
    reject: &Reject,
) -> Response<ResponseBody> {
    let target = authority_of(&head.target).to_owned();
    let id = record_reject(guest, Ingress::ExplicitProxy, reject, Some(target)).await;
    let asker = Asker::new(
        request.method(),
        request.version(),
        request.headers(),
        false,
    );
    Denial::from(reject.clone()).response(&asker, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(target: &str) -> Result<String, Reason> {
        let url = destination(target).map_err(|reject| reject.reason)?;
        Ok(format!("{} {} {}", url.protocol, url.authority, url.target))
    }

    #[test]
    fn b050_b051_the_target_alone_says_where_a_request_goes() {
        for (target, expected) in [
            ("http://a.test/x?q=%41", "http a.test:80 /x?q=%41"),
            ("HTTPS://A.test./x", "https a.test:443 /x"),
            ("https://a.test:8443", "https a.test:8443 /"),
            ("ws://a.test/x", "http a.test:80 /x"),
            ("wss://a.test/x", "https a.test:443 /x"),
            (
                "http://[::1]:81/?http://b.test/",
                "http [::1]:81 /?http://b.test/",
            ),
        ] {
            assert_eq!(url(target).as_deref(), Ok(expected), "{target}");
        }
    }

    #[test]
    fn c06_other_targets_are_refused() {
        for target in [
            "http://user@a.test/",
            "http://a.test:0/",
            "http://0x7f.1/",
            "http:///x",
        ] {
            assert_eq!(url(target), Err(Reason::BadHost), "{target}");
        }
        for target in ["/x", "*", "ftp://a.test/", "tcp://a.test:1", "a.test:443"] {
            assert_eq!(url(target), Err(Reason::BadRequest), "{target}");
        }
    }

    #[test]
    fn records_hold_no_query() {
        assert_eq!(authority_of("http://a.test:81/x?token=1"), "a.test:81");
        assert_eq!(authority_of("http://a.test?token=1"), "a.test");
        assert!(has_path("http://a.test/") && !has_path("http://a.test"));
    }
}
