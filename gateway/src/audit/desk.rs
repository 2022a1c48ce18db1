//! Who writes, and when.
//!
//! A record takes a microsecond or two to write, and several times that to hand to another thread. So
//! in a buffered log whoever comes while nobody writes, writes: no hand-over, no waiting. Who finds
//! the writer busy, or has to wait for the disk anyway ([`Durability::Fsync`]), queues up for a
//! thread of its own, which writes all that waits as one group. What nobody waits for is kept until
//! somebody writes, which is at most [`LATEST`] later.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::chain::Head;
use super::error::AuditError;
use super::log::Durability;
use super::writer::{Writer, Written};

/// Appends waiting for the thread; beyond it an append waits for its place. Deep enough to fill a
/// group while a disk flushes, and bounds the memory of a queue of the largest records.
const QUEUE_DEPTH: usize = 1024;
/// How long a record that nobody waits for may be kept.
const LATEST: Duration = Duration::from_millis(5);

type Outcome<T> = Result<T, Arc<io::Error>>;

/// What is asked of the thread.
#[derive(Debug)]
enum Command {
    Append {
        lines: Vec<Vec<u8>>,
        reply: oneshot::Sender<Outcome<()>>,
    },
    /// Write what nobody waits for.
    Flush,
    Close {
        reply: oneshot::Sender<Outcome<Head>>,
    },
}

/// The way to the writer.
#[derive(Debug)]
pub(super) struct Desk {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Command>,
    /// Writing does not wait for a disk, so the one who asks can do it.
    writes_at_once: bool,
}

struct Shared {
    /// None once the log is closed.
    writer: Mutex<Option<Writer>>,
    /// Lines that nobody waits for. As many as exchanges that ended since the last write, which are
    /// bounded, since the next one of each waits for its own record.
    later: Mutex<Vec<Vec<u8>>>,
    /// Somebody will see to `later` in time.
    is_armed: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Desk {
    /// Starts the thread.
    pub(super) fn open(writer: Writer) -> Result<Self, AuditError> {
        let (queue, commands) = mpsc::channel(QUEUE_DEPTH);
        let writes_at_once = writer.config().durability == Durability::Buffered;
        let dir = writer.config().dir.clone();
        let shared = Arc::new(Shared {
            writer: Mutex::new(Some(writer)),
            later: Mutex::default(),
            is_armed: AtomicBool::new(false),
        });
        let thread_shares = Arc::clone(&shared);
        thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || thread_shares.run(commands))
            .map_err(AuditError::file(&dir))?;
        Ok(Self {
            shared,
            queue,
            writes_at_once,
        })
    }

    /// Writes `lines` next to each other; resolves when they are written.
    pub(super) async fn append(&self, lines: Vec<Vec<u8>>) -> Result<(), AuditError> {
        if self.writes_at_once
            && let Some(outcome) = self.shared.try_write(&lines)
        {
            return outcome;
        }
        let (reply, written) = oneshot::channel();
        self.ask(Command::Append { lines, reply }, written).await
    }

    /// Keeps `line` for whoever writes next.
    pub(super) fn append_later(&self, line: Vec<u8>) -> Result<(), AuditError> {
        if self.queue.is_closed() {
            return Err(AuditError::Closed);
        }
        lock(&self.shared.later).push(line);
        if self.shared.is_armed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (shared, queue) = (Arc::clone(&self.shared), self.queue.clone());
        let flush = move || {
            shared.is_armed.store(false, Ordering::Release);
            if shared.try_write(&[]).is_none() {
                // Somebody writes; if they took the lines before this one came, the thread does.
                // A full queue means that it is about to.
                let _queued = queue.try_send(Command::Flush);
            }
        };
        match Handle::try_current() {
            Ok(runtime) if self.writes_at_once => {
                runtime.spawn(async move {
                    tokio::time::sleep(LATEST).await;
                    flush();
                });
            }
            _ => {
                self.shared.is_armed.store(false, Ordering::Release);
                let _queued = self.queue.try_send(Command::Flush);
            }
        }
        Ok(())
    }

    pub(super) async fn close(&self) -> Result<Head, AuditError> {
        let (reply, closed) = oneshot::channel();
        self.ask(Command::Close { reply }, closed).await
    }

    async fn ask<T>(
        &self,
        command: Command,
        answer: oneshot::Receiver<Outcome<T>>,
    ) -> Result<T, AuditError> {
        self.queue
            .send(command)
            .await
            .map_err(|_closed| AuditError::Closed)?;
        answer
            .await
            .map_err(|_gone| AuditError::Closed)?
            .map_err(AuditError::Write)
    }
}

impl Shared {
    /// Writes what is kept and then `lines`, unless somebody is writing.
    fn try_write(&self, lines: &[Vec<u8>]) -> Option<Result<(), AuditError>> {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            // What a panic left in the file is not what the writer remembers: it will refuse.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let Some(writer) = writer.as_mut() else {
            return Some(Err(AuditError::Closed));
        };
        let mut group = self.take_later();
        let kept = group.len();
        let Written { count, error } = if kept == 0 {
            writer.write(lines)
        } else {
            group.extend_from_slice(lines);
            writer.write(&group)
        };
        Some(match error {
            Some(error) if count < kept + lines.len() => Err(AuditError::Write(error)),
            _ => Ok(()),
        })
    }

    fn take_later(&self) -> Vec<Vec<u8>> {
        mem::take(&mut *lock(&self.later))
    }

    fn run(&self, mut commands: mpsc::Receiver<Command>) {
        while let Some(first) = commands.blocking_recv() {
            let Some(close) = self.write_waiting(first, &mut commands) else {
                continue;
            };
            // Whatever came after the close is dropped with the queue, which answers `Closed`.
            drop(commands);
            if let Some(finished) = self.finish() {
                drop(close.send(finished.map_err(Arc::new)));
            }
            return;
        }
        if let Some(Err(error)) = self.finish() {
            tracing::error!(%error, "the audit log could not be flushed at its end");
        }
    }

    /// Writes what waits in the queue, up to a group's size, and answers everyone in it. Returns
    /// who waits for the end, if the end was asked for.
    fn write_waiting(
        &self,
        first: Command,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Option<oneshot::Sender<Outcome<Head>>> {
        let mut guard = lock(&self.writer);
        // Only this thread takes the writer away.
        let writer = guard.as_mut()?;
        let mut group = self.take_later();
        let mut bytes: usize = group.iter().map(Vec::len).sum();
        let mut waiting = Vec::new();
        let mut close = None;
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                Command::Append { lines, reply } => {
                    bytes += lines.iter().map(Vec::len).sum::<usize>();
                    group.extend(lines);
                    waiting.push((group.len(), reply));
                }
                Command::Flush => {}
                Command::Close { reply } => {
                    close = Some(reply);
                    break;
                }
            }
            next = if (bytes as u64) < writer.group_bytes() {
                commands.try_recv().ok()
            } else {
                None
            };
        }
        let Written { count, error } = writer.write(&group);
        drop(guard);
        for (end, reply) in waiting {
            let answer = match &error {
                Some(error) if end > count => Err(Arc::clone(error)),
                _ => Ok(()),
            };
            // Nobody waits any more: the record stands, or was refused, all the same.
            drop(reply.send(answer));
        }
        close
    }

    fn finish(&self) -> Option<io::Result<Head>> {
        let mut writer = lock(&self.writer).take()?;
        writer.write(&self.take_later());
        Some(writer.finish())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
