//! QEMU's own control channel, as a typed client.
//!
//! One command at a time per call, any number of callers; answers are matched by id and events are
//! handed out apart. QEMU is not trusted to be kind: a line has a bound and so have the waiters.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

/// Longest line, bytes, that QEMU may send; its longest honest answers are some tens of kilobytes.
const MAX_LINE: u64 = 1 << 20;

/// Events kept for a listener that is slow; older ones are dropped first.
const EVENT_BACKLOG: usize = 64;

/// Why a command had no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The channel broke.
    #[error("cannot talk to QEMU: {0}")]
    Channel(#[from] io::Error),
    /// QEMU ended, or said something that is not QMP.
    #[error("QEMU closed its control channel")]
    Closed,
    /// QEMU refused the command.
    #[error("QEMU refused `{command}`: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// QEMU's own words.
        reason: String,
    },
    /// The answer does not have the shape that the command promises.
    #[error("QEMU's answer to `{command}` is not understood: {source}")]
    Answer {
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// What QEMU says without being asked.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct QmpEvent {
    /// Its name, such as `SHUTDOWN`.
    pub event: String,
    /// Its details.
    #[serde(default)]
    pub data: Value,
}

/// Whether the guest runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Status {
    /// The vCPUs run.
    pub running: bool,
    /// QEMU's word for the state, such as `running`, `paused` or `shutdown`.
    pub status: String,
}

/// The client's end of one QMP channel.
#[derive(Debug)]
pub struct Qmp {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    waiting: Arc<Waiting>,
    events: broadcast::Sender<QmpEvent>,
    next_id: AtomicU64,
    reader: JoinHandle<()>,
}

impl Qmp {
    /// Takes QEMU's greeting and leaves negotiation mode.
    ///
    /// # Errors
    /// [`QmpError`] when the other end is not QMP or goes away.
    pub async fn handshake(stream: UnixStream) -> Result<Self, QmpError> {
        let (reader, writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        let greeting = read_line(&mut reader).await?.ok_or(QmpError::Closed)?;
        if !matches!(
            serde_json::from_slice(&greeting),
            Ok(Message::Greeting { .. })
        ) {
            return Err(QmpError::Closed);
        }
        let waiting = Arc::new(Waiting::default());
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let reader = tokio::spawn(dispatch(reader, Arc::clone(&waiting), events.clone()));
        let client = Self {
            writer: tokio::sync::Mutex::new(writer),
            waiting,
            events,
            next_id: AtomicU64::new(0),
            reader,
        };
        client.run::<Value>("qmp_capabilities", None).await?;
        Ok(client)
    }

    /// Events from now on.
    pub fn events(&self) -> broadcast::Receiver<QmpEvent> {
        self.events.subscribe()
    }

    /// Whether the guest runs.
    ///
    /// # Errors
    /// [`QmpError`], as for every command.
    pub async fn query_status(&self) -> Result<Status, QmpError> {
        self.run("query-status", None).await
    }

    /// Stops the vCPUs.
    ///
    /// # Errors
    /// [`QmpError`], as for every command.
    pub async fn stop(&self) -> Result<(), QmpError> {
        self.run::<Value>("stop", None).await.map(drop)
    }

    /// Lets the vCPUs go on.
    ///
    /// # Errors
    /// [`QmpError`], as for every command.
    pub async fn cont(&self) -> Result<(), QmpError> {
        self.run::<Value>("cont", None).await.map(drop)
    }

    /// Presses the guest's power button.
    ///
    /// # Errors
    /// [`QmpError`], as for every command.
    pub async fn system_powerdown(&self) -> Result<(), QmpError> {
        self.run::<Value>("system_powerdown", None).await.map(drop)
    }

    /// Ends QEMU, without asking the guest.
    ///
    /// # Errors
    /// [`QmpError`], as for every command.
    pub async fn quit(&self) -> Result<(), QmpError> {
        self.run::<Value>("quit", None).await.map(drop)
    }

    async fn run<T: for<'de> Deserialize<'de>>(
        &self,
        command: &'static str,
        arguments: Option<Value>,
    ) -> Result<T, QmpError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let answer = self.waiting.register(id).ok_or(QmpError::Closed)?;
        let mut line = serde_json::to_vec(&Execute {
            execute: command,
            arguments,
            id,
        })
        .map_err(|source| QmpError::Answer { command, source })?;
        line.push(b'\n');
        self.writer.lock().await.write_all(&line).await?;
        match answer.await.map_err(|_| QmpError::Closed)? {
            Ok(value) => {
                serde_json::from_value(value).map_err(|source| QmpError::Answer { command, source })
            }
            Err(reason) => Err(QmpError::Refused { command, reason }),
        }
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

#[derive(Serialize)]
struct Execute {
    execute: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Value>,
    id: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Message {
    Greeting {
        #[serde(rename = "QMP")]
        _qmp: Value,
    },
    Return {
        #[serde(rename = "return")]
        value: Value,
        id: Option<u64>,
    },
    Error {
        error: Refusal,
        id: Option<u64>,
    },
    Event(QmpEvent),
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

type Answer = Result<Value, String>;

/// Calls that wait for an answer; `None` once the channel is closed. There is one entry per pending
/// call of ours, so QEMU can't grow it.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>);

impl Default for Waiting {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

impl Waiting {
    fn register(&self, id: u64) -> Option<oneshot::Receiver<Answer>> {
        let (sender, receiver) = oneshot::channel();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()?
            .insert(id, sender);
        Some(receiver)
    }

    fn resolve(&self, id: Option<u64>, answer: Answer) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let caller = id.and_then(|id| waiting.as_mut()?.remove(&id));
        // A caller that gave up has dropped its end, which is no one's loss.
        if let Some(caller) = caller {
            let _ = caller.send(answer);
        }
    }

    fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

async fn dispatch(
    mut reader: BufReader<OwnedReadHalf>,
    waiting: Arc<Waiting>,
    events: broadcast::Sender<QmpEvent>,
) {
    while let Ok(Some(line)) = read_line(&mut reader).await {
        match serde_json::from_slice(&line) {
            Ok(Message::Return { value, id }) => waiting.resolve(id, Ok(value)),
            Ok(Message::Error { error, id }) => waiting.resolve(id, Err(error.desc)),
            Ok(Message::Event(event)) => {
                tracing::debug!(event = event.event, "QEMU event");
                // Nobody may be listening.
                let _ = events.send(event);
            }
            Ok(Message::Greeting { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "QEMU sent something that is not QMP");
                break;
            }
        }
    }
    waiting.close();
}

/// The next line, or `None` at the end. A line over the bound ends the channel.
async fn read_line(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    Ok((line.last() == Some(&b'\n')).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;

    /// Plays QEMU: sends the greeting, then for every line read the lines of `script`.
    fn fake(script: Vec<Vec<&'static str>>) -> (UnixStream, JoinHandle<Vec<Value>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = tokio::spawn(async move {
            let (reader, mut writer) = theirs.into_split();
            let mut reader = BufReader::new(reader);
            writer
                .write_all(format!("{GREETING}\r\n").as_bytes())
                .await
                .unwrap();
            let mut seen = Vec::new();
            for answers in script {
                let line = read_line(&mut reader).await.unwrap().unwrap();
                seen.push(serde_json::from_slice(&line).unwrap());
                for answer in answers {
                    writer
                        .write_all(format!("{answer}\r\n").as_bytes())
                        .await
                        .unwrap();
                }
            }
            seen
        });
        (ours, served)
    }

    #[tokio::test]
    async fn commands_are_numbered_and_answers_typed() {
        let (stream, served) = fake(vec![
            vec![r#"{"return": {}, "id": 0}"#],
            vec![
                r#"{"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 2}}"#,
                r#"{"return": {"running": true, "status": "running", "singlestep": false}, "id": 1}"#,
            ],
        ]);
        let qmp = Qmp::handshake(stream).await.unwrap();
        let mut events = qmp.events();
        let status = qmp.query_status().await.unwrap();
        assert_eq!(
            status,
            Status {
                running: true,
                status: "running".to_owned()
            }
        );
        assert_eq!(events.recv().await.unwrap().event, "RESUME");
        let seen = served.await.unwrap();
        assert_eq!(
            seen[0],
            serde_json::json!({"execute": "qmp_capabilities", "id": 0})
        );
        assert_eq!(
            seen[1],
            serde_json::json!({"execute": "query-status", "id": 1})
        );
    }

    #[tokio::test]
    async fn a_refusal_has_qemus_words() {
        let (stream, _served) = fake(vec![
            vec![r#"{"return": {}, "id": 0}"#],
            vec![r#"{"error": {"class": "GenericError", "desc": "not now"}, "id": 1}"#],
        ]);
        let qmp = Qmp::handshake(stream).await.unwrap();
        let error = qmp.stop().await.unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused `stop`: not now");
    }

    #[tokio::test]
    async fn the_end_of_qemu_wakes_every_caller_and_later_ones() {
        let (stream, served) = fake(vec![vec![r#"{"return": {}, "id": 0}"#], vec![]]);
        let qmp = Qmp::handshake(stream).await.unwrap();
        assert!(matches!(qmp.cont().await.unwrap_err(), QmpError::Closed));
        served.await.unwrap();
        assert!(matches!(
            qmp.cont().await.unwrap_err(),
            QmpError::Closed | QmpError::Channel(_)
        ));
    }

    #[tokio::test]
    async fn a_stranger_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        assert!(matches!(
            Qmp::handshake(ours).await.unwrap_err(),
            QmpError::Closed
        ));
    }
}
