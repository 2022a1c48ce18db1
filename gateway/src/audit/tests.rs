//! The log as its users know it: open, append, close, on disks that fill up, fail and are meddled with.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::Command as Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::recover;
use super::segment::{Segment, Store};
use super::test_log::{TestLog, request};
use super::writer::Writer;
use super::{AuditError, AuditLog, Durability};

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
    AuditLog::written_by(Writer::new(opened, log.config.clone())).unwrap()
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

#[tokio::test]
async fn what_nobody_waits_for_is_written_in_order_and_before_the_end() {
    for durability in [Durability::Buffered, Durability::Fsync] {
        let mut log = TestLog::with_segments_of(2000);
        log.config.durability = durability;
        let open = log.open();
        for port in 1..=50 {
            open.append_later(&request(port)).unwrap();
        }
        open.append(&request(51)).await.unwrap();
        for port in 52..=99 {
            open.append_later(&request(port)).unwrap();
        }
        let head = open.close().await.unwrap();
        let ports = log.records();
        let ports = ports.iter().filter_map(|record| record.number("port"));
        assert!(ports.eq(1..=99), "{durability:?}");
        assert_eq!(log.fault(Some(head)), None);
        for segment in log.segments() {
            assert!(fs::metadata(segment).unwrap().len() <= 2000);
        }
    }
}

#[tokio::test]
async fn what_nobody_waits_for_does_not_wait_for_somebody() {
    for durability in [Durability::Buffered, Durability::Fsync] {
        let mut log = TestLog::new();
        log.config.durability = durability;
        let open = log.open();
        let mut heads = open.heads();
        open.append_later(&request(1)).unwrap();
        heads.changed().await.unwrap();
        assert_eq!(log.records().len(), 1);
        assert!(open.clone().close().await.is_ok());
        let closed = open.append_later(&request(2));
        assert!(matches!(closed, Err(AuditError::Closed)));
    }
}

#[tokio::test]
async fn a_disk_that_refuses_what_nobody_waits_for_is_owned_up_to() {
    let log = TestLog::new();
    let room = Arc::new(AtomicU64::new(0));
    let open = on_small_disk(&log, &room);
    open.append_later(&request(1)).unwrap();
    open.append_later(&request(2)).unwrap();
    open.append(&request(3)).await.unwrap_err();
    room.store(10_000, Ordering::SeqCst);
    let events = [request(4), request(5)];
    open.append_all(&events).await.unwrap();
    open.close().await.unwrap();
    let records = log.records();
    let kinds: Vec<_> = records.iter().map(|record| record.text("kind")).collect();
    let kinds: Vec<_> = kinds.into_iter().flatten().collect();
    assert_eq!(kinds, ["write_failure", "request", "request"]);
    assert_eq!(records[0].number("count"), Some(3));
}
