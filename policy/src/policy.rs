//! The effective policy: layers that all have to allow, compiled once, asked for every request.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::compile::{self, Layer};
use crate::rule::{Protocols, Rule};
use crate::{
    AddressClass, Admission, CanonicalRequest, CredentialName, CredentialSpec, Decision,
    Destination, Diagnostic, Diagnostics, Host, Permit, Protocol, Reason, RuleRef, Source,
};

/// An immutable, compiled policy. Layers intersect: what one of them doesn't allow is denied.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) layers: Vec<Layer>,
    credentials: Vec<CredentialSpec>,
    revision: String,
}

impl Policy {
    /// Reads and compiles one layer per source, the most general first.
    ///
    /// # Errors
    /// Everything that is wrong in any source; nothing is loaded then. No source at all is an error:
    /// the intersection of nothing would be everything.
    pub fn load(sources: &[Source]) -> Result<Self, Diagnostics> {
        let mut found = Vec::new();
        let mut layers = Vec::with_capacity(sources.len());
        for (position, source) in sources.iter().enumerate() {
            let (layer, diagnostics) = compile::layer(source, position);
            found.extend(diagnostics);
            layers.extend(layer);
        }
        if sources.is_empty() {
            let nothing = Arc::new(Source::new("policy", ""));
            found.push(Diagnostic::error(
                "no_source",
                &nothing,
                0..0,
                "there is no policy to load",
            ));
        }
        let credentials = merge_credentials(&layers, &mut found);
        Diagnostics::check(found)?;
        Ok(Self {
            layers,
            credentials,
            revision: revision(sources),
        })
    }

    /// The policy of a sandbox that none selects: it reaches nothing, for [`Reason::NoPolicy`].
    #[must_use]
    pub fn none() -> Self {
        Self {
            layers: Vec::new(),
            credentials: Vec::new(),
            revision: revision(&[]),
        }
    }

    /// Judges one request. Does not allocate when the request is allowed or denied by default.
    #[must_use]
    pub fn decide(&self, request: &CanonicalRequest) -> Decision {
        if self.layers.is_empty() {
            return Decision::deny(Reason::NoPolicy, None);
        }
        let mut refusal: Option<Decision> = None;
        let mut deciding: Option<&Rule> = None;
        let mut private = true;
        for layer in &self.layers {
            let found = Found::among(layer, request);
            if let Some(rule) = found.deny {
                let decision = Decision::deny(Reason::RuleDeny, Some(Arc::clone(&rule.reference)));
                return decision.with_message(rule.message.clone());
            }
            match found.allow {
                Some(rule) => deciding = Some(speaker(deciding, rule)),
                None => {
                    refusal.get_or_insert_with(|| found.refusal());
                }
            }
            private &= found.private;
        }
        match (refusal, deciding) {
            (None, Some(rule)) => permit(rule, request, private),
            (Some(refusal), _) => refusal,
            (None, None) => Decision::deny(Reason::DefaultDeny, None),
        }
    }

    /// Phase one, before anything is read: which protocols could some rule allow to this place?
    /// Whatever [`Self::decide`] allows is admitted.
    #[must_use]
    pub fn admits(&self, destination: &Destination, port: u16) -> Admission {
        let mut open = if self.layers.is_empty() {
            Protocols::NONE
        } else {
            Protocols::ALL
        };
        let mut rule = None;
        let mut private = true;
        for layer in &self.layers {
            let found = Opening::of(layer, destination, port);
            open = open.and(found.protocols);
            private &= found.private;
            rule = rule.or(found.closed_by);
        }
        let reason = match (open.is_empty(), closed_address(destination, private)) {
            (true, _) if self.layers.is_empty() => Reason::NoPolicy,
            (true, _) if rule.is_some() => Reason::RuleDeny,
            (true, _) => Reason::DefaultDeny,
            (false, Some(reason)) => {
                open = Protocols::NONE;
                reason
            }
            (false, None) => Reason::Allowed,
        };
        Admission {
            https: open.has(Protocol::Https),
            http: open.has(Protocol::Http),
            tcp: open.has(Protocol::Tcp),
            reason,
            rule: if reason == Reason::RuleDeny {
                rule.map(|rule| Arc::clone(&rule.reference))
            } else {
                None
            },
        }
    }

    /// Whether some allow rule of every layer could match this name, at any port. A name that no
    /// rule can match must not be resolved.
    #[must_use]
    pub fn admits_name(&self, name: &Host) -> bool {
        let destination = Destination::Name(name.clone());
        !self.layers.is_empty()
            && self.layers.iter().all(|layer| {
                let (mut allowed, mut closed) = (false, false);
                layer.index.visit(&destination, |position| {
                    let Some(rule) = layer.rules.get(position) else {
                        return;
                    };
                    if rule.is_deny() {
                        let whole = !rule.has_http_matchers() && rule.ports.is_none();
                        closed |= whole && rule.protocols == Protocols::ALL;
                    } else {
                        allowed |= rule.can_match();
                    }
                });
                allowed && !closed
            })
    }

    /// SHA-256 in hex: for one source that of its text, so that `sha256sum` of the file gives the
    /// same; for several that of their digests in order.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The credentials of all layers.
    pub fn credentials(&self) -> impl Iterator<Item = &CredentialSpec> {
        self.credentials.iter()
    }

    /// The credential with this name.
    #[must_use]
    pub fn credential(&self, name: &CredentialName) -> Option<&CredentialSpec> {
        self.credentials.iter().find(|spec| spec.name == *name)
    }

    /// Every effective rule with its origin, layer by layer, in the order of the files.
    pub fn rules(&self) -> impl Iterator<Item = &RuleRef> {
        self.layers
            .iter()
            .flat_map(|layer| &layer.rules)
            .map(|rule| rule.reference.as_ref())
    }

    /// `name:` of the innermost layer that has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.layers
            .iter()
            .rev()
            .find_map(|layer| layer.name.as_deref())
    }

    /// `description:` of the innermost layer that has one.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.layers
            .iter()
            .rev()
            .find_map(|layer| layer.description.as_deref())
    }
}

/// What one layer says of a request.
#[derive(Default)]
struct Found<'a> {
    deny: Option<&'a Rule>,
    /// The first rule in the file that matches; a rule with a credential goes before one without,
    /// so that a broad rule doesn't keep a credential from being attached.
    allow: Option<&'a Rule>,
    /// Some matching allow rule opens private addresses.
    private: bool,
    /// Would match but for an encoded slash.
    slash: Option<&'a Rule>,
    /// Some allow rule matches the destination and port for another protocol.
    other_protocol: bool,
}

impl<'a> Found<'a> {
    fn among(layer: &'a Layer, request: &CanonicalRequest) -> Self {
        let mut found = Self::default();
        layer.index.visit(request.destination(), |position| {
            if let Some(rule) = layer.rules.get(position) {
                found.weigh(rule, request);
            }
        });
        found
    }

    fn weigh(&mut self, rule: &'a Rule, request: &CanonicalRequest) {
        if !rule.matches(request) {
            self.other_protocol |= !rule.is_deny()
                && !rule.protocols.has(request.protocol())
                && rule.has_port(request.port())
                && rule.has_destination(request.destination());
        } else if rule.is_deny() {
            keep_first(&mut self.deny, rule, |_| true);
        } else if !rule.accepts_slashes(request) {
            keep_first(&mut self.slash, rule, |_| true);
        } else {
            self.private |= rule.private;
            keep_first(&mut self.allow, rule, |rule| rule.credential.is_none());
        }
    }

    fn refusal(&self) -> Decision {
        let reason = match self.slash {
            Some(_) => Reason::EncodedSlash,
            None if self.other_protocol => Reason::ProtocolNotAllowed,
            None => Reason::DefaultDeny,
        };
        Decision::deny(reason, self.slash.map(|rule| Arc::clone(&rule.reference)))
    }
}

/// Keeps the rule that comes first in the file; of two kinds, the one for which `later` is false.
fn keep_first<'a>(slot: &mut Option<&'a Rule>, rule: &'a Rule, later: impl Fn(&Rule) -> bool) {
    let key = |rule: &Rule| (later(rule), rule.span.start);
    if slot.is_none_or(|kept| key(rule) < key(kept)) {
        *slot = Some(rule);
    }
}

/// The innermost layer speaks, unless only an outer one has a credential to attach.
fn speaker<'a>(outer: Option<&'a Rule>, inner: &'a Rule) -> &'a Rule {
    outer
        .filter(|outer| outer.credential.is_some() && inner.credential.is_none())
        .unwrap_or(inner)
}

/// The last check of an allow: an address may be closed whatever the rule says.
fn permit(rule: &Rule, request: &CanonicalRequest, private: bool) -> Decision {
    let reference = Arc::clone(&rule.reference);
    if let Some(reason) = closed_address(request.destination(), private) {
        return Decision::deny(reason, Some(reference));
    }
    let authority = request.authority().clone();
    let permit = Permit::new(
        request.protocol(),
        authority,
        private,
        rule.credential.clone(),
    );
    Decision::allow(reference, permit)
}

/// Why an address literal can't be dialled. Names are judged by the gateway, after resolution.
fn closed_address(destination: &Destination, private: bool) -> Option<Reason> {
    let Destination::Ip(address) = destination else {
        return None;
    };
    match AddressClass::of(*address) {
        AddressClass::Metadata => Some(Reason::MetadataAddress),
        AddressClass::Private if !private => Some(Reason::PrivateAddress),
        AddressClass::Public | AddressClass::Private => None,
    }
}

/// What one layer could allow to a place.
struct Opening<'a> {
    protocols: Protocols,
    private: bool,
    closed_by: Option<&'a Rule>,
}

impl<'a> Opening<'a> {
    fn of(layer: &'a Layer, destination: &Destination, port: u16) -> Self {
        let mut allowed = Protocols::NONE;
        let mut denied = Protocols::NONE;
        let mut found = Self {
            protocols: Protocols::NONE,
            private: false,
            closed_by: None,
        };
        layer.index.visit(destination, |position| {
            let Some(rule) = layer.rules.get(position) else {
                return;
            };
            if !rule.has_port(port) || !rule.has_destination(destination) || !rule.can_match() {
                return;
            }
            if !rule.is_deny() {
                allowed = allowed.or(rule.protocols);
                found.private |= rule.private;
            } else if !rule.has_http_matchers() {
                denied = denied.or(rule.protocols);
                keep_first(&mut found.closed_by, rule, |_| true);
            }
        });
        found.protocols = allowed.without(denied);
        found
    }
}

/// One list of credentials; a name has one meaning across the layers.
fn merge_credentials(layers: &[Layer], found: &mut Vec<Diagnostic>) -> Vec<CredentialSpec> {
    let mut merged: Vec<CredentialSpec> = Vec::new();
    for layer in layers {
        let outer = merged.len();
        for (spec, span) in layer.credentials.iter().zip(&layer.credential_spans) {
            match merged
                .iter()
                .take(outer)
                .find(|known| known.name == spec.name)
            {
                Some(known) if known != spec => {
                    let message = format!(
                        "the credential `{}` is declared differently in another layer",
                        spec.name
                    );
                    let diagnostic = Diagnostic::error(
                        "credential_conflict",
                        &layer.source,
                        span.clone(),
                        message,
                    );
                    found.push(diagnostic.help("give it another name"));
                }
                Some(_) => {}
                None => merged.push(spec.clone()),
            }
        }
    }
    merged
}

fn revision(sources: &[Source]) -> String {
    let hex = |digest: &[u8]| {
        digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    if let [only] = sources {
        return hex(&Sha256::digest(&only.text));
    }
    let mut all = Sha256::new();
    for source in sources {
        all.update(Sha256::digest(&source.text));
    }
    hex(&all.finalize())
}
