//! Numbers, chains and writes records, as many at a time as there are.
//!
//! A group is one write and at most one flush: the slower the disk, the larger the groups. A failed
//! write takes back what it left in the file, so that the next group starts on a clean end; a record
//! that was once reported as written is never touched again.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

use super::ascii;
use super::chain::{FRAME_BYTES, Head, Time};
use super::error::AuditError;
use super::event::{Event, EventKind};
use super::log::{AuditConfig, Durability};
use super::recover::Opened;
use super::segment::{Segment, Store};

/// Bytes of events in one group: bounds the buffer, and the time until the first gets its answer.
const GROUP_BYTES: u64 = 1024 * 1024;

pub(super) struct Writer {
    store: Box<dyn Store>,
    segment: Box<dyn Segment>,
    index: u64,
    /// End of the last record that stands.
    len: u64,
    /// The file may go on beyond `len`, with what a failed write left.
    is_untrimmed: bool,
    head: Head,
    published: watch::Sender<Head>,
    config: AuditConfig,
    /// Events refused since the last record, and the first reason.
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Refused {
    count: u64,
    error: String,
}

/// The outcome of one group: how many of its first records stand, and what stopped the others.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) count: usize,
    pub(super) error: Option<Arc<io::Error>>,
}

struct Committed {
    count: usize,
    error: Option<io::Error>,
}

impl Writer {
    pub(super) fn new(opened: Opened, config: AuditConfig) -> Self {
        Self {
            store: opened.store,
            segment: opened.segment,
            index: opened.index,
            len: opened.len,
            is_untrimmed: false,
            head: opened.head,
            published: watch::Sender::new(opened.head),
            config,
            refused: None,
        }
    }

    /// Where the log stands, now and later.
    pub(super) fn heads(&self) -> watch::Receiver<Head> {
        self.published.subscribe()
    }

    pub(super) fn config(&self) -> &AuditConfig {
        &self.config
    }

    /// Bytes of events that a group should not go beyond.
    pub(super) fn group_bytes(&self) -> u64 {
        GROUP_BYTES.min(self.config.segment_bytes)
    }

    /// Records one event before anybody else writes.
    pub(super) fn record(&mut self, event: &Event) -> Result<(), AuditError> {
        let line = ascii::event_line(event)?;
        let failed = self.commit(&[&line]).error;
        failed.map_or(Ok(()), |error| Err(AuditError::Write(error.into())))
    }

    /// Writes a group of event lines. What does not stand is counted, and owned up to by the next
    /// record that does.
    pub(super) fn write(&mut self, group: &[Vec<u8>]) -> Written {
        let confession = self.refused.as_ref().and_then(Refused::line);
        let mut lines: Vec<&[u8]> = Vec::with_capacity(group.len() + 1);
        lines.extend(confession.as_deref());
        let ahead = lines.len();
        lines.extend(group.iter().map(Vec::as_slice));

        let Committed { count, error } = self.commit_in_parts(&lines);
        if count >= ahead && self.refused.take().is_some() {
            tracing::info!("the audit log can be written again");
        }
        let count = count.saturating_sub(ahead);
        let error = error.map(Arc::new);
        if let Some(error) = &error {
            self.refuse(group.len() - count, error);
        }
        Written { count, error }
    }

    /// Commits what fits a group at a time, and stops where the disk does.
    fn commit_in_parts(&mut self, mut events: &[&[u8]]) -> Committed {
        let mut total = 0;
        while !events.is_empty() {
            let mut bytes = 0;
            let fits = |event: &&&[u8]| {
                bytes += event.len() + FRAME_BYTES;
                bytes as u64 <= self.group_bytes()
            };
            let now = events.iter().take_while(fits).count().max(1);
            let (part, rest) = events.split_at(now);
            let Committed { count, error } = self.commit(part);
            total += count;
            if error.is_some() {
                return Committed {
                    count: total,
                    error,
                };
            }
            events = rest;
        }
        Committed {
            count: total,
            error: None,
        }
    }

    /// Last words, flush, and (by dropping the store) the lock.
    pub(super) fn finish(mut self) -> io::Result<Head> {
        self.write(&[]);
        if let Some(Refused { count, error }) = &self.refused {
            tracing::error!(
                count,
                error,
                "the audit log ends without a word on refused events"
            );
        }
        self.trim()?;
        self.segment.check(self.len)?;
        self.segment.sync()?;
        Ok(self.head)
    }

    fn refuse(&mut self, events: usize, error: &io::Error) {
        let events = events as u64;
        match &mut self.refused {
            _ if events == 0 => {}
            Some(refused) => refused.count += events,
            None => {
                tracing::error!(%error, "the audit log can't be written; nothing is let out");
                self.refused = Some(Refused {
                    count: events,
                    error: error.to_string(),
                });
            }
        }
    }

    fn commit(&mut self, events: &[&[u8]]) -> Committed {
        let bytes = events.iter().map(|event| event.len() + FRAME_BYTES).sum();
        let mut text = Vec::with_capacity(bytes);
        let mut ends = Vec::with_capacity(events.len());
        let mut head = self.head;
        let time = Time::from(Timestamp::now());
        for event in events {
            head = head.seal(&mut text, &time, event);
            ends.push((text.len(), head));
        }
        if let Err(error) = self.make_room(text.len() as u64) {
            return Committed {
                count: 0,
                error: Some(error),
            };
        }
        let (landed, mut error) = self.write_through(&text);
        let mut count = ends.partition_point(|(end, _)| *end <= landed);
        if count > 0
            && self.config.durability == Durability::Fsync
            && let Err(failed) = self.segment.sync()
        {
            // Nothing can be said about any page of this group: none of it stands.
            (count, error) = (0, Some(failed));
        }
        if let Some((end, head)) = count.checked_sub(1).and_then(|last| ends.get(last)) {
            self.len += *end as u64;
            self.head = *head;
            self.published.send_replace(*head);
        }
        if error.is_some() {
            self.is_untrimmed = true;
            if let Err(error) = self.trim() {
                tracing::warn!(%error, "a half-written audit record could not be taken back yet");
            }
        }
        Committed { count, error }
    }

    /// Makes the segment ready for `bytes` more: no leftovers, and the next one if this is full.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        self.trim()?;
        self.segment.check(self.len)?;
        if self.len == 0 || self.len + bytes <= self.config.segment_bytes {
            return Ok(());
        }
        // Nobody comes back to a full segment, so this is the last chance to hear that it failed.
        self.segment.sync()?;
        let index = self.index.saturating_add(1);
        self.segment = self.store.create(index)?;
        self.index = index;
        self.len = 0;
        Ok(())
    }

    /// Cuts off what a failed write left behind the last record.
    fn trim(&mut self) -> io::Result<()> {
        if self.is_untrimmed {
            self.segment.set_len(self.len)?;
            self.is_untrimmed = false;
        }
        Ok(())
    }

    /// Writes until all is written or the disk refuses; returns how far it came.
    fn write_through(&mut self, text: &[u8]) -> (usize, Option<io::Error>) {
        let mut landed = 0;
        while let Some(rest) = text.get(landed..).filter(|rest| !rest.is_empty()) {
            match self.segment.write_at(rest, self.len + landed as u64) {
                Ok(0) => return (landed, Some(io::ErrorKind::WriteZero.into())),
                Ok(some) => landed += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (landed, Some(error)),
            }
        }
        (landed, None)
    }
}

impl Refused {
    /// The record that owns up to the gap, written before the next one.
    fn line(&self) -> Option<Vec<u8>> {
        let event = Event {
            count: Some(self.count),
            detail: Some(format!("events were refused, not recorded: {}", self.error)),
            ..Event::new(EventKind::WriteFailure)
        };
        ascii::event_line(&event).ok()
    }
}
