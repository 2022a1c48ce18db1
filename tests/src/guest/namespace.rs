//! A thread in network and mount namespaces of its own. Programs it starts and sockets it opens
//! belong there, so the rest of the process can use a guest's network without leaving its own.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::{GuestNetwork, tap};

type Job = Box<dyn FnOnce() + Send>;

/// The thread and the queue of its jobs.
#[derive(Debug)]
pub(super) struct Namespace {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Enters new namespaces and configures `eth0` there. The TAP file is the wire.
    pub(super) fn enter(network: &GuestNetwork, folder: &Path) -> Result<(Self, File)> {
        let resolv_conf = folder.join("resolv.conf");
        std::fs::write(&resolv_conf, format!("nameserver {}\n", network.dns))?;
        let (jobs, queue) = sync_channel::<Job>(1);
        let (ready, entered) = sync_channel(1);
        let network = network.clone();
        let thread = std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || {
                let tap = set_up(&network, &resolv_conf);
                let usable = tap.is_ok();
                if ready.send(tap).is_ok() && usable {
                    work(&queue);
                }
            })?;
        let namespace = Self {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        let tap = entered
            .recv()
            .map_err(|_| anyhow!("the guest's thread died"))?;
        Ok((namespace, tap?))
    }

    /// Runs `job` inside and gives back its result. Jobs run one after another: keep them short.
    pub(super) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, result) = sync_channel(1);
        let job = Box::new(move || {
            // The caller waits for exactly this; it cannot be gone.
            let _ = answer.send(job());
        });
        let jobs = self
            .jobs
            .as_ref()
            .expect("the queue exists until the namespace is dropped");
        jobs.send(job)
            .expect("the guest's thread runs until the namespace is dropped");
        result.recv().expect("the job did not panic")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread, and whatever it starts from now on, into a network of its own in
/// which every address is this host's: nothing that is sent there can leave the machine.
pub fn own_network() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context(NEEDS_PRIVILEGES)?;
    ip("link set lo up\nroute add local default dev lo\nroute add local ::/0 dev lo\n")
}

const NEEDS_PRIVILEGES: &str =
    "new namespaces are refused: run as root, or by `unshare --user --map-root-user`";

fn work(queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        job();
    }
}

fn set_up(network: &GuestNetwork, resolv_conf: &Path) -> Result<File> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context(NEEDS_PRIVILEGES)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(
        Some(resolv_conf),
        "/etc/resolv.conf",
        none,
        MsFlags::MS_BIND,
        none,
    )
    .context("cannot put the guest's resolv.conf in place")?;
    let tap = tap::open("eth0").context("cannot open a TAP interface (/dev/net/tun)")?;
    ip(&format!(
        "link set lo up\n\
         link set eth0 address {mac} mtu {mtu}\n\
         link set eth0 up\n\
         address add {address}/{prefix} dev eth0\n\
         route add default via {gateway}\n",
        // IEEE 802 writes dashes; `ip` takes colons only.
        mac = network.mac.replace('-', ":"),
        mtu = network.mtu,
        address = network.address,
        prefix = network.prefix,
        gateway = network.gateway,
    ))?;
    Ok(tap)
}

/// Runs `ip` commands, one a line, in the calling thread's network namespace.
fn ip(commands: &str) -> Result<()> {
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run `ip` (package iproute2)")?;
    ip.stdin
        .take()
        .context("no stdin")?
        .write_all(commands.as_bytes())?;
    let output = ip.wait_with_output()?;
    ensure!(
        output.status.success(),
        "ip: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
