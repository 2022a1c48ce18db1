//! `preset:apt`: where apt gets Debian packages from on this machine.
//!
//! Both forms of sources.list(5), and mirror lists that are files. apt checks signatures by itself,
//! so that repositories over plain http are open as they are.

use std::path::{Path, PathBuf};

use super::draft::{Draft, Reach, Use, glob};
use super::site::Origin;
use super::{Machine, PresetError};

pub(super) const SUMMARY: &str =
    "Debian packages from the repositories that apt uses on this machine, read only.";

const HOW: &str = "name a repository in `/etc/apt/sources.list` or `/etc/apt/sources.list.d`";

pub(super) fn draft(machine: &dyn Machine) -> Result<Draft, PresetError> {
    let mut draft = Draft::new("apt", "apt", SUMMARY);
    let mut found = false;
    for file in files(machine)? {
        let Some(text) = draft.read(machine, &file)? else {
            continue;
        };
        let repositories = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => stanzas(&file, &text)?,
            _ => lines(&file, &text)?,
        };
        for (address, origin) in repositories {
            found = true;
            open(machine, &mut draft, &address, &origin)?;
        }
    }
    if found {
        return Ok(draft);
    }
    Err(PresetError::NotConfigured {
        client: "apt",
        fix: HOW.to_owned(),
    })
}

fn files(machine: &dyn Machine) -> Result<Vec<PathBuf>, PresetError> {
    let folder = Path::new("/etc/apt/sources.list.d");
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    // apt skips names with other letters.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    for name in machine.names(folder)? {
        let is_source = name.ends_with(".list") || name.ends_with(".sources");
        if is_source && name.bytes().all(plain) {
            files.push(folder.join(name));
        }
    }
    Ok(files)
}

/// Address and place.
type Repository = (String, Origin);

/// `deb [option=value …] address suite component…`.
fn lines(file: &Path, text: &str) -> Result<Vec<Repository>, PresetError> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let origin = Origin::line(file, number + 1);
        let malformed = |what: &str| PresetError::malformed(&origin, what);
        let (kind, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if !matches!(kind, "deb" | "deb-src") {
            return Err(malformed("a source begins with `deb` or `deb-src`"));
        }
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => match options.split_once(']') {
                Some((_, rest)) => rest.trim_start(),
                None => return Err(malformed("the options have no `]`")),
            },
            None => rest,
        };
        let mut words = rest.split_whitespace();
        match (words.next(), words.next()) {
            (Some(address), Some(_)) => found.push((address.to_owned(), origin)),
            _ => return Err(malformed("a source needs an address and a suite")),
        }
    }
    Ok(found)
}

/// Stanzas of fields, apart by empty lines.
fn stanzas(file: &Path, text: &str) -> Result<Vec<Repository>, PresetError> {
    let mut found = Vec::new();
    let mut stanza = Stanza::default();
    let end = std::iter::once("");
    for (number, line) in text.lines().chain(end).enumerate() {
        let origin = Origin::line(file, number + 1);
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            found.extend(std::mem::take(&mut stanza).end()?);
            continue;
        }
        stanza.start.get_or_insert_with(|| origin.clone());
        if line.starts_with([' ', '\t']) {
            if stanza.in_addresses {
                stanza.add(line, &origin);
            }
            continue;
        }
        let Some((field, value)) = line.split_once(':') else {
            let what = "this is neither a `Field: value` nor the rest of one, which is indented";
            return Err(PresetError::malformed(&origin, what));
        };
        stanza.in_addresses = field.eq_ignore_ascii_case("URIs");
        if stanza.in_addresses {
            stanza.add(value, &origin);
        } else if field.eq_ignore_ascii_case("Enabled") {
            let off = ["no", "false", "without", "off", "disable"];
            stanza.is_off = off.contains(&value.trim().to_ascii_lowercase().as_str());
        }
    }
    Ok(found)
}

#[derive(Debug, Default)]
struct Stanza {
    start: Option<Origin>,
    addresses: Vec<Repository>,
    in_addresses: bool,
    is_off: bool,
}

impl Stanza {
    fn add(&mut self, words: &str, origin: &Origin) {
        let words = words.split_whitespace();
        self.addresses
            .extend(words.map(|word| (word.to_owned(), origin.clone())));
    }

    fn end(self) -> Result<Vec<Repository>, PresetError> {
        match (self.start, self.is_off) {
            (None, _) | (_, true) => Ok(Vec::new()),
            (Some(start), false) if self.addresses.is_empty() => {
                Err(PresetError::malformed(&start, "these fields lack `URIs`"))
            }
            (Some(_), false) => Ok(self.addresses),
        }
    }
}

fn open(
    machine: &dyn Machine,
    draft: &mut Draft,
    address: &str,
    origin: &Origin,
) -> Result<(), PresetError> {
    let (scheme, rest) = address.split_once(':').unwrap_or(("", address));
    match scheme {
        "http" | "https" => open_repository(draft, address, origin),
        "mirror" => open_mirror_list(draft, &format!("http:{rest}"), origin),
        "mirror+http" | "mirror+https" => {
            open_mirror_list(draft, address.trim_start_matches("mirror+"), origin)
        }
        "mirror+file" => {
            let path = rest.strip_prefix("//").filter(|path| path.starts_with('/'));
            read_mirror_list(machine, draft, Path::new(path.unwrap_or(rest)), origin)
        }
        // On this machine's own disks.
        "file" | "copy" | "cdrom" => Ok(()),
        "" => Err(PresetError::malformed(origin, "the address has no scheme")),
        _ => {
            draft.note(format!(
                "{origin} names a repository that is not reached by http or https, which this preset doesn't open"
            ));
            Ok(())
        }
    }
}

/// Everything below the repository's address: where in it files are is up to its own lists.
fn open_repository(draft: &mut Draft, address: &str, origin: &Origin) -> Result<(), PresetError> {
    match draft.site(address, origin)? {
        Some(site) => {
            let reach = Reach::below(&site.path, "/dists/stable/InRelease");
            draft.open(&site, reach, origin)
        }
        None => Ok(()),
    }
}

/// A list of mirrors that apt fetches: the list is open, and what it names can't be known.
fn open_mirror_list(draft: &mut Draft, address: &str, origin: &Origin) -> Result<(), PresetError> {
    let Some(site) = draft.site(address, origin)? else {
        return Ok(());
    };
    draft.note(format!(
        "{origin} names a list of mirrors that apt fetches from {}; the mirrors are not known here, so they are not open: write rules for those that you want",
        site.host_and_port()
    ));
    let reach = Reach {
        usage: Use::Read,
        base: site.path.clone(),
        patterns: vec![format!("{}{}", glob(&site.path), root(&site.path))],
        samples: vec![format!("{}{}", site.path, root(&site.path))],
        misses: vec![("GET", format!("{}/dists/stable/InRelease", site.path))],
        encoded_slash: false,
    };
    draft.open(&site, reach, origin)
}

/// The path of the root is a slash.
const fn root(path: &str) -> &str {
    if path.is_empty() { "/" } else { "" }
}

/// A list of mirrors on this machine: an address a line, with priorities and the like behind it.
fn read_mirror_list(
    machine: &dyn Machine,
    draft: &mut Draft,
    file: &Path,
    origin: &Origin,
) -> Result<(), PresetError> {
    if !file.is_absolute() {
        return Err(PresetError::malformed(
            origin,
            "the list of mirrors needs an absolute path",
        ));
    }
    let Some(text) = draft.read(machine, file)? else {
        return Err(PresetError::malformed(
            origin,
            format!(
                "the list of mirrors `{}` can't be used",
                super::error::shown(file)
            ),
        ));
    };
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(address) = line.split_whitespace().next() else {
            continue;
        };
        let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
        if !matches!(scheme, "file" | "copy" | "cdrom") {
            open_repository(draft, address, &Origin::line(file, number + 1))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, allows};

    const LIST: &str = "/etc/apt/sources.list";
    const STANZAS: &str = "/etc/apt/sources.list.d/x.sources";

    #[test]
    fn the_one_line_form() {
        let list = "# deb http://old.test/debian stable main\n\n\
                    deb http://mirror.test/debian stable main # good\n\
                    deb [arch=amd64 signed-by=\"/a b.gpg\"] https://third.test/apt/ ./\n\
                    deb-src\thttp://mirror.test/debian stable main\n\
                    deb cdrom:[Debian GNU/Linux]/ stable main\ndeb file:/srv/repo ./\n\
                    deb tor+http://x.onion/debian stable main\n";
        let preset = Fake::new().file(LIST, list).preset("apt");
        for (request, expected) in [
            ("GET http://mirror.test/debian/dists/stable/InRelease", true),
            (
                "GET http://mirror.test/debian/pool/main/a/apt/apt_1.deb",
                true,
            ),
            (
                "HEAD http://mirror.test/debian/pool/main/a/apt/apt_1.deb",
                true,
            ),
            (
                "GET http://mirror.test/ubuntu/dists/stable/InRelease",
                false,
            ),
            (
                "GET https://mirror.test/debian/dists/stable/InRelease",
                false,
            ),
            ("GET https://third.test/apt/Packages.gz", true),
            ("GET http://third.test/apt/Packages.gz", false),
            ("GET http://old.test/debian/x", false),
            ("POST http://mirror.test/debian/x", false),
        ] {
            assert_eq!(allows(&preset, request), expected, "{request}");
        }
        assert!(preset.text.contains(
            "# From `/etc/apt/sources.list`, line 3.\n  # From `/etc/apt/sources.list`, line 5.\n"
        ));
        assert_eq!(preset.notes.len(), 1);
        assert!(preset.notes[0].contains("line 8 names a repository that is not reached by http"));
    }

    #[test]
    fn the_form_of_stanzas() {
        let text = "Types: deb\n# a remark\nURIs: http://mirror.test/debian\n\thttp://second.test/debian/\n\
                    Suites: stable\nSigned-By:\n -----BEGIN\n .\n http://key.test/x\n\n\
                    types: deb deb-src\nuris: https://third.test\nsuites: x/\n\n\
                    Types: deb\nURIs: http://off.test/debian\nSuites: x\nEnabled: NO\n\n\n";
        let preset = Fake::new().file(STANZAS, text).preset("apt");
        for (request, expected) in [
            ("GET http://mirror.test/debian/pool/x.deb", true),
            ("GET http://second.test/debian/pool/x.deb", true),
            ("GET https://third.test/x/Packages", true),
            ("GET http://off.test/debian/pool/x.deb", false),
            ("GET http://key.test/x", false),
        ] {
            assert_eq!(allows(&preset, request), expected, "{request}");
        }
        assert!(preset.text.contains("x.sources`, line 4.\n"));
    }

    #[test]
    fn lists_of_mirrors() {
        let preset = Fake::new()
            .file(LIST, "deb mirror+file:/etc/apt/mirrors.txt stable main\n")
            .file("/etc/apt/mirrors.txt", "# near\nhttp://a.test/debian\tpriority:1\nhttps://b.test/debian type:deb\nfile:/x\n")
            .preset("apt");
        assert!(allows(
            &preset,
            "GET http://a.test/debian/dists/stable/InRelease"
        ));
        assert!(allows(
            &preset,
            "GET https://b.test/debian/dists/stable/InRelease"
        ));
        assert!(
            preset
                .text
                .contains("# From `/etc/apt/mirrors.txt`, line 3.\n")
        );

        let preset = Fake::new()
            .file(
                LIST,
                "deb mirror+https://c.test/list.txt stable main\ndeb mirror://d.test/ x main\n",
            )
            .preset("apt");
        assert!(allows(&preset, "GET https://c.test/list.txt"));
        assert!(allows(&preset, "GET http://d.test/"));
        assert!(!allows(&preset, "GET https://c.test/list.txt/x"));
        assert!(!allows(&preset, "GET https://c.test/debian/x"));
        assert_eq!(preset.notes.len(), 2);

        let error = Fake::new()
            .file(LIST, "deb mirror+file:/etc/apt/mirrors.txt stable main\n")
            .refusal("apt");
        assert!(
            error.contains("the list of mirrors `/etc/apt/mirrors.txt` can't be used"),
            "{error}"
        );
        let error = Fake::new()
            .file(LIST, "deb mirror+file:///etc/apt/mirrors.txt stable main\n")
            .file("/etc/apt/mirrors.txt", "\nmirror.test/debian\n")
            .refusal("apt");
        assert!(
            error.starts_with("`/etc/apt/mirrors.txt`, line 2: this is no http"),
            "{error}"
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let at = |text: &str| Fake::new().file(LIST, text).refusal("apt");
        for (text, what) in [
            (
                "debian http://a.test/ x\n",
                "a source begins with `deb` or `deb-src`",
            ),
            (
                "deb [arch=amd64 http://a.test/ x",
                "the options have no `]`",
            ),
            (
                "deb http://a.test/",
                "a source needs an address and a suite",
            ),
            ("deb", "a source needs an address and a suite"),
            ("deb a.test/debian x", "the address has no scheme"),
            (
                "deb http:a.test/debian x",
                "this is no http or https address: `http:a.test/debian` is no absolute URL",
            ),
            (
                "deb mirror+file:list x",
                "the list of mirrors needs an absolute path",
            ),
        ] {
            assert_eq!(
                at(&format!("\n{text}")),
                format!("`{LIST}`, line 2: {what}")
            );
        }
        let at = |text: &str| Fake::new().file(STANZAS, text).refusal("apt");
        assert_eq!(
            at("Types: deb\nSuites: x\n"),
            format!("`{STANZAS}`, line 1: these fields lack `URIs`")
        );
        assert!(at("\nTypes deb\n").starts_with(&format!("`{STANZAS}`, line 2: this is neither")));
    }

    #[test]
    fn only_files_that_apt_reads_are_read() {
        let evil = "deb http://evil.test/ x\n";
        let preset = Fake::new()
            .file(
                "/etc/apt/sources.list.d/good.list",
                "deb http://good.test/debian x\n",
            )
            .file("/etc/apt/sources.list.d/old.list.disabled", evil)
            .file("/etc/apt/sources.list.d/a b.list", evil)
            .file("/etc/apt/sources.list.d/sub/x.list", evil)
            .preset("apt");
        assert!(allows(&preset, "GET http://good.test/debian/x"));
        assert!(!preset.text.contains("evil.test/"), "{}", preset.text);
    }

    #[test]
    fn nothing_at_all_says_what_to_do() {
        let expected = "nothing on this machine says where apt gets its packages; name a repository in `/etc/apt/sources.list` or `/etc/apt/sources.list.d`";
        assert_eq!(Fake::new().refusal("apt"), expected);
        assert_eq!(
            Fake::new().file(LIST, "# nothing\n").refusal("apt"),
            expected
        );
        let error = Fake::new()
            .file(LIST, "deb file:/srv/repo ./\n")
            .refusal("apt");
        assert!(error.starts_with("apt needs no network here"), "{error}");
    }
}
