//! The files of a layer in the order in which they count: what is included before what includes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::document::{At, Findings, Mode, PolicySpec, decode};
use crate::source::included_name;
use crate::{Diagnostic, Source};

/// One file of a layer. Without a spec it has at least one finding.
pub(super) struct File {
    pub(super) spec: Option<PolicySpec>,
    pub(super) found: Findings,
}

/// The file that includes the others.
pub(super) struct Root {
    pub(super) spec: PolicySpec,
    pub(super) source: Arc<Source>,
}

/// Reads a source and all that it includes, each once; the root is the last.
pub(super) fn expand(source: &Source) -> Vec<File> {
    let texts = source
        .included
        .iter()
        .map(|file| (file.name.as_str(), file.text.as_str()));
    let mut walk = Walk {
        texts: texts.collect(),
        under_way: Vec::new(),
        done: BTreeSet::new(),
        files: Vec::new(),
    };
    walk.visit(&source.name, &source.text);
    walk.files
}

/// Takes the root out, once all files are compiled.
pub(super) fn root(files: &mut [File]) -> Option<Root> {
    let root = files.last_mut()?;
    Some(Root {
        spec: root.spec.take()?,
        source: Arc::clone(&root.found.source),
    })
}

struct Walk<'a> {
    texts: BTreeMap<&'a str, &'a str>,
    /// The chain of files that led here, each with the place of the next in it.
    under_way: Vec<(Arc<Source>, Range<usize>)>,
    done: BTreeSet<String>,
    files: Vec<File>,
}

impl Walk<'_> {
    fn visit(&mut self, name: &str, text: &str) {
        if text.len() > Source::MAX_BYTES {
            // The text is not even copied.
            let mut found = Findings::new(Arc::new(Source::new(name, "")));
            let message = format!("the file is larger than {} bytes", Source::MAX_BYTES);
            let help = "split it into several policies";
            found.error_help("file_too_large", &(0..0), message, help);
            self.files.push(File { spec: None, found });
            return;
        }
        let source = Arc::new(Source::new(name, text));
        let (spec, mut found) = decode(&source);
        if let Some(spec) = &spec {
            if !self.under_way.is_empty() {
                only_part(spec, &mut found);
            }
            for reference in &spec.include {
                self.follow(&source, reference, &mut found);
            }
        }
        self.files.push(File { spec, found });
        self.done.insert(name.to_owned());
    }

    fn follow(&mut self, source: &Arc<Source>, reference: &At<String>, found: &mut Findings) {
        let shown = reference.value.escape_default();
        let name = match included_name(&source.name, &reference.value) {
            Ok(name) => name,
            Err(error) => {
                let (what, help) = error.texts();
                found.error_help(
                    "bad_include",
                    &reference.span,
                    format!("`{shown}` {what}"),
                    help,
                );
                return;
            }
        };
        let under_way = self.under_way.iter().any(|(file, _)| file.name == name);
        if under_way || source.name == name {
            found.add(|_| self.cycle(source, reference, &name));
        } else if self.done.contains(&name) {
            // Included before, by another way: it is there.
        } else if let Some(text) = self.texts.get(name.as_str()).copied() {
            self.under_way
                .push((Arc::clone(source), reference.span.clone()));
            self.visit(&name, text);
            self.under_way.pop();
        } else {
            let message = format!("`{shown}` is not there to include");
            let help = "load the policy from its file, so that what it includes is read too";
            found.error_help("include_missing", &reference.span, message, help);
        }
    }

    fn cycle(&self, source: &Arc<Source>, reference: &At<String>, name: &str) -> Diagnostic {
        let message = format!("`{name}` includes itself");
        let span = reference.span.clone();
        let mut diagnostic = Diagnostic::error("include_cycle", source, span, message)
            .help("move what both need into a file of its own");
        let from = self
            .under_way
            .iter()
            .position(|(file, _)| file.name == name);
        for (file, span) in self.under_way.iter().skip(from.unwrap_or(0)) {
            diagnostic = diagnostic.label(file, span.clone(), "by way of this");
        }
        diagnostic
    }
}

/// How a whole policy is applied is said by the file that is applied.
fn only_part(spec: &PolicySpec, found: &mut Findings) {
    if let Some(mode) = spec
        .mode
        .as_ref()
        .filter(|mode| mode.value == Mode::Observe)
    {
        let message = "an included file can't set `mode: observe`";
        let help = "write it in the file that includes this one, or remove it";
        found.error_help("include_mode", &mode.span, message, help);
    }
}
