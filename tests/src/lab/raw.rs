//! A TLS upstream without an HTTP library: it keeps every byte it gets and answers with bytes
//! that a test wrote, sloppy ones included.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::wire::find;

/// How a raw upstream behaves; clones share it, so a test may change it while it runs.
#[derive(Debug, Clone, Default)]
pub struct RawUpstream {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    answer: Vec<u8>,
    close_after_answer: bool,
    connections: Vec<Vec<u8>>,
}

impl RawUpstream {
    /// The bytes sent each time a request head is complete.
    pub fn answer_with(&self, answer: impl Into<Vec<u8>>) {
        self.with(|state| state.answer = answer.into());
    }

    /// Whether the connection is closed (with close_notify) behind each answer.
    pub fn close_after_answer(&self, close: bool) {
        self.with(|state| state.close_after_answer = close);
    }

    /// Per connection, all bytes it carried inside TLS.
    pub fn connections(&self) -> Vec<Vec<u8>> {
        self.with(|state| state.connections.clone())
    }

    pub(super) fn spawn(&self, listener: TcpListener, tls: &Arc<ServerConfig>) {
        let mut tls = ServerConfig::clone(tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let upstream = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(upstream.clone().serve(stream, acceptor.clone()));
            }
        });
    }

    async fn serve(self, stream: TcpStream, acceptor: TlsAcceptor) {
        let Ok(mut stream) = acceptor.accept(stream).await else {
            return;
        };
        let index = self.with(|state| {
            state.connections.push(Vec::new());
            state.connections.len() - 1
        });
        let mut buffer = vec![0; 16_384];
        let mut answered = 0;
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let (answer, close) = self.with(|state| {
                let received = &mut state.connections[index];
                received.extend_from_slice(&buffer[..length]);
                let mut answer = Vec::new();
                while let Some(end) = find(&received[answered..], b"\r\n\r\n") {
                    answered += end + 4;
                    answer.extend_from_slice(&state.answer);
                }
                (answer, state.close_after_answer)
            });
            if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
                return;
            }
            if close && !answer.is_empty() {
                break;
            }
        }
        let _ = stream.shutdown().await;
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
