//! Why a preset can't be made, and what to do about it.

use std::io;
use std::path::Path;

use super::Listing;
use super::site::Origin;

/// Why there is no such preset on this machine. Messages are safe to print: they hold no control
/// character, and of an address that has an `@` they show nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PresetError {
    /// No preset has this name.
    #[error("there is no preset `{name}`; the presets are {known}")]
    Unknown {
        /// As asked for, escaped.
        name: String,
        /// Every name.
        known: String,
    },
    /// A file is there and can't be read.
    #[error("`{file}` can't be read: {source}; make it readable, or remove it")]
    Unreadable {
        /// The file, escaped.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file or folder is not what a configuration is.
    #[error("`{file}` is no configuration: {why}")]
    NotConfiguration {
        /// The file, escaped.
        file: String,
        /// What it is instead.
        why: String,
    },
    /// A line or variable doesn't say what it should.
    #[error("{origin}: {what}")]
    Malformed {
        /// Where.
        origin: Origin,
        /// What is wrong and what to write.
        what: String,
    },
    /// Nothing says where packages come from.
    #[error("nothing on this machine says where {client} gets its packages; {fix}")]
    NotConfigured {
        /// The client.
        client: &'static str,
        /// What to do.
        fix: String,
    },
    /// The configuration names no place that a sandbox could reach.
    #[error("{client} needs no network here, so leave the preset out: {why}")]
    NothingToOpen {
        /// The client.
        client: &'static str,
        /// What it uses instead.
        why: String,
    },
    /// More places than a person would write.
    #[error(
        "the configuration of {client} names more than {limit} places; write rules of your own for those that are needed"
    )]
    TooMany {
        /// The client.
        client: &'static str,
        /// How many are accepted.
        limit: usize,
    },
}

impl PresetError {
    pub(super) fn unknown(name: &str, known: &[Listing]) -> Self {
        let known: Vec<&str> = known.iter().map(|listing| listing.name).collect();
        Self::Unknown {
            name: name.escape_debug().to_string(),
            known: known.join(", "),
        }
    }

    pub(super) fn unreadable(file: &Path, source: io::Error) -> Self {
        Self::Unreadable {
            file: shown(file),
            source,
        }
    }

    pub(super) fn not_configuration(file: &Path, why: impl Into<String>) -> Self {
        Self::NotConfiguration {
            file: shown(file),
            why: why.into(),
        }
    }

    pub(super) fn malformed(origin: &Origin, what: impl Into<String>) -> Self {
        Self::Malformed {
            origin: origin.clone(),
            what: what.into(),
        }
    }
}

/// A path for people and for comments: in one line, without control characters.
pub(super) fn shown(file: &Path) -> String {
    file.to_string_lossy().escape_debug().to_string()
}
