//! The QEMU command line, typed.
//!
//! Every file and socket is a descriptor that the child inherits, so that QEMU opens no path of the
//! host but its own program and libraries. Comments say what breaks without a part.

use std::fmt::{Display, Write as _};
use std::os::fd::RawFd;

use outgate_pid1::api::PORT_NAME;

use crate::accelerator::Accelerator;

/// The host program that runs machines.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// MAC address of every guest; the link is the identity, so guests may share it.
const GUEST_MAC: &str = "02:00:00:00:00:0f";

/// IP MTU that the guest is told. A frame has 14 bytes more and still fits one datagram.
const LINK_MTU: u32 = 65_520;

/// Cache of translated code, MiB, under emulation. Interpreters and compilers re-translate at every
/// pass when it is small; memory is only used as far as the guest's code needs.
const TRANSLATION_CACHE_MIB: u32 = 128;

/// One virtual machine, ready to be said to QEMU.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) accelerator: Accelerator,
    /// Frequency of the host's time-stamp counter; an emulated guest can't do without.
    pub(crate) tsc_khz: Option<u64>,
    pub(crate) vcpus: u32,
    pub(crate) memory_mib: u32,
    /// A memfd of `memory_mib`, the guest's RAM.
    pub(crate) ram: RawFd,
    pub(crate) kernel: RawFd,
    pub(crate) initrd: RawFd,
    /// Words added to the kernel's command line.
    pub(crate) kernel_words: Vec<String>,
    pub(crate) disks: Vec<Disk>,
    /// The guest's only network: a datagram socket, one frame each.
    pub(crate) link: Option<RawFd>,
    /// Listening socket of the control channel.
    pub(crate) control: Option<RawFd>,
    /// Listening socket for QMP.
    pub(crate) qmp: Option<RawFd>,
}

/// A block device. The guest finds it by `serial`, never by its order.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) serial: &'static str,
    pub(crate) descriptor: RawFd,
    pub(crate) writable: bool,
}

impl Machine {
    /// The arguments after the program's name.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = Arguments::default();
        self.board(&mut arguments);
        self.confinement(&mut arguments);
        self.boot(&mut arguments);
        self.channels(&mut arguments);
        self.devices(&mut arguments);
        arguments.0
    }

    fn board(&self, to: &mut Arguments) {
        let Self {
            vcpus,
            memory_mib,
            ram,
            ..
        } = self;
        // Without pit=off,pic=off the guest waits for interrupts that never come; acpi=on gives it
        // a power button and a list of devices that the distribution's kernel understands.
        to.option("-M", "microvm,acpi=on,pit=off,pic=off,memory-backend=ram");
        match self.accelerator {
            Accelerator::Kvm => to.option("-accel", "kvm").option("-cpu", "host"),
            Accelerator::Tcg => to
                .option(
                    "-accel",
                    format_args!("tcg,thread=multi,tb-size={TRANSLATION_CACHE_MIB}"),
                )
                .option("-cpu", "max"),
        };
        to.option("-m", format_args!("{memory_mib}M")).option("-smp", vcpus).option(
            "-object",
            format_args!(
                "memory-backend-file,id=ram,size={memory_mib}M,mem-path=/proc/self/fd/{ram},share=on"
            ),
        );
    }

    fn confinement(&self, to: &mut Arguments) {
        to.flag("-nodefaults")
            .flag("-no-user-config")
            .option("-display", "none")
            .flag("-no-reboot")
            .option(
                "-sandbox",
                "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            );
    }

    fn boot(&self, to: &mut Arguments) {
        // panic=-1 reboots at once, which -no-reboot turns into an end of QEMU that is seen.
        let mut line = String::from("console=ttyS0 quiet panic=-1");
        if let (Accelerator::Tcg, Some(khz)) = (self.accelerator, self.tsc_khz) {
            // Writing to a string can't fail.
            let _ = write!(line, " tsc_early_khz={khz} tsc=reliable");
        }
        for word in &self.kernel_words {
            line.push(' ');
            line.push_str(word);
        }
        to.option("-kernel", format_args!("/proc/self/fd/{}", self.kernel))
            .option("-initrd", format_args!("/proc/self/fd/{}", self.initrd))
            .option("-append", line);
    }

    fn channels(&self, to: &mut Arguments) {
        to.option("-chardev", "stdio,id=console,signal=off")
            .option("-serial", "chardev:console");
        if let Some(fd) = self.qmp {
            to.option(
                "-chardev",
                format_args!("socket,id=qmp,fd={fd},server=on,wait=off"),
            )
            .option("-mon", "chardev=qmp,mode=control");
        }
        if let Some(fd) = self.control {
            to.option(
                "-chardev",
                format_args!("socket,id=ctl,fd={fd},server=on,wait=off"),
            )
            .option("-device", "virtio-serial-device")
            .option(
                "-device",
                format_args!("virtserialport,chardev=ctl,name={PORT_NAME}"),
            );
        }
    }

    fn devices(&self, to: &mut Arguments) {
        for (set, disk) in (1_u32..).zip(&self.disks) {
            let Disk {
                serial,
                descriptor,
                writable,
            } = disk;
            // The writable disk dies with its sandbox, so the guest's flushes would buy nothing.
            let mode = if *writable {
                "discard=unmap,detect-zeroes=unmap,cache.no-flush=on"
            } else {
                "read-only=on"
            };
            // Nobody else writes these files, and a lock would need rights on their path. A full
            // host disk is the guest's I/O error; the default is to stop the guest for ever.
            to.option("-add-fd", format_args!("fd={descriptor},set={set}"))
                .option(
                    "-blockdev",
                    format_args!(
                        "driver=file,node-name=disk{set},filename=/dev/fdset/{set},locking=off,{mode}"
                    ),
                )
                .option(
                    "-device",
                    format_args!(
                        "virtio-blk-device,drive=disk{set},serial={serial},werror=report,rerror=report"
                    ),
                );
        }
        if let Some(fd) = self.link {
            to.option(
                "-netdev",
                format_args!("dgram,id=link,local.type=fd,local.str={fd}"),
            )
            .option(
                "-device",
                format_args!("virtio-net-device,netdev=link,mac={GUEST_MAC},host_mtu={LINK_MTU}"),
            );
        }
        to.option("-object", "rng-builtin,id=rng")
            .option("-device", "virtio-rng-device,rng=rng");
    }
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.to_owned());
        self
    }

    fn option(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.0.extend([name.to_owned(), value.to_string()]);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(accelerator: Accelerator) -> Machine {
        Machine {
            accelerator,
            tsc_khz: Some(2_400_000),
            vcpus: 2,
            memory_mib: 512,
            ram: 10,
            kernel: 11,
            initrd: 12,
            kernel_words: vec!["outgate.probe".to_owned()],
            disks: vec![
                Disk {
                    serial: "outgate-base",
                    descriptor: 13,
                    writable: false,
                },
                Disk {
                    serial: "outgate-rw",
                    descriptor: 14,
                    writable: true,
                },
            ],
            link: Some(15),
            control: Some(16),
            qmp: Some(17),
        }
    }

    fn value_of<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
        arguments
            .windows(2)
            .filter(|pair| pair[0] == option)
            .map(|pair| pair[1].as_str())
            .collect()
    }

    #[test]
    fn an_emulated_guest_is_told_the_frequency_of_the_counter() {
        let arguments = machine(Accelerator::Tcg).arguments();
        assert_eq!(
            value_of(&arguments, "-append"),
            ["console=ttyS0 quiet panic=-1 tsc_early_khz=2400000 tsc=reliable outgate.probe"]
        );
        assert_eq!(
            value_of(&arguments, "-accel"),
            ["tcg,thread=multi,tb-size=128"]
        );
    }

    #[test]
    fn a_kvm_guest_has_a_clock_of_its_own() {
        let arguments = machine(Accelerator::Kvm).arguments();
        assert_eq!(
            value_of(&arguments, "-append"),
            ["console=ttyS0 quiet panic=-1 outgate.probe"]
        );
        assert_eq!(value_of(&arguments, "-cpu"), ["host"]);
    }

    #[test]
    fn the_base_is_read_only_and_nothing_stops_the_guest_on_a_full_host() {
        let arguments = machine(Accelerator::Tcg).arguments();
        assert_eq!(
            value_of(&arguments, "-blockdev"),
            [
                "driver=file,node-name=disk1,filename=/dev/fdset/1,locking=off,read-only=on",
                "driver=file,node-name=disk2,filename=/dev/fdset/2,locking=off,discard=unmap,\
                 detect-zeroes=unmap,cache.no-flush=on",
            ]
        );
        assert_eq!(
            value_of(&arguments, "-device"),
            [
                "virtio-serial-device",
                "virtserialport,chardev=ctl,name=ctl",
                "virtio-blk-device,drive=disk1,serial=outgate-base,werror=report,rerror=report",
                "virtio-blk-device,drive=disk2,serial=outgate-rw,werror=report,rerror=report",
                "virtio-net-device,netdev=link,mac=02:00:00:00:00:0f,host_mtu=65520",
                "virtio-rng-device,rng=rng",
            ]
        );
    }

    #[test]
    fn no_argument_names_a_file_of_the_host() {
        for argument in machine(Accelerator::Tcg).arguments() {
            let paths = argument
                .split(['=', ','])
                .filter(|word| word.starts_with('/'));
            for path in paths {
                assert!(path.starts_with("/proc/self/fd/") || path.starts_with("/dev/fdset/"));
            }
        }
    }
}
