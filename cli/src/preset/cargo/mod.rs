//! `preset:cargo`: where cargo gets crates from on this machine.
//!
//! Registries and source replacement from cargo's own folder and variables. The address of the
//! default registry is written nowhere but in cargo, so it is taken from the index that cargo has
//! fetched before; so is the host that crates are downloaded from.

mod config;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::config::{Replacement, Settings};
use super::draft::{Draft, Reach, Use, glob};
use super::error::shown;
use super::site::{Origin, Reading, Site};
use super::{Machine, PresetError};

pub(super) const SUMMARY: &str =
    "Crates from the registries that cargo uses on this machine, read only.";

const HOW: &str = "run `cargo fetch` in some project once, so that cargo knows its registry, or name a mirror by `[source.crates-io]` in cargo's config.toml";

/// How cargo names the folder of the default registry's index: a hash of what the registry is.
/// Since 1.85, and before.
const DEFAULT_INDEX: [&str; 2] = ["1949cf8c6b5b557f", "6f17d22bba15001f"];
/// Hex digits of such a hash.
const HASH: usize = 16;

pub(super) fn draft(machine: &dyn Machine) -> Result<Draft, PresetError> {
    let mut draft = Draft::new("cargo", "cargo", SUMMARY);
    let home = machine
        .folder("CARGO_HOME")
        .or_else(|| Some(machine.home()?.join(".cargo")));
    let mut settings = match &home {
        Some(home) => Settings::read(machine, &mut draft, home)?,
        None => Settings::default(),
    };
    settings.read_variables(machine);
    if let Some(project) = machine.project() {
        // Read for its note only.
        draft.read(machine, &project.join(".cargo/config.toml"))?;
    }
    let indexes = match home.filter(|home| !machine.is_of_project(home)) {
        Some(home) => Indexes::list(machine, &home)?,
        None => Indexes::default(),
    };

    let mut opener = Opener {
        machine,
        draft: &mut draft,
        indexes: &indexes,
    };
    for (address, origin) in settings.registries.values() {
        opener.open(address, origin)?;
    }
    match settings.replacement()? {
        Replacement::None => opener.open_default()?,
        Replacement::Registry(address, origin) => opener.open(&address, &origin)?,
        Replacement::Local => {}
    }
    Ok(draft)
}

/// The indexes that cargo has fetched: folders named by host and hash, with what the registry says
/// of itself.
#[derive(Debug, Default)]
struct Indexes {
    folders: BTreeSet<(String, String, PathBuf)>,
}

impl Indexes {
    fn list(machine: &dyn Machine, home: &Path) -> Result<Self, PresetError> {
        let folder = home.join("registry/index");
        let names = machine.names(&folder)?.into_iter();
        let folders = names.filter_map(|name| {
            let (host, hash) = name.rsplit_once('-')?;
            let is_hash = hash.len() == HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hash.then(|| (host.to_owned(), hash.to_owned(), folder.join(&name)))
        });
        Ok(Self {
            folders: folders.collect(),
        })
    }

    /// Host and folder of the default registry.
    fn of_default(&self) -> Option<(&str, &Path)> {
        DEFAULT_INDEX.iter().find_map(|known| {
            let found = self.folders.iter().find(|(_, hash, _)| hash == known)?;
            Some((found.0.as_str(), found.2.as_path()))
        })
    }

    /// Folders of a host's registries, apart from the default one.
    fn of_host(&self, host: &str) -> Vec<&Path> {
        let own = self
            .folders
            .iter()
            .filter(|(name, hash, _)| name == host && !DEFAULT_INDEX.contains(&hash.as_str()));
        own.map(|(_, _, folder)| folder.as_path()).collect()
    }
}

struct Opener<'a> {
    machine: &'a dyn Machine,
    draft: &'a mut Draft,
    indexes: &'a Indexes,
}

impl Opener<'_> {
    fn open_default(&mut self) -> Result<(), PresetError> {
        let Some((host, folder)) = self.indexes.of_default() else {
            if self.draft.is_empty() {
                return Err(PresetError::NotConfigured {
                    client: "cargo",
                    fix: HOW.to_owned(),
                });
            }
            self.draft.note(format!(
                "cargo's default registry is not known here, so it is not open; {HOW}"
            ));
            return Ok(());
        };
        let origin = Origin::file(folder);
        if let Some(site) = self.draft.site(&format!("https://{host}/"), &origin)? {
            self.draft.open(&site, sparse_reach(&site), &origin)?;
            self.open_downloads(&site, &[folder])?;
        }
        Ok(())
    }

    /// Opens a registry by the address of its index.
    fn open(&mut self, address: &str, origin: &Origin) -> Result<(), PresetError> {
        let address = address.trim();
        let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
        if scheme.eq_ignore_ascii_case("file") {
            return Ok(());
        }
        if scheme.ends_with("ssh") || (!address.contains("://") && address.contains('@')) {
            self.draft.note(format!(
                "{origin} names a registry that is reached by SSH, which this preset doesn't open; use its address over https"
            ));
            return Ok(());
        }
        let (address, is_sparse) = match address.strip_prefix("sparse+") {
            Some(address) => (address, true),
            None => (address.strip_prefix("registry+").unwrap_or(address), false),
        };
        let Some(site) = self.draft.site(address, origin)? else {
            return Ok(());
        };
        if !is_sparse {
            self.draft.open(&site, git_reach(&site), origin)?;
            self.missing_downloads(&site, "an index by git keeps it where it is not looked for");
            return Ok(());
        }
        self.draft.open(&site, sparse_reach(&site), origin)?;
        let host = site.authority.destination.to_string();
        let folders = self.indexes.of_host(&host);
        self.open_downloads(&site, &folders)
    }

    /// Opens the place that crates are downloaded from, which the index names.
    fn open_downloads(&mut self, site: &Site, folders: &[&Path]) -> Result<(), PresetError> {
        let [folder] = folders else {
            let why = match folders {
                [] => "cargo has not fetched the index yet",
                _ => "cargo has fetched several indexes of this host",
            };
            self.missing_downloads(site, why);
            return Ok(());
        };
        let file = folder.join("config.json");
        let text = self.draft.read(self.machine, &file)?;
        let origin = Origin::file(&file);
        let template = text.as_deref().and_then(download_template);
        // What a server said is no configuration of this machine: when it's wrong, it opens nothing.
        let found = template.and_then(|template| {
            let (address, is_whole) = until_marker(&template);
            let mut notes = Vec::new();
            match Site::read(address, &origin, &mut notes) {
                Ok(Reading::Site(place)) if notes.is_empty() => Some((place, is_whole)),
                _ => None,
            }
        });
        let Some((place, is_whole)) = found else {
            let why = format!("`{}` has none that can be read", shown(&file));
            self.missing_downloads(site, &why);
            return Ok(());
        };
        let reach = if is_whole {
            let mut reach = Reach::below(&place.path, "/example/1.0.0/download");
            reach.patterns = vec![format!("{}/*/*/download", glob(&place.path))];
            reach
        } else {
            Reach::below(&place.path, "/example/example-1.0.0.crate")
        };
        self.draft.open(&place, reach, &origin)
    }

    fn missing_downloads(&mut self, site: &Site, why: &str) {
        self.draft.note(format!(
            "the host that crates of {} are downloaded from is not known here ({why}), so it is not open unless it is the same place; if a download is denied, write a rule for the host that the denial names",
            site.host_and_port()
        ));
    }
}

/// What cargo asks of a sparse index: its configuration, and a file for each crate, in folders by
/// the first letters of its name.
fn sparse_reach(site: &Site) -> Reach {
    let base = &site.path;
    let pattern = glob(base);
    Reach {
        usage: Use::Read,
        base: base.clone(),
        patterns: ["config.json", "1/*", "2/*", "3/?/*", "??/??/*"]
            .map(|path| format!("{pattern}/{path}"))
            .into(),
        samples: ["config.json", "1/a", "3/a/abc", "ex/am/example"]
            .map(|path| format!("{base}/{path}"))
            .into(),
        misses: ["api/v1/crates/new", "me"]
            .map(|path| ("GET", format!("{base}/{path}")))
            .into(),
        encoded_slash: false,
    }
}

/// What git sends to fetch an index. Pushing is `git-receive-pack`.
fn git_reach(site: &Site) -> Reach {
    let base = &site.path;
    let pattern = glob(base);
    Reach {
        usage: Use::Fetch,
        base: base.clone(),
        patterns: vec![
            format!("{pattern}/info/refs"),
            format!("{pattern}/git-upload-pack"),
        ],
        samples: vec![format!("{base}/info/refs?service=git-upload-pack")],
        misses: vec![("POST", format!("{base}/git-receive-pack"))],
        encoded_slash: false,
    }
}

/// `dl` of an index's configuration.
fn download_template(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(value.get("dl")?.as_str()?.to_owned())
}

/// The template up to the folder of its first `{marker}`, and whether that is all of it: then cargo
/// adds `/CRATE/VERSION/download`.
fn until_marker(template: &str) -> (&str, bool) {
    let Some((before, _)) = template.split_once('{') else {
        return (template, true);
    };
    let folder = before.rfind('/').and_then(|slash| before.get(..=slash));
    (folder.unwrap_or_default(), false)
}

#[cfg(test)]
mod tests;
