//! cargo's own configuration: registries, and what replaces the default one.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::draft::Draft;
use super::super::site::Origin;
use super::super::toml::Toml;
use super::super::{Machine, PresetError};

/// Sources that replace one another.
const MAX_CHAIN: usize = 16;

/// Where something was configured, with what it says.
pub(super) type Value = (String, Origin);

#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Index addresses by the name of the registry.
    pub(super) registries: BTreeMap<String, Value>,
    sources: BTreeMap<String, Source>,
}

/// `[source.NAME]`.
#[derive(Debug)]
struct Source {
    replace_with: Option<Value>,
    registry: Option<Value>,
}

/// What is used in place of the default registry.
#[derive(Debug)]
pub(super) enum Replacement {
    None,
    Registry(String, Origin),
    /// A folder of this machine, or a repository of one crate.
    Local,
}

impl Settings {
    pub(super) fn read(
        machine: &dyn Machine,
        draft: &mut Draft,
        home: &Path,
    ) -> Result<Self, PresetError> {
        let mut settings = Self::default();
        // cargo prefers the old name where both are there.
        for name in ["config", "config.toml"] {
            let file = home.join(name);
            if let Some(text) = draft.read(machine, &file)? {
                settings.parse(&Toml::parse(&file, &text)?, draft)?;
                break;
            }
        }
        Ok(settings)
    }

    fn parse(&mut self, toml: &Toml<'_>, draft: &mut Draft) -> Result<(), PresetError> {
        let owned = |value: Option<(&str, Origin)>| value.map(|(text, at)| (text.to_owned(), at));
        if let Some(item) = toml.root().get("include") {
            draft.note(format!(
                "{} includes other files, which are not read here; if they name registries, write rules for those",
                toml.origin(item)
            ));
        }
        for (name, item) in toml
            .table("registries")?
            .into_iter()
            .flat_map(|table| table.iter())
        {
            let table = toml.as_table(item, name)?;
            if let Some(index) = owned(toml.text(table, "index")?) {
                self.registries.insert(variable_name(name), index);
            }
        }
        for (name, item) in toml
            .table("source")?
            .into_iter()
            .flat_map(|table| table.iter())
        {
            let table = toml.as_table(item, name)?;
            let source = Source {
                replace_with: owned(toml.text(table, "replace-with")?),
                registry: owned(toml.text(table, "registry")?),
            };
            self.sources.insert(name.to_owned(), source);
        }
        Ok(())
    }

    /// `CARGO_REGISTRIES_NAME_INDEX`.
    pub(super) fn read_variables(&mut self, machine: &dyn Machine) {
        for (variable, value) in machine.variables() {
            let name = variable.strip_prefix("CARGO_REGISTRIES_");
            let name = name.and_then(|name| name.strip_suffix("_INDEX"));
            if let Some(name) = name.filter(|_| !value.trim().is_empty()) {
                let value = (value.clone(), Origin::variable(variable));
                self.registries.insert(name.to_owned(), value);
            }
        }
    }

    /// Follows `replace-with` from the default registry to its end.
    pub(super) fn replacement(&self) -> Result<Replacement, PresetError> {
        let mut name = "crates-io";
        let mut asked: Option<&Origin> = None;
        for _ in 0..MAX_CHAIN {
            let Some(source) = self.sources.get(name) else {
                let Some(origin) = asked else {
                    return Ok(Replacement::None);
                };
                // A source may also be named that is a registry.
                return match self.registries.get(&variable_name(name)) {
                    Some((address, origin)) => {
                        Ok(Replacement::Registry(address.clone(), origin.clone()))
                    }
                    None => Err(PresetError::malformed(
                        origin,
                        format!("there is no source `{}`; declare it", name.escape_debug()),
                    )),
                };
            };
            match (&source.replace_with, &source.registry) {
                (Some((next, origin)), _) => {
                    name = next;
                    asked = Some(origin);
                }
                (None, Some((address, origin))) => {
                    return Ok(Replacement::Registry(address.clone(), origin.clone()));
                }
                (None, None) if asked.is_none() => return Ok(Replacement::None),
                (None, None) => return Ok(Replacement::Local),
            }
        }
        let what =
            format!("more than {MAX_CHAIN} sources replace one another, perhaps in a circle");
        match asked {
            Some(origin) => Err(PresetError::malformed(origin, what)),
            None => Ok(Replacement::None),
        }
    }
}

/// cargo compares the names of registries as they are in variables.
fn variable_name(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}
