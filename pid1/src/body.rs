//! Bodies that are made while they are sent: the output of a command, the bytes of a file.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};

use crate::exec::Exec;
use crate::files::Part;
use crate::ring::Chunk;
use crate::server::Body;
use outgate_pid1::api::frame::{Frame, Gap};

/// Pieces that may wait for the connection.
const QUEUE: usize = 2;

/// How long a stream of output is silent before it holds a keepalive.
const SILENCE: Duration = Duration::from_secs(15);

/// A file, piece by piece.
pub(crate) fn file(mut part: Part) -> Body {
    let (mut sender, body) = Channel::new(QUEUE);
    tokio::spawn(async move {
        loop {
            match part.next().await {
                Ok(Some(bytes)) => {
                    if sender.send_data(bytes).await.is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => return sender.abort(error),
            }
        }
    });
    body.boxed()
}

/// The output of a command from `offsets` (standard output, standard error) on, until its exit.
pub(crate) fn output(exec: Arc<Exec>, offsets: [u64; 2]) -> Body {
    let (sender, body) = Channel::new(QUEUE);
    tokio::spawn(
        Reader {
            number: exec.next_reader(),
            exec,
            offsets,
        }
        .run(sender),
    );
    body.boxed()
}

/// One reader of one command; the command's writers wait for it as long as it is there.
struct Reader {
    exec: Arc<Exec>,
    number: u64,
    offsets: [u64; 2],
}

impl Reader {
    async fn run(mut self, mut sender: Sender<Bytes, io::Error>) {
        self.attach();
        loop {
            let exec = Arc::clone(&self.exec);
            let moved = exec.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let (mut frames, ended) = self.take();
            if frames.is_empty() && !ended {
                if tokio::time::timeout(SILENCE, moved).await.is_ok() {
                    continue;
                }
                // Says that the guest lives, and finds out whether anybody still reads.
                frames.push(Frame::Keepalive);
            }
            let mut wire = BytesMut::new();
            let mut encoded = frames.iter().try_for_each(|frame| frame.encode(&mut wire));
            if ended {
                let exit = Frame::Exit(exec.ended().await);
                encoded = encoded.and_then(|()| exit.encode(&mut wire));
            }
            if let Err(error) = encoded {
                return sender.abort(io::Error::other(error));
            }
            if sender.send_data(wire.freeze()).await.is_err() || ended {
                return;
            }
            self.attach();
        }
    }

    /// Tells the writers how far this reader has come.
    fn attach(&self) {
        let [stdout, stderr] = self.offsets;
        let mut outputs = self.exec.outputs();
        outputs.stdout.advance(self.number, stdout);
        outputs.stderr.advance(self.number, stderr);
        drop(outputs);
        self.exec.moved.notify_waiters();
    }

    /// What is there for this reader, and whether it was the last.
    fn take(&mut self) -> (Vec<Frame>, bool) {
        let outputs = self.exec.outputs();
        let chunks = [
            outputs.stdout.read(self.offsets[0]),
            outputs.stderr.read(self.offsets[1]),
        ];
        drop(outputs);
        let ended = chunks.iter().all(|chunk| *chunk == Chunk::End);
        let mut frames = Vec::new();
        for ((chunk, offset), fd) in chunks.into_iter().zip(&mut self.offsets).zip([1, 2]) {
            match chunk {
                Chunk::Gap(to) => {
                    frames.push(Frame::Gap(Gap {
                        fd,
                        from: *offset,
                        to,
                    }));
                    *offset = to;
                }
                Chunk::Bytes(bytes) => {
                    *offset += bytes.len() as u64;
                    frames.push(if fd == 1 {
                        Frame::Stdout(bytes)
                    } else {
                        Frame::Stderr(bytes)
                    });
                }
                Chunk::Empty | Chunk::End => {}
            }
        }
        (frames, ended)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut outputs = self.exec.outputs();
        outputs.stdout.detach(self.number);
        outputs.stderr.detach(self.number);
        drop(outputs);
        self.exec.moved.notify_waiters();
    }
}
