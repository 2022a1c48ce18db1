//! What the guest's console and QEMU itself print, kept for the moment that something goes wrong.
//!
//! The guest writes it, so it is bounded in memory, always drained, and never shown raw: a
//! terminal would obey its control sequences.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// Bytes kept from the end; a kernel panic with its call trace is 3 kB.
const KEPT: usize = 32 << 10;

/// Lines of it that an error shows.
const SHOWN_LINES: usize = 25;

/// The end of a console. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Bytes seen so far; closed with the last pipe.
    seen: watch::Receiver<u64>,
}

impl Console {
    /// Drains `pipes` from now on, on the current runtime.
    ///
    /// # Errors
    /// When one of them isn't the reading end of a pipe.
    pub(crate) fn drain(pipes: Vec<OwnedFd>) -> io::Result<Self> {
        let kept = Arc::new(Mutex::new(VecDeque::with_capacity(KEPT)));
        let (counter, seen) = watch::channel(0);
        let counter = Arc::new(counter);
        for pipe in pipes {
            let pipe = pipe::Receiver::from_file(File::from(pipe))?;
            tokio::spawn(copy(pipe, Arc::clone(&kept), Arc::clone(&counter)));
        }
        Ok(Self { kept, seen })
    }

    /// Resolves once `text` is among what is kept; `false` when all pipes ended without it.
    pub(crate) async fn shows(&self, text: &str) -> bool {
        let mut seen = self.seen.clone();
        loop {
            seen.borrow_and_update();
            if self.contains(text) {
                return true;
            }
            if seen.changed().await.is_err() {
                return self.contains(text);
            }
        }
    }

    /// Resolves once all pipes ended: nothing more will come.
    pub(crate) async fn ended(&self) {
        let mut seen = self.seen.clone();
        while seen.changed().await.is_ok() {}
    }

    /// The last lines, fit for a terminal.
    pub(crate) fn tail(&self) -> String {
        let text = printable(&self.text());
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines
            .get(lines.len().saturating_sub(SHOWN_LINES)..)
            .unwrap_or_default()
            .join("\n")
    }

    fn contains(&self, text: &str) -> bool {
        self.text().contains(text)
    }

    fn text(&self) -> String {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    }
}

async fn copy(
    mut pipe: pipe::Receiver,
    kept: Arc<Mutex<VecDeque<u8>>>,
    counter: Arc<watch::Sender<u64>>,
) {
    let mut chunk = [0; 4096];
    loop {
        let bytes = match pipe.read(&mut chunk).await {
            Ok(0) => return,
            Ok(length) => chunk.get(..length).unwrap_or_default(),
            Err(error) => {
                tracing::debug!(%error, "the console can't be read any more");
                return;
            }
        };
        {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(bytes);
            let surplus = kept.len().saturating_sub(KEPT);
            kept.drain(..surplus);
        }
        counter.send_modify(|seen| *seen = seen.saturating_add(bytes.len() as u64));
    }
}

/// Leaves out whatever a terminal would act on.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|letter| matches!(letter, '\n' | '\t') || !letter.is_control())
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn console() -> (pipe::Sender, Console) {
        let (reader, writer) = io::pipe().unwrap();
        let console = Console::drain(vec![reader.into()]).unwrap();
        (
            pipe::Sender::from_file(File::from(OwnedFd::from(writer))).unwrap(),
            console,
        )
    }

    #[tokio::test]
    async fn a_text_that_comes_in_two_pieces_is_seen() {
        let (mut guest, console) = console();
        guest.write_all(b"booting\nKernel pa").await.unwrap();
        assert!(console.shows("booting").await);
        guest.write_all(b"nic - not syncing\n").await.unwrap();
        assert!(console.shows("Kernel panic").await);
    }

    #[tokio::test]
    async fn the_end_without_the_text_is_told() {
        let (guest, console) = console();
        drop(guest);
        assert!(!console.shows("outgate-probe-ok").await);
        console.ended().await;
    }

    #[tokio::test]
    async fn a_flood_is_bounded_and_the_newest_lines_stay() {
        let (mut guest, console) = console();
        for number in 0..20_000 {
            guest
                .write_all(format!("line {number}\n").as_bytes())
                .await
                .unwrap();
        }
        drop(guest);
        console.ended().await;
        assert!(console.text().len() <= KEPT);
        assert!(console.tail().ends_with("line 19999"));
        assert_eq!(console.tail().lines().count(), SHOWN_LINES);
    }

    #[test]
    fn a_terminal_is_never_told_what_to_do() {
        assert_eq!(
            printable("\x1b[2Jhi\x07\r\n\tthere\u{9b}1m"),
            "[2Jhi\n\tthere1m"
        );
    }
}
