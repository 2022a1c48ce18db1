//! One exchange: from a request as read to its answer, the same for HTTP/1 and HTTP/2.
//!
//! The order is the promise. A request becomes canonical or is rejected; it is decided under the
//! policy of this moment; the decision is recorded; only then is the credential fetched and attached
//! and the request sent. Each step before the last can only refuse.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use http::header::HOST;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use outgate_policy::{
    Authority, CanonicalRequest, CredentialSpec, Decision, Permit, Policy, Protocol, Reason,
    Reject, RequestParts, Verdict,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::audit::{CredentialUse, Event, EventKind, Ingress, QueryNames, RecordId};
use crate::credential::Credential;
use crate::link::{GATEWAY_NAME, HTTP_PORT};
use crate::sandbox::{Direction, Ledger, Listed, SandboxContext};
use crate::upstream::{RequestBody, SendOptions, Sent, UpstreamError};

use super::body::{Download, NEW_POLICY, ResponseBody, Upload};
use super::denial::{Asker, Denial};
use super::front;
use super::guest_body::GuestBody;
use super::headers;
use super::internal;
use super::placeholder::Scope;

/// How long a guest has for the part of a body that a rule looks at.
const BODY_TIME: Duration = Duration::from_secs(30);

/// What all requests of one connection have in common.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) sandbox: Arc<SandboxContext>,
    pub(super) ingress: Ingress,
    /// Where the flow goes, and so the only authority a request may name.
    pub(super) authority: Authority,
    pub(super) protocol: Protocol,
}

/// A request with one reading.
struct Asked {
    started: Instant,
    canonical: CanonicalRequest,
    parts: Parts,
    body: GuestBody,
}

/// What lets a request be sent.
struct Admitted {
    policy: Arc<Policy>,
    permit: Permit,
    place: OwnedSemaphorePermit,
}

/// The credential of an admitted request, if it has one, or why there is none to be had.
type Fetched = Result<Option<Credential>, String>;

/// Why an admitted request was not answered by its upstream.
enum Failure {
    Refused(Denial, String),
    Upstream(UpstreamError),
}

impl Channel {
    /// Answers what the HTTP/1 server read, as the front judged it.
    pub(super) async fn respond_after_front(
        self: Arc<Self>,
        verdict: Option<front::Verdict>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        match verdict {
            Some(front::Verdict::Accepted(head)) if head.is_read_as(&request) => {
                self.respond(request).await
            }
            Some(front::Verdict::Rejected(reject)) => self.reject(&reject, &Asker::unknown()).await,
            // Never seen; if it is, the server read something else than what was judged.
            Some(front::Verdict::Accepted(_)) | None => {
                let reject = Reject::new(Reason::Internal, "the server and its front disagree");
                self.reject(&reject, &Asker::unknown()).await
            }
        }
    }

    /// Answers one request.
    pub(super) async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let body = GuestBody::new(body, parts.version);
        let response = self.answer_to(parts, body.clone()).await;
        body.until_delivered(response)
    }

    async fn answer_to(&self, parts: Parts, body: GuestBody) -> Response<ResponseBody> {
        let started = Instant::now();
        let mut asker = Asker::new(
            &parts.method,
            parts.version,
            &parts.headers,
            body.is_end_stream(),
        );
        let canonical = match self.canonical(&parts, &body) {
            Ok(canonical) => canonical,
            Err(reject) => return self.reject(&reject, &asker).await,
        };
        asker.request = Some(canonical.to_string());
        if self.is_to_gateway() {
            return internal::answer(&self.sandbox, &canonical);
        }
        let policy = self.sandbox.policy();
        let mut asked = Asked {
            started,
            canonical,
            parts,
            body,
        };
        if let Err(reject) = self.look_inside(&policy, &mut asked).await {
            return self.reject(&reject, &asker).await;
        }
        let decision = policy.decide(&asked.canonical);
        let decided = started.elapsed();
        let admitted = self.admit(&asked, &decision, policy);
        let mut event = self.request_event(&asked, &decision, &admitted);
        event.timings.decide = Some(decided);
        let id = event.id;
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(denial) => {
                let denial = self.record([&event]).await.err().unwrap_or(denial);
                return denial.response(&asker, id);
            }
        };
        match self.record_and_fetch(&event, &admitted).await {
            Ok(credential) => self.forward(id, asked, admitted, credential, &asker).await,
            Err(denial) => denial.response(&asker, id),
        }
    }

    /// Records what was decided and that a credential is used, and fetches that credential. Nothing
    /// is attached or sent before both are on record.
    async fn record_and_fetch(
        &self,
        event: &Event,
        admitted: &Admitted,
    ) -> Result<Fetched, Denial> {
        let Some(name) = admitted.permit.credential() else {
            self.record([event]).await?;
            return Ok(Ok(None));
        };
        let Some(spec) = admitted.policy.credential(name) else {
            self.record([event]).await?;
            return Ok(Err("it is not in the policy".to_owned()));
        };
        let used = Event {
            request: Some(event.id),
            credential: Some(credential_use(spec)),
            ..self.event(EventKind::CredentialUse)
        };
        let mut fetch = pin!(self.sandbox.services().broker.fetch(spec));
        // A value that is at hand saves a second way to the log.
        let at_hand = fetch.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let fetched = match at_hand {
            Poll::Ready(Ok(credential)) => {
                self.record([event, &used]).await?;
                return Ok(Ok(Some(credential)));
            }
            Poll::Ready(Err(error)) => {
                self.record([event]).await?;
                Err(error)
            }
            Poll::Pending => {
                self.record([event]).await?;
                let fetched = fetch.await;
                if fetched.is_ok() {
                    self.record([&used]).await?;
                }
                fetched
            }
        };
        Ok(fetched.map(Some).map_err(|error| error.to_string()))
    }

    /// Records that something never became a request. Failing to is logged: it is refused anyway.
    pub(super) async fn record_reject(&self, reject: &Reject) -> RecordId {
        let event = Event {
            verdict: Some(Verdict::Deny),
            reason: Some(reject.reason),
            detail: Some(reject.detail.clone()),
            ..self.event(EventKind::Reject)
        };
        if let Err(error) = self.sandbox.services().audit.append(&event).await {
            tracing::error!(%error, sandbox = self.sandbox.id(), "a reject could not be recorded");
        }
        event.id
    }

    async fn reject(&self, reject: &Reject, asker: &Asker) -> Response<ResponseBody> {
        let id = self.record_reject(reject).await;
        Denial::from(reject.clone()).response(asker, id)
    }

    /// The one reading of a request.
    fn canonical(&self, parts: &Parts, body: &GuestBody) -> Result<CanonicalRequest, Reject> {
        self.check_authority(&parts.uri, &parts.headers)?;
        CanonicalRequest::new(RequestParts {
            protocol: self.protocol,
            authority: &self.authority,
            method: parts.method.as_str(),
            target: parts.uri.path_and_query().map_or("/", PathAndQuery::as_str),
            body_len: body.size_hint().exact(),
        })
    }

    /// Shows the policy what it has to see of the request beyond its first line.
    async fn look_inside(&self, policy: &Policy, asked: &mut Asked) -> Result<(), Reject> {
        let needs = policy.needs(&asked.canonical);
        if needs.headers {
            let fields = asked.parts.headers.iter();
            let fields = fields.map(|(name, value)| (name.as_str(), value.as_bytes()));
            asked.canonical = asked.canonical.clone().with_headers(fields);
        }
        if needs.body > 0 {
            // Held until the decision: so many bodies at a time, whatever a guest opens.
            let _place = self.sandbox.admit_body().await;
            let read = timeout(BODY_TIME, asked.body.peek(needs.body)).await;
            let prefix = read
                .map_err(|_| Reject::new(Reason::ConnectionIdle, "the body came too slowly"))?
                .map_err(|error| super::body::broken(&error))?;
            let canonical = asked.canonical.clone();
            asked.canonical = canonical.with_body(prefix.bytes, prefix.complete);
        }
        Ok(())
    }

    /// Every authority and scheme that a request names must be the flow's.
    fn check_authority(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Reject> {
        let mismatch = |named: &str| {
            let detail = format!(
                "`{}` on a connection to {}://{}",
                named.escape_debug(),
                self.protocol,
                self.authority
            );
            Reject::new(Reason::AuthorityMismatch, detail)
        };
        if let Some(scheme) = uri
            .scheme_str()
            .filter(|scheme| *scheme != self.protocol.as_str())
        {
            return Err(mismatch(scheme));
        }
        let hosts = headers.get_all(HOST).into_iter().map(|host| {
            host.to_str()
                .map_err(|_| Reject::new(Reason::BadHost, "a Host beyond ASCII"))
        });
        let mut named_one = false;
        for text in uri
            .authority()
            .map(|authority| Ok(authority.as_str()))
            .into_iter()
            .chain(hosts)
        {
            let text = text?;
            if Authority::parse(text, self.protocol.default_port())? != self.authority {
                return Err(mismatch(text));
            }
            named_one = true;
        }
        if named_one {
            Ok(())
        } else {
            Err(Reject::new(Reason::BadHost, "no authority is named"))
        }
    }

    fn is_to_gateway(&self) -> bool {
        self.authority.port == HTTP_PORT
            && self
                .authority
                .destination
                .name()
                .is_some_and(|name| name.as_str() == GATEWAY_NAME)
    }

    /// What a decision leaves to check: upgrades, placeholders and the sandbox's limit.
    fn admit(
        &self,
        asked: &Asked,
        decision: &Decision,
        policy: Arc<Policy>,
    ) -> Result<Admitted, Denial> {
        let permit = decision.permit().ok_or_else(|| Denial::from(decision))?;
        if headers::asks_for_websocket(&asked.parts.headers) {
            return Err(Denial::from(Reason::UpgradeDenied));
        }
        let most = permit.max_request_body();
        if most.is_some_and(|most| asked.body.size_hint().lower() > most) {
            return Err(Denial::from(Reason::RequestTooLarge));
        }
        let scope = self.scope(permit);
        scope.check_target(&asked.canonical.forward_target())?;
        scope.check_headers(&asked.parts.headers)?;
        let place = self.sandbox.admit_exchange();
        let place = place.ok_or_else(|| Denial::from(Reason::LimitExceeded))?;
        Ok(Admitted {
            policy,
            permit: permit.clone(),
            place,
        })
    }

    fn scope(&self, permit: &Permit) -> Scope {
        Scope {
            sandbox: Arc::clone(&self.sandbox),
            own: permit.credential().cloned(),
        }
    }

    async fn forward(
        &self,
        id: RecordId,
        asked: Asked,
        admitted: Admitted,
        credential: Fetched,
        asker: &Asker,
    ) -> Response<ResponseBody> {
        let Asked {
            started,
            canonical,
            parts,
            body,
        } = asked;
        let Admitted {
            policy,
            permit,
            place,
        } = admitted;
        let closing = Event {
            request: Some(id),
            policy_revision: Some(policy.revision().to_owned()),
            http_version: Some(parts.version),
            ..self.event(EventKind::Response)
        };
        let ledger = Ledger::new(Arc::clone(&self.sandbox), closing, started, place);
        let canonical = Arc::new(canonical);
        let listed = ledger.list(&canonical, &policy);
        let upload = Upload {
            body,
            ledger: Arc::clone(&ledger),
            scope: self.scope(&permit),
            left: permit.max_request_body(),
            listed: Arc::clone(&listed),
        };
        let sent = match outgoing(&canonical, parts, upload) {
            Ok(request) => {
                let send = self.send(&permit, credential, request);
                unless_cut(&listed, send).await
            }
            Err(reject) => Err(Failure::Refused(Denial::from(reject), String::new())),
        };
        match sent {
            Ok(sent) => answer(sent, ledger, listed),
            Err(failure) => failure.noted(&ledger).response(asker, id),
        }
    }

    /// Attaches the credential last of all, and sends.
    async fn send(
        &self,
        permit: &Permit,
        credential: Fetched,
        mut request: Request<RequestBody>,
    ) -> Result<Sent, Failure> {
        let unavailable =
            |why: String| Failure::Refused(Denial::from(Reason::CredentialUnavailable), why);
        let mut options = SendOptions {
            prefer_http1: request.version() != Version::HTTP_2,
            ..SendOptions::default()
        };
        if let Some(credential) = credential.map_err(unavailable)? {
            let attached = credential.attach(request.headers_mut());
            attached.map_err(|error| unavailable(error.to_string()))?;
            options.credential_version = Some(credential.version());
        }
        let services = self.sandbox.services();
        let sent = services
            .upstream
            .send(permit, self.protocol, request, options)
            .await;
        sent.map_err(Failure::Upstream)
    }

    async fn record<const N: usize>(&self, events: [&Event; N]) -> Result<(), Denial> {
        if let Err(error) = self.sandbox.services().audit.append_all(events).await {
            tracing::error!(%error, sandbox = self.sandbox.id(), "refused: it could not be recorded");
            return Err(Denial::from(Reason::AuditUnavailable));
        }
        Ok(())
    }

    fn event(&self, kind: EventKind) -> Event {
        self.sandbox
            .traffic_event(kind, self.ingress, Some(self.protocol), &self.authority)
    }

    fn request_event(
        &self,
        asked: &Asked,
        decision: &Decision,
        admitted: &Result<Admitted, Denial>,
    ) -> Event {
        let canonical = &asked.canonical;
        let mut event = Event {
            rule: decision.rule().cloned(),
            closest: decision.closest().cloned(),
            would_deny: decision.would_deny().cloned(),
            method: Some(canonical.method().to_owned()),
            path: Some(canonical.path().to_owned()),
            query_names: canonical.query().map(QueryNames::of).unwrap_or_default(),
            http_version: Some(asked.parts.version),
            ..self.event(EventKind::Request)
        };
        match admitted {
            Ok(Admitted { policy, permit, .. }) => {
                event.verdict = Some(Verdict::Allow);
                event.reason = Some(Reason::Allowed);
                event.policy_revision = Some(policy.revision().to_owned());
                let spec = permit.credential().and_then(|name| policy.credential(name));
                event.credential = spec.map(credential_use);
            }
            Err(denial) => {
                event.verdict = Some(match decision.verdict() {
                    Verdict::Ask => Verdict::Ask,
                    Verdict::Allow | Verdict::Deny => Verdict::Deny,
                });
                event.reason = Some(denial.reason);
                event.status = Some(denial.reason.http_status());
                event.detail.clone_from(&denial.message);
            }
        }
        event
    }
}

/// Waits for the head of the answer, unless a new policy denies the exchange first.
async fn unless_cut(
    listed: &Listed,
    send: impl Future<Output = Result<Sent, Failure>>,
) -> Result<Sent, Failure> {
    let mut send = pin!(send);
    poll_fn(|cx| {
        if let Poll::Ready(reason) = listed.poll_cut(Direction::Down, cx) {
            let denial = Denial::from(reason);
            return Poll::Ready(Err(Failure::Refused(denial, NEW_POLICY.to_owned())));
        }
        send.as_mut().poll(cx)
    })
    .await
}

/// The request as it goes upstream, but for the credential.
fn outgoing(
    canonical: &CanonicalRequest,
    parts: Parts,
    upload: Upload,
) -> Result<Request<RequestBody>, Reject> {
    let target = canonical.forward_target();
    let uri = PathAndQuery::try_from(target.as_str())
        .ok()
        // The parser drops what it takes for a fragment.
        .filter(|parsed| parsed.as_str() == target)
        .ok_or_else(|| Reject::new(Reason::BadPath, "a path that HTTP can't carry"))?;
    let mut request = Request::new(upload.boxed());
    *request.method_mut() = parts.method;
    *request.version_mut() = parts.version;
    *request.uri_mut() = uri.into();
    *request.headers_mut() = headers::for_upstream(&parts.headers, parts.version);
    // Holds the case of the header names, which only the two HTTP/1 ends can read.
    *request.extensions_mut() = parts.extensions;
    request
        .extensions_mut()
        .remove::<hyper::upgrade::OnUpgrade>();
    Ok(request)
}

impl Failure {
    /// Completes the closing record and answers what the guest may know.
    fn noted(self, ledger: &Ledger) -> Denial {
        let (denial, detail, peer) = match self {
            Self::Refused(denial, detail) => (denial, detail, None),
            Self::Upstream(error) => (
                Denial::from(error.reason()),
                error.to_string(),
                error.peer(),
            ),
        };
        let mut noted = denial;
        ledger.note(|event| {
            // A body that broke off has said why; the upstream's failure only follows from it.
            if let Some(reason) = event.reason {
                noted = Denial {
                    message: event.detail.clone(),
                    ..Denial::from(reason)
                };
            }
            event.reason = Some(noted.reason);
            event.status = Some(noted.reason.http_status());
            event.peer = peer;
            event.detail.get_or_insert(detail);
        });
        noted
    }
}

/// The upstream's answer as the guest gets it; the rest of it streams.
fn answer(sent: Sent, ledger: Arc<Ledger>, listed: Arc<Listed>) -> Response<ResponseBody> {
    let (parts, body) = sent.response.into_parts();
    let first_byte = ledger.started().elapsed();
    ledger.note(|event| {
        event.status = Some(parts.status.as_u16());
        event.peer = Some(sent.peer);
        event.upstream_http_version = Some(sent.version);
        event.upstream_cert_sha256 = sent.certificate_sha256;
        event.timings = sent.timings;
        event.timings.first_byte = Some(first_byte);
        if sent.conflicting_length {
            event.detail =
                Some("the upstream sent two lengths; the plain one was dropped".to_owned());
        }
    });
    let exact = body.size_hint().exact();
    let mut response = Response::new(Download::new(body, ledger, listed).boxed());
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers::for_guest(&parts.headers, exact);
    // The reason phrase and the case of the header names, for an HTTP/1 guest.
    *response.extensions_mut() = parts.extensions;
    response
}

fn credential_use(spec: &CredentialSpec) -> CredentialUse {
    let surfaces: Vec<_> = spec
        .attach
        .iter()
        .map(|attach| format!("header:{}", attach.header))
        .collect();
    CredentialUse {
        name: spec.name.to_string(),
        surface: surfaces.join(" "),
    }
}
