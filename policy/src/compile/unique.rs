//! Names that must be unique, also across the files of a layer.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::document::{At, Findings};
use crate::{Diagnostic, Source};

/// The names of one kind that were seen so far, with their places.
pub(super) struct Unique {
    what: &'static str,
    code: &'static str,
    first: HashMap<String, (Arc<Source>, Range<usize>)>,
}

impl Unique {
    /// `what` completes "the … `x` is given twice".
    pub(super) fn new(what: &'static str, code: &'static str) -> Self {
        Self {
            what,
            code,
            first: HashMap::new(),
        }
    }

    /// Reports a name that was there before.
    pub(super) fn check(&mut self, name: &At<String>, found: &mut Findings) {
        let place = (Arc::clone(&found.source), name.span.clone());
        if let Some((source, span)) = self.first.insert(name.value.clone(), place) {
            let shown = name.value.escape_default();
            let message = format!("the {} `{shown}` is given twice", self.what);
            let at = name.span.clone();
            found.add(|here| {
                Diagnostic::error(self.code, here, at, message).label(
                    &source,
                    span,
                    "it is here first",
                )
            });
        }
    }
}
