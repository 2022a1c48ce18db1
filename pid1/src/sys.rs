//! All `unsafe` of PID 1: what the kernel offers only as raw calls.
//!
//! Each function takes and returns safe values; nothing of this file leaks a pointer.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use tokio::io::unix::AsyncFd;

/// Loads a kernel module; one that is loaded already is no error.
pub(crate) fn load_module(module: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and the parameters are a static empty C string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            module.as_raw_fd(),
            c"".as_ptr(),
            0 as libc::c_int,
        )
    };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        outcome => outcome,
    }
}

/// Most bytes [`add_entropy`] takes at a time.
pub(crate) const MAX_ENTROPY: usize = 128;

/// Gives the kernel's generator `bytes` as full entropy and makes it reseed from them at once.
pub(crate) fn add_entropy(bytes: &[u8]) -> io::Result<()> {
    /// `struct rand_pool_info` of `linux/random.h`, with room for its flexible member.
    #[repr(C)]
    struct RandPoolInfo {
        entropy_count: libc::c_int,
        buf_size: libc::c_int,
        buf: [u8; MAX_ENTROPY],
    }
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

    let length = bytes.len().min(MAX_ENTROPY);
    let mut info = RandPoolInfo {
        entropy_count: libc::c_int::try_from(length * 8).unwrap_or(0),
        buf_size: libc::c_int::try_from(length).unwrap_or(0),
        buf: [0; MAX_ENTROPY],
    };
    for (to, from) in info.buf.iter_mut().zip(bytes) {
        *to = *from;
    }
    let random = File::options().write(true).open("/dev/urandom")?;
    // SAFETY: `info` outlives the call, and `buf_size` is at most the size of its buffer.
    check(unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &raw const info) }.into())?;
    // SAFETY: takes no argument.
    check(unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG) }.into())
}

/// Address, netmask, MTU and `up` of one interface, then a default route through it.
pub(crate) struct Interface<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: Ipv4Addr,
    pub(crate) netmask: Ipv4Addr,
    pub(crate) mtu: u16,
    pub(crate) gateway: Option<Ipv4Addr>,
}

impl Interface<'_> {
    pub(crate) fn configure(&self) -> io::Result<()> {
        let socket = datagram_socket()?;
        let set = |request, value| -> io::Result<()> {
            let mut ifreq = self.ifreq()?;
            ifreq.ifr_ifru = value;
            ioctl_ifreq(&socket, request, &ifreq)
        };
        set(
            libc::SIOCSIFADDR,
            libc::__c_anonymous_ifr_ifru {
                ifru_addr: socket_address(self.address),
            },
        )?;
        set(
            libc::SIOCSIFNETMASK,
            libc::__c_anonymous_ifr_ifru {
                ifru_netmask: socket_address(self.netmask),
            },
        )?;
        set(
            libc::SIOCSIFMTU,
            libc::__c_anonymous_ifr_ifru {
                ifru_mtu: self.mtu.into(),
            },
        )?;
        let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        set(
            libc::SIOCSIFFLAGS,
            libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
        )?;
        self.gateway
            .map_or(Ok(()), |gateway| self.add_default_route(&socket, gateway))
    }

    fn add_default_route(&self, socket: &OwnedFd, gateway: Ipv4Addr) -> io::Result<()> {
        let mut device = CString::new(self.name)?.into_bytes_with_nul();
        // SAFETY: `rtentry` is plain data, for which zeroes are a valid value.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = socket_address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        route.rt_dev = device.as_mut_ptr().cast();
        // SAFETY: `route` and the device name that it points to outlive the call.
        let added = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) };
        match check(added.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            outcome => outcome,
        }
    }

    fn ifreq(&self) -> io::Result<libc::ifreq> {
        // SAFETY: `ifreq` is plain data, for which zeroes are a valid value.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        if self.name.len() >= ifreq.ifr_name.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from.cast_signed();
        }
        Ok(ifreq)
    }
}

fn datagram_socket() -> io::Result<OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    Ok(socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?)
}

fn ioctl_ifreq(socket: &OwnedFd, request: libc::c_ulong, ifreq: &libc::ifreq) -> io::Result<()> {
    // SAFETY: `ifreq` outlives the call, and each request used here reads no more than one.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), request, std::ptr::from_ref(ifreq)) }.into())
}

/// An IPv4 address in the generic form that the interface calls take.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: `sockaddr` is plain data, for which zeroes are a valid value.
    let mut generic: libc::sockaddr = unsafe { std::mem::zeroed() };
    generic.sa_family = libc::AF_INET as libc::sa_family_t;
    // `sockaddr_in`: two bytes of port, then four of address.
    for (to, from) in generic.sa_data.iter_mut().skip(2).zip(address.octets()) {
        *to = from.cast_signed();
    }
    generic
}

/// What a child becomes between fork and exec.
pub(crate) struct ChildSetup {
    /// Group ids, then user id; none to stay root.
    pub(crate) user: Option<(u32, u32, Vec<u32>)>,
    /// Make standard input the controlling terminal.
    pub(crate) controlling_terminal: bool,
    /// An open `cgroup.procs` to move into.
    pub(crate) cgroup: Option<OwnedFd>,
    /// Working directory, entered as the user.
    pub(crate) cwd: CString,
}

/// How far a child got, as the error number that `spawn` fails with; see [`child_failure`].
const STEP_USER: i32 = 10_001;
const STEP_CWD: i32 = 10_002;

/// Which step of [`ChildSetup`] failed, when one did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildStep {
    User,
    Cwd,
}

/// Reads the step out of an error of `spawn`.
pub(crate) fn child_failure(error: &io::Error) -> Option<ChildStep> {
    match error.raw_os_error() {
        Some(STEP_USER) => Some(ChildStep::User),
        Some(STEP_CWD) => Some(ChildStep::Cwd),
        _ => None,
    }
}

/// Arranges for `command` to start in a session of its own as `setup` says.
pub(crate) fn prepare_child(command: &mut Command, setup: ChildSetup) {
    let become_child = move || -> io::Result<()> {
        check(i64::from(become_session_leader()))?;
        if setup.controlling_terminal {
            // SAFETY: standard input is the terminal's slave, dup'ed by the standard library.
            check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }.into())?;
        }
        if let Some(cgroup) = &setup.cgroup {
            write_all(cgroup.as_raw_fd(), b"0")?;
        }
        lower_oom_protection();
        if let Some((uid, gid, groups)) = &setup.user {
            // SAFETY: the pointer and length are of one live vector.
            let grouped = unsafe { libc::setgroups(groups.len(), groups.as_ptr()) };
            // SAFETY: plain numbers.
            let became = unsafe { [libc::setgid(*gid), libc::setuid(*uid)] };
            if grouped != 0 || became != [0, 0] {
                return Err(io::Error::from_raw_os_error(STEP_USER));
            }
        }
        // SAFETY: a live, terminated C string.
        if unsafe { libc::chdir(setup.cwd.as_ptr()) } != 0 {
            return Err(io::Error::from_raw_os_error(STEP_CWD));
        }
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe calls on values made before the fork.
    unsafe { command.pre_exec(become_child) };
}

fn become_session_leader() -> libc::pid_t {
    // SAFETY: takes no argument; a freshly forked child is no group leader.
    unsafe { libc::setsid() }
}

/// PID 1 is protected from the OOM killer and its children must not be. A kernel without the file
/// has no such protection either, so that a failure changes nothing.
fn lower_oom_protection() {
    const PATH: &CStr = c"/proc/self/oom_score_adj";
    // SAFETY: a static C string; the descriptor is used and closed here only.
    unsafe {
        let file = libc::open(PATH.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, b"0".as_ptr().cast(), 1);
            libc::close(file);
        }
    }
}

fn write_all(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length are of one live slice.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    check(i64::try_from(written).unwrap_or(-1))
}

/// Sets the size of a terminal.
pub(crate) fn set_window_size(terminal: &OwnedFd, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` outlives the call.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }.into())
}

/// Watches `fd` for readiness; it must be non-blocking.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open and the same as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
