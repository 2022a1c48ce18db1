//! The upstream that nothing may reach: it accepts on every port it has and notes each
//! connection and each byte. A test asserts that it stayed empty.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// One TCP connection or one datagram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// The sink's own port that was reached.
    pub port: u16,
    /// `tcp` or `udp`.
    pub transport: String,
    /// What was sent, as far as it was read; lossy text, since only its presence matters.
    pub bytes: String,
}

/// All touches so far.
#[derive(Debug, Clone, Default)]
pub struct SinkLog {
    touches: Arc<Mutex<Vec<Touch>>>,
}

impl SinkLog {
    /// Everything so far.
    pub fn all(&self) -> Vec<Touch> {
        self.touches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn listen(&self, listener: TcpListener) {
        let log = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let port = stream.local_addr().map_or(0, |at| at.port());
                let index = log.push(port, "tcp", &[]);
                tokio::spawn(log.clone().swallow(stream, index));
            }
        });
    }

    pub(super) fn receive(&self, socket: UdpSocket) {
        let log = self.clone();
        tokio::spawn(async move {
            let port = socket.local_addr().as_ref().map_or(0, SocketAddr::port);
            let mut buffer = vec![0; 65_536];
            while let Ok(length) = socket.recv(&mut buffer).await {
                log.push(port, "udp", &buffer[..length]);
            }
        });
    }

    async fn swallow(self, mut stream: TcpStream, index: usize) {
        let mut buffer = vec![0; 16_384];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let mut touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
            touches[index]
                .bytes
                .push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    }

    fn push(&self, port: u16, transport: &str, bytes: &[u8]) -> usize {
        let mut touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = String::from_utf8_lossy(bytes).into_owned();
        touches.push(Touch {
            port,
            transport: transport.to_owned(),
            bytes,
        });
        touches.len() - 1
    }
}
