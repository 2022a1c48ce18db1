//! Reading TOML configuration with the lines that values are on.

use std::path::Path;

use toml_edit::{Document, Item, TableLike};

use super::PresetError;
use super::site::Origin;

/// A parsed file.
#[derive(Debug)]
pub(super) struct Toml<'a> {
    file: &'a Path,
    text: &'a str,
    document: Document<&'a str>,
}

impl<'a> Toml<'a> {
    /// Parses a file.
    ///
    /// # Errors
    /// [`PresetError::Malformed`] with the line.
    pub(super) fn parse(file: &'a Path, text: &'a str) -> Result<Self, PresetError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let document = Document::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            let origin = Origin::line(file, line);
            // The message may quote the text.
            let what = error.message().escape_debug().to_string();
            PresetError::malformed(&origin, format!("this is no TOML: {what}"))
        })?;
        Ok(Self {
            file,
            text,
            document,
        })
    }

    /// The whole of it.
    pub(super) fn root(&self) -> &dyn TableLike {
        self.document.as_table()
    }

    /// A table of the root.
    ///
    /// # Errors
    /// [`PresetError::Malformed`] when the key is something else.
    pub(super) fn table(&self, key: &str) -> Result<Option<&dyn TableLike>, PresetError> {
        self.root()
            .get(key)
            .map(|item| self.as_table(item, key))
            .transpose()
    }

    /// An item that has to be a table.
    ///
    /// # Errors
    /// [`PresetError::Malformed`] when it is something else.
    pub(super) fn as_table<'i>(
        &self,
        item: &'i Item,
        key: &str,
    ) -> Result<&'i dyn TableLike, PresetError> {
        item.as_table_like().ok_or_else(|| {
            let what = format!("`{}` must be a table", key.escape_debug());
            PresetError::malformed(&self.origin(item), what)
        })
    }

    /// A text of a table, with its place.
    ///
    /// # Errors
    /// [`PresetError::Malformed`] when the key is something else.
    pub(super) fn text<'i>(
        &self,
        table: &'i dyn TableLike,
        key: &str,
    ) -> Result<Option<(&'i str, Origin)>, PresetError> {
        let Some(item) = table.get(key) else {
            return Ok(None);
        };
        let origin = self.origin(item);
        match item.as_str() {
            Some(text) => Ok(Some((text, origin))),
            None => Err(PresetError::malformed(
                &origin,
                format!("`{key}` must be a text"),
            )),
        }
    }

    /// A list of texts of a table, with their places.
    ///
    /// # Errors
    /// [`PresetError::Malformed`] when the key is something else.
    pub(super) fn texts<'i>(
        &self,
        table: &'i dyn TableLike,
        key: &str,
    ) -> Result<Vec<(&'i str, Origin)>, PresetError> {
        let Some(item) = table.get(key) else {
            return Ok(Vec::new());
        };
        let origin = self.origin(item);
        let wrong = || PresetError::malformed(&origin, format!("`{key}` must be a list of texts"));
        let values = item.as_array().ok_or_else(wrong)?;
        values
            .iter()
            .map(|value| Ok((value.as_str().ok_or_else(wrong)?, origin.clone())))
            .collect()
    }

    /// Where an item is.
    pub(super) fn origin(&self, item: &Item) -> Origin {
        match item.span() {
            Some(span) => Origin::line(self.file, line_at(self.text, span.start)),
            None => Origin::file(self.file),
        }
    }
}

/// The line of a byte, from 1.
fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|byte| **byte == b'\n').count() + 1
}
