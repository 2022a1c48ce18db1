//! A real `outgate gateway` process with folders of its own.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::audit::AuditTrail;
use super::wait::eventually;
use crate::lab::Lab;

/// The program under test: `OUTGATE_BIN`, else the one built beside this test.
pub fn outgate() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("OUTGATE_BIN") {
        return Ok(path.into());
    }
    let this = std::env::current_exe()?;
    let found = this
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join("outgate"))
        .find(|p| p.is_file());
    found.context("no `outgate` program: run `cargo build --package outgate` or set OUTGATE_BIN")
}

/// Folders and settings that outlive one gateway process.
#[derive(Debug)]
pub struct GatewayHome {
    folder: TempDir,
    audit_folder: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl GatewayHome {
    /// A gateway that trusts the lab's root and asks the lab's name server.
    pub fn new(lab: &Lab) -> Result<Self> {
        let root = lab.root_certificate().to_string_lossy().into_owned();
        let arguments = [
            "--upstream-ca".into(),
            root,
            "--dns".into(),
            lab.dns_address().to_string(),
        ];
        let folder = tempfile::tempdir()?;
        Ok(Self {
            audit_folder: folder.path().join("audit"),
            folder,
            arguments: arguments.to_vec(),
            environment: Vec::new(),
        })
    }

    /// Sets a variable in the gateway's environment: where credentials come from.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Starts with this configuration file, beside what the command line says.
    pub fn configure(&mut self, text: &str) -> Result<()> {
        let path = self.folder.path().join("gateway.yaml");
        std::fs::write(&path, text)?;
        let arguments = ["--config".to_owned(), path.to_string_lossy().into_owned()];
        self.arguments.extend(arguments);
        Ok(())
    }

    /// Starts gateways with further arguments.
    pub fn arguments(&mut self, arguments: &[&str]) {
        let owned = arguments.iter().map(|argument| (*argument).to_owned());
        self.arguments.extend(owned);
    }

    /// Puts the audit log elsewhere.
    pub fn keep_audit_in(&mut self, folder: &Path) {
        folder.clone_into(&mut self.audit_folder);
    }

    /// The admin socket.
    pub fn admin(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    /// The folder of the audit log.
    pub fn audit_folder(&self) -> PathBuf {
        self.audit_folder.clone()
    }

    /// The audit log.
    pub fn audit(&self) -> AuditTrail {
        AuditTrail::new(self.audit_folder())
    }

    /// The folder that holds everything the gateway writes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the gateway printed so far, all its runs together.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.output_file()).unwrap_or_default()
    }

    /// Starts a gateway; returns once it takes registrations.
    pub fn start(&self) -> Result<Gateway> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(self.output_file())?;
        let mut process = Command::new(outgate()?)
            .arg("gateway")
            .args(["--admin".as_ref(), self.admin().as_os_str()])
            .args(["--audit-dir".as_ref(), self.audit_folder().as_os_str()])
            .args([
                "--ca-dir".as_ref(),
                self.folder.path().join("ca").as_os_str(),
            ])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot start `outgate gateway`")?;
        let ended = eventually("the gateway takes registrations", || {
            match process.try_wait() {
                Ok(Some(status)) => return Some(Some(status)),
                Ok(None) => {}
                Err(error) => panic!("cannot watch the gateway: {error}"),
            }
            self.is_served_by(&process).then_some(None)
        });
        match ended {
            Some(status) => bail!("the gateway ended with {status}: {}", self.output()),
            None => Ok(Gateway { process }),
        }
    }

    /// Whether it is this process that accepts on the admin socket, and not another one.
    fn is_served_by(&self, process: &Child) -> bool {
        let Ok(stream) = UnixStream::connect(self.admin()) else {
            return false;
        };
        socket_peercred(&stream).is_ok_and(|peer| peer.pid == Pid::from_child(process))
    }

    fn output_file(&self) -> PathBuf {
        self.folder.path().join("output")
    }
}

/// A running gateway process; killed when dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Child,
}

impl Gateway {
    /// The process id, for a look at its memory.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL: no chance to say goodbye.
    pub fn kill(mut self) {
        self.end();
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// SIGTERM, without waiting for the end.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        // Fails only where the process has already ended, which the test finds out.
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    /// SIGTERM; gives back the exit code.
    pub fn terminate(mut self) -> Result<Option<i32>> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        Ok(self.process.wait()?.code())
    }

    fn end(&mut self) {
        // Both fail only where the process has already ended and been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}
