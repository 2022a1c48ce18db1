//! What a policy asks of whoever enforces it, beyond deciding: a gateway that can't keep it has to
//! refuse the policy, so that no rule looks as if it were kept.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::diagnostic::MAX_FINDINGS;
use crate::{Diagnostic, Diagnostics, Policy, Source};

/// Something that the language can say and that takes more than a decision to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Feature {
    /// `mode: observe`.
    Observe,
    /// `action: ask` with an answer from a person. Without it every ask is denied.
    Ask,
    /// `tls: passthrough`.
    TlsPassthrough,
    /// `protocol: udp`.
    Udp,
    /// `websocket: allow`.
    WebSocket,
    /// Matchers on headers.
    Headers,
    /// Matchers on the body.
    Body,
    /// `limits: { rate: … }`.
    Rate,
    /// `limits: { concurrency: … }`.
    Concurrency,
    /// `limits: { request_body: … }` and `max_body`.
    RequestBody,
    /// `limits: { response_body: … }`.
    ResponseBody,
    /// `limits: { duration: … }`.
    Duration,
    /// `budgets:`.
    Budgets,
    /// A credential from Vault or OpenBao.
    Vault,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Observe => "mode: observe",
            Self::Ask => "action: ask",
            Self::TlsPassthrough => "tls: passthrough",
            Self::Udp => "protocol: udp",
            Self::WebSocket => "websocket: allow",
            Self::Headers => "headers",
            Self::Body => "body",
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::RequestBody => "request_body",
            Self::ResponseBody => "response_body",
            Self::Duration => "duration",
            Self::Budgets => "budgets",
            Self::Vault => "vault",
        })
    }
}

/// A place of a policy that needs a [`Feature`].
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) feature: Feature,
    source: Arc<Source>,
    span: Range<usize>,
}

impl Demand {
    pub(crate) fn new(feature: Feature, source: &Arc<Source>, span: &Range<usize>) -> Self {
        Self {
            feature,
            source: Arc::clone(source),
            span: span.clone(),
        }
    }

    fn refusal(&self) -> Diagnostic {
        let feature = self.feature;
        let message =
            format!("`{feature}` is not enforced by this version, so the policy is refused");
        Diagnostic::error("not_enforced", &self.source, self.span.clone(), message)
            .help("remove it, or use a version of outgate that enforces it")
    }
}

impl Policy {
    /// The features that the policy needs, each once.
    #[must_use]
    pub fn features(&self) -> Vec<Feature> {
        let demands = self.layers.iter().flat_map(|layer| &layer.demands);
        let mut features: Vec<Feature> = demands.map(|demand| demand.feature).collect();
        features.sort_unstable();
        features.dedup();
        features
    }

    /// Refuses a policy that asks for more than `enforced`.
    ///
    /// # Errors
    /// One `not_enforced` for each place that can't be kept, up to a hundred.
    pub fn require(&self, enforced: &[Feature]) -> Result<(), Diagnostics> {
        let demands = self.layers.iter().flat_map(|layer| &layer.demands);
        let missing = demands.filter(|demand| !enforced.contains(&demand.feature));
        let missing = missing.take(MAX_FINDINGS);
        Diagnostics::check(missing.map(Demand::refusal).collect())
    }
}
