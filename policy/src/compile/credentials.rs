//! The `credentials:` of a file and the rules' references to them.

use std::collections::HashMap;
use std::ops::Range;

use super::check_name;
use crate::document::{At, CredentialEntry, ExposeSpec, Findings, HeaderSpec, SourceSpec, nearest};
use crate::{CredentialName, CredentialSource, CredentialSpec, Expose, HeaderAttach, Shape};

/// The credentials that a file declares.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) specs: Vec<CredentialSpec>,
    pub(super) spans: Vec<Range<usize>>,
    /// Also of the credentials that have errors, so that their users aren't reported as well.
    names: Vec<String>,
}

impl Declared {
    pub(super) fn check(entries: &[CredentialEntry], found: &mut Findings) -> Self {
        unique(
            entries.iter().map(|entry| &entry.name),
            "credential",
            "duplicate_id",
            found,
        );
        let variables = entries
            .iter()
            .filter_map(|entry| entry.expose.as_ref())
            .map(|expose| &expose.env);
        unique(variables, "environment variable", "duplicate_env", found);
        let compiled = entries
            .iter()
            .filter_map(|entry| Some((compile(entry, found)?, entry.name.span.clone())));
        let (specs, spans) = compiled.unzip();
        Self {
            specs,
            spans,
            names: entries
                .iter()
                .map(|entry| entry.name.value.clone())
                .collect(),
        }
    }

    /// The credential that a rule names.
    pub(super) fn resolve(
        &self,
        name: &At<String>,
        found: &mut Findings,
    ) -> Option<CredentialName> {
        if let Some(spec) = self
            .specs
            .iter()
            .find(|spec| spec.name.as_str() == name.value)
        {
            return Some(spec.name.clone());
        }
        if !self.names.contains(&name.value) {
            let message = format!(
                "the credential `{}` is not declared in this file",
                name.value.escape_default()
            );
            let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
            let help = match nearest(&name.value, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "declare it under `credentials:`".to_owned(),
            };
            found.error_help("unknown_credential", &name.span, message, help);
        }
        None
    }
}

fn unique<'a>(
    names: impl Iterator<Item = &'a At<String>>,
    what: &str,
    code: &'static str,
    found: &mut Findings,
) {
    let mut seen: HashMap<&str, &Range<usize>> = HashMap::new();
    for name in names {
        if let Some(first) = seen.insert(&name.value, &name.span) {
            let message = format!(
                "the {what} `{}` is given twice",
                name.value.escape_default()
            );
            found.duplicate(code, &name.span, first, message);
        }
    }
}

fn compile(entry: &CredentialEntry, found: &mut Findings) -> Option<CredentialSpec> {
    check_name(&entry.name, "credential name", found);
    if entry.attach.is_empty() {
        let message = "`attach` is empty, so the credential would never be sent";
        let help = "for example: `attach: [{ header: Authorization, format: \"Bearer {}\" }]`";
        found.error_help("empty_attach", &entry.span, message, help);
    }
    unique(
        entry.attach.iter().map(|header| &header.header),
        "header",
        "duplicate_header",
        found,
    );
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
        SourceSpec::File(path) => {
            let message = format!("`{}` is no absolute path", path.escape_default());
            let help = "the gateway reads the file, wherever it was started: begin with `/`";
            found.error_help("bad_source", &spec.span, message, help);
            None
        }
    }
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
