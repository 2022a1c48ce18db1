//! What the fuzz targets see of the inside: thin, without decisions of its own, and no part of the
//! public interface. A public door is better where there is one.

use crate::canonical::CanonicalPath;
use crate::glob::{PathGlob, PathPatterns};

/// One path pattern, compiled as for an allow rule and as for a deny rule.
#[derive(Debug)]
pub struct PathPattern {
    allow: PathPatterns,
    deny: PathPatterns,
}

impl PathPattern {
    /// Reads a pattern; `None` when a policy file with it doesn't load.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let glob = PathGlob::parse(text).ok()?;
        Some(Self {
            allow: PathPatterns::new(vec![glob.clone()]),
            deny: PathPatterns::for_deny(vec![glob]),
        })
    }

    /// Whether an allow rule matches the path; `None` when that has no canonical form.
    #[must_use]
    pub fn allows(&self, path: &str) -> Option<bool> {
        Some(self.allow.matches(&CanonicalPath::parse(path).ok()?))
    }

    /// Whether a deny rule matches the path; `None` when that has no canonical form.
    #[must_use]
    pub fn denies(&self, path: &str) -> Option<bool> {
        Some(
            self.deny
                .matches_any_reading(&CanonicalPath::parse(path).ok()?),
        )
    }
}

/// The canonical form of a path without query, if it has one.
#[must_use]
pub fn canonical_path(path: &str) -> Option<String> {
    Some(CanonicalPath::parse(path).ok()?.as_str().to_owned())
}
