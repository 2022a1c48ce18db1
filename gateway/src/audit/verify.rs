//! Reads a whole log as an auditor who doubts it, and names the first record that is not as it was
//! written.
//!
//! The chain alone can't tell that records are gone from the end, or that somebody with write
//! access made the whole chain anew. A head that the auditor keeps elsewhere tells both.

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::chain::{Head, Link, Misfit};
use super::error::AuditError;
use super::record::MAX_RECORD_BYTES;
use super::segment::{Line, Lines, SegmentPath};

/// How long the last line of a log may stay without its newline: a living writer needs
/// microseconds, a dead one never ends it.
const PATIENCE: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What a log was found to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Records that fit, up to the end or the first fault.
    pub records: u64,
    /// Segment files in the folder.
    pub segments: u64,
    /// Number of the first record; none in a log without records.
    pub first_seq: Option<u64>,
    /// The last record that fits: what to pin for the next time.
    pub head: Option<Head>,
    /// Records that own up to a torn tail that was cut off after a crash.
    pub recoveries: u64,
    /// The first thing that is wrong.
    pub fault: Option<Fault>,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.fault.is_none()
    }
}

/// The first bad record and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// The segment's file name.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
    /// The number that the record there has; none when it can't be trusted or nothing is there.
    pub seq: Option<u64>,
    /// The number that should be there.
    pub expected_seq: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            file,
            line,
            seq,
            expected_seq,
        } = self;
        write!(
            f,
            "{kind}: `{file}` line {line} should be record {expected_seq}"
        )?;
        if let Some(seq) = seq {
            write!(f, " and is record {seq}")?;
        }
        write!(f, ": {}", kind.explanation())
    }
}

impl Fault {
    /// At this line, `head` should have been followed.
    pub(super) fn new(kind: FaultKind, file: String, line: u64, head: Head) -> Self {
        Self {
            kind,
            file,
            line,
            seq: None,
            expected_seq: head.next_seq(),
        }
    }

    /// The same, naming the record that was there instead.
    pub(super) fn found(self, misfit: Misfit) -> Self {
        Self {
            seq: misfit.seq(),
            ..self
        }
    }
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// The line doesn't match its own hash, or is no record at all.
    Changed,
    /// A record stands a second time.
    Duplicated,
    /// A sound record, or a whole segment, of another chain.
    Foreign,
    /// Records are gone.
    Missing,
    /// Records stand in another order.
    Reordered,
    /// The pinned record is there with another hash: the chain was made anew.
    Rewritten,
    /// A line that was never finished, as a crash leaves it.
    Torn,
    /// The log ends before the pinned record.
    Truncated,
}

impl FaultKind {
    /// What it means, as a sentence.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::Changed => "the line is not what its hash says",
            Self::Duplicated => "the record stands in the log before already",
            Self::Foreign => "the record is sound but belongs to another chain",
            Self::Missing => "the records between are nowhere in the log",
            Self::Reordered => "the record that should be here stands further down",
            Self::Rewritten => "its hash is not the one that was pinned",
            Self::Torn => "the line was never finished",
            Self::Truncated => "the log ends before the record that was pinned",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "changed",
            Self::Duplicated => "duplicated",
            Self::Foreign => "foreign",
            Self::Missing => "missing",
            Self::Reordered => "reordered",
            Self::Rewritten => "rewritten",
            Self::Torn => "torn",
            Self::Truncated => "truncated",
        })
    }
}

/// Reads the log in `dir` from its first record to its last. `pinned` is a head that the log had
/// at an earlier time: the log may have grown since, but must still hold that record.
///
/// May run while the log is written; what is appended meanwhile may or may not be covered.
///
/// # Errors
/// [`AuditError::NoLog`] or [`AuditError::File`]: nothing was verified then. A broken chain is no
/// error but a [`Fault`] in the report.
pub fn verify(dir: &Path, pinned: Option<Head>) -> Result<Report, AuditError> {
    let segments = SegmentPath::list(dir)?;
    let Some(last) = segments.last() else {
        return Err(AuditError::NoLog {
            dir: dir.to_owned(),
        });
    };
    let mut walk = Walk {
        segments: &segments,
        pinned,
        head: Head::default(),
        recoveries: 0,
    };
    let mut fault = None;
    let mut lines = 0;
    for segment in &segments {
        (lines, fault) = walk.segment(segment, segment == last)?;
        if fault.is_some() {
            break;
        }
    }
    let head = walk.head;
    if let Some(pin) = pinned.filter(|pin| fault.is_none() && pin.seq > head.seq) {
        let end = Fault::new(FaultKind::Truncated, last.name(), lines + 1, head);
        fault = Some(Fault {
            expected_seq: pin.seq,
            ..end
        });
    }
    Ok(Report {
        records: head.seq,
        segments: segments.len() as u64,
        first_seq: (head.seq > 0).then_some(1),
        head: (head.seq > 0).then_some(head),
        recoveries: walk.recoveries,
        fault,
    })
}

struct Walk<'a> {
    segments: &'a [SegmentPath],
    pinned: Option<Head>,
    head: Head,
    recoveries: u64,
}

impl Walk<'_> {
    /// Follows the chain through one segment; returns its sound lines and the first fault in it.
    fn segment(
        &mut self,
        segment: &SegmentPath,
        is_last: bool,
    ) -> Result<(u64, Option<Fault>), AuditError> {
        let mut lines = Lines::open(&segment.path)?;
        let mut line = Vec::new();
        let mut sound = 0;
        loop {
            let found = next_finished(&mut lines, &mut line, is_last)
                .map_err(AuditError::file(&segment.path))?;
            if found == Line::End {
                return Ok((sound, None));
            }
            let fault = |kind| Fault::new(kind, segment.name(), sound + 1, self.head);
            let is_torn = found == Line::Cut && line.len() <= MAX_RECORD_BYTES;
            let link = match self.head.follow(&line) {
                Ok(link) if found == Line::Whole || is_last => link,
                Ok(_) => return Ok((sound, Some(fault(FaultKind::Torn)))),
                Err(Misfit::Unsound) if is_torn => {
                    return Ok((sound, Some(fault(FaultKind::Torn))));
                }
                Err(misfit) => {
                    let kind = diagnose(self.segments, self.head, misfit)?;
                    return Ok((sound, Some(fault(kind).found(misfit))));
                }
            };
            if self
                .pinned
                .is_some_and(|pin| pin.seq == link.head.seq && pin != link.head)
            {
                return Ok((sound, Some(fault(FaultKind::Rewritten))));
            }
            self.head = link.head;
            self.recoveries += u64::from(link.is_recovery);
            sound += 1;
        }
    }
}

/// The next line; at the end of a log that may be alive, waits a little for one to be finished.
fn next_finished(lines: &mut Lines, line: &mut Vec<u8>, is_last: bool) -> std::io::Result<Line> {
    let start = lines.offset();
    let began = Instant::now();
    loop {
        let found = lines.next(line)?;
        let is_unfinished = found == Line::Cut && Link::read(line).is_none();
        if !is_unfinished || !is_last || line.len() > MAX_RECORD_BYTES || began.elapsed() > PATIENCE
        {
            return Ok(found);
        }
        thread::sleep(LOOK_AGAIN);
        lines.seek(start)?;
    }
}

/// Says what a line that doesn't follow `head` means, by looking for its like in the rest of the
/// log.
pub(super) fn diagnose(
    segments: &[SegmentPath],
    head: Head,
    misfit: Misfit,
) -> Result<FaultKind, AuditError> {
    let holds = |wanted: &dyn Fn(Head) -> bool| holds(segments, wanted);
    Ok(match misfit {
        Misfit::Unsound => FaultKind::Changed,
        Misfit::Foreign(_) => FaultKind::Foreign,
        // All records up to `head` were seen, so one of these has this number; is it this one?
        Misfit::Behind(found) if holds(&|other| other == found)? > 1 => FaultKind::Duplicated,
        Misfit::Behind(_) => FaultKind::Foreign,
        Misfit::Ahead(_) if holds(&|other| other.seq == head.next_seq())? > 0 => {
            FaultKind::Reordered
        }
        Misfit::Ahead(_) => FaultKind::Missing,
    })
}

/// How many sound records of the log are as `wanted`.
fn holds(segments: &[SegmentPath], wanted: &dyn Fn(Head) -> bool) -> Result<u64, AuditError> {
    let mut count = 0;
    let mut line = Vec::new();
    for segment in segments {
        let mut lines = Lines::open(&segment.path)?;
        while lines
            .next(&mut line)
            .map_err(AuditError::file(&segment.path))?
            != Line::End
        {
            count += u64::from(Link::read(&line).is_some_and(|link| wanted(link.head)));
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use proptest::prelude::*;
    use proptest::test_runner::TestCaseError;

    use super::*;
    use crate::audit::Event;
    use crate::audit::test_log::{TestLog, request};

    fn written(count: u16) -> (TestLog, Head) {
        let log = TestLog::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let head = runtime.block_on(log.write(count));
        (log, head)
    }

    #[tokio::test]
    async fn a_whole_log_is_intact_and_gives_its_head() {
        let log = TestLog::with_segments_of(1000);
        let head = log.write(20).await;
        let segments = log.segments().len() as u64;
        assert!(segments > 5);
        let expected = Report {
            records: 20,
            segments,
            first_seq: Some(1),
            head: Some(head),
            recoveries: 0,
            fault: None,
        };
        assert_eq!(verify(log.path(), Some(head)).unwrap(), expected);
    }

    #[test]
    fn any_change_of_any_byte_is_found() {
        let (log, head) = written(3);
        let whole = log.bytes();
        for at in 0..whole.len() {
            for other in [whole[at] ^ 1, whole[at] ^ 0x20, b'\n', 0] {
                if other == whole[at] {
                    continue;
                }
                let mut spoilt = whole.clone();
                spoilt[at] = other;
                log.spoil(&spoilt);
                assert!(log.fault(None).is_some(), "byte {at} became {other}");
            }
        }
        log.spoil(&whole);
        assert_eq!(log.fault(Some(head)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_swap_removal_or_duplication_of_lines_is_found(
            from in 0..12_usize, to in 0..12_usize, text in "(?s).{0,40}",
        ) {
            let log = TestLog::with_segments_of(1_000_000);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let head = runtime.block_on(async {
                let open = log.open();
                for port in 0..12 {
                    let event = Event { detail: Some(text.clone()), ..request(port) };
                    open.append(&event).await.unwrap();
                }
                open.close().await.unwrap()
            });
            let lines = log.lines();
            let check = |lines: Vec<String>, expected: FaultKind, line: usize| {
                log.spoil(lines.concat());
                let fault = log.fault(Some(head)).map(|fault| (fault.kind, fault.line));
                prop_assert_eq!(fault, Some((expected, line as u64 + 1)));
                Ok::<(), TestCaseError>(())
            };
            let mut removed = lines.clone();
            removed.remove(from);
            let kind = if from == 11 { FaultKind::Truncated } else { FaultKind::Missing };
            check(removed, kind, from)?;

            let mut duplicated = lines.clone();
            duplicated.insert(to, lines[from].clone());
            match to.cmp(&from) {
                // The copy comes first: read alone, it is the original that is out of order.
                std::cmp::Ordering::Less => check(duplicated, FaultKind::Reordered, to)?,
                std::cmp::Ordering::Equal => check(duplicated, FaultKind::Duplicated, to + 1)?,
                std::cmp::Ordering::Greater => check(duplicated, FaultKind::Duplicated, to)?,
            }

            if from != to {
                let mut swapped = lines.clone();
                swapped.swap(from, to);
                check(swapped, FaultKind::Reordered, from.min(to))?;
            }
        }
    }

    #[test]
    fn a_record_put_in_the_place_of_another_is_found() {
        let (log, _) = written(4);
        let lines = log.lines();
        log.spoil(
            [&lines[0], &lines[1], &lines[0], &lines[3]]
                .map(String::as_str)
                .concat(),
        );
        let expected = Fault {
            kind: FaultKind::Duplicated,
            file: "audit-000001.jsonl".to_owned(),
            line: 3,
            seq: Some(1),
            expected_seq: 3,
        };
        assert_eq!(log.fault(None).as_ref(), Some(&expected));
        assert_eq!(
            expected.to_string(),
            "duplicated: `audit-000001.jsonl` line 3 should be record 3 and is record 1: \
             the record stands in the log before already"
        );
    }

    #[test]
    fn records_and_segments_of_another_chain_are_foreign() {
        let ((log, _), (other, _)) = (written(4), written(4));
        let mut lines = log.lines();
        lines[2] = other.lines()[2].clone();
        log.spoil(lines.concat());
        assert_eq!(log.fault_kind(), Some(FaultKind::Foreign));
        lines[2] = other.lines()[0].clone();
        log.spoil(lines.concat());
        assert_eq!(log.fault_kind(), Some(FaultKind::Foreign));
    }

    #[tokio::test]
    async fn segments_that_are_removed_swapped_or_emptied_are_found() {
        let spoil = |change: fn(&TestLog)| async move {
            let log = TestLog::with_segments_of(1);
            log.write(4).await;
            change(&log);
            let fault = log.fault(None);
            fault.map(|fault| (fault.kind, fault.file, fault.expected_seq))
        };
        let at = |kind, file: &str, seq| Some((kind, file.to_owned(), seq));
        let removed = spoil(|log| fs::remove_file(log.segment(1)).unwrap()).await;
        assert_eq!(removed, at(FaultKind::Missing, "audit-000002.jsonl", 1));
        let removed = spoil(|log| fs::remove_file(log.segment(3)).unwrap()).await;
        assert_eq!(removed, at(FaultKind::Missing, "audit-000004.jsonl", 3));
        let emptied = spoil(|log| fs::write(log.segment(2), "").unwrap()).await;
        assert_eq!(emptied, at(FaultKind::Missing, "audit-000003.jsonl", 2));
        let swapped = spoil(|log| {
            fs::rename(log.segment(2), log.beside("x")).unwrap();
            fs::rename(log.segment(3), log.segment(2)).unwrap();
            fs::rename(log.beside("x"), log.segment(3)).unwrap();
        });
        assert_eq!(
            swapped.await,
            at(FaultKind::Reordered, "audit-000002.jsonl", 2)
        );
        let copied = spoil(|log| {
            fs::copy(log.segment(2), log.segment(5)).unwrap();
        })
        .await;
        assert_eq!(copied, at(FaultKind::Duplicated, "audit-000005.jsonl", 5));
    }

    #[test]
    fn only_a_pinned_head_shows_that_the_end_is_gone() {
        let (log, head) = written(4);
        let lines = log.lines();
        log.spoil(lines[..3].concat());
        assert_eq!(log.fault(None), None);
        let expected = Fault {
            kind: FaultKind::Truncated,
            file: "audit-000001.jsonl".to_owned(),
            line: 4,
            seq: None,
            expected_seq: 4,
        };
        assert_eq!(log.fault(Some(head)), Some(expected));
        log.spoil("");
        assert_eq!(
            log.fault(Some(head)).map(|fault| fault.kind),
            Some(FaultKind::Truncated)
        );
    }

    #[test]
    fn only_a_pinned_head_shows_that_the_chain_was_made_anew() {
        let ((log, head), (forged, _)) = (written(4), written(9));
        log.spoil(forged.bytes());
        assert_eq!(log.fault(None), None);
        let fault = log.fault(Some(head)).map(|fault| (fault.kind, fault.line));
        assert_eq!(fault, Some((FaultKind::Rewritten, 4)));
    }

    #[test]
    fn an_unfinished_line_is_torn_and_a_whole_one_without_newline_is_not() {
        let (log, head) = written(2);
        let mut bytes = log.bytes();
        bytes.pop();
        log.spoil(&bytes);
        assert_eq!(log.fault(Some(head)), None);
        bytes.pop();
        log.spoil(&bytes);
        assert_eq!(log.fault_kind(), Some(FaultKind::Torn));
    }

    #[test]
    fn a_line_beyond_all_limits_is_read_in_bounded_memory() {
        let (log, _) = written(1);
        let mut bytes = log.bytes();
        bytes.resize(bytes.len() + 4 * MAX_RECORD_BYTES, 0);
        log.spoil(&bytes);
        assert_eq!(log.fault_kind(), Some(FaultKind::Changed));
    }

    #[test]
    fn the_wrong_folder_is_an_error_and_not_an_empty_log() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            verify(dir.path(), None),
            Err(AuditError::NoLog { .. })
        ));
        let missing = verify(&dir.path().join("x"), None);
        assert!(matches!(missing, Err(AuditError::File { .. })));
    }

    /// The code block of the manual in this language.
    fn manual(language: &str) -> &'static str {
        let manual = include_str!("../../../docs/audit.md");
        let (_, code) = manual.split_once(&format!("```{language}\n")).unwrap();
        code.split_once("```").unwrap().0
    }

    #[tokio::test]
    async fn the_manuals_python_agrees() {
        let log = TestLog::with_segments_of(1000);
        let head = log.write(20).await;
        let check = || {
            Command::new("python3")
                .args(["-c", manual("python")])
                .arg(log.path())
                .output()
        };
        let Ok(output) = check() else {
            eprintln!("skipped: no python3 here");
            return;
        };
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("{head}\n")
        );

        let first = fs::read_to_string(log.segment(1)).unwrap();
        log.spoil(first.replacen("api.example.com", "api.example.org", 1));
        let output = check().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.ends_with("line 1: should be record 1: changed\n"),
            "{said}"
        );
        assert_eq!(output.status.code(), Some(1));
        log.spoil(first.split_inclusive('\n').skip(1).collect::<String>());
        let said = String::from_utf8(check().unwrap().stderr).unwrap();
        assert!(
            said.ends_with("line 1: should be record 1: out of place\n"),
            "{said}"
        );
    }

    #[test]
    fn the_manuals_shell_agrees() {
        let (log, _) = written(6);
        let Ok(output) = Command::new("bash")
            .args(["-ec", manual("sh")])
            .current_dir(log.path())
            .output()
        else {
            eprintln!("skipped: no bash here");
            return;
        };
        let said = String::from_utf8(output.stdout).unwrap();
        if !output.status.success() || said.lines().count() < 2 {
            eprintln!("skipped: jq, xxd or sha256sum is missing");
            return;
        }
        let record = &log.records()[4];
        let hash = record.text("hash").unwrap();
        assert_eq!(said, format!("{hash}  -\n{hash}\n"));
    }
}
