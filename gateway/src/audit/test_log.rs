//! A log in a temporary folder, for the tests of this module: written by the real writer, then
//! read, or spoilt byte by byte.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::segment::SegmentPath;
use super::{
    AuditConfig, AuditLog, Event, EventKind, Fault, FaultKind, Head, StoredRecord, verify,
};

pub(super) struct TestLog {
    dir: TempDir,
    pub(super) config: AuditConfig,
}

impl TestLog {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditConfig::new(dir.path().join("audit"));
        Self { dir, config }
    }

    pub(super) fn with_segments_of(bytes: u64) -> Self {
        let mut log = Self::new();
        log.config.segment_bytes = bytes;
        log
    }

    pub(super) fn path(&self) -> &Path {
        &self.config.dir
    }

    /// A sibling of the log's folder.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn open(&self) -> AuditLog {
        AuditLog::open(self.config.clone()).unwrap()
    }

    /// Appends `count` requests one by one and closes.
    pub(super) async fn write(&self, count: u16) -> Head {
        let log = self.open();
        for port in 1..=count {
            log.append(&request(port)).await.unwrap();
        }
        log.close().await.unwrap()
    }

    pub(super) fn segment(&self, index: u64) -> PathBuf {
        SegmentPath::new(self.path(), index).path
    }

    pub(super) fn segments(&self) -> Vec<PathBuf> {
        SegmentPath::list(self.path())
            .unwrap()
            .into_iter()
            .map(|segment| segment.path)
            .collect()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        fs::read(self.segment(1)).unwrap()
    }

    pub(super) fn spoil(&self, bytes: impl AsRef<[u8]>) {
        fs::write(self.segment(1), bytes).unwrap();
    }

    /// Lines of the first segment, each with its newline.
    pub(super) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.bytes()).unwrap();
        text.split_inclusive('\n').map(str::to_owned).collect()
    }

    pub(super) fn records(&self) -> Vec<StoredRecord> {
        let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
        let text: String = self.segments().iter().map(read).collect();
        text.lines()
            .map(|line| StoredRecord::parse(line.as_bytes()).unwrap())
            .collect()
    }

    pub(super) fn fault(&self, pinned: Option<Head>) -> Option<Fault> {
        verify(self.path(), pinned).unwrap().fault
    }

    pub(super) fn fault_kind(&self) -> Option<FaultKind> {
        self.fault(None).map(|fault| fault.kind)
    }
}

pub(super) fn request(port: u16) -> Event {
    Event {
        host: Some("api.example.com".to_owned()),
        port: Some(port),
        ..Event::new(EventKind::Request)
    }
}
