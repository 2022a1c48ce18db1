//! `preset:npm`: where npm, and the clients that read npm's files, get packages from on this machine.
//!
//! Variables, the user's `.npmrc` and the machine's, with npm's precedence. A project's `.npmrc` is
//! not followed: a sandbox that works on the project could write it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::draft::{Draft, Reach, Use, glob};
use super::site::{Origin, Site};
use super::{Machine, PresetError};

pub(super) const SUMMARY: &str =
    "Packages from the registries that npm uses on this machine, scopes included, read only.";

const HOW: &str = "set `npm_config_registry`, or `registry` in `~/.npmrc`, or install npm";

pub(super) fn draft(machine: &dyn Machine) -> Result<Draft, PresetError> {
    let mut draft = Draft::new("npm", "npm", SUMMARY);
    let settings = Settings::read(machine, &mut draft)?;
    if let Some(project) = machine.project() {
        // Read for its note only.
        draft.read(machine, &project.join(".npmrc"))?;
    }
    for (key, (value, origin)) in &settings.values {
        if key == "registry" || (key.starts_with('@') && key.ends_with(":registry")) {
            let address = expand(machine, value, origin)?;
            open(&mut draft, &address, origin)?;
        }
    }
    if settings.values.contains_key("registry") {
        return Ok(draft);
    }
    match machine.ask("npm", &["config", "get", "registry", "--logs-max=0"]) {
        Some(answer) => open(&mut draft, &answer, &Origin::answer("npm"))?,
        None if draft.is_empty() => {
            return Err(PresetError::NotConfigured {
                client: "npm",
                fix: HOW.to_owned(),
            });
        }
        None => draft.note(format!(
            "the registry that npm uses for packages without a scope is not known here, so it is not open; {HOW}"
        )),
    }
    Ok(draft)
}

fn open(draft: &mut Draft, address: &str, origin: &Origin) -> Result<(), PresetError> {
    match draft.site(address, origin)? {
        Some(site) => draft.open(&site, reach(&site), origin),
        None => Ok(()),
    }
}

/// Descriptions and files of packages. What npm keeps under `/-/` is about accounts, tokens and
/// organisations; no name of a package begins with a dash.
fn reach(site: &Site) -> Reach {
    let base = &site.path;
    let pattern = glob(base);
    Reach {
        usage: Use::Read,
        base: base.clone(),
        patterns: vec![format!("{pattern}/[!-]*"), format!("{pattern}/[!-]*/**")],
        samples: [
            "example",
            "@scope%2fexample",
            "@scope/example",
            "example/-/example-1.0.0.tgz",
        ]
        .map(|name| format!("{base}/{name}"))
        .into(),
        misses: ["-/whoami", "-%2Fwhoami", "-/npm/v1/tokens"]
            .map(|path| ("GET", format!("{base}/{path}")))
            .into(),
        // npm asks for a scoped package as `@scope%2fname`.
        encoded_slash: true,
    }
}

#[derive(Debug)]
struct Settings {
    values: BTreeMap<String, (String, Origin)>,
}

impl Settings {
    fn read(machine: &dyn Machine, draft: &mut Draft) -> Result<Self, PresetError> {
        let variables = variables(machine);
        let named = |key: &str| variables.get(key).map(|(value, _)| PathBuf::from(value));
        let user = named("userconfig").or_else(|| Some(machine.home()?.join(".npmrc")));
        let of_user = read_file(machine, draft, user)?;

        let prefix = named("prefix")
            .or_else(|| machine.folder("PREFIX"))
            .or_else(|| of_user.get("prefix").map(|(value, _)| PathBuf::from(value)))
            .or_else(|| Some(machine.find("node")?.parent()?.parent()?.to_owned()));
        let global = named("globalconfig").or_else(|| Some(prefix?.join("etc/npmrc")));
        let mut values = read_file(machine, draft, global)?;
        values.extend(of_user);
        values.extend(variables);
        Ok(Self { values })
    }
}

/// Variables that npm takes as configuration, by their keys.
fn variables(machine: &dyn Machine) -> BTreeMap<String, (String, Origin)> {
    let mut values = BTreeMap::new();
    for (variable, value) in machine.variables() {
        let key = variable
            .get(.."npm_config_".len())
            .filter(|start| start.eq_ignore_ascii_case("npm_config_"))
            .and_then(|start| variable.get(start.len()..));
        if let Some(key) = key.filter(|_| !value.trim().is_empty()) {
            let value = (value.clone(), Origin::variable(variable));
            values.insert(key.to_ascii_lowercase(), value);
        }
    }
    values
}

fn read_file(
    machine: &dyn Machine,
    draft: &mut Draft,
    file: Option<PathBuf>,
) -> Result<BTreeMap<String, (String, Origin)>, PresetError> {
    match file {
        Some(file) => Ok(draft
            .read(machine, &file)?
            .map(|text| parse(&file, &text))
            .unwrap_or_default()),
        None => Ok(BTreeMap::new()),
    }
}

/// `key = value`; remarks begin with `;` or `#`. A key alone is a switch, and sections hold nothing
/// that npm reads.
fn parse(file: &Path, text: &str) -> BTreeMap<String, (String, Origin)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut values = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') && line.ends_with(']') {
            break;
        }
        if line.starts_with([';', '#']) {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let value = (
            unquoted(value.trim()).to_owned(),
            Origin::line(file, number + 1),
        );
        values.insert(unquoted(key.trim()).to_owned(), value);
    }
    values
}

fn unquoted(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// npm replaces `${NAME}` by a variable, and `${NAME?}` by nothing where there is none.
fn expand(machine: &dyn Machine, value: &str, origin: &Origin) -> Result<String, PresetError> {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, tail)) = after.split_once('}') else {
            break;
        };
        out.push_str(before);
        let (name, may_be_missing) = match name.strip_suffix('?') {
            Some(name) => (name, true),
            None => (name, false),
        };
        match machine.variables().get(name) {
            Some(value) => out.push_str(value),
            None if may_be_missing => {}
            None => {
                let what = format!(
                    "the variable `{}` is not set; set it, or write the address out",
                    name.escape_debug()
                );
                return Err(PresetError::malformed(origin, what));
            }
        }
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, allows};

    const ANSWER: &str = "https://registry.test/\n";

    #[test]
    fn npm_is_asked_where_nothing_is_configured() {
        let preset = Fake::new().answer("npm", ANSWER).preset("npm");
        for (request, expected) in [
            ("GET https://registry.test/left-pad", true),
            ("GET https://registry.test/left-pad/1.0.0", true),
            (
                "GET https://registry.test/left-pad/-/left-pad-1.0.0.tgz",
                true,
            ),
            ("GET https://registry.test/@types%2fnode", true),
            ("GET https://registry.test/@types%2Fnode", true),
            (
                "GET https://registry.test/@types/node/-/node-1.0.0.tgz",
                true,
            ),
            ("HEAD https://registry.test/left-pad", true),
            ("PUT https://registry.test/left-pad", false),
            ("PUT https://registry.test/@types%2fnode", false),
            (
                "POST https://registry.test/-/npm/v1/security/advisories/bulk",
                false,
            ),
            ("GET https://registry.test/-/npm/v1/tokens", false),
            ("GET https://registry.test/-%2fnpm%2fv1%2ftokens", false),
            ("GET https://registry.test/-/v1/search?text=x", false),
            (
                "PUT https://registry.test/-/user/org.couchdb.user:me",
                false,
            ),
            ("GET http://registry.test/left-pad", false),
        ] {
            assert_eq!(allows(&preset, request), expected, "{request}");
        }
        assert!(preset.text.contains("# From the default of npm.\n"));
    }

    #[test]
    fn scopes_have_registries_of_their_own() {
        let npmrc = "; company\n@acme:registry=https://npm.acme.test/repo/npm/\n\
                     //npm.acme.test/repo/npm/:_authToken=hunter2\nregistry = \"https://mirror.test/npm\"\n\
                     @local:registry = http://10.1.2.3:4873/\n_auth=hunter2\nsave-exact\n";
        let preset = Fake::new()
            .answer("npm", ANSWER)
            .file("/home/me/.npmrc", npmrc)
            .preset("npm");
        for (request, expected) in [
            ("GET https://npm.acme.test/repo/npm/@acme%2fx", true),
            ("GET https://npm.acme.test/repo/other/@acme%2fx", false),
            ("GET https://npm.acme.test/repo/npm/-/whoami", false),
            ("GET https://mirror.test/npm/left-pad", true),
            ("GET http://10.1.2.3:4873/@local%2fx", true),
            ("GET https://registry.test/left-pad", false),
        ] {
            assert_eq!(allows(&preset, request), expected, "{request}");
        }
        assert!(!preset.text.contains("hunter2"));
        assert!(preset.text.contains("# From `/home/me/.npmrc`, line 2.\n"));
    }

    #[test]
    fn the_precedence_is_that_of_npm() {
        let of = |host: &str| format!("registry=https://{host}/\n");
        let hosts = ["global.test", "user.test", "named.test", "variable.test"];
        let winner = |machine: &Fake| {
            let preset = machine.preset("npm");
            let of = |host: &&&str| allows(&preset, &format!("GET https://{host}/x"));
            hosts
                .iter()
                .filter(of)
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        };
        let machine = Fake::new()
            .answer("npm", ANSWER)
            .program("node", "/opt/node/bin/node")
            .file("/opt/node/etc/npmrc", &of(hosts[0]));
        assert_eq!(winner(&machine), "global.test");
        let machine = machine.file("/home/me/.npmrc", &of(hosts[1]));
        assert_eq!(winner(&machine), "user.test");
        let machine = machine
            .variable("NPM_CONFIG_USERCONFIG", "/home/me/other")
            .file("/home/me/other", &of(hosts[2]));
        assert_eq!(winner(&machine), "named.test");
        let machine = machine.variable("npm_config_registry", "https://variable.test");
        assert_eq!(winner(&machine), "variable.test");

        let machine = Fake::new()
            .file("/home/me/.npmrc", "prefix = /home/me/npm\n")
            .file("/home/me/npm/etc/npmrc", &of(hosts[0]));
        assert_eq!(winner(&machine), "global.test");
        let machine = Fake::new()
            .variable("npm_config_globalconfig", "/srv/npmrc")
            .file("/srv/npmrc", &of(hosts[0]));
        assert_eq!(winner(&machine), "global.test");
    }

    #[test]
    fn variables_in_values_are_replaced_and_secrets_left_out() {
        let machine = Fake::new()
            .variable("HOST", "mirror.test")
            .variable("TOKEN", "hunter2")
            .file(
                "/home/me/.npmrc",
                "registry=https://me:${TOKEN}@${HOST}/${NONE?}npm\n",
            );
        let preset = machine.preset("npm");
        assert!(allows(&preset, "GET https://mirror.test/npm/x"));
        assert!(!preset.text.contains("hunter2"));
        assert!(preset.notes[0].contains("holds a user name or password for mirror.test:443"));

        let at = |text: &str| Fake::new().file("/home/me/.npmrc", text).refusal("npm");
        assert_eq!(
            at("\nregistry=https://${HOST}/\n"),
            "`/home/me/.npmrc`, line 2: the variable `HOST` is not set; set it, or write the address out"
        );
        assert!(at("registry=https://${HOST/").contains("no http or https address"));
        assert!(at("registry\n").starts_with("`/home/me/.npmrc`, line 1: this is no http"));
        assert!(at("@a:registry = undefined").starts_with("`/home/me/.npmrc`, line 1: "));
    }

    #[test]
    fn what_a_sandbox_may_have_written_opens_nothing() {
        let evil = "registry=https://evil.test/\n@acme:registry=https://evil.test/\n";
        let preset = Fake::new()
            .answer("npm", ANSWER)
            .file("/project/.npmrc", evil)
            .file("/project/node_modules/npmrc", evil)
            .variable("npm_config_globalconfig", "/project/node_modules/npmrc")
            .preset("npm");
        assert!(!preset.text.contains("evil.test"), "{}", preset.text);
        assert_eq!(preset.notes.len(), 2, "{:?}", preset.notes);
    }

    #[test]
    fn nothing_at_all_says_what_to_set() {
        assert_eq!(
            Fake::new().refusal("npm"),
            "nothing on this machine says where npm gets its packages; set `npm_config_registry`, or `registry` in `~/.npmrc`, or install npm"
        );
        let preset = Fake::new()
            .file("/home/me/.npmrc", "@acme:registry=https://npm.acme.test/")
            .preset("npm");
        assert!(
            preset.notes[0].starts_with("the registry that npm uses for packages without a scope")
        );
        let error = Fake::new().answer("npm", "undefined\n").refusal("npm");
        assert!(
            error.starts_with("the default of npm: this is no http or https address"),
            "{error}"
        );
    }
}
