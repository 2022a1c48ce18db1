//! The one thread that writes: numbers, chains and writes records in groups.
//!
//! Everything that queued up while the last group was written becomes the next group, one write and
//! at most one flush: the slower the disk, the larger the groups. A failed write takes back what it
//! left in the file, so that the next group starts on a clean end; a record that was once reported
//! as written is never touched again.

use std::io;
use std::sync::Arc;
use std::thread;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use super::ascii;
use super::chain::Head;
use super::error::AuditError;
use super::event::{Event, EventKind};
use super::log::{AuditConfig, AuditLog, Durability};
use super::recover::Opened;
use super::segment::{Segment, Store};

/// Records waiting for the writer; beyond it an append waits for its place. Deep enough to fill a
/// group while a disk flushes, and bounds the memory of a queue of the largest records.
const QUEUE_DEPTH: usize = 1024;
/// Bytes of events in one group: bounds the buffer, and the time until the first gets its answer.
const GROUP_BYTES: u64 = 1024 * 1024;

/// What the handles ask of the thread.
#[derive(Debug)]
pub(super) enum Command {
    Append {
        line: Vec<u8>,
        reply: oneshot::Sender<Result<(), Arc<io::Error>>>,
    },
    Close {
        reply: oneshot::Sender<Result<Head, Arc<io::Error>>>,
    },
}

/// A group on its way: event lines and who waits for each.
type Group = Vec<(Vec<u8>, oneshot::Sender<Result<(), Arc<io::Error>>>)>;

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

    /// Starts the thread and returns the handle to it.
    pub(super) fn spawn(self) -> Result<AuditLog, AuditError> {
        let (queue, commands) = mpsc::channel(QUEUE_DEPTH);
        let log = AuditLog::new(queue, self.published.subscribe());
        let dir = self.config.dir.clone();
        let thread = thread::Builder::new().name("audit".to_owned());
        thread
            .spawn(move || self.run(commands))
            .map_err(AuditError::file(&dir))?;
        Ok(log)
    }

    /// Records one event before the thread runs.
    pub(super) fn record(&mut self, event: &Event) -> Result<(), AuditError> {
        let line = ascii::event_line(event)?;
        let failed = self.commit(&[&line]).error;
        failed.map_or(Ok(()), |error| Err(AuditError::Write(error.into())))
    }

    fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut group = Group::new();
        while let Some(first) = commands.blocking_recv() {
            let close = self.gather(first, &mut commands, &mut group);
            self.write(&mut group);
            if let Some(reply) = close {
                // Whatever came after the close is dropped with the queue, which answers `Closed`.
                drop(commands);
                drop(reply.send(self.finish().map_err(Arc::new)));
                return;
            }
        }
        if let Err(error) = self.finish() {
            tracing::error!(%error, "the audit log could not be flushed at its end");
        }
    }

    /// Takes what waits in the queue, up to a group's size. Returns who waits for the end, if the
    /// end was asked for.
    fn gather(
        &self,
        first: Command,
        commands: &mut mpsc::Receiver<Command>,
        group: &mut Group,
    ) -> Option<oneshot::Sender<Result<Head, Arc<io::Error>>>> {
        let limit = GROUP_BYTES.min(self.config.segment_bytes);
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                Command::Append { line, reply } => {
                    bytes += line.len() as u64;
                    group.push((line, reply));
                }
                Command::Close { reply } => return Some(reply),
            }
            next = if bytes < limit {
                commands.try_recv().ok()
            } else {
                None
            };
        }
        None
    }

    /// Writes a group and answers everyone in it.
    fn write(&mut self, group: &mut Group) {
        let confession = self.refused.as_ref().and_then(Refused::line);
        let mut lines: Vec<&[u8]> = Vec::with_capacity(group.len() + 1);
        lines.extend(confession.as_deref());
        let ahead = lines.len();
        lines.extend(group.iter().map(|(line, _)| line.as_slice()));

        let Committed { count, error } = self.commit(&lines);
        if count >= ahead && self.refused.take().is_some() {
            tracing::info!("the audit log can be written again");
        }
        let written = count.saturating_sub(ahead);
        let error = error.map(Arc::new);
        for (at, (_, reply)) in group.drain(..).enumerate() {
            let answer = match &error {
                Some(error) if at >= written => {
                    self.refuse(error);
                    Err(Arc::clone(error))
                }
                _ => Ok(()),
            };
            // Nobody waits any more: the record stands, or was refused, all the same.
            drop(reply.send(answer));
        }
    }

    fn refuse(&mut self, error: &io::Error) {
        match &mut self.refused {
            Some(refused) => refused.count += 1,
            None => {
                tracing::error!(%error, "the audit log can't be written; nothing is let out");
                self.refused = Some(Refused {
                    count: 1,
                    error: error.to_string(),
                });
            }
        }
    }

    fn commit(&mut self, events: &[&[u8]]) -> Committed {
        if events.is_empty() {
            return Committed {
                count: 0,
                error: None,
            };
        }
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(events.len());
        let mut head = self.head;
        for event in events {
            head = head.seal(&mut text, Timestamp::now(), event);
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

    /// Last words, flush, and (by dropping the store) the lock.
    fn finish(mut self) -> io::Result<Head> {
        self.write(&mut Group::new());
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command as Process;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::audit::recover;
    use crate::audit::test_log::{TestLog, request};

    /// A disk with so much room, under a real folder.
    struct SmallDisk {
        store: Box<dyn Store>,
        room: Arc<AtomicU64>,
    }

    struct SmallDiskSegment {
        segment: Box<dyn Segment>,
        room: Arc<AtomicU64>,
        len: u64,
    }

    impl Store for SmallDisk {
        fn create(&mut self, index: u64) -> io::Result<Box<dyn Segment>> {
            let (segment, room) = (self.store.create(index)?, Arc::clone(&self.room));
            Ok(Box::new(SmallDiskSegment {
                segment,
                room,
                len: 0,
            }))
        }
    }

    impl Segment for SmallDiskSegment {
        fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            let room = self.room.load(Ordering::SeqCst);
            let fits = bytes.len().min(room as usize);
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let written = self.segment.write_at(&bytes[..fits], offset)?;
            self.len = offset + written as u64;
            self.room.store(room - written as u64, Ordering::SeqCst);
            Ok(written)
        }

        fn set_len(&mut self, bytes: u64) -> io::Result<()> {
            self.room.fetch_add(self.len - bytes, Ordering::SeqCst);
            self.len = bytes;
            self.segment.set_len(bytes)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.segment.sync()
        }

        fn check(&self, len: u64) -> io::Result<()> {
            self.segment.check(len)
        }
    }

    fn on_small_disk(log: &TestLog, room: &Arc<AtomicU64>) -> AuditLog {
        let mut opened = recover::open(log.path()).unwrap();
        let room = Arc::clone(room);
        opened.segment = Box::new(SmallDiskSegment {
            segment: opened.segment,
            room: Arc::clone(&room),
            len: 0,
        });
        opened.store = Box::new(SmallDisk {
            store: opened.store,
            room,
        });
        Writer::new(opened, log.config.clone()).spawn().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn b175_a_thousand_appends_are_all_there_numbered_and_in_order() {
        for durability in [Durability::Buffered, Durability::Fsync] {
            let mut log = TestLog::with_segments_of(50_000);
            log.config.durability = durability;
            let open = log.open();
            let tasks: Vec<_> = (0..50)
                .map(|task| {
                    let open = open.clone();
                    tokio::spawn(async move {
                        let mut mine = Vec::new();
                        for at in 0..20 {
                            mine.push(open.append(&request(task * 20 + at)).await.unwrap());
                        }
                        mine
                    })
                })
                .collect();
            let mut orders = Vec::new();
            for task in tasks {
                orders.push(task.await.unwrap());
            }
            let head = open.close().await.unwrap();
            assert_eq!(head.seq, 1000);
            assert_eq!(log.fault(Some(head)), None);
            let records = log.records();
            let ids: Vec<&str> = records
                .iter()
                .filter_map(|record| record.text("id"))
                .collect();
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1000);
            for mine in orders {
                let places = mine
                    .iter()
                    .map(|id| ids.iter().position(|other| *other == id.to_string()));
                assert!(
                    places.map(Option::unwrap).is_sorted(),
                    "a task's own order is kept"
                );
            }
        }
    }

    #[tokio::test]
    async fn an_appended_record_is_in_the_file_and_is_the_head() {
        let log = TestLog::new();
        let open = log.open();
        let id = open.append(&request(1)).await.unwrap();
        let records = log.records();
        assert_eq!(records[0].text("id"), Some(&*id.to_string()));
        assert_eq!(
            records[0].text("hash"),
            Some(&*open.head().hash.to_string())
        );
        assert_eq!(log.fault(Some(open.head())), None);
    }

    #[tokio::test]
    async fn segments_are_left_before_they_grow_too_large() {
        let log = TestLog::with_segments_of(1000);
        log.write(30).await;
        let segments = log.segments();
        assert!(segments.len() >= 10);
        for segment in segments {
            let metadata = fs::metadata(segment).unwrap();
            assert!(metadata.len() <= 1000);
            assert_eq!(metadata.permissions(), Permissions::from_mode(0o100_640));
        }
        assert_eq!(log.fault(None), None);
    }

    #[tokio::test]
    async fn a_second_writer_is_refused_and_told_who() {
        let log = TestLog::new();
        let open = log.open();
        let error = AuditLog::open(log.config.clone()).unwrap_err();
        let me = format!("process {}", std::process::id());
        assert!(
            matches!(&error, AuditError::Locked { holder, .. } if *holder == me),
            "{error}"
        );
        open.close().await.unwrap();
        log.open();
    }

    #[tokio::test]
    async fn a_closed_log_takes_nothing_more() {
        let log = TestLog::new();
        let open = log.open();
        open.append(&request(1)).await.unwrap();
        let clone = open.clone();
        assert_eq!(open.close().await.unwrap().seq, 1);
        assert!(matches!(
            clone.append(&request(2)).await,
            Err(AuditError::Closed)
        ));
        assert!(matches!(clone.close().await, Err(AuditError::Closed)));
        assert_eq!(log.records().len(), 1);
    }

    #[tokio::test]
    async fn an_abandoned_append_is_recorded_all_the_same() {
        let log = TestLog::new();
        let open = log.open();
        {
            let event = request(1);
            let mut append = std::pin::pin!(open.append(&event));
            std::future::poll_fn(|context| {
                drop(append.as_mut().poll(context));
                std::task::Poll::Ready(())
            })
            .await;
        }
        assert_eq!(open.close().await.unwrap().seq, 1);
    }

    #[tokio::test]
    async fn a_full_disk_fails_every_append_until_there_is_room_and_owns_up_to_it() {
        for durability in [Durability::Buffered, Durability::Fsync] {
            let mut log = TestLog::new();
            log.config.durability = durability;
            let room = Arc::new(AtomicU64::new(10_000));
            let open = on_small_disk(&log, &room);
            open.append(&request(1)).await.unwrap();
            open.append(&request(2)).await.unwrap();
            let head = open.head();
            let before = log.bytes();
            room.store(100, Ordering::SeqCst);
            for port in 3..=5 {
                let error = open.append(&request(port)).await.unwrap_err();
                let AuditError::Write(error) = error else {
                    panic!("{error}")
                };
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                assert_eq!(
                    log.bytes(),
                    before,
                    "the half-written record was taken back"
                );
                assert_eq!(open.head(), head);
            }
            room.store(10_000, Ordering::SeqCst);
            open.append(&request(6)).await.unwrap();
            let head = open.close().await.unwrap();
            let records = log.records();
            let kinds: Vec<&str> = records
                .iter()
                .filter_map(|record| record.text("kind"))
                .collect();
            assert_eq!(kinds, ["request", "request", "write_failure", "request"]);
            assert_eq!(records[2].number("count"), Some(3));
            assert_eq!(log.fault(Some(head)), None);
        }
    }

    #[tokio::test]
    async fn of_a_group_that_fits_in_part_the_fitting_part_is_written() {
        let log = TestLog::new();
        let open = on_small_disk(&log, &Arc::new(AtomicU64::new(5000)));
        let appends: Vec<_> = (0..40)
            .map(|port| {
                let open = open.clone();
                tokio::spawn(async move { open.append(&request(port)).await.is_ok() })
            })
            .collect();
        let mut written = 0;
        for append in appends {
            written += usize::from(append.await.unwrap());
        }
        let requests = log
            .records()
            .iter()
            .filter(|r| r.text("kind") == Some("request"))
            .count();
        assert_eq!(requests, written, "what was reported is what is there");
        assert!((10..40).contains(&written), "{written}");
        assert_eq!(log.fault(Some(open.head())), None);
    }

    #[tokio::test]
    async fn a_segment_that_is_taken_away_under_the_writer_stops_everything() {
        let changes: [fn(&TestLog); 4] = [
            |log| fs::remove_file(log.segment(1)).unwrap(),
            |log| fs::rename(log.segment(1), log.beside("audit.1")).unwrap(),
            |log| log.spoil(&log.bytes()[1..]),
            |log| {
                fs::rename(log.segment(1), log.beside("audit.1")).unwrap();
                fs::copy(log.beside("audit.1"), log.segment(1)).unwrap();
            },
        ];
        for change in changes {
            let log = TestLog::new();
            let open = log.open();
            open.append(&request(1)).await.unwrap();
            change(&log);
            let error = open.append(&request(2)).await.unwrap_err();
            assert!(
                error.to_string().contains("moved, cut or replaced"),
                "{error}"
            );
            assert!(open.close().await.is_err());
        }
    }

    #[tokio::test]
    async fn a_real_disk_that_is_full() {
        let log = TestLog::new();
        fs::create_dir(log.path()).unwrap();
        let mounted = Process::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(log.path())
            .output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this account can't mount");
            return;
        }
        let open = log.open();
        let ballast = log.path().join("ballast");
        fs::write(&ballast, vec![0; 40 * 1024]).unwrap();
        let mut written = 0;
        let error = loop {
            match open.append(&request(1)).await {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        let AuditError::Write(error) = error else {
            panic!("{error}")
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(log.records().len(), written);
        fs::remove_file(ballast).unwrap();
        open.append(&request(2)).await.unwrap();
        let head = open.close().await.unwrap();
        assert_eq!(head.seq, written as u64 + 2);
        let fault = log.fault(Some(head));
        assert!(
            Process::new("umount")
                .arg(log.path())
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(fault, None);
    }
}
