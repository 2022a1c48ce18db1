//! `include: [preset:NAME]`: policies that ship with Outgate, or that are made for this machine.
//!
//! Presets for code hosts, model providers and the like are files under `config/presets`. Those for
//! package managers are made from the configuration of the clients on this machine, so that a
//! mirror works and no registry is named in Outgate. Both are policy text like any other: it is
//! loaded, checked and tested as a file would be.

mod apt;
mod builtin;
mod cargo;
mod draft;
mod error;
#[cfg(test)]
mod fake;
mod machine;
mod npm;
mod pip;
mod site;
mod toml;

pub(crate) use self::error::PresetError;
pub(crate) use self::machine::{Machine, ThisMachine};

use self::draft::Draft;

/// A preset as a policy that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preset {
    /// Its own name, also where an alias was asked for.
    pub(crate) name: &'static str,
    /// A policy file.
    pub(crate) text: String,
    /// What a person should know: what was left out and why. They are comments of the text too.
    pub(crate) notes: Vec<String>,
}

/// A line of the list of presets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    /// What follows `preset:`.
    pub(crate) name: &'static str,
    /// What it opens, in one line.
    pub(crate) summary: &'static str,
}

/// A preset that is made for the machine.
#[derive(Debug)]
struct Made {
    name: &'static str,
    /// Other names that people look for.
    aliases: &'static [&'static str],
    /// One sentence.
    summary: &'static str,
    draft: fn(&dyn Machine) -> Result<Draft, PresetError>,
}

const MADE: [Made; 4] = [
    Made {
        name: "apt",
        aliases: &[],
        summary: apt::SUMMARY,
        draft: apt::draft,
    },
    Made {
        name: "cargo",
        aliases: &[],
        summary: cargo::SUMMARY,
        draft: cargo::draft,
    },
    Made {
        name: "npm",
        aliases: &[],
        summary: npm::SUMMARY,
        draft: npm::draft,
    },
    Made {
        name: "pip",
        aliases: &["pypi"],
        summary: pip::SUMMARY,
        draft: pip::draft,
    },
];

/// The preset with this name, with or without `preset:` in front, as it is on this machine.
///
/// # Errors
/// [`PresetError::Unknown`] for another name; for a package manager whatever is wrong with the
/// configuration that it is made from.
pub(crate) fn load(name: &str, machine: &dyn Machine) -> Result<Preset, PresetError> {
    let name = name.strip_prefix("preset:").unwrap_or(name);
    if let Some((name, text)) = builtin::find(name) {
        return Ok(Preset {
            name,
            text: text.to_owned(),
            notes: Vec::new(),
        });
    }
    let made = MADE
        .iter()
        .find(|made| made.name == name || made.aliases.contains(&name))
        .ok_or_else(|| PresetError::unknown(name, &list()))?;
    let draft = (made.draft)(machine)?;
    Ok(Preset {
        name: made.name,
        text: draft.render()?,
        notes: draft.into_notes(),
    })
}

/// Every preset, by name. Aliases are left out.
pub(crate) fn list() -> Vec<Listing> {
    let made = MADE.iter().map(|made| Listing {
        name: made.name,
        summary: made.summary,
    });
    let mut all: Vec<Listing> = builtin::list().chain(made).collect();
    all.sort_by_key(|listing| listing.name);
    all
}

#[cfg(test)]
mod tests {
    use super::fake::{Fake, check};
    use super::*;

    #[test]
    fn names_are_unique_and_each_has_a_summary() {
        let all = list();
        for pair in all.windows(2) {
            assert!(pair[0].name < pair[1].name, "{:?}", pair);
        }
        for listing in &all {
            assert!(
                listing.summary.len() > 20 && listing.summary.ends_with('.'),
                "{listing:?}"
            );
        }
        let aliases = MADE.iter().flat_map(|made| made.aliases);
        for alias in aliases {
            assert!(all.iter().all(|listing| listing.name != *alias), "{alias}");
        }
    }

    #[test]
    fn a_builtin_preset_is_its_file() {
        let preset = load("github-read", &Fake::new()).unwrap();
        assert_eq!(preset.name, "github-read");
        assert!(preset.text.starts_with("# GitHub, reading only"));
        let named = load("preset:github-read", &Fake::new()).unwrap().text;
        assert_eq!(named, preset.text);
    }

    #[test]
    fn an_alias_gives_the_preset_under_its_own_name() {
        let machine = Fake::new().variable("PIP_INDEX_URL", "https://pip.example.com/simple");
        let preset = load("pypi", &machine).unwrap();
        assert_eq!(preset, load("pip", &machine).unwrap());
        assert_eq!(preset.name, "pip");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = load("git\nhub", &Fake::new()).unwrap_err().to_string();
        assert!(
            error.starts_with(r"there is no preset `git\nhub`; the presets are anthropic, apt, "),
            "{error}"
        );
    }

    /// Whatever the machine of this test has installed and configured.
    #[test]
    fn a_real_machine_gives_a_good_preset_or_a_reason() {
        let machine = ThisMachine::new();
        for made in &MADE {
            match load(made.name, &machine) {
                Ok(preset) => {
                    println!("{}", preset.text);
                    check(&preset.text);
                }
                Err(error) => {
                    let error = error.to_string();
                    println!("{error}");
                    assert!(!error.contains(char::is_control), "{error:?}");
                }
            }
        }
    }
}
