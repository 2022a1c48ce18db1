//! A control group per sandbox: what one guest may take of the host's memory, CPU and processes.
//!
//! Version 1 and 2 are served, also mixed. A host that gives no control groups to this user is no
//! reason not to start: the sandbox then runs without these ceilings, and its start report says so.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Scheduler period for the CPU quota, µs; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// Host memory beyond the guest's RAM, MiB: QEMU itself, its cache of translated code, I/O in
/// flight. An idle emulator was measured at 90 MiB with a full cache of 32.
const OVERHEAD_MIB: u64 = 512;

/// Threads of one QEMU: vCPUs and up to 64 I/O workers, with room.
const MAX_THREADS: u64 = 256;

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// Ceilings of one sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) memory_mib: u32,
    pub(crate) vcpus: u32,
}

/// The folders of one sandbox's groups. Whoever made them hands them to the janitor for removal.
#[derive(Debug, Default)]
pub(crate) struct Cgroup {
    pub(crate) folders: Vec<PathBuf>,
    /// What is not limited, and why; for people.
    pub(crate) warnings: Vec<String>,
}

impl Cgroup {
    /// Makes the groups that this host allows.
    pub(crate) fn create(id: &str, limits: Limits) -> Self {
        let mut cgroup = Self::default();
        let hierarchies = match (read("/proc/self/mountinfo"), read("/proc/self/cgroup")) {
            (Ok(mounts), Ok(own)) => Hierarchies::parse(&mounts, &own),
            (Err(error), _) | (_, Err(error)) => {
                cgroup.warnings.push(format!("no resource limits: {error}"));
                return cgroup;
            }
        };
        let mut refused = BTreeMap::<String, Vec<&str>>::new();
        for controller in CONTROLLERS {
            if let Err(error) = cgroup.limit(controller, &hierarchies, id, limits) {
                refused
                    .entry(error.to_string())
                    .or_default()
                    .push(controller);
            }
        }
        for (reason, controllers) in refused {
            cgroup
                .warnings
                .push(format!("no limit on {}: {reason}", controllers.join(", ")));
        }
        cgroup
    }

    /// The files through which a process enters the groups.
    pub(crate) fn entrances(&self) -> io::Result<Vec<File>> {
        let open = |folder: &PathBuf| {
            OpenOptions::new()
                .write(true)
                .open(folder.join("cgroup.procs"))
        };
        self.folders.iter().map(open).collect()
    }

    fn limit(
        &mut self,
        controller: &str,
        hierarchies: &Hierarchies,
        id: &str,
        limits: Limits,
    ) -> io::Result<()> {
        let hierarchy = hierarchies
            .of(controller)
            .ok_or_else(|| io::Error::other("this host has no such controller"))?;
        let parent = hierarchy.base.join("outgate");
        make(&parent)?;
        if hierarchy.version == Version::Two {
            for folder in [&hierarchy.base, &parent] {
                enable(folder, controller)?;
            }
        }
        let folder = parent.join(id);
        make(&folder)?;
        if !self.folders.contains(&folder) {
            self.folders.push(folder.clone());
        }
        for (file, value) in settings(hierarchy.version, controller, limits) {
            fs::write(folder.join(file), value)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// One mounted hierarchy, and the folder in it under which ours may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    base: PathBuf,
    controllers: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    /// Reads `/proc/self/mountinfo` and `/proc/self/cgroup` (proc(5), cgroups(7)).
    fn parse(mounts: &str, own: &str) -> Self {
        Self(
            mounts
                .lines()
                .filter_map(|mount| Hierarchy::parse(mount, own))
                .collect(),
        )
    }

    fn of(&self, controller: &str) -> Option<&Hierarchy> {
        let named = |hierarchy: &&Hierarchy| hierarchy.controllers.iter().any(|c| c == controller);
        self.0.iter().find(named).or_else(|| {
            self.0.iter().find(|hierarchy| {
                hierarchy.version == Version::Two
                    && fs::read_to_string(hierarchy.base.join("cgroup.controllers"))
                        .is_ok_and(|list| list.split_whitespace().any(|c| c == controller))
            })
        })
    }
}

impl Hierarchy {
    fn parse(mount: &str, own: &str) -> Option<Self> {
        let (place, kind) = mount.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount_point) = (place.next()?, Path::new(place.next()?));
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        if version == Version::Two {
            // A group that has processes can't limit children (the "no internal processes" rule),
            // and ours has this process: root builds from the top, a user beside its own group.
            let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
            let beside = Path::new(path).parent().unwrap_or_else(|| Path::new("/"));
            let from = if rustix::process::geteuid().is_root() {
                Path::new("/")
            } else {
                beside
            };
            let base = mount_point.join(from.strip_prefix("/").ok()?);
            return Some(Self {
                version,
                base,
                controllers: Vec::new(),
            });
        }
        let options = kind.nth(1)?;
        let controllers: Vec<String> = options
            .split(',')
            .filter(|option| CONTROLLERS.contains(option))
            .map(str::to_owned)
            .collect();
        let path = own.lines().find_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            names
                .split(',')
                .any(|name| controllers.iter().any(|c| c == name))
                .then_some(path)
        })?;
        // Within our own group, so that its ceilings hold for the sandbox as well.
        let inside = Path::new(path)
            .strip_prefix(root)
            .unwrap_or_else(|_| Path::new(""));
        Some(Self {
            version,
            base: mount_point.join(inside),
            controllers,
        })
    }
}

fn settings(version: Version, controller: &str, limits: Limits) -> Vec<(&'static str, String)> {
    let memory = (u64::from(limits.memory_mib) + OVERHEAD_MIB) << 20;
    // Half a CPU beside the vCPUs is for QEMU's own thread.
    let quota = u64::from(limits.vcpus) * CPU_PERIOD_US + CPU_PERIOD_US / 2;
    match (controller, version) {
        ("memory", Version::One) => vec![("memory.limit_in_bytes", memory.to_string())],
        ("memory", Version::Two) => vec![("memory.max", memory.to_string())],
        ("cpu", Version::One) => vec![
            ("cpu.cfs_period_us", CPU_PERIOD_US.to_string()),
            ("cpu.cfs_quota_us", quota.to_string()),
        ],
        ("cpu", Version::Two) => vec![("cpu.max", format!("{quota} {CPU_PERIOD_US}"))],
        ("pids", _) => vec![("pids.max", MAX_THREADS.to_string())],
        _ => Vec::new(),
    }
}

fn enable(folder: &Path, controller: &str) -> io::Result<()> {
    fs::write(
        folder.join("cgroup.subtree_control"),
        format!("+{controller}"),
    )
}

fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_groups_nest_in_our_own() {
        let mounts = "\
30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 /docker/abc /sys/fs/cgroup/pids rw shared:3 - cgroup cgroup rw,pids
33 25 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
34 25 0:30 / / rw - ext4 /dev/vda rw";
        let own = "4:memory:/user/me\n3:cpu,cpuacct:/\n2:pids:/docker/abc/x\n1:freezer:/";
        let found = Hierarchies::parse(mounts, own);
        let base = |controller| found.of(controller).unwrap().base.clone();
        assert_eq!(base("memory"), Path::new("/sys/fs/cgroup/memory/user/me"));
        assert_eq!(base("cpu"), Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(base("pids"), Path::new("/sys/fs/cgroup/pids/x"));
        assert_eq!(found.0.len(), 3);
    }

    #[test]
    fn version_2_groups_never_nest_in_our_own() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw";
        let own = "0::/user.slice/user-1000.slice/session-2.scope";
        let Hierarchies(found) = Hierarchies::parse(mounts, own);
        let expected = if rustix::process::geteuid().is_root() {
            "/sys/fs/cgroup/"
        } else {
            "/sys/fs/cgroup/user.slice/user-1000.slice"
        };
        assert_eq!(found[0].version, Version::Two);
        assert_eq!(found[0].base, Path::new(expected));
    }

    #[test]
    fn ceilings_are_in_the_units_of_each_version() {
        let limits = Limits {
            memory_mib: 1024,
            vcpus: 2,
        };
        assert_eq!(
            settings(Version::Two, "cpu", limits),
            [("cpu.max", "250000 100000".into())]
        );
        assert_eq!(
            settings(Version::One, "memory", limits),
            [("memory.limit_in_bytes", (1536_u64 << 20).to_string())]
        );
    }

    #[test]
    fn no_groups_at_all_is_a_warning() {
        assert_eq!(Hierarchies::parse("", ""), Hierarchies(Vec::new()));
    }
}
