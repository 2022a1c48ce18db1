//! The seam between the TCP stack and the link: frames to the guest, and smoltcp's view of both.
//!
//! smoltcp sees bare IP packets. The Ethernet header is written here, always from the gateway to
//! the guest, so no packet that a guest forges can make the stack address somebody else, and there
//! is no neighbour to look up before an answer.

use std::collections::VecDeque;
use std::io;

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use super::frame_socket::Link;
use super::{ETHERNET_HEADER, GATEWAY_MAC, GUEST_MAC, max_frame};

/// Frames that may wait for a guest that does not read: 2 MiB at most, and several times what a
/// sender needs to keep the link busy.
const FRAMES: usize = 32;
/// More room for answers to what the guest sends meanwhile. Reading goes on while writing can't:
/// if each end waited for the other to read first, both would wait for ever.
const REPLY_FRAMES: usize = 16;
/// Empty buffers kept for the next frames; the rest goes back to the allocator.
const SPARE_BUFFERS: usize = 8;

/// Frames on their way to the guest.
#[derive(Debug)]
pub(super) struct TxQueue {
    mtu: u16,
    frames: VecDeque<Frame>,
    spare: Vec<Box<[u8]>>,
    unread: u64,
}

#[derive(Debug)]
struct Frame {
    buffer: Box<[u8]>,
    len: usize,
}

impl TxQueue {
    /// A queue of packets no longer than `mtu`.
    pub(super) fn new(mtu: u16) -> Self {
        Self {
            mtu,
            frames: VecDeque::new(),
            spare: Vec::new(),
            unread: 0,
        }
    }

    pub(super) fn mtu(&self) -> u16 {
        self.mtu
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether a flow may add a segment. Answers have room beyond that.
    pub(super) fn has_room(&self) -> bool {
        self.frames.len() < FRAMES
    }

    /// Adds a frame whose payload of `len` bytes `fill` writes. Beyond the bound it is dropped and
    /// counted: only answers come here without [`TxQueue::has_room`], and a guest asks again.
    pub(super) fn push<R>(
        &mut self,
        protocol: EthernetProtocol,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut buffer = self
            .spare
            .pop()
            .unwrap_or_else(|| vec![0; max_frame(self.mtu)].into_boxed_slice());
        let mut header = EthernetFrame::new_unchecked(&mut buffer[..ETHERNET_HEADER]);
        header.set_src_addr(GATEWAY_MAC);
        header.set_dst_addr(GUEST_MAC);
        header.set_ethertype(protocol);
        let len = ETHERNET_HEADER + len;
        let result = fill(&mut buffer[ETHERNET_HEADER..len]);
        if self.frames.len() < FRAMES + REPLY_FRAMES {
            self.frames.push_back(Frame { buffer, len });
        } else {
            self.recycle(buffer);
            self.unread += 1;
        }
        result
    }

    /// Sends what the link takes now.
    pub(super) fn flush(&mut self, link: &Link) {
        while let Some(Frame { buffer, len }) = self.frames.pop_front() {
            match link.send(&buffer[..len]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.frames.push_front(Frame { buffer, len });
                    return;
                }
                // An unplugged cable: the guest's end is gone or down. Reading tells if for good.
                Err(_) => self.unread += 1,
                Ok(()) => {}
            }
            self.recycle(buffer);
        }
    }

    /// Frames lost since the last call because nobody read the link.
    pub(super) fn take_unread(&mut self) -> u64 {
        std::mem::take(&mut self.unread)
    }

    fn recycle(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(buffer);
        }
    }
}

/// One visit to the TCP stack: at most one packet in, any number out.
#[derive(Debug)]
pub(super) struct Visit<'a> {
    pub(super) packet: Option<&'a [u8]>,
    pub(super) tx: &'a mut TxQueue,
}

impl phy::Device for Visit<'_> {
    type RxToken<'t>
        = RxToken<'t>
    where
        Self: 't;
    type TxToken<'t>
        = TxToken<'t>
    where
        Self: 't;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let packet = self.packet.take()?;
        Some((RxToken(packet), TxToken(self.tx)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        self.tx.has_room().then_some(TxToken(self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.tx.mtu.into();
        capabilities.checksum = checksums();
        capabilities
    }
}

/// The link is memory: nothing on it flips a bit, and a guest gains nothing by lying, so TCP
/// checksums are not verified. The guest's kernel does verify, so they are always written. IPv4
/// headers were verified before smoltcp sees them.
pub(super) fn checksums() -> ChecksumCapabilities {
    let mut checksums = ChecksumCapabilities::default();
    checksums.ipv4 = Checksum::Tx;
    checksums.tcp = Checksum::Tx;
    checksums.udp = Checksum::Tx;
    checksums.icmpv4 = Checksum::Tx;
    checksums
}

#[derive(Debug)]
pub(super) struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

#[derive(Debug)]
pub(super) struct TxToken<'a>(&'a mut TxQueue);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.0.push(EthernetProtocol::Ipv4, len, write)
    }
}
