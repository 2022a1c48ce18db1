//! `preset:pip`: where pip and uv get Python packages from on this machine.
//!
//! pip's own files and variables, with pip's precedence; uv's are read beside them. Where neither
//! names an index, pip is asked for the one it was built with, and for the host of its files.

mod config;
mod uv;

use self::config::Settings;
use super::draft::{Draft, Reach, glob};
use super::site::{Origin, Site};
use super::{Machine, PresetError};

pub(super) const SUMMARY: &str =
    "Python packages from the indexes that pip and uv use on this machine, read only.";

const HOW: &str = "set `PIP_INDEX_URL`, or `index-url` in pip.conf, or install pip";

/// Prints the index that pip uses when nothing else is said, and the host that its files are on.
/// `-I`: no code of the folder, the environment or the user's own packages.
const QUESTION: [&str; 3] = [
    "-I",
    "-c",
    "from pip._internal.models.index import PyPI; print(PyPI.simple_url); print(PyPI.file_storage_domain)",
];

pub(super) fn draft(machine: &dyn Machine) -> Result<Draft, PresetError> {
    let mut draft = Draft::new("pip", "pip", SUMMARY);
    let pip = Settings::read(machine, &mut draft)?;
    let uv = uv::places(machine, &mut draft)?;
    let built_in = BuiltIn::ask(machine, &mut draft)?;

    let mut replaces_default = uv.names_default || pip.is_on("no-index");
    let mut indexes = uv.indexes;
    if !pip.is_on("no-index") {
        let own = pip.values("index-url");
        replaces_default |= !own.is_empty();
        indexes.extend(own);
        indexes.extend(pip.words("extra-index-url"));
    }
    for (text, origin) in &indexes {
        open_index(&mut draft, text, origin, built_in.as_ref())?;
    }
    for (text, origin) in pip.words("find-links").iter().chain(&uv.links) {
        open_links(&mut draft, text, origin)?;
    }
    if replaces_default {
        return Ok(draft);
    }
    match built_in {
        Some(built_in) => built_in.open(&mut draft)?,
        None if draft.is_empty() => {
            return Err(PresetError::NotConfigured {
                client: "pip",
                fix: HOW.to_owned(),
            });
        }
        None => draft.note(format!(
            "the index that pip uses by itself is not known here, so it is not open; {HOW}"
        )),
    }
    Ok(draft)
}

/// What pip was built with.
#[derive(Debug)]
struct BuiltIn {
    index: Site,
    files: Site,
    origin: Origin,
}

impl BuiltIn {
    fn ask(machine: &dyn Machine, draft: &mut Draft) -> Result<Option<Self>, PresetError> {
        let answers = ["python3", "python"].map(|python| machine.ask(python, &QUESTION));
        let Some(answer) = answers.into_iter().flatten().next() else {
            return Ok(None);
        };
        let mut lines = answer.lines();
        let (Some(index), Some(files), None) = (lines.next(), lines.next(), lines.next()) else {
            return Ok(None);
        };
        let origin = Origin::answer("pip");
        let index = draft.site(index, &origin)?;
        let files = draft.site(&format!("https://{files}/packages/"), &origin)?;
        Ok(index.zip(files).map(|(index, files)| Self {
            index,
            files,
            origin,
        }))
    }

    fn open(&self, draft: &mut Draft) -> Result<(), PresetError> {
        draft.open(&self.index, index_reach(&self.index), &self.origin)?;
        self.open_files(draft, &self.origin)
    }

    fn open_files(&self, draft: &mut Draft, origin: &Origin) -> Result<(), PresetError> {
        let reach = Reach::below(&self.files.path, "/aa/bb/example-1.0-py3-none-any.whl");
        draft.open(&self.files, reach, origin)
    }
}

fn open_index(
    draft: &mut Draft,
    text: &str,
    origin: &Origin,
    built_in: Option<&BuiltIn>,
) -> Result<(), PresetError> {
    if is_local(text) {
        return Ok(());
    }
    let Some(site) = draft.site(text, origin)? else {
        return Ok(());
    };
    draft.open(&site, index_reach(&site), origin)?;
    match built_in.filter(|built_in| built_in.index.authority == site.authority) {
        Some(built_in) => built_in.open_files(draft, origin)?,
        None => draft.note(format!(
            "pages of {} may link to files on other hosts, which can't be known without asking it; if a download is denied, write a rule for the host that the denial names",
            site.host_and_port()
        )),
    }
    Ok(())
}

/// The pages, and the files beside them: servers keep both below one repository.
fn index_reach(site: &Site) -> Reach {
    let path = site.path.as_str();
    let (parent, last) = path.rsplit_once('/').unwrap_or_default();
    if !matches!(last, "simple" | "+simple") {
        return Reach::below(path, "/example/");
    }
    let sample = format!("/{last}/example/");
    if !parent.is_empty() {
        return Reach::below(parent, &sample);
    }
    let mut reach = Reach::below("", &sample);
    // A server of nothing else has pages, files and descriptions, and accounts beside them.
    reach.patterns = [
        &format!("/{last}/**"),
        "/packages/**",
        "/pypi/*/json",
        "/pypi/*/*/json",
    ]
    .map(str::to_owned)
    .into();
    reach.samples.push("/pypi/example/json".to_owned());
    reach.misses = vec![
        ("GET", "/manage/account/".to_owned()),
        ("POST", "/legacy/".to_owned()),
    ];
    reach
}

/// A page of links, or a folder of files: what is in the same folder is open.
fn open_links(draft: &mut Draft, text: &str, origin: &Origin) -> Result<(), PresetError> {
    if is_local(text) {
        return Ok(());
    }
    let Some(site) = draft.site(text, origin)? else {
        return Ok(());
    };
    let (folder, page) = site.path.rsplit_once('/').unwrap_or_default();
    let reach = if page.contains('.') && !text.trim_end().ends_with('/') {
        Reach::below(folder, &format!("/{page}"))
    } else {
        let mut reach = Reach::below(&site.path, "/example-1.0-py3-none-any.whl");
        // The page itself, where it is asked for without a slash.
        reach
            .patterns
            .extend((!page.is_empty()).then(|| glob(&site.path)));
        reach
    };
    draft.open(&site, reach, origin)
}

/// A place on a disk: nothing that a gateway opens.
fn is_local(text: &str) -> bool {
    let text = text.trim();
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("file"))
        || ["/", "./", "../", "~"]
            .iter()
            .any(|start| text.starts_with(start))
}

#[cfg(test)]
mod tests;
