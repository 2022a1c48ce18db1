//! Reads a whole log from its first record on, one record in memory at a time.
//!
//! Nothing is verified here, and no writer is disturbed: what is written while the log is read may
//! or may not be seen.

use std::path::Path;

use super::error::AuditError;
use super::record::StoredRecord;
use super::segment::{Line, Lines, SegmentPath};

/// Opens the log in `dir` for reading from its beginning.
///
/// # Errors
/// [`AuditError::NoLog`] or [`AuditError::File`].
pub fn read(dir: &Path) -> Result<Records, AuditError> {
    let mut segments = SegmentPath::list(dir)?;
    if segments.is_empty() {
        return Err(AuditError::NoLog {
            dir: dir.to_owned(),
        });
    }
    segments.reverse();
    Ok(Records {
        segments,
        open: None,
        line: Vec::new(),
    })
}

/// The records of [`read()`], oldest first.
///
/// A line that is no record is an error item, [`AuditError::NotARecord`]; reading goes on after it.
/// The unfinished last line of a log that is being written is no item. Any other error is the last
/// item.
#[derive(Debug)]
pub struct Records {
    /// Those that were not opened yet, the next one last.
    segments: Vec<SegmentPath>,
    open: Option<(SegmentPath, Lines)>,
    line: Vec<u8>,
}

impl Iterator for Records {
    type Item = Result<StoredRecord, AuditError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if let Err(error) = &next
            && !matches!(error, AuditError::NotARecord { .. })
        {
            self.segments.clear();
            self.open = None;
        }
        next.transpose()
    }
}

impl Records {
    fn advance(&mut self) -> Result<Option<StoredRecord>, AuditError> {
        loop {
            let Some((segment, lines)) = &mut self.open else {
                let Some(segment) = self.segments.pop() else {
                    return Ok(None);
                };
                let lines = Lines::open(&segment.path)?;
                self.open = Some((segment, lines));
                continue;
            };
            let start = lines.offset();
            let found = lines
                .next(&mut self.line)
                .map_err(AuditError::file(&segment.path))?;
            let is_last = self.segments.is_empty();
            match found {
                Line::End => self.open = None,
                // Nothing comes after it but what the writer is about to write.
                Line::Cut if is_last && self.line.len() <= super::MAX_RECORD_BYTES => {
                    self.open = None;
                }
                Line::Whole | Line::Cut => {
                    let record = StoredRecord::parse(&self.line);
                    return match record.filter(|_| found == Line::Whole) {
                        Some(record) => Ok(Some(record)),
                        None => Err(AuditError::NotARecord {
                            file: segment.path.clone(),
                            offset: start,
                        }),
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::audit::test_log::TestLog;

    /// The number of each record, or where a line is none.
    fn seen(log: &TestLog) -> Vec<Result<u64, u64>> {
        read(log.path())
            .unwrap()
            .map(|item| match item {
                Ok(record) => Ok(record.number("seq").unwrap()),
                Err(AuditError::NotARecord { offset, .. }) => Err(offset),
                Err(error) => panic!("{error}"),
            })
            .collect()
    }

    #[tokio::test]
    async fn every_record_comes_once_and_in_order() {
        let log = TestLog::with_segments_of(700);
        log.write(9).await;
        assert!(log.segments().len() > 3);
        assert_eq!(seen(&log), (1..=9).map(Ok).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_line_that_is_no_record_is_told_and_an_unfinished_one_is_not() {
        let log = TestLog::new();
        log.write(3).await;
        let lines = log.lines();
        let torn = lines[2].trim_end();
        log.spoil(format!("{}junk\n{}{torn}", lines[0], lines[1]));
        assert_eq!(seen(&log), [Ok(1), Err(lines[0].len() as u64), Ok(2)]);
        // In a segment that is not the last one, the writer has gone on: nobody finishes the line.
        fs::write(log.segment(2), &lines[2]).unwrap();
        let second = (lines[0].len() + 5 + lines[1].len()) as u64;
        assert_eq!(
            seen(&log),
            [Ok(1), Err(lines[0].len() as u64), Ok(2), Err(second), Ok(3)]
        );
    }

    #[test]
    fn a_line_beyond_every_record_ends_and_does_not_fill_the_memory() {
        let log = TestLog::new();
        fs::create_dir_all(log.path()).unwrap();
        let limit = crate::audit::MAX_RECORD_BYTES as u64 + 1;
        log.spoil(vec![b'x'; 3 * limit as usize - 1]);
        assert_eq!(seen(&log), [Err(0), Err(limit)]);
    }

    #[test]
    fn a_folder_without_a_log_is_an_error() {
        let log = TestLog::new();
        fs::create_dir_all(log.path()).unwrap();
        assert!(matches!(read(log.path()), Err(AuditError::NoLog { .. })));
        assert!(matches!(
            read(&log.beside("none")),
            Err(AuditError::File { .. })
        ));
    }
}
