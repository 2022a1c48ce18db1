//! A client that costs little: it speaks to an origin directly or through a proxy, over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const WINDOW: u32 = 4 * 1024 * 1024;

/// How a subject is reached.
#[derive(Clone)]
pub(crate) struct Way {
    /// Where to connect.
    pub(crate) address: SocketAddr,
    /// Through a proxy: the authority to ask it for, and its credentials.
    pub(crate) connect: Option<Connect>,
    /// The certificates that are trusted there.
    pub(crate) tls: Arc<ClientConfig>,
}

#[derive(Clone)]
pub(crate) struct Connect {
    /// Host to CONNECT to; `None` is the name that TLS is for.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    /// A whole header line, with its line end.
    pub(crate) header: String,
}

impl Way {
    /// A TLS connection for `name`, on which `alpn` was agreed.
    pub(crate) async fn open(&self, name: &str, alpn: &str) -> Result<TlsStream<TcpStream>> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        if let Some(connect) = &self.connect {
            let host = connect.host.as_deref().unwrap_or(name);
            let authority = format!("{host}:{}", connect.port);
            let head = format!(
                "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{}\r\n",
                connect.header
            );
            stream.write_all(head.as_bytes()).await?;
            let head = read_head(&mut stream).await?;
            ensure!(
                head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.0 200"),
                "{head}"
            );
        }
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .with_alpn(vec![alpn.as_bytes().to_vec()])
            .connect(ServerName::try_from(name.to_owned())?, stream)
            .await
            .context("TLS with the subject")?;
        let agreed = stream.get_ref().1.alpn_protocol();
        if alpn == "h2" && agreed != Some(b"h2") {
            bail!("the subject does not speak HTTP/2");
        }
        Ok(stream)
    }

    /// An HTTP/2 connection for `name`.
    pub(crate) async fn open_h2(&self, name: &str) -> Result<SendRequest<Full<Bytes>>> {
        let stream = self.open(name, "h2").await?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// A request for `path` as HTTP/1.1 says it.
pub(crate) fn get(name: &str, port: u16, path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
    )
    .into_bytes()
}

/// Reads one answer with a `Content-Length` whole; `buffer` is where.
pub(crate) async fn read_answer(
    stream: &mut TlsStream<TcpStream>,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    buffer.clear();
    loop {
        ensure!(stream.read_buf(buffer).await? > 0, "the connection ended");
        let Some(head) = outgate_tests::lab::find(buffer, b"\r\n\r\n") else {
            continue;
        };
        let text = str::from_utf8(&buffer[..head])?;
        ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
        let whole = head + 4 + usize::try_from(length(text)?)?;
        while buffer.len() < whole {
            ensure!(stream.read_buf(buffer).await? > 0, "the connection ended");
        }
        return Ok(());
    }
}

/// The `Content-Length` of a head.
pub(crate) fn length(head: &str) -> Result<u64> {
    let value = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then_some(value)
    });
    Ok(value.context("no Content-Length")?.trim().parse()?)
}

/// Reads byte by byte to the end of a head, so that nothing behind it is taken.
pub(crate) async fn read_head<S>(stream: &mut S) -> Result<String>
where
    S: tokio::io::AsyncRead + Unpin,
{
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
        ensure!(head.len() < 16 * 1024, "an endless head");
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
