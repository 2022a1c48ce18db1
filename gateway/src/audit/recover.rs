//! Opening a log that was closed, was crashed, or was never there.
//!
//! A crash can tear the last line. That line, and only that one, is cut off, kept beside the
//! segment in a `.torn` file, and owned up to in a [`recovery`](EventKind::Recovery) record. Whatever
//! else doesn't fit is no crash but damage or tampering: then the log isn't opened, since going on
//! behind it would bury it. Only the last two segments are read; [`verify`](super::verify()) reads all.

use std::io;
use std::path::Path;

use super::chain::{Head, Link, Misfit};
use super::error::AuditError;
use super::event::{Event, EventKind};
use super::segment::{Directory, Line, Lines, Segment, SegmentFile, SegmentPath, Store, Torn};
use super::verify::{Fault, FaultKind, diagnose};

/// A log ready for its writer.
pub(super) struct Opened {
    pub(super) store: Box<dyn Store>,
    pub(super) segment: Box<dyn Segment>,
    pub(super) index: u64,
    /// Bytes of the segment that stand.
    pub(super) len: u64,
    pub(super) head: Head,
    /// To be recorded before anything else.
    pub(super) recovery: Option<Event>,
}

/// Locks the folder and finds the end of the log in it.
pub(super) fn open(dir: &Path) -> Result<Opened, AuditError> {
    let mut directory = Directory::lock(dir)?;
    let segments = SegmentPath::list(dir)?;
    let Some(last) = segments.last() else {
        let segment = directory.create(1).map_err(AuditError::file(dir))?;
        let (store, head) = (Box::new(directory), Head::default());
        return Ok(Opened {
            store,
            segment,
            index: 1,
            len: 0,
            head,
            recovery: None,
        });
    };
    let end = find_end(dir, &segments)?;
    let (file, recovery) = directory
        .open(last)
        .and_then(|file| mend(&directory, file, last, &end))
        .map_err(AuditError::file(&last.path))?;
    Ok(Opened {
        store: Box::new(directory),
        segment: Box::new(file),
        index: last.index,
        len: end.len + u64::from(end.tail == Tail::Unended),
        head: end.head,
        recovery,
    })
}

/// Where the records of a segment end.
#[derive(Debug)]
struct End {
    head: Head,
    /// Records in the segment.
    lines: u64,
    /// Bytes up to the end of the last record.
    len: u64,
    tail: Tail,
}

/// What is behind the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Clean,
    /// The record is whole, its newline is missing.
    Unended,
    /// The beginning of a record that was never finished.
    Torn,
}

/// Reads the last two segments: the last may hold nothing yet that says what it follows.
fn find_end(dir: &Path, segments: &[SegmentPath]) -> Result<End, AuditError> {
    let (from, rest) = match segments {
        [.., from, last] => (from, Some(last)),
        [from] => (from, None),
        [] => {
            return Err(AuditError::NoLog {
                dir: dir.to_owned(),
            });
        }
    };
    let before = match from.index {
        1 => Head::default(),
        _ => predecessor(from)?.unwrap_or_default(),
    };
    let end = scan(dir, segments, from, before)?;
    let Some(last) = rest else { return Ok(end) };
    if end.tail != Tail::Clean {
        let fault = Fault::new(FaultKind::Torn, from.name(), end.lines + 1, end.head);
        return Err(broken(dir, fault));
    }
    scan(dir, segments, last, end.head)
}

/// What the first record of a segment says it follows.
fn predecessor(segment: &SegmentPath) -> Result<Option<Head>, AuditError> {
    let mut line = Vec::new();
    Lines::open(&segment.path)?
        .next(&mut line)
        .map_err(AuditError::file(&segment.path))?;
    Ok(Link::read(&line).map(|link| link.predecessor()))
}

/// Reads a segment that follows `head`, up to its end or to a torn last line.
fn scan(
    dir: &Path,
    segments: &[SegmentPath],
    segment: &SegmentPath,
    head: Head,
) -> Result<End, AuditError> {
    let mut lines = Lines::open(&segment.path)?;
    let size = lines
        .file_bytes()
        .map_err(AuditError::file(&segment.path))?;
    let mut line = Vec::new();
    let mut end = End {
        head,
        lines: 0,
        len: 0,
        tail: Tail::Clean,
    };
    while end.tail == Tail::Clean {
        let found = lines
            .next(&mut line)
            .map_err(AuditError::file(&segment.path))?;
        if found == Line::End {
            break;
        }
        match end.head.follow(&line) {
            Ok(link) => {
                let tail = if found == Line::Whole {
                    Tail::Clean
                } else {
                    Tail::Unended
                };
                end = End {
                    head: link.head,
                    lines: end.lines + 1,
                    len: lines.offset(),
                    tail,
                };
            }
            Err(Misfit::Unsound) if lines.offset() == size => end.tail = Tail::Torn,
            Err(misfit) => {
                let kind = diagnose(segments, end.head, misfit)?;
                let fault = Fault::new(kind, segment.name(), end.lines + 1, end.head);
                return Err(broken(dir, fault.found(misfit)));
            }
        }
    }
    Ok(end)
}

fn broken(dir: &Path, fault: Fault) -> AuditError {
    AuditError::Broken {
        dir: dir.to_owned(),
        fault: Box::new(fault),
    }
}

/// Brings the file to where the next record can follow.
fn mend(
    directory: &Directory,
    mut file: SegmentFile,
    segment: &SegmentPath,
    end: &End,
) -> io::Result<(SegmentFile, Option<Event>)> {
    match end.tail {
        Tail::Clean => Ok((file, None)),
        Tail::Unended => match file.write_at(b"\n", end.len)? {
            1 => Ok((file, None)),
            _ => Err(io::ErrorKind::WriteZero.into()),
        },
        Tail::Torn => {
            let name = segment.name();
            let Torn { at, bytes } = directory.put_torn_aside(&mut file, end.len)?;
            tracing::warn!(bytes, segment = name, "cut a torn audit record off");
            let detail = format!(
                "cut a torn record off `{name}`; its bytes are kept in `{name}.torn` from byte {at}"
            );
            let (count, detail) = (Some(bytes), Some(detail));
            Ok((
                file,
                Some(Event {
                    count,
                    detail,
                    ..Event::new(EventKind::Recovery)
                }),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::audit::test_log::{TestLog, request};
    use crate::audit::{AuditLog, verify};

    fn fault_of(error: AuditError) -> Fault {
        match error {
            AuditError::Broken { fault, .. } => *fault,
            other => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn a_log_goes_on_where_it_stopped() {
        let log = TestLog::new();
        let first = log.write(3).await;
        let open = log.open();
        assert_eq!(open.head(), first);
        assert_eq!(open.close().await.unwrap(), first);
        let second = log.write(2).await;
        assert_eq!((first.seq, second.seq), (3, 5));
        assert_eq!(log.fault(Some(first)), None);
        assert_eq!(log.fault(Some(second)), None);
    }

    #[tokio::test]
    async fn every_truncation_of_the_last_record_is_recovered() {
        let log = TestLog::new();
        let head = log.write(3).await;
        let whole = log.bytes();
        let last = log.lines().pop().unwrap().len();
        for cut in 0..=last {
            let kept = whole.len() - cut;
            log.spoil(&whole[..kept]);
            let torn = log.path().join("audit-000001.jsonl.torn");
            drop(fs::remove_file(&torn));
            let open = log.open();
            open.append(&request(9)).await.unwrap();
            open.close().await.unwrap();

            let records = log.records();
            let kinds: Vec<&str> = records[2..].iter().filter_map(|r| r.text("kind")).collect();
            let report = verify(log.path(), None).unwrap();
            assert_eq!(report.fault, None, "{cut} bytes cut");
            if cut <= 1 {
                // Whole, with or without its newline.
                assert_eq!(kinds, ["request", "request"]);
                assert_eq!((report.recoveries, log.fault(Some(head))), (0, None));
            } else if cut == last {
                assert_eq!(kinds, ["request"], "a clean end tears nothing");
            } else {
                assert_eq!(kinds, ["recovery", "request"]);
                assert_eq!(records[2].number("count"), Some((last - cut) as u64));
                assert_eq!(report.recoveries, 1);
                assert_eq!(fs::read(&torn).unwrap(), &whole[whole.len() - last..kept]);
            }
        }
    }

    #[tokio::test]
    async fn torn_tails_of_several_crashes_are_all_kept() {
        let log = TestLog::new();
        log.write(1).await;
        for torn in ["{\"seq\":2,\"ti", "{\"s"] {
            let mut bytes = log.bytes();
            bytes.extend_from_slice(torn.as_bytes());
            log.spoil(bytes);
            log.open().close().await.unwrap();
        }
        let kept = fs::read_to_string(log.path().join("audit-000001.jsonl.torn")).unwrap();
        assert_eq!(kept, "{\"seq\":2,\"ti{\"s");
        let details: Vec<String> = log
            .records()
            .iter()
            .filter_map(|r| r.text("detail").map(str::to_owned))
            .collect();
        assert!(details[0].ends_with("from byte 0") && details[1].ends_with("from byte 12"));
        assert_eq!(log.fault(None), None);
    }

    #[tokio::test]
    async fn a_crash_right_after_rotation_loses_nothing() {
        for torn in ["", "{\"seq\":5,"] {
            let log = TestLog::with_segments_of(1);
            log.write(4).await;
            fs::write(log.segment(5), torn).unwrap();
            let head = log.write(1).await;
            assert_eq!(head.seq, if torn.is_empty() { 5 } else { 6 });
            assert_eq!(log.fault(None), None);
        }
    }

    #[tokio::test]
    async fn damage_before_the_last_line_is_not_buried() {
        let log = TestLog::new();
        log.write(4).await;
        let lines = log.lines();
        let spoilt = [
            (
                lines
                    .concat()
                    .replacen(":2}", ":7}", 1)
                    .replacen("\"port\":2", "\"port\":7", 1),
                FaultKind::Changed,
                2,
            ),
            (
                [&lines[0], &lines[2], &lines[3]]
                    .map(String::as_str)
                    .concat(),
                FaultKind::Missing,
                2,
            ),
            (
                [&lines[0], &lines[2], &lines[1]]
                    .map(String::as_str)
                    .concat(),
                FaultKind::Reordered,
                2,
            ),
            (
                [&lines[0], &lines[1], &lines[1]]
                    .map(String::as_str)
                    .concat(),
                FaultKind::Duplicated,
                3,
            ),
        ];
        for (bytes, kind, line) in spoilt {
            log.spoil(&bytes);
            let fault = fault_of(AuditLog::open(log.config.clone()).unwrap_err());
            assert_eq!((fault.kind, fault.line), (kind, line));
            assert_eq!(log.bytes(), bytes.as_bytes(), "untouched");
        }
    }

    #[tokio::test]
    async fn a_segment_of_another_log_is_not_continued() {
        let (log, other) = (TestLog::with_segments_of(1), TestLog::with_segments_of(1));
        log.write(3).await;
        other.write(3).await;
        fs::copy(other.segment(3), log.segment(3)).unwrap();
        let fault = fault_of(AuditLog::open(log.config.clone()).unwrap_err());
        assert_eq!(
            (fault.kind, fault.file.as_str()),
            (FaultKind::Foreign, "audit-000003.jsonl")
        );
    }
}
