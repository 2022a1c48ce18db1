//! Reads the end of a log, and goes on reading while it grows.
//!
//! Following polls the size of the last segment: it works on every file system, survives rotation,
//! and costs one `stat` per look. Nothing is verified here.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::error::AuditError;
use super::event::EventKind;
use super::record::StoredRecord;
use super::segment::{Line, Lines, SegmentPath};

/// Between two looks at a log that had nothing new: prompt for a person, nothing for a machine.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Which records to show: all that have every value named here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The sandbox's id.
    pub sandbox: Option<String>,
    /// `allow` or `deny`.
    pub verdict: Option<String>,
    /// A reason code.
    pub reason: Option<String>,
    /// The destination, as recorded.
    pub host: Option<String>,
    /// What happened.
    pub kind: Option<EventKind>,
}

impl Filter {
    /// Whether `record` is to be shown.
    #[must_use]
    pub fn matches(&self, record: &StoredRecord) -> bool {
        let wanted = [
            ("sandbox.id", self.sandbox.as_deref()),
            ("verdict", self.verdict.as_deref()),
            ("reason", self.reason.as_deref()),
            ("host", self.host.as_deref()),
            ("kind", self.kind.map(EventKind::as_str)),
        ];
        wanted
            .into_iter()
            .all(|(field, value)| value.is_none() || record.text(field) == value)
    }
}

/// What [`tail()`] shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailOptions {
    /// How many of the last matching records come first.
    pub last: usize,
    /// Whether to wait for more after them, for ever.
    pub follow: bool,
    /// Which records.
    pub filter: Filter,
}

/// Opens the log in `dir` for reading at its end. Needs no lock and disturbs no writer.
///
/// # Errors
/// [`AuditError::NoLog`] or [`AuditError::File`].
pub fn tail(dir: &Path, options: TailOptions) -> Result<Tail, AuditError> {
    let segments = SegmentPath::list(dir)?;
    let Some(newest) = segments.last() else {
        return Err(AuditError::NoLog {
            dir: dir.to_owned(),
        });
    };
    let TailOptions {
        last,
        follow,
        filter,
    } = options;
    let mut at = Cursor::open(dir, newest.clone())?;
    let mut ready = VecDeque::new();
    at.last_matching(last, &filter, &mut ready)?;
    for segment in segments.iter().rev().skip(1) {
        let wanted = last - ready.len();
        if wanted == 0 {
            break;
        }
        let mut older = VecDeque::new();
        Cursor::open(dir, segment.clone())?.last_matching(wanted, &filter, &mut older)?;
        older.append(&mut ready);
        ready = older;
    }
    Ok(Tail {
        ready,
        at: follow.then_some(at),
        filter,
    })
}

/// The records of [`tail()`], oldest first. When following, waits (blocking) instead of ending.
///
/// A line that is no record is an error item; reading goes on after it.
#[derive(Debug)]
pub struct Tail {
    ready: VecDeque<Result<StoredRecord, AuditError>>,
    /// Where to go on; none when not following.
    at: Option<Cursor>,
    filter: Filter,
}

impl Iterator for Tail {
    type Item = Result<StoredRecord, AuditError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.ready.pop_front() {
            return Some(record);
        }
        let at = self.at.as_mut()?;
        loop {
            match at.advance() {
                Ok(Some(Ok(record))) if !self.filter.matches(&record) => {}
                Ok(Some(item)) => return Some(item),
                Ok(None) => thread::sleep(LOOK_AGAIN),
                Err(error) => {
                    self.at = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// A place in a log.
#[derive(Debug)]
struct Cursor {
    dir: PathBuf,
    segment: SegmentPath,
    lines: Lines,
    line: Vec<u8>,
    /// The next segment is there, so this one is finished: what it holds is all it will hold.
    is_final: bool,
}

impl Cursor {
    fn open(dir: &Path, segment: SegmentPath) -> Result<Self, AuditError> {
        let lines = Lines::open(&segment.path)?;
        Ok(Self {
            dir: dir.to_owned(),
            segment,
            lines,
            line: Vec::new(),
            is_final: false,
        })
    }

    /// Reads to the end of the segment and keeps the last `wanted` matches.
    fn last_matching(
        &mut self,
        wanted: usize,
        filter: &Filter,
        kept: &mut VecDeque<Result<StoredRecord, AuditError>>,
    ) -> Result<(), AuditError> {
        while let Some(item) = self.next_line()? {
            if item.as_ref().is_ok_and(|record| !filter.matches(record)) {
                continue;
            }
            kept.push_back(item);
            if kept.len() > wanted {
                kept.pop_front();
            }
        }
        Ok(())
    }

    /// The next record of this segment or the one after; none when there is none yet.
    fn advance(&mut self) -> Result<Option<Result<StoredRecord, AuditError>>, AuditError> {
        loop {
            if let Some(item) = self.next_line()? {
                return Ok(Some(item));
            }
            let next = SegmentPath::new(&self.dir, self.segment.index.saturating_add(1));
            if !self.is_final {
                // The writer may have added lines between our look at this segment and the making
                // of the next: look once more before going on.
                self.is_final = next
                    .path
                    .try_exists()
                    .map_err(AuditError::file(&next.path))?;
                if !self.is_final {
                    return Ok(None);
                }
            } else {
                *self = Self::open(&self.dir, next)?;
            }
        }
    }

    /// The next whole line of this segment.
    fn next_line(&mut self) -> Result<Option<Result<StoredRecord, AuditError>>, AuditError> {
        let start = self.lines.offset();
        let file = &self.segment.path;
        match self
            .lines
            .next(&mut self.line)
            .map_err(AuditError::file(file))?
        {
            Line::Whole => Ok(Some(StoredRecord::parse(&self.line).ok_or_else(|| {
                AuditError::NotARecord {
                    file: file.clone(),
                    offset: start,
                }
            }))),
            Line::Cut | Line::End => {
                // A record that was taken back (the disk failed to keep it) leaves us behind the
                // end; records are whole, so the new end is the beginning of the next.
                let bytes = self.lines.file_bytes().map_err(AuditError::file(file))?;
                self.lines
                    .seek(start.min(bytes))
                    .map_err(AuditError::file(file))?;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::sync::mpsc;

    use super::*;
    use crate::audit::test_log::{TestLog, request};
    use crate::audit::{Event, EventKind};

    fn last(n: usize) -> TailOptions {
        TailOptions {
            last: n,
            ..TailOptions::default()
        }
    }

    fn seqs(tail: impl Iterator<Item = Result<StoredRecord, AuditError>>) -> Vec<u64> {
        tail.map(|record| record.unwrap().number("seq").unwrap())
            .collect()
    }

    #[tokio::test]
    async fn the_last_records_come_across_segments() {
        let log = TestLog::with_segments_of(700);
        log.write(9).await;
        assert!(log.segments().len() > 3);
        for n in [0, 1, 4, 9, 100] {
            let expected: Vec<u64> = (1..=9).skip(9_usize.saturating_sub(n)).collect();
            assert_eq!(seqs(tail(log.path(), last(n)).unwrap()), expected);
        }
    }

    #[tokio::test]
    async fn a_filter_looks_back_for_its_matches() {
        let log = TestLog::with_segments_of(700);
        let open = log.open();
        for port in 1..=9 {
            let host = Some(format!("{}.test", port % 3));
            open.append(&Event {
                host,
                ..request(port)
            })
            .await
            .unwrap();
        }
        open.append(&Event::new(EventKind::GatewayStop))
            .await
            .unwrap();
        let by = |filter| seqs(tail(log.path(), TailOptions { filter, ..last(2) }).unwrap());
        assert_eq!(
            by(Filter {
                host: Some("1.test".to_owned()),
                ..Filter::default()
            }),
            [4, 7]
        );
        assert_eq!(
            by(Filter {
                kind: Some(EventKind::GatewayStop),
                ..Filter::default()
            }),
            [10]
        );
        assert_eq!(
            by(Filter {
                verdict: Some("deny".to_owned()),
                ..Filter::default()
            }),
            [0; 0]
        );
    }

    #[tokio::test]
    async fn following_crosses_rotations_and_half_written_lines() {
        let log = TestLog::with_segments_of(700);
        let open = log.open();
        open.append(&request(1)).await.unwrap();
        let follower = tail(
            log.path(),
            TailOptions {
                follow: true,
                ..last(5)
            },
        )
        .unwrap();
        let (seen, sees) = mpsc::channel();
        let reader = thread::spawn(move || {
            for record in follower.take(40) {
                seen.send(record.unwrap().number("seq").unwrap()).unwrap();
            }
        });
        assert_eq!(sees.recv(), Ok(1));
        for port in 2..=39 {
            open.append(&request(port)).await.unwrap();
        }
        // The last line comes in two writes.
        let head = open.close().await.unwrap();
        let mut line = Vec::new();
        let event = crate::audit::ascii::event_line(&request(40)).unwrap();
        head.seal(&mut line, &jiff::Timestamp::now().into(), &event);
        let newest = log.segments().pop().unwrap();
        let mut file = OpenOptions::new().append(true).open(newest).unwrap();
        file.write_all(&line[..50]).unwrap();
        assert_eq!(
            sees.iter().take(38).collect::<Vec<u64>>(),
            (2..=39).collect::<Vec<u64>>()
        );
        file.write_all(&line[50..]).unwrap();
        assert_eq!(sees.recv(), Ok(40));
        reader.join().unwrap();
    }

    #[tokio::test]
    async fn a_line_that_is_no_record_is_told_and_passed() {
        let log = TestLog::new();
        log.write(2).await;
        let lines = log.lines();
        log.spoil(format!("{}junk\n{}", lines[0], lines[1]));
        let mut tail = tail(log.path(), last(3)).unwrap();
        assert!(tail.next().unwrap().is_ok());
        let told = tail.next().unwrap().unwrap_err();
        assert!(
            matches!(told, AuditError::NotARecord { offset, .. } if offset == lines[0].len() as u64)
        );
        assert!(tail.next().unwrap().is_ok());
        assert!(tail.next().is_none());
    }

    #[test]
    fn an_empty_folder_is_no_log() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            tail(dir.path(), last(1)),
            Err(AuditError::NoLog { .. })
        ));
    }
}
