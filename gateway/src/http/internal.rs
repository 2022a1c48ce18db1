//! What the gateway answers itself, as `http://outgate.internal/`, to the sandbox that asks.
//!
//! It tells a sandbox about itself only: who it is, whether a request would be allowed and which
//! authority to trust. It changes nothing and holds no secret.

use http::{Method, Response, StatusCode};
use outgate_policy::{CanonicalRequest, RequestParts, RequestUrl};
use serde::Serialize;

use crate::sandbox::SandboxContext;

use super::body::ResponseBody;
use super::denial::typed;

/// Who the sandbox is.
#[derive(Serialize)]
struct Whoami<'a> {
    id: &'a str,
    policy_revision: &'a str,
}

/// What would happen to a GET request.
#[derive(Serialize)]
struct Explained<'a> {
    request: String,
    verdict: outgate_policy::Verdict,
    reason: outgate_policy::Reason,
    rule: Option<&'a str>,
    message: Option<&'a str>,
    how_to_fix: &'static str,
}

/// Answers `request`, which was made to the gateway's own name.
pub(super) fn answer(
    sandbox: &SandboxContext,
    request: &CanonicalRequest,
) -> Response<ResponseBody> {
    if request.method() != Method::GET.as_str() && request.method() != Method::HEAD.as_str() {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here");
    }
    let mut response = match request.path() {
        "/healthz" => typed("text/plain; charset=utf-8", "ok\n".to_owned()),
        "/ca.pem" => typed("application/x-pem-file", sandbox.services().ca_pem.clone()),
        "/v1/whoami" => {
            let policy = sandbox.policy();
            json(&Whoami {
                id: sandbox.id(),
                policy_revision: policy.revision(),
            })
        }
        "/v1/explain" => explain(sandbox, request),
        _ => refusal(
            StatusCode::NOT_FOUND,
            "there are /healthz, /ca.pem, /v1/whoami and /v1/explain?url=",
        ),
    };
    if request.method() == Method::HEAD.as_str() {
        *response.body_mut() = super::body::full("");
    }
    response
}

fn explain(sandbox: &SandboxContext, request: &CanonicalRequest) -> Response<ResponseBody> {
    let url = request
        .query_pairs()
        .find(|(name, _)| name == "url")
        .map(|(_, value)| value);
    let Some(url) = url else {
        return refusal(
            StatusCode::BAD_REQUEST,
            "name the URL: /v1/explain?url=https://host/path",
        );
    };
    let canonical = RequestUrl::parse(&url).and_then(|url| {
        CanonicalRequest::new(RequestParts {
            protocol: url.protocol,
            authority: &url.authority,
            method: "GET",
            target: &url.target,
            body_len: Some(0),
        })
    });
    let asked = match canonical {
        Ok(asked) => asked,
        Err(reject) => return refusal(StatusCode::BAD_REQUEST, &reject.to_string()),
    };
    let decision = sandbox.policy().decide(&asked);
    json(&Explained {
        request: asked.to_string(),
        verdict: decision.verdict(),
        reason: decision.reason(),
        rule: decision.rule().map(|rule| &*rule.id),
        message: decision.message(),
        how_to_fix: decision.reason().how_to_fix(),
    })
}

fn json(value: &impl Serialize) -> Response<ResponseBody> {
    // Strings and enums of strings always serialise.
    typed(
        "application/json",
        serde_json::to_string(value).unwrap_or_default() + "\n",
    )
}

fn refusal(status: StatusCode, text: &str) -> Response<ResponseBody> {
    let mut response = typed("text/plain; charset=utf-8", format!("{text}\n"));
    *response.status_mut() = status;
    response
}
