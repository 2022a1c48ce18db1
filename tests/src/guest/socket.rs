//! Sockets inside a guest, for tests that need exact bytes or an exact order: TCP, UDP, TLS with
//! any server name and ALPN, and DNS questions with the answer's code.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::ServerName;

use super::Guest;

/// How long a socket waits before a test is told that nothing came. Reached only by failures and
/// by the few tests whose point is that nothing comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// TLS over a guest's socket; blocking.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// An orderly end: FIN, and close_notify before it where there is TLS.
    Closed,
    /// A TCP reset, or a TLS stream that ended without close_notify, or a TLS alert.
    Broken,
    /// Still open and silent.
    Silent,
}

/// A DNS answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsReply {
    pub code: ResponseCode,
    pub addresses: Vec<IpAddr>,
    /// Types of all answer records.
    pub types: Vec<RecordType>,
}

impl Guest {
    /// Connects from inside.
    pub fn connect(&self, to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let to = to.into();
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let socket = self.namespace().run(move || {
            rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        })?;
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
        }
        rustix::net::connect(&socket, &to)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Connects to `name` as a program would: by the address that the guest's resolver gives.
    pub fn connect_name(&self, name: &str, port: u16) -> Result<TcpStream> {
        let address = self.address_of(name)?;
        Ok(self.connect((address, port))?)
    }

    /// The address that the guest's resolver gives for `name`.
    pub fn address_of(&self, name: &str) -> Result<IpAddr> {
        let reply = self.look_up(name, RecordType::A)?;
        let first = reply.addresses.first().copied();
        first.with_context(|| format!("`{name}` has no address here: {reply:?}"))
    }

    /// A UDP socket inside.
    pub fn udp(&self) -> io::Result<UdpSocket> {
        let socket = self
            .namespace()
            .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    /// Asks the guest's name server.
    pub fn look_up(&self, name: &str, record_type: RecordType) -> Result<DnsReply> {
        let mut question = Message::new(0x4f47, MessageType::Query, OpCode::Query);
        question.metadata.recursion_desired = true;
        question.add_query(Query::query(Name::from_ascii(name)?, record_type));
        let socket = self.udp()?;
        socket.send_to(&question.to_vec()?, (self.network().dns, 53))?;
        let mut buffer = [0; 4096];
        let length = socket
            .recv(&mut buffer)
            .context("no answer from the guest's name server")?;
        let answer = Message::from_vec(&buffer[..length])?;
        let address = |data: &RData| match data {
            RData::A(v4) => Some(IpAddr::V4(v4.0)),
            RData::AAAA(v6) => Some(IpAddr::V6(v6.0)),
            _ => None,
        };
        Ok(DnsReply {
            code: answer.metadata.response_code,
            addresses: answer
                .answers
                .iter()
                .filter_map(|record| address(&record.data))
                .collect(),
            types: answer
                .answers
                .iter()
                .map(hickory_proto::rr::Record::record_type)
                .collect(),
        })
    }

    /// TLS to `name` with that name in the ClientHello; the handshake is complete.
    pub fn tls(&self, name: &str, port: u16, alpn: &str) -> Result<TlsStream> {
        let stream = self.connect_name(name, port)?;
        self.handshake(stream, Some(name), name, &[alpn])
    }

    /// TLS over `stream`: `sni` goes into the ClientHello, `expect` must be in the certificate.
    pub fn handshake(
        &self,
        stream: TcpStream,
        sni: Option<&str>,
        expect: &str,
        alpn: &[&str],
    ) -> Result<TlsStream> {
        handshake(self.trust(), stream, sni, expect, alpn)
    }
}

/// TLS over `stream` by a client that has `trust`: `sni` goes into the ClientHello, `expect` must be
/// in the certificate.
pub fn handshake(
    trust: &Arc<RootCertStore>,
    mut stream: TcpStream,
    sni: Option<&str>,
    expect: &str,
    alpn: &[&str],
) -> Result<TlsStream> {
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(Arc::clone(trust))
        .with_no_client_auth();
    config.enable_sni = sni.is_some();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(sni.unwrap_or(expect).to_owned())?;
    let mut session = ClientConnection::new(Arc::new(config), name)?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(session, stream))
}

/// Reads until the stream ends or stays silent.
pub fn read_to_end(stream: &mut impl Read) -> (Vec<u8>, Ending) {
    let mut received = Vec::new();
    let mut buffer = [0; 16_384];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (received, Ending::Closed),
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) => {
                let silent = matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                );
                return (
                    received,
                    if silent {
                        Ending::Silent
                    } else {
                        Ending::Broken
                    },
                );
            }
        }
    }
}

/// Reads one HTTP/1.1 response that has a Content-Length: its head and its body.
pub fn read_response(stream: &mut impl Read) -> io::Result<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok((head, body))
}

/// Writes `bytes` and reads whatever comes until the stream ends. A write that fails because the
/// other side already ended is no error: what it said before counts.
pub fn exchange(stream: &mut (impl Read + Write), bytes: &[u8]) -> (Vec<u8>, Ending) {
    let _ = stream.write_all(bytes).and_then(|()| stream.flush());
    read_to_end(stream)
}
