//! What a preset may look at: environment variables, files, and the package manager itself where
//! both say nothing.
//!
//! Everything is bounded. Programs are run in the root folder and never from the folder that
//! somebody works in: a sandbox may have written that one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, access, open};

use super::PresetError;

/// Bytes of one configuration file. Real ones have a few hundred.
pub(super) const MAX_FILE: u64 = 1024 * 1024;
/// Names in one folder of configuration.
const MAX_NAMES: usize = 4096;
/// Bytes of what a program says.
const MAX_ANSWER: u64 = 64 * 1024;
/// How long a program may take. Node needs about half a second on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The machine that a preset is made for.
pub(crate) trait Machine {
    /// The environment. What isn't UTF-8 holds replacement characters, so that no address reads.
    fn variables(&self) -> &BTreeMap<String, String>;

    /// The text of a file; `None` when there is none.
    ///
    /// # Errors
    /// For a file that is there and can't be read, isn't a regular file, is larger than 1 MiB, or
    /// isn't UTF-8.
    fn read(&self, file: &Path) -> Result<Option<String>, PresetError>;

    /// Names in a folder, sorted; none when there is no folder.
    ///
    /// # Errors
    /// For a folder that can't be read or has too many names.
    fn names(&self, folder: &Path) -> Result<Vec<String>, PresetError>;

    /// The folder that somebody works in, unless that is a home or above one.
    fn project(&self) -> Option<&Path>;

    /// Whether a file is in [`Self::project`], wherever its links lead.
    fn is_of_project(&self, file: &Path) -> bool;

    /// Where a program is, links resolved.
    fn find(&self, program: &str) -> Option<PathBuf>;

    /// What a program writes on standard output; `None` when there is no such program, or it fails.
    fn ask(&self, program: &str, arguments: &[&str]) -> Option<String>;

    /// A variable that is set to something.
    fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables().get(name)?;
        (!value.trim().is_empty()).then_some(value.as_str())
    }

    /// A variable that holds the absolute path of a folder.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        self.variable(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    }

    /// The user's own folder.
    fn home(&self) -> Option<PathBuf> {
        self.folder("HOME")
    }

    /// Where the user's configuration is (XDG base directories).
    fn config_home(&self) -> Option<PathBuf> {
        self.folder("XDG_CONFIG_HOME")
            .or_else(|| Some(self.home()?.join(".config")))
    }

    /// Where the machine's configuration is (XDG base directories), the least important first.
    fn config_dirs(&self) -> Vec<PathBuf> {
        let named = self.variable("XDG_CONFIG_DIRS").unwrap_or("/etc/xdg");
        let mut folders: Vec<PathBuf> = named
            .split(':')
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute())
            .collect();
        folders.reverse();
        folders
    }
}

/// The machine that this process runs on.
#[derive(Debug)]
pub(crate) struct ThisMachine {
    variables: BTreeMap<String, String>,
    project: Option<PathBuf>,
}

impl ThisMachine {
    /// Takes the environment and the current folder as they are now.
    pub(crate) fn new() -> Self {
        let text = |text: &OsStr| text.to_string_lossy().into_owned();
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .map(|(name, value)| (text(&name), text(&value)))
            .collect();
        let here = std::env::current_dir().and_then(fs::canonicalize).ok();
        let home = variables.get("HOME").map(fs::canonicalize);
        let home = home.and_then(Result::ok);
        // Whoever works in their home has their own configuration there.
        let project = here.filter(|here| {
            here.parent().is_some() && home.is_none_or(|home| !home.starts_with(here))
        });
        Self { variables, project }
    }
}

impl Machine for ThisMachine {
    fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    fn read(&self, file: &Path) -> Result<Option<String>, PresetError> {
        read(file)
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>, PresetError> {
        names(folder)
    }

    fn project(&self) -> Option<&Path> {
        self.project.as_deref()
    }

    fn is_of_project(&self, file: &Path) -> bool {
        let Some(project) = &self.project else {
            return false;
        };
        // The file itself may be missing; a relative path is relative to the project.
        let found = fs::canonicalize(file).or_else(|_| {
            let folder = file.parent().unwrap_or_else(|| Path::new("/"));
            fs::canonicalize(folder)
        });
        file.starts_with(project) || found.is_ok_and(|found| found.starts_with(project))
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.program(program)
            .and_then(|found| fs::canonicalize(found).ok())
    }

    fn ask(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let child = Command::new(self.program(program)?)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        answer(child, PATIENCE)
    }
}

impl ThisMachine {
    /// The program in `PATH`, by its own name: launchers look at the name they are called by.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.variable("PATH")?;
        let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join(name)).find(|program| {
            program.is_file()
                && access(program, rustix::fs::Access::EXEC_OK).is_ok()
                && !self.is_of_project(program)
        })
    }
}

fn read(file: &Path) -> Result<Option<String>, PresetError> {
    // The usual way to say that there is no configuration.
    if file == Path::new("/dev/null") {
        return Ok(None);
    }
    // A pipe must not make us wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = match open(file, flags, Mode::empty()).map_err(io::Error::from) {
        Ok(opened) => File::from(opened),
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(PresetError::unreadable(file, error)),
    };
    let unreadable = |error| PresetError::unreadable(file, error);
    if !opened.metadata().map_err(unreadable)?.is_file() {
        return Err(PresetError::not_configuration(
            file,
            "it is no regular file",
        ));
    }
    let mut bytes = Vec::new();
    opened
        .take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        let why = format!("it is larger than {MAX_FILE} bytes");
        return Err(PresetError::not_configuration(file, why));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(PresetError::not_configuration(file, "it is no UTF-8 text")),
    }
}

fn names(folder: &Path) -> Result<Vec<String>, PresetError> {
    let unreadable = |error| PresetError::unreadable(folder, error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if names.len() == MAX_NAMES {
            let why = format!("the folder has more than {MAX_NAMES} files");
            return Err(PresetError::not_configuration(folder, why));
        }
        // No client reads a file whose name isn't UTF-8.
        if let Ok(name) = entry.map_err(unreadable)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// What the child says, if it ends well and in time.
fn answer(mut child: Child, patience: Duration) -> Option<String> {
    let stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    // Ends with the pipe; a child that is killed closes its end.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(MAX_ANSWER + 1).read_to_end(&mut bytes);
        // Nobody listens any more when the child was too slow.
        drop(sender.send(read.map(|_| bytes)));
    });
    let said = receiver.recv_timeout(patience).ok().and_then(Result::ok);
    let complete = said.filter(|bytes| bytes.len() as u64 <= MAX_ANSWER);
    if complete.is_none() {
        // It may have ended by itself; `wait` collects it either way.
        drop(child.kill());
    }
    let ended_well = child.wait().is_ok_and(|status| status.success());
    complete
        .filter(|_| ended_well)
        .and_then(|bytes| String::from_utf8(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(file: &Path) -> String {
        let error = read(file).unwrap_err().to_string();
        let shown = file.to_str().unwrap();
        error
            .strip_prefix(&format!("`{shown}` "))
            .unwrap()
            .to_owned()
    }

    fn asked(machine: &ThisMachine, script: &str) -> Option<String> {
        machine.ask("sh", &["-c", script])
    }

    fn machine(project: &Path) -> ThisMachine {
        ThisMachine {
            variables: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            project: Some(project.to_owned()),
        }
    }

    #[test]
    fn what_is_no_small_text_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);

        fs::write(at("good"), "x = 1\n").unwrap();
        assert_eq!(read(&at("good")).unwrap().as_deref(), Some("x = 1\n"));
        assert_eq!(read(&at("missing")).unwrap(), None);
        assert_eq!(read(&at("good/below")).unwrap(), None);
        assert_eq!(read(Path::new("/dev/null")).unwrap(), None);

        let limit = usize::try_from(MAX_FILE).unwrap();
        fs::write(at("full"), vec![b'#'; limit]).unwrap();
        assert_eq!(read(&at("full")).unwrap().unwrap().len(), limit);
        fs::write(at("huge"), vec![b'#'; limit + 1]).unwrap();
        assert_eq!(
            refused(&at("huge")),
            "is no configuration: it is larger than 1048576 bytes"
        );
        fs::write(at("bytes"), [0xff, 0xfe]).unwrap();
        assert_eq!(
            refused(&at("bytes")),
            "is no configuration: it is no UTF-8 text"
        );
        let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fifo.as_c_str(),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        for name in ["fifo", ""] {
            assert_eq!(
                refused(&at(name)),
                "is no configuration: it is no regular file",
                "{name}"
            );
        }
        assert!(refused(Path::new("/dev/zero")).ends_with("no regular file"));
    }

    #[test]
    fn links_that_lead_nowhere_end() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::os::unix::fs::symlink(&one, &two).unwrap();
        std::os::unix::fs::symlink(&two, &one).unwrap();
        assert!(refused(&one).starts_with("can't be read: "));
        assert!(names(&one).is_err());
        let machine = machine(folder.path());
        assert!(machine.is_of_project(&one));
    }

    #[test]
    fn a_folder_of_too_many_files_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            names(&folder.path().join("missing")).unwrap(),
            Vec::<String>::new()
        );
        for number in (0..MAX_NAMES).rev() {
            File::create(folder.path().join(format!("{number:05}"))).unwrap();
        }
        let found = names(folder.path()).unwrap();
        assert_eq!((found.len(), found[0].as_str()), (MAX_NAMES, "00000"));
        File::create(folder.path().join("more")).unwrap();
        let error = names(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("more than 4096 files"), "{error}");
    }

    #[test]
    fn a_program_is_asked_in_the_root_folder_and_not_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine(folder.path());
        assert_eq!(asked(&machine, "pwd").as_deref(), Some("/\n"));
        assert_eq!(asked(&machine, "echo x; exit 1"), None);
        assert_eq!(asked(&machine, "printf '\\377'"), None);
        assert_eq!(
            asked(&machine, "head -c 65536 /dev/zero").unwrap().len(),
            65536
        );
        assert_eq!(asked(&machine, "head -c 65537 /dev/zero"), None);
        assert_eq!(asked(&machine, "cat /dev/zero"), None);
        assert_eq!(machine.ask("no-such-program", &[]), None);

        let sleeper = Command::new("sleep")
            .arg("1000")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(answer(sleeper, Duration::from_millis(1)), None);
    }

    #[test]
    fn no_program_of_the_project_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let project = fs::canonicalize(folder.path()).unwrap();
        let own = project.join("project");
        let other = project.join("other");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&other).unwrap();
        let script = own.join("client");
        fs::write(&script, "#!/bin/sh\necho evil\n").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, executable).unwrap();
        // A link from outside is no way around.
        std::os::unix::fs::symlink(&script, other.join("client")).unwrap();

        let mut machine = machine(&own);
        for path in [&own, &other] {
            let path = format!("relative:{}", path.display());
            machine.variables.insert("PATH".to_owned(), path);
            assert_eq!(machine.ask("client", &[]), None);
            assert_eq!(machine.find("client"), None);
        }
        machine.project = None;
        assert_eq!(machine.ask("client", &[]).as_deref(), Some("evil\n"));
        assert_eq!(machine.find("client"), Some(script));
    }
}
