//! Building an image: packages to a tree by mmdebstrap, a tree to EROFS by mkfs.erofs.
//!
//! Packages come from the machine's own apt sources with the machine's own proxy and credentials;
//! none of the two is left in the image. No host is named here.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::RuntimeError;
use crate::image::ImageSource;
use crate::progress::Progress;
use crate::tool;

const STEP: &str = "build image";

/// Messages of a failed build that are shown, lines from the end.
const SHOWN_LINES: usize = 15;

/// Documentation and translations: a third of a minimal Debian, of no use to an agent.
const LEFT_OUT: [&str; 5] = ["doc", "man", "locale", "info", "lintian"];

/// What mmdebstrap says at the begin of each of its stages.
const STAGES: [&str; 5] = [
    "running apt-get update",
    "downloading packages",
    "extracting archives",
    "installing essential",
    "installing remaining",
];

/// apt settings that say how to reach a mirror, by prefix.
const TRANSPORT: [&str; 2] = ["Acquire::http", "Acquire::https"];

/// Makes the EROFS file `target` from `source`; `scratch` is a folder for everything between.
/// Blocks for minutes.
pub(super) fn build(
    source: &ImageSource,
    scratch: &Path,
    target: &Path,
    progress: &Progress,
) -> Result<(), RuntimeError> {
    let mut pack = Command::new("mkfs.erofs");
    // A fixed time and identity: equal trees give equal files.
    pack.args([
        "-T0",
        "-U",
        "00000000-0000-0000-0000-000000000000",
        "--quiet",
    ]);
    match source {
        ImageSource::DebianPackages { suite, packages } => {
            let is_root = rustix::process::geteuid().is_root();
            let tree = scratch.join(if is_root { "tree" } else { "tree.tar" });
            if !is_root && !reads_archives() {
                return Err(RuntimeError::environment(
                    "building from packages without root needs erofs-utils 1.7 or newer",
                    "run `outgate image build` once as root, or give a directory or an image file",
                ));
            }
            let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
            install(suite, &packages, scratch, &tree, progress)?;
            if !is_root {
                pack.arg("--tar=f");
            }
            pack.args([target, &tree]);
        }
        ImageSource::Directory(tree) => {
            pack.args([target, tree]);
        }
        ImageSource::File(path) => {
            return Err(RuntimeError::image(
                format!("`{}` is used as it is", path.display()),
                "there is nothing to build",
            ));
        }
    }
    progress.step(STEP, "pack");
    tool::run(&mut pack).map_err(|error| match tool::is_installed("mkfs.erofs") {
        true => RuntimeError::image(error.to_string(), "nothing was kept"),
        false => error,
    })
}

fn install(
    suite: &str,
    packages: &[&str],
    scratch: &Path,
    tree: &Path,
    progress: &Progress,
) -> Result<(), RuntimeError> {
    let mut command = Command::new("mmdebstrap");
    let mode = if rustix::process::geteuid().is_root() {
        "root"
    } else {
        "unshare"
    };
    command.args(["--variant=minbase", "--mode", mode]);
    command.arg(format!("--include={}", packages.join(",")));
    for folder in LEFT_OUT {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    }
    // Licences stay: whoever passes an image on has to pass them on.
    command.arg("--dpkgopt=path-include=/usr/share/doc/*/copyright");
    for option in transport_options() {
        command.arg(format!("--aptopt={option}"));
    }
    // mmdebstrap keeps these options in the image, and a proxy's URL may hold a password; so may a
    // mirror's.
    command.args([
        "--customize-hook=rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\" \
         \"$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap\"",
        "--customize-hook=find \"$1/etc/apt\" -name '*.list' -o -name '*.sources' | \
         xargs -r sed -i -E 's#(://)[^/@ ]*@#\\1#g'",
    ]);
    command.arg(suite).arg(tree);
    if let Some(sources) = machine_sources(suite, scratch)? {
        command.args(sources);
    }
    // The default, /tmp, is often small and in memory.
    command.env("TMPDIR", "/var/tmp").env("LC_ALL", "C");
    run_with_progress(command, progress)
}

/// Shows mmdebstrap's own steps; they are the lines that begin with `I: `.
fn run_with_progress(mut command: Command, progress: &Progress) -> Result<(), RuntimeError> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| tool::not_started(&command, &error))?;
    let mut last = VecDeque::new();
    for line in child
        .stderr
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufReader::lines)
    {
        let Ok(line) = line else { break };
        if let Some(step) = line.strip_prefix("I: ") {
            tell(step, progress);
        }
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child
        .wait()
        .map_err(|error| tool::not_started(&command, &error))?;
    if status.success() {
        return Ok(());
    }
    let messages = Vec::from(last).join("\n");
    let advice = match messages.contains("No space left on device") {
        true => "the disk is full: free some gigabytes in /var/tmp and in the cache",
        false => "check the package names, and that `apt-get update` works on this machine",
    };
    Err(RuntimeError::image(
        format!("mmdebstrap failed ({status})"),
        format!("{advice}; its last messages:\n{messages}"),
    ))
}

/// Stages are counted, for a bar; other remarks are of no use to people.
fn tell(step: &str, progress: &Progress) {
    let total = u64::try_from(STAGES.len()).unwrap_or_default();
    if let Some((done, _)) = (0..).zip(STAGES).find(|(_, stage)| step.starts_with(stage)) {
        progress.count(STEP, step, done, total);
    }
}

/// The machine's own proxy, certificates and mirror credentials, as apt options.
fn transport_options() -> Vec<String> {
    let dump = tool::output(Command::new("apt-config").args([
        "dump",
        "--no-empty",
        "--format",
        "%f \"%v\";%n",
    ]));
    let Ok(dump) = dump else { return Vec::new() };
    let mut options: Vec<String> = dump
        .lines()
        .filter(|line| TRANSPORT.iter().any(|prefix| line.starts_with(prefix)))
        .map(str::to_owned)
        .collect();
    for (option, path) in [
        ("Dir::Etc::netrc", "/etc/apt/auth.conf"),
        ("Dir::Etc::netrcparts", "/etc/apt/auth.conf.d"),
    ] {
        if Path::new(path).exists() {
            options.push(format!("{option} \"{path}\";"));
        }
    }
    options
}

/// The parts of the machine's apt sources that belong to `suite`, as files for mmdebstrap; `None`
/// when there is none, and mmdebstrap's default is used.
fn machine_sources(suite: &str, scratch: &Path) -> Result<Option<Vec<PathBuf>>, RuntimeError> {
    let mut one_line = String::new();
    let mut stanzas = String::new();
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(
        fs::read_dir("/etc/apt/sources.list.d")
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .map(|entry| entry.path()),
    );
    files.sort_unstable();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => one_line.push_str(&lines_of(suite, &text)),
            Some("sources") => stanzas.push_str(&stanzas_of(suite, &text)),
            _ => {}
        }
    }
    let mut chosen = Vec::new();
    for (name, text) in [("machine.list", one_line), ("machine.sources", stanzas)] {
        if !text.is_empty() {
            let path = scratch.join(name);
            fs::write(&path, text).map_err(|error| RuntimeError::file("write", &path, error))?;
            chosen.push(path);
        }
    }
    Ok((!chosen.is_empty()).then_some(chosen))
}

/// sources.list(5), one-line style: `deb [options] uri suite components`.
fn lines_of(suite: &str, text: &str) -> String {
    let of_suite = |line: &&str| {
        let line = line.trim();
        let Some(rest) = line.strip_prefix("deb ") else {
            return false;
        };
        let rest = match rest.trim_start().strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
            None => rest,
        };
        rest.split_whitespace()
            .nth(1)
            .is_some_and(|name| belongs_to(suite, name))
    };
    text.lines()
        .filter(of_suite)
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

/// sources.list(5), deb822 style: stanzas of fields, apart by empty lines.
fn stanzas_of(suite: &str, text: &str) -> String {
    let of_suite = |stanza: &&Vec<&str>| {
        let field = |name: &str| {
            stanza.iter().find_map(|line| {
                let (field, value) = line.split_once(':')?;
                field.eq_ignore_ascii_case(name).then_some(value)
            })
        };
        field("Types").is_some_and(|types| types.split_whitespace().any(|kind| kind == "deb"))
            && field("Enabled").is_none_or(|enabled| enabled.trim() != "no")
            && field("Suites")
                .is_some_and(|names| names.split_whitespace().any(|name| belongs_to(suite, name)))
    };
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines
        .split(|line| line.trim().is_empty())
        .map(<[&str]>::to_vec)
        .collect::<Vec<_>>()
        .iter()
        .filter(of_suite)
        .map(|stanza| format!("{}\n\n", stanza.join("\n")))
        .collect()
}

/// `bookworm`, `bookworm-updates`, `bookworm-security`, `bookworm/updates`.
fn belongs_to(suite: &str, name: &str) -> bool {
    name.strip_prefix(suite)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/']))
}

fn reads_archives() -> bool {
    Command::new("mkfs.erofs")
        .arg("--help")
        .output()
        .is_ok_and(|output| {
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).contains("--tar")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_the_suite_are_taken() {
        let list = "\
# deb http://old.test/debian bookworm main
deb http://mirror.test/debian bookworm main
deb [signed-by=/k.gpg arch=amd64] http://mirror.test/debian bookworm-updates main
deb http://third.test/apt cloud-bookworm main
deb-src http://mirror.test/debian bookworm main
deb http://mirror.test/debian trixie main";
        assert_eq!(
            lines_of("bookworm", list),
            "deb http://mirror.test/debian bookworm main\n\
             deb [signed-by=/k.gpg arch=amd64] http://mirror.test/debian bookworm-updates main\n"
        );
    }

    #[test]
    fn only_stanzas_of_the_suite_are_taken() {
        let text = "\
Types: deb
# a remark
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates

Types: deb
URIs: http://off.test/debian
Suites: bookworm
Enabled: no

Types: deb-src
URIs: http://mirror.test/debian
Suites: bookworm

Types: deb
URIs: http://third.test
Suites: nodistro";
        assert_eq!(
            stanzas_of("bookworm", text),
            "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\n\n"
        );
    }
}
