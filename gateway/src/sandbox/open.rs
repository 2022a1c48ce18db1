//! Opens a flow, whatever way it came in, and hands its stream to what may be spoken on it.
//!
//! It is opened only when some rule could let something through. A byte stream is dialled before
//! anybody hears that it is open, so that a failed dial looks like one. It never passes bytes on a
//! port that a rule wants to see as HTTP: that would be a way around the rule.

use std::sync::Arc;

use outgate_policy::{Admission, Authority, Reason, Verdict};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::audit::{Event, EventKind, Ingress, RecordId};
use crate::http;
use crate::link::{GATEWAY_NAME, HTTP_PORT};

use super::SandboxContext;
use super::tunnel::Tunnel;

/// A flow that was judged and may be served; a byte stream is connected already.
pub(crate) struct Opened(Serve);

enum Serve {
    Http(http::Flow),
    Bytes(Box<Tunnel>),
}

/// Why a flow was not opened. On record already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    /// The id of the rule that decided.
    pub(crate) rule: Option<Arc<str>>,
    /// The policy author's words.
    pub(crate) message: Option<String>,
    /// The record of the decision.
    pub(crate) record: RecordId,
}

impl SandboxContext {
    /// Judges a flow to `to` that came in by `ingress`, records the outcome where it is one, and
    /// dials what is a byte stream.
    ///
    /// # Errors
    /// A [`Refusal`], on record. Nothing was dialled then, unless it is the dial that failed.
    pub(crate) async fn open(
        self: &Arc<Self>,
        ingress: Ingress,
        to: Authority,
    ) -> Result<Opened, Refusal> {
        let sandbox = Arc::clone(self);
        if is_gateway(&to) {
            let flow = http::Flow::of_clear_text(sandbox, ingress, to);
            return Ok(Opened(Serve::Http(flow)));
        }
        let admission = self.policy().admits(&to.destination, to.port);
        if admission.https || admission.http {
            let flow = http::Flow::new(sandbox, ingress, to, &admission);
            return Ok(Opened(Serve::Http(flow)));
        }
        if admission.tcp {
            let tunnel = Tunnel::open(sandbox, ingress, to).await?;
            return Ok(Opened(Serve::Bytes(Box::new(tunnel))));
        }
        Err(self.refuse(ingress, &to, &admission).await)
    }

    /// A flow of clear-text HTTP to a place that nothing is admitted to: its requests are judged like
    /// all others, and so are told why nothing comes of them.
    pub(crate) fn open_to_answer(self: &Arc<Self>, ingress: Ingress, to: Authority) -> Opened {
        let flow = http::Flow::of_clear_text(Arc::clone(self), ingress, to);
        Opened(Serve::Http(flow))
    }

    async fn refuse(&self, ingress: Ingress, to: &Authority, admission: &Admission) -> Refusal {
        let event = Event {
            verdict: Some(Verdict::Deny),
            reason: Some(admission.reason()),
            rule: admission.rule().cloned(),
            ..self.traffic_event(EventKind::Flow, ingress, None, to)
        };
        // Refused either way; the log itself says what it missed.
        if let Err(error) = self.services().audit.append(&event).await {
            tracing::error!(%error, sandbox = self.id(), "a refused flow could not be recorded");
        }
        Refusal {
            reason: admission.reason(),
            rule: admission.rule().map(|rule| Arc::clone(&rule.id)),
            message: None,
            record: event.id,
        }
    }
}

impl Opened {
    /// Serves `stream` until either side is done with it.
    pub(crate) async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match self.0 {
            Serve::Http(flow) => http::serve(stream, flow).await,
            Serve::Bytes(tunnel) => tunnel.run(stream).await,
        }
    }
}

/// The gateway's own name, at the one port where it answers.
fn is_gateway(to: &Authority) -> bool {
    let name = to.destination.name();
    to.port == HTTP_PORT && name.is_some_and(|name| name.as_str() == GATEWAY_NAME)
}
