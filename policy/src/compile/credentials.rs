//! The `credentials:` of a file and the rules' references to them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::include::File;
use super::unique::Unique;
use super::{Credential, check_name};
use crate::document::{
    At, CredentialEntry, ExposeSpec, Findings, HeaderSpec, SourceSpec, VaultSpec, nearest,
};
use crate::feature::{Demand, Feature};
use crate::{
    CredentialName, CredentialSource, CredentialSpec, Diagnostic, Expose, HeaderAttach, Shape,
};

/// The credentials that a layer declares.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) credentials: Vec<Credential>,
    /// By name; `None` for those that have errors, so that their users aren't reported as well.
    names: HashMap<String, Option<CredentialName>>,
}

impl Declared {
    pub(super) fn check(files: &mut [File]) -> Self {
        let mut declared = Self {
            credentials: Vec::new(),
            names: HashMap::new(),
        };
        let mut names = Unique::new("credential", "duplicate_id");
        let mut variables = Unique::new("environment variable", "duplicate_env");
        for File { spec, found } in files {
            for entry in spec.iter().flat_map(|spec| &spec.credentials) {
                names.check(&entry.name, found);
                if let Some(expose) = &entry.expose {
                    variables.check(&expose.env, found);
                }
                let spec = compile(entry, found);
                let name = spec.as_ref().map(|spec| spec.name.clone());
                declared.names.insert(entry.name.value.clone(), name);
                let credential = spec.map(|spec| Credential {
                    spec,
                    source: Arc::clone(&found.source),
                    span: entry.name.span.clone(),
                });
                declared.credentials.extend(credential);
            }
        }
        declared
    }

    /// What the sources of the credentials need.
    pub(super) fn demands(&self) -> impl Iterator<Item = Demand> {
        let from_vault = |credential: &&Credential| {
            matches!(credential.spec.source, CredentialSource::Vault { .. })
        };
        self.credentials
            .iter()
            .filter(from_vault)
            .map(|credential| Demand::new(Feature::Vault, &credential.source, &credential.span))
    }

    /// The credential that a rule names.
    pub(super) fn resolve(
        &self,
        name: &At<String>,
        found: &mut Findings,
    ) -> Option<CredentialName> {
        if let Some(known) = self.names.get(&name.value) {
            return known.clone();
        }
        found.add(|source| {
            let message = format!(
                "the credential `{}` is not declared in this file",
                name.value.escape_default()
            );
            let help = match self.nearest(&name.value) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "declare it under `credentials:`".to_owned(),
            };
            Diagnostic::error("unknown_credential", source, name.span.clone(), message).help(help)
        });
        None
    }

    fn nearest(&self, name: &str) -> Option<&str> {
        if self.names.len() > MAX_GUESSES {
            return None;
        }
        let mut names: Vec<&str> = self.names.keys().map(String::as_str).collect();
        names.sort_unstable();
        nearest(name, &names)
    }
}

/// Names that a misspelt one is compared with; among more than that, guessing takes too long.
const MAX_GUESSES: usize = 1000;

fn compile(entry: &CredentialEntry, found: &mut Findings) -> Option<CredentialSpec> {
    check_name(&entry.name, "credential name", found);
    if entry.attach.is_empty() {
        let message = "`attach` is empty, so the credential would never be sent";
        let help = "for example: `attach: [{ header: Authorization, format: \"Bearer {}\" }]`";
        found.error_help("empty_attach", &entry.span, message, help);
    }
    let mut headers = Unique::new("header", "duplicate_header");
    for header in &entry.attach {
        headers.check(&header.header, found);
    }
    let source = source(&entry.source, found);
    let attach: Option<Vec<_>> = entry
        .attach
        .iter()
        .map(|spec| header(spec, found))
        .collect();
    let expose = entry.expose.as_ref().map(|spec| expose(spec, found));
    Some(CredentialSpec {
        name: CredentialName::new(&entry.name.value),
        source: source?,
        attach: attach?,
        expose: match expose {
            Some(expose) => Some(expose?),
            None => None,
        },
    })
}

fn source(spec: &At<SourceSpec>, found: &mut Findings) -> Option<CredentialSource> {
    match &spec.value {
        SourceSpec::Env(var) => {
            is_variable(var, &spec.span, found).then(|| CredentialSource::Env { var: var.clone() })
        }
        SourceSpec::File(path) if path.starts_with('/') => {
            Some(CredentialSource::File { path: path.into() })
        }
        SourceSpec::Vault(vault) => source_in_vault(vault, found),
        SourceSpec::File(path) => {
            let message = format!("`{}` is no absolute path", path.escape_default());
            let help = "the gateway reads the file, wherever it was started: begin with `/`";
            found.error_help("bad_source", &spec.span, message, help);
            None
        }
    }
}

fn source_in_vault(spec: &VaultSpec, found: &mut Findings) -> Option<CredentialSource> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
    let parts = [
        (&spec.mount, "mount"),
        (&spec.path, "path"),
        (&spec.field, "field"),
    ];
    let mut good = true;
    for (part, what) in parts {
        let text = &part.value;
        let dots = text
            .split('/')
            .any(|segment| matches!(segment, "" | "." | ".."));
        if dots || !text.bytes().all(plain) {
            good = false;
            let message = format!("`{}` is no {what} in Vault", text.escape_default());
            let help = "use letters, digits, `.`, `_`, `-` and single `/` between parts";
            found.error_help("bad_source", &part.span, message, help);
        }
    }
    good.then(|| CredentialSource::Vault {
        mount: spec.mount.value.clone(),
        path: spec.path.value.clone(),
        field: spec.field.value.clone(),
    })
}

fn is_variable(name: &str, span: &Range<usize>, found: &mut Findings) -> bool {
    let good = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    if !good {
        let message = format!(
            "`{}` is no name of an environment variable",
            name.escape_default()
        );
        let help = "write the name, without `$`: letters, digits and `_`";
        found.error_help("bad_env", span, message, help);
    }
    good
}

/// Headers that the gateway alone writes: framing, routing and hop-by-hop.
const RESERVED: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-connection",
    "proxy-authenticate",
    "http2-settings",
];

fn header(spec: &HeaderSpec, found: &mut Findings) -> Option<HeaderAttach> {
    let name = spec.header.value.to_ascii_lowercase();
    if !crate::canonical::is_token(&name) || RESERVED.contains(&name.as_str()) {
        let message = format!(
            "`{}` is no header that can carry a credential",
            spec.header.value.escape_default()
        );
        found.error("bad_header", &spec.header.span, message);
        return None;
    }
    let attach = HeaderAttach::new(&name, &spec.format.value);
    if attach.is_none() {
        let message = format!(
            "`{}` is no header value with exactly one `{{}}`",
            spec.format.value.escape_default()
        );
        found.error_help(
            "bad_format",
            &spec.format.span,
            message,
            "`{}` is where the secret goes, as in `Bearer {}`",
        );
    }
    attach
}

fn expose(spec: &ExposeSpec, found: &mut Findings) -> Option<Expose> {
    let good = is_variable(&spec.env.value, &spec.env.span, found);
    let shape = match &spec.shape {
        None => Some(Shape::opaque()),
        Some(shape) => {
            let parsed = Shape::parse(&shape.value);
            if parsed.is_none() {
                let message = format!(
                    "`{}` is no shape of a placeholder",
                    shape.value.escape_default()
                );
                let (least, most) = (Shape::MIN_RANDOM, Shape::MAX_RANDOM);
                let help = format!(
                    "write plain text around one `{{n}}`, n from {least} to {most}, as in `ghp_{{36}}`"
                );
                found.error_help("bad_shape", &shape.span, message, help);
            }
            parsed
        }
    };
    good.then_some(())?;
    Some(Expose {
        env: spec.env.value.clone(),
        shape: shape?,
    })
}
