//! Cedar's side: loading a policy set and asking it for a canonical request.
//!
//! The principal is the sandbox, the action the method, the resource the host; what else is known of
//! the request is in the context.

use std::str::FromStr as _;

use anyhow::{Context as _, Result, anyhow, ensure};
use cedar_policy::{
    Authorizer, Context, Decision, Entities, EntityId, EntityTypeName, EntityUid, PolicySet,
    Request, RestrictedExpression,
};
use outgate_policy::{CanonicalRequest, Verdict};

/// For `conditions`.
pub(crate) const VERSION: &str = "cedar-policy 4.14.1";

/// A loaded policy set with all that deciding needs.
pub(crate) struct Cedar {
    policies: PolicySet,
    authorizer: Authorizer,
    entities: Entities,
}

impl Cedar {
    pub(crate) fn load(text: &str) -> Result<Self> {
        let policies = PolicySet::from_str(text).map_err(|error| anyhow!("{error}"))?;
        Ok(Self {
            policies,
            authorizer: Authorizer::new(),
            entities: Entities::empty(),
        })
    }

    /// The verdict alone; this is what is timed.
    pub(crate) fn decide(&self, request: &Request) -> Verdict {
        let response = self
            .authorizer
            .is_authorized(request, &self.policies, &self.entities);
        verdict(response.decision())
    }

    /// The verdict, if no policy failed: Cedar leaves a policy out that does.
    pub(crate) fn decide_strictly(&self, request: &Request) -> Result<Verdict> {
        let response = self
            .authorizer
            .is_authorized(request, &self.policies, &self.entities);
        let failed: Vec<String> = response
            .diagnostics()
            .errors()
            .map(ToString::to_string)
            .collect();
        ensure!(failed.is_empty(), "Cedar: {}", failed.join("; "));
        Ok(verdict(response.decision()))
    }
}

/// The request as Cedar is asked for it.
pub(crate) fn request(request: &CanonicalRequest) -> Result<Request> {
    let host = request.destination().to_string();
    let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let context = Context::from_pairs([
        ("protocol".to_owned(), text(request.protocol().as_str())),
        ("host".to_owned(), text(&host)),
        (
            "port".to_owned(),
            RestrictedExpression::new_long(request.port().into()),
        ),
        ("path".to_owned(), text(request.path())),
    ])
    .context("no context for Cedar")?;
    Request::new(
        entity("Sandbox", "s1")?,
        entity("Action", request.method())?,
        entity("Host", &host)?,
        context,
        None,
    )
    .context("no request for Cedar")
}

const fn verdict(decision: Decision) -> Verdict {
    match decision {
        Decision::Allow => Verdict::Allow,
        Decision::Deny => Verdict::Deny,
    }
}

fn entity(kind: &str, id: &str) -> Result<EntityUid> {
    let kind = EntityTypeName::from_str(kind).map_err(|error| anyhow!("{error}"))?;
    Ok(EntityUid::from_type_name_and_id(kind, EntityId::new(id)))
}
