//! Where uv gets Python packages from: part of `preset:pip`, since both install the same packages.

use std::path::PathBuf;

use toml_edit::{Item, TableLike};

use super::super::draft::Draft;
use super::super::site::Origin;
use super::super::toml::Toml;
use super::super::{Machine, PresetError};

/// What uv is configured for.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Whether one of the indexes is used in place of uv's own.
    pub(super) names_default: bool,
    pub(super) indexes: Vec<(String, Origin)>,
    /// Pages of links and folders of files.
    pub(super) links: Vec<(String, Origin)>,
}

/// Reads uv's files and variables. Its precedence is not needed: all of them are the user's own.
pub(super) fn places(machine: &dyn Machine, draft: &mut Draft) -> Result<Places, PresetError> {
    let mut places = Places::default();
    places.read_variables(machine);
    for file in files(machine) {
        if let Some(text) = draft.read(machine, &file)? {
            places.read_file(&Toml::parse(&file, &text)?)?;
        }
    }
    Ok(places)
}

fn files(machine: &dyn Machine) -> Vec<PathBuf> {
    if let Some(file) = machine.variable("UV_CONFIG_FILE") {
        return vec![file.into()];
    }
    let mut files = machine.config_dirs();
    files.push("/etc".into());
    files.extend(machine.config_home());
    files
        .iter()
        .map(|folder| folder.join("uv/uv.toml"))
        .collect()
}

impl Places {
    fn read_variables(&mut self, machine: &dyn Machine) {
        for (variable, is_default) in [
            ("UV_DEFAULT_INDEX", true),
            ("UV_INDEX_URL", true),
            ("UV_INDEX", false),
            ("UV_EXTRA_INDEX_URL", false),
        ] {
            for word in machine
                .variable(variable)
                .unwrap_or_default()
                .split_whitespace()
            {
                self.names_default |= is_default;
                let origin = Origin::variable(variable);
                self.indexes.push((without_name(word).to_owned(), origin));
            }
        }
        let links = machine.variable("UV_FIND_LINKS").unwrap_or_default();
        for link in links
            .split(',')
            .map(str::trim)
            .filter(|link| !link.is_empty())
        {
            self.links
                .push((link.to_owned(), Origin::variable("UV_FIND_LINKS")));
        }
    }

    fn read_file(&mut self, toml: &Toml<'_>) -> Result<(), PresetError> {
        let pip = toml.table("pip")?;
        for table in [Some(toml.root()), pip].into_iter().flatten() {
            if let Some((text, origin)) = toml.text(table, "index-url")? {
                self.names_default = true;
                self.indexes.push((text.to_owned(), origin));
            }
            for (text, origin) in toml.texts(table, "extra-index-url")? {
                self.indexes.push((text.to_owned(), origin));
            }
            for (text, origin) in toml.texts(table, "find-links")? {
                self.links.push((text.to_owned(), origin));
            }
        }
        let Some(item) = toml.root().get("index") else {
            return Ok(());
        };
        let wrong = || {
            let what = "`index` must be a list of tables, as in `[[index]]`";
            PresetError::malformed(&toml.origin(item), what)
        };
        for table in tables(item).ok_or_else(wrong)? {
            let is_default = table.get("default").and_then(Item::as_bool);
            self.names_default |= is_default == Some(true);
            let (text, origin) = toml.text(table, "url")?.ok_or_else(wrong)?;
            self.indexes.push((text.to_owned(), origin));
        }
        Ok(())
    }
}

/// A list of tables in either of its two forms.
fn tables(item: &Item) -> Option<Vec<&dyn TableLike>> {
    if let Some(tables) = item.as_array_of_tables() {
        return Some(tables.iter().map(|table| table as &dyn TableLike).collect());
    }
    let values = item.as_array()?.iter();
    values
        .map(|value| Some(value.as_inline_table()? as &dyn TableLike))
        .collect()
}

/// An index may have a name in front: `internal=https://…`.
fn without_name(word: &str) -> &str {
    match word.split_once('=') {
        Some((name, address)) if !name.contains([':', '/']) => address,
        _ => word,
    }
}
