//! Connections that the operator's network led here: to somebody else, and not by the client's will.
//!
//! Where a rule allows a byte stream to the address that was dialled, it is one. Otherwise the client
//! has to say by its server name or `Host` whom it means; the policy decides on that name, and the
//! gateway dials what it resolves itself, never the address that the client chose. A client that names
//! nobody has its address, and only rules for addresses.

mod sniff;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use outgate_policy::{Admission, Authority, Destination, Reason, Reject};
use rustix::net::sockopt;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) use self::sniff::{Sniffed, Sniffer};
use super::accept::{Door, HalfOpen, Origin};
use super::client::{Client, FIRST_TIME, Presented, Unknown, record_reject};
use super::directory::Guest;
use super::transport::{Plain, Transport};
use crate::ahead::Ahead;
use crate::audit::Ingress;
use crate::sandbox::Opened;

/// Bytes asked from the stream at once until it is known what is spoken.
const READ_BYTES: usize = 8 * 1024;

/// Serves one connection until either side is done with it.
pub(super) async fn serve(stream: TcpStream, origin: Origin, door: &Door, half_open: HalfOpen) {
    let Some(client) = Client::new(door, Ingress::Transparent, half_open) else {
        return;
    };
    let guest = match client.identify(Presented::Nothing, "") {
        Ok(guest) => guest,
        // Counted already, or of a sandbox that has too many.
        Err(unknown) => {
            if let Unknown::Full(guest) = unknown {
                let detail = "the sandbox has as many connections to listeners as it may have";
                reject(&guest, &Reject::new(Reason::LimitExceeded, detail), None).await;
            }
            return reset(&stream);
        }
    };
    guest.while_served(led(stream, origin, door, guest)).await;
}

/// Finds out where `stream` should go, and serves it as that.
async fn led(stream: TcpStream, origin: Origin, door: &Door, guest: &Arc<Guest>) {
    let dialled = match original_destination(&stream, origin) {
        Ok(address) if !is_own(&stream, origin, door.own, address) => address,
        // A client that connects to the listener itself was led nowhere.
        Ok(address) => {
            let detail = "a connection to the listener itself, which no rule led here";
            let refused = Reject::new(Reason::GatewayAddress, detail);
            reject(guest, &refused, Some(address.to_string())).await;
            return reset(&stream);
        }
        Err(error) => {
            let detail = format!("it can't be told where the connection was made to: {error}");
            reject(guest, &Reject::new(Reason::GatewayAddress, detail), None).await;
            return reset(&stream);
        }
    };
    let by_address = Authority {
        destination: Destination::from(dialled.ip()),
        port: dialled.port(),
    };
    let may = admission(guest, &by_address);
    if may.tcp && !may.https && !may.http {
        // Its client may wait for the server to speak first.
        return open(stream, BytesMut::new(), guest, by_address).await;
    }
    let (mut stream, mut bytes) = (stream, BytesMut::new());
    let sniffed = timeout(FIRST_TIME, sniff(&mut stream, &mut bytes)).await;
    let sniffed = sniffed.unwrap_or_else(|_| {
        let detail = "nothing whole was sent that says where it should go";
        Err(Some(Reject::new(Reason::ConnectionIdle, detail)))
    });
    let to = sniffed.and_then(|sniffed| {
        let to = destination(&sniffed, &by_address)?;
        if sniffed == Sniffed::Tls(None) && may.reason() == Reason::DefaultDeny {
            let detail = format!("no SNI, and no rule for the address {by_address}");
            return Err(Some(Reject::new(Reason::SniMissing, detail)));
        }
        Ok((to, matches!(sniffed, Sniffed::Http(_))))
    });
    match to {
        // A request can be told why nothing comes of it.
        Ok((to, true)) if !admission(guest, &to).any() => {
            let opened = guest.sandbox.open_to_answer(Ingress::Transparent, to);
            serve_opened(opened, stream, bytes).await;
        }
        Ok((to, _)) => open(stream, bytes, guest, to).await,
        Err(Some(refused)) => {
            reject(guest, &refused, Some(by_address.to_string())).await;
            reset(&stream);
        }
        // It ended before it said anything.
        Err(None) => {}
    }
}

fn admission(guest: &Guest, to: &Authority) -> Admission {
    guest.sandbox.policy().admits(&to.destination, to.port)
}

/// Where a connection should go by what was found in it.
///
/// # Errors
/// A `Host` that is none.
fn destination(sniffed: &Sniffed, by_address: &Authority) -> Result<Authority, Reject> {
    let port = by_address.port;
    match sniffed {
        Sniffed::Tls(Some(name)) => Ok(Authority {
            destination: Destination::Name(name.clone()),
            port,
        }),
        // The port is the one that was dialled; where `Host` names another, its request is refused.
        Sniffed::Http(Some(host)) => Ok(Authority {
            port,
            ..Authority::parse(host, port)?
        }),
        Sniffed::Tls(None) | Sniffed::Http(None) | Sniffed::Other => Ok(by_address.clone()),
    }
}

async fn open(stream: TcpStream, bytes: BytesMut, guest: &Arc<Guest>, to: Authority) {
    match guest.sandbox.open(Ingress::Transparent, to).await {
        Ok(opened) => serve_opened(opened, stream, bytes).await,
        Err(_on_record) => reset(&stream),
    }
}

async fn serve_opened(opened: Opened, stream: TcpStream, bytes: BytesMut) {
    let stream = Transport::Plain(Plain::Tcp(stream));
    opened.serve(Ahead::new(bytes, stream)).await;
}

/// Reads until it is known what is spoken. `None` as an error is the end of the stream.
async fn sniff(stream: &mut TcpStream, bytes: &mut BytesMut) -> Result<Sniffed, Option<Reject>> {
    let mut sniffer = Sniffer::new();
    loop {
        if let Some(found) = sniffer.look(bytes)? {
            return Ok(found);
        }
        bytes.reserve(READ_BYTES);
        match stream.read_buf(bytes).await {
            Ok(1..) => {}
            Ok(_) | Err(_) => return Err(None),
        }
    }
}

/// Whom the client dialled.
fn original_destination(stream: &TcpStream, origin: Origin) -> io::Result<SocketAddr> {
    let address = match origin {
        Origin::Tproxy => stream.local_addr()?,
        Origin::Redirect if stream.local_addr()?.is_ipv4() => {
            sockopt::ip_original_dst(stream)?.into()
        }
        Origin::Redirect => match sockopt::ipv6_original_dst(stream) {
            Ok(address) => address.into(),
            // A socket for both families that took an IPv4 connection.
            Err(_) => sockopt::ip_original_dst(stream)?.into(),
        },
    };
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Whether `dialled` is the listener itself.
fn is_own(
    stream: &TcpStream,
    origin: Origin,
    own: Option<SocketAddr>,
    dialled: SocketAddr,
) -> bool {
    match (origin, own) {
        // Nothing was rewritten.
        (Origin::Redirect, _) => stream.local_addr().is_ok_and(|local| {
            local.ip().to_canonical() == dialled.ip() && local.port() == dialled.port()
        }),
        (Origin::Tproxy, Some(own)) => {
            let is_own_ip = own.ip().is_unspecified() || own.ip().to_canonical() == dialled.ip();
            own.port() == dialled.port() && is_own_ip
        }
        (Origin::Tproxy, None) => true,
    }
}

async fn reject(guest: &Guest, reject: &Reject, target: Option<String>) {
    record_reject(guest, Ingress::Transparent, reject, target).await;
}

/// Lets the drop of `stream` be a reset, as a refused connection looks.
fn reset(stream: &TcpStream) {
    if let Err(error) = sockopt::set_socket_linger(stream, Some(Duration::ZERO)) {
        tracing::debug!(%error, "a refused connection ends in order instead of by a reset");
    }
}
