//! What a decision on a request from an audit record is worth: a record has no query values, no
//! headers and no body, so a rule that looks at those can't be asked about it.

use crate::CanonicalRequest;
use crate::policy::Policy;
use crate::rule::{Mismatch, Rule};

impl Policy {
    /// Whether the decision may hang on something that an audit record doesn't hold. `request` was
    /// made from a record: protocol, destination, port, method and path.
    #[must_use]
    pub fn depends_on_unrecorded(&self, request: &CanonicalRequest) -> bool {
        self.layers.iter().any(|layer| {
            let mut depends = false;
            layer.index.visit_all(request.destination(), |position| {
                let rule = layer.rules.get(position);
                depends |= rule.is_some_and(|rule| {
                    looks_beyond_records(rule)
                        && rule.mismatches(request).into_iter().all(is_unrecorded)
                });
            });
            depends
        })
    }
}

/// Whether the rule has a matcher on something that no record holds. Every field is named, so that
/// a new matcher can't be forgotten here.
const fn looks_beyond_records(rule: &Rule) -> bool {
    let Rule {
        reference: _,
        action: _,
        protocols: _,
        hosts: _,
        ips: _,
        many: _,
        ports: _,
        private: _,
        methods: _,
        paths: _,
        encoded_slash_is_data: _,
        websocket: _,
        content,
        limits: _,
        credential: _,
        ask: _,
        message: _,
        source: _,
        span: _,
        order: _,
    } = rule;
    content.is_some()
}

/// Whether a rebuilt request fails this only because of what its record leaves out.
const fn is_unrecorded(mismatch: Mismatch) -> bool {
    match mismatch {
        Mismatch::Destination
        | Mismatch::Port
        | Mismatch::Protocol
        | Mismatch::Method
        | Mismatch::Path
        | Mismatch::EncodedSlash
        | Mismatch::WebSocket => false,
        Mismatch::Query
        | Mismatch::Header
        | Mismatch::ContentType
        | Mismatch::BodySize
        | Mismatch::Grpc
        | Mismatch::Git
        | Mismatch::Graphql
        | Mismatch::Mcp => true,
    }
}
