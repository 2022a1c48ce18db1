//! The guest's one interface: a fixed address, a route and a resolver, all as the host says.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::sys::Interface;
use outgate_pid1::api::Network;

/// Brings the loopback up, and the first other interface when there is a network.
pub(crate) fn configure(network: Option<&Network>) -> io::Result<()> {
    Interface {
        name: "lo",
        address: Ipv4Addr::LOCALHOST,
        netmask: Ipv4Addr::new(255, 0, 0, 0),
        mtu: u16::MAX,
        gateway: None,
    }
    .configure()?;
    let Some(network) = network else {
        return Ok(());
    };
    let name = first_interface(Path::new("/sys/class/net"))?;
    Interface {
        name: &name,
        address: network.address,
        netmask: netmask(network.prefix),
        mtu: network.mtu,
        gateway: Some(network.gateway),
    }
    .configure()
}

/// Writes the files by which programs find names. They may be links to what an init would have made.
pub(crate) fn write_names(root: &Path, hostname: &str, dns: Option<Ipv4Addr>) -> io::Result<()> {
    let etc = root.join("etc");
    fs::create_dir_all(&etc)?;
    replace(&etc.join("hostname"), &format!("{hostname}\n"))?;
    let hosts = format!("127.0.0.1 localhost\n127.0.1.1 {hostname}\n::1 localhost ip6-localhost\n");
    replace(&etc.join("hosts"), &hosts)?;
    match dns {
        Some(dns) => replace(&etc.join("resolv.conf"), &format!("nameserver {dns}\n")),
        None => Ok(()),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    if path.is_symlink() {
        fs::remove_file(path)?;
    }
    fs::write(path, text)
}

fn netmask(prefix: u8) -> Ipv4Addr {
    let host_bits = 32_u32.saturating_sub(u32::from(prefix));
    Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0))
}

/// The first interface, by name, that has a device. The loopback has none, and neither have those
/// that a kernel makes up by itself, such as `dummy0`.
fn first_interface(interfaces: &Path) -> io::Result<String> {
    let names = fs::read_dir(interfaces)?
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.min().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "the guest has no network interface",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_netmasks() {
        assert_eq!(netmask(24), Ipv4Addr::new(255, 255, 255, 0));
        assert_eq!(netmask(0), Ipv4Addr::UNSPECIFIED);
        assert_eq!(netmask(32), Ipv4Addr::BROADCAST);
    }

    #[test]
    fn the_link_is_the_interface_that_has_a_device() {
        let interfaces = tempfile::tempdir().unwrap();
        for path in ["dummy0", "lo", "eth1/device", "eth0/device"] {
            fs::create_dir_all(interfaces.path().join(path)).unwrap();
        }
        assert_eq!(first_interface(interfaces.path()).unwrap(), "eth0");
    }

    #[test]
    fn a_linked_resolver_file_is_replaced_not_followed() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let elsewhere = root.path().join("elsewhere");
        fs::write(&elsewhere, "untouched").unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.path().join("etc/resolv.conf")).unwrap();
        write_names(root.path(), "box", Some(Ipv4Addr::new(10, 0, 2, 2))).unwrap();
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("etc/resolv.conf"), "nameserver 10.0.2.2\n");
        assert_eq!(read("elsewhere"), "untouched");
        assert!(read("etc/hosts").contains("127.0.1.1 box"));
    }
}
