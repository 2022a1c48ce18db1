//! The one canonical layout of a policy file, comments kept.
//!
//! Works on any text that the loader's YAML layer reads, whether or not it is a policy: a file is
//! often formatted while it is being written. Nothing may be lost, so the result is read again and
//! compared before it is given out.

mod attach;
mod layout;
#[cfg(test)]
mod odd_style;
mod print;
#[cfg(test)]
mod properties;
mod same;
mod scalar;
mod shape;
mod tree;

use std::sync::Arc;

use crate::document::parse_commented;
use crate::{Diagnostic, Diagnostics, Source};

/// Columns that a line should not pass. Long texts do: they are broken by people only.
const WIDTH: usize = 100;

/// The file nests collections deeper than the loader reads in any other layout.
#[derive(Debug)]
struct TooDeep;

/// A policy file in its canonical layout.
///
/// Two spaces of indentation, keys in the order of the language, small collections on one line,
/// quotes where some reader of YAML needs them. The order of rules, tests and all other lists
/// stays, and so does every comment. Formatting a formatted file changes nothing.
///
/// ```
/// use outgate_policy::{Source, format};
///
/// let text = "rules:\n- {id: docs, to: {hosts: ['docs.example.com']}, action: allow} # read\nversion: 1";
/// let expected = "\
/// version: 1
///
/// rules:
///   ## read
///   - id: docs
///     action: allow
///     to: { hosts: [docs.example.com] }
/// ";
/// assert_eq!(format(&Source::new("docs.yaml", text))?, expected);
/// # Ok::<(), outgate_policy::Diagnostics>(())
/// ```
///
/// # Errors
///
/// What the loader says of a text that isn't YAML, or that uses aliases, anchors or tags. Keys and
/// values that are no part of the language are left as they are.
pub fn format(source: &Source) -> Result<String, Diagnostics> {
    let source = Arc::new(source.clone());
    let fail = |code, message: &str, help: &str| {
        let found = Diagnostic::error(code, &source, 0..0, message).help(help);
        Diagnostics::sorted(vec![found])
    };
    let read = parse_commented(&source).map_err(Diagnostics::sorted)?;
    let document = attach::attach(&source.text, &read).map_err(|TooDeep| {
        let message = "the file nests lists and mappings too deeply to be formatted";
        fail(
            "nested_too_deeply",
            message,
            "a policy needs no more than six of them",
        )
    })?;
    let text = print::document(&document, &source.text);
    if text.len() > Source::MAX_BYTES {
        let message = format!(
            "the formatted file would be larger than {} bytes",
            Source::MAX_BYTES
        );
        let help = "split the file: a policy that large can't be loaded";
        return Err(fail("file_too_large", &message, help));
    }
    drop(document);
    let formatted = Arc::new(Source::new(source.name.clone(), text));
    let same = parse_commented(&formatted)
        .is_ok_and(|again| same::is_same((&source.text, &read), (&formatted.text, &again)));
    if !same {
        let message = "formatting would change what the file says, so it is left as it is";
        let help = "this is a mistake of outgate: please report it, with the file";
        return Err(fail("format_failed", message, help));
    }
    Ok(Arc::unwrap_or_clone(formatted).text)
}
