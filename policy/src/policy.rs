//! The effective policy: layers that all have to allow, compiled once, asked for every request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::compile::{self, Credential, Layer};
use crate::document::Findings;
use crate::limits::Budget;
use crate::{CredentialName, CredentialSpec, Diagnostic, Diagnostics, RuleRef, Source};

/// An immutable, compiled policy. Layers intersect: what one of them doesn't allow is denied.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) layers: Vec<Layer>,
    credentials: Vec<CredentialSpec>,
    revision: String,
    /// Whether any rule looks at headers or bodies.
    pub(crate) looks_inside: bool,
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
        let mut rules = layers.iter().flat_map(|layer| &layer.rules);
        Ok(Self {
            looks_inside: rules.any(|rule| !rule.needs().is_nothing()),
            layers,
            credentials,
            revision: revision(sources),
        })
    }

    /// The policy of a sandbox that none selects: it reaches nothing, for [`crate::Reason::NoPolicy`].
    #[must_use]
    pub fn none() -> Self {
        Self {
            layers: Vec::new(),
            credentials: Vec::new(),
            revision: revision(&[]),
            looks_inside: false,
        }
    }

    /// SHA-256 in hex: for one file that of its text, so that `sha256sum` of the file gives the
    /// same; for several (layers and what they include) that of their digests in order.
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

    /// Whether the policy is for a sandbox with these labels: every layer that selects by labels
    /// selects it. A policy without `sandboxes:` is for whoever it is given to.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let wanted = self
            .layers
            .iter()
            .filter_map(|layer| layer.selects.as_ref());
        let mut wanted = wanted.flatten();
        wanted.all(|(label, value)| labels.get(label) == Some(value))
    }

    /// Whether some layer selects sandboxes by labels.
    #[must_use]
    pub fn has_selection(&self) -> bool {
        self.layers.iter().any(|layer| layer.selects.is_some())
    }

    /// The budgets of all layers.
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.layers.iter().flat_map(|layer| &layer.budgets)
    }
}

/// One list of credentials; a name has one meaning across the layers.
fn merge_credentials(layers: &[Layer], found: &mut Vec<Diagnostic>) -> Vec<CredentialSpec> {
    let mut merged: Vec<CredentialSpec> = Vec::new();
    let mut by_name: HashMap<CredentialName, usize> = HashMap::new();
    for layer in layers {
        let outer = merged.len();
        let mut conflicts = Findings::new(Arc::clone(&layer.source));
        for Credential { spec, source, span } in &layer.credentials {
            let known = by_name.get(&spec.name).filter(|at| **at < outer);
            match known.and_then(|at| merged.get(*at)) {
                Some(known) if known != spec => {
                    let message = format!(
                        "the credential `{}` is declared differently in another layer",
                        spec.name
                    );
                    conflicts.add(|_| {
                        Diagnostic::error("credential_conflict", source, span.clone(), message)
                            .help("give it another name")
                    });
                }
                Some(_) => {}
                None => {
                    by_name.insert(spec.name.clone(), merged.len());
                    merged.push(spec.clone());
                }
            }
        }
        found.extend(conflicts.into_list());
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
    let texts = sources.iter().flat_map(|source| {
        let included = source.included.iter().map(|file| &file.text);
        std::iter::once(&source.text).chain(included)
    });
    let mut digests = texts.map(Sha256::digest);
    let first = digests.next();
    let rest: Vec<_> = digests.collect();
    match (first, rest.as_slice()) {
        (Some(only), []) => hex(&only),
        (first, rest) => {
            let mut all = Sha256::new();
            for digest in first.iter().chain(rest) {
                all.update(digest);
            }
            hex(&all.finalize())
        }
    }
}
