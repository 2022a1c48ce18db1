//! The output of one stream of one command, kept by offset.
//!
//! A reader asks for an offset, so that one which comes back loses nothing that is still here.
//! While a reader is attached the writer waits for it; with nobody attached the oldest bytes go,
//! and whoever asks for them later is told which ones ([`Chunk::Gap`]).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use outgate_pid1::api::frame::MAX_PAYLOAD;

/// Bytes kept per stream. Two streams for each of the commands bound what output can cost.
pub(crate) const CAPACITY: usize = 1024 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    /// Offset of the first byte kept.
    start: u64,
    closed: bool,
    /// Offsets that attached readers have come to, by reader.
    readers: BTreeMap<u64, u64>,
}

/// What a reader finds at its offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// Bytes from the offset on.
    Bytes(Bytes),
    /// The bytes up to this offset are gone.
    Gap(u64),
    /// Nothing yet.
    Empty,
    /// Nothing any more.
    End,
}

impl Ring {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// How many bytes may be written now.
    pub(crate) fn room(&self) -> usize {
        match self.readers.values().min() {
            None => CAPACITY,
            Some(&slowest) => {
                let waiting = self.end().saturating_sub(slowest.max(self.start));
                CAPACITY.saturating_sub(usize::try_from(waiting).unwrap_or(CAPACITY))
            }
        }
    }

    /// Appends; what is over the capacity drops off at the front.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(CAPACITY);
        self.bytes.drain(..over);
        self.start += over as u64;
    }

    /// No more is going to be written.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Reads at `offset`.
    pub(crate) fn read(&self, offset: u64) -> Chunk {
        if offset < self.start {
            return Chunk::Gap(self.start);
        }
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        if skip < self.bytes.len() {
            return Chunk::Bytes(self.copy(skip, (self.bytes.len() - skip).min(MAX_PAYLOAD)));
        }
        if self.closed {
            Chunk::End
        } else {
            Chunk::Empty
        }
    }

    fn copy(&self, mut skip: usize, length: usize) -> Bytes {
        let mut copied = Vec::with_capacity(length);
        let (front, back) = self.bytes.as_slices();
        for half in [front, back] {
            let part = half.get(skip..).unwrap_or_default();
            copied.extend(part.iter().take(length - copied.len()));
            skip = skip.saturating_sub(half.len());
        }
        copied.into()
    }

    /// Bytes kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A reader has everything before `offset`; the writer may go on from there.
    pub(crate) fn advance(&mut self, reader: u64, offset: u64) {
        self.readers.insert(reader, offset);
    }

    /// The reader went away.
    pub(crate) fn detach(&mut self, reader: u64) {
        self.readers.remove(&reader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_comes_back_finds_its_place() {
        let mut ring = Ring::default();
        ring.write(b"hello ");
        ring.write(b"world");
        assert_eq!(ring.read(0), Chunk::Bytes(Bytes::from("hello world")));
        assert_eq!(ring.read(6), Chunk::Bytes(Bytes::from("world")));
        assert_eq!(ring.read(11), Chunk::Empty);
        ring.close();
        assert_eq!(ring.read(11), Chunk::End);
        assert_eq!(ring.read(99), Chunk::End);
    }

    #[test]
    fn nobody_attached_drops_the_oldest_and_says_so() {
        let mut ring = Ring::default();
        ring.write(&vec![b'a'; CAPACITY]);
        ring.write(b"bcd");
        assert_eq!(ring.read(0), Chunk::Gap(3));
        assert_eq!(ring.read(CAPACITY as u64), Chunk::Bytes(Bytes::from("bcd")));
        assert_eq!(ring.room(), CAPACITY);
    }

    #[test]
    fn the_slowest_reader_holds_the_writer_back() {
        let mut ring = Ring::default();
        ring.advance(1, 0);
        ring.advance(2, 0);
        ring.write(&vec![b'x'; CAPACITY]);
        assert_eq!(ring.room(), 0);
        ring.advance(1, 500);
        assert_eq!(ring.room(), 0);
        ring.advance(2, 300);
        assert_eq!(ring.room(), 300);
        ring.detach(2);
        assert_eq!(ring.room(), 500);
        ring.detach(1);
        assert_eq!(ring.room(), CAPACITY);
    }
}
