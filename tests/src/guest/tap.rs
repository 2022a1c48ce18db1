//! Opening a TAP interface: the one place of this crate that talks to the kernel by hand.

use std::fs::{File, OpenOptions};
use std::io;

use rustix::ioctl::{Opcode, Setter, ioctl};

/// `TUNSETIFF` of `linux/if_tun.h`: `_IOW('T', 202, int)`, although it takes a `struct ifreq`.
const TUNSETIFF: Opcode = 0x4004_54ca;

/// A TAP device (Ethernet frames) without the packet information header.
const IFF_TAP_NO_PI: u16 = 0x0002 | 0x1000;

/// `struct ifreq` as `TUNSETIFF` reads it.
#[repr(C)]
#[derive(Debug)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    unused: [u8; 22],
}

/// Creates the interface in the calling thread's network namespace. Reads and writes are one
/// frame each and never block; the interface is gone when the file is closed.
pub(super) fn open(name: &str) -> io::Result<File> {
    let tap = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: IFF_TAP_NO_PI,
        unused: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: `TUNSETIFF` reads a `struct ifreq`, whose size and layout `InterfaceRequest` has, and
    // keeps no pointer to it.
    unsafe { ioctl(&tap, Setter::<TUNSETIFF, InterfaceRequest>::new(request))? };
    rustix::io::ioctl_fionbio(&tap, true)?;
    Ok(tap)
}
