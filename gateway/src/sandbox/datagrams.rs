//! A UDP flow of a `protocol: udp` rule: datagrams passed on unread, in both directions.
//!
//! The flow is judged and recorded like a tunnel, when its first datagram comes. Its socket is
//! connected to one checked address, so the kernel lets in only what that peer sends from that port.
//! It ends when both sides were silent for [`IDLE`], on an error of the peer, or when its rule is
//! gone; the guest's next datagram is judged as a new flow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outgate_policy::{Authority, CanonicalRequest, Protocol, Reason, Verdict};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::tunnel::until_denied;
use super::{Ledger, SandboxContext};
use crate::audit::{Event, EventKind, Ingress};
use crate::link::DatagramFlow;

/// Silence in both directions that ends a flow. RFC 4787 asks NATs for two minutes at least; a rule
/// names the service here, and its client opens another flow without noticing.
const IDLE: Duration = Duration::from_secs(60);
/// The largest datagram that there is.
const MAX_DATAGRAM: usize = 65_535;

/// A flow whose socket is connected.
pub(super) struct Datagrams {
    sandbox: Arc<SandboxContext>,
    request: CanonicalRequest,
    upstream: UdpSocket,
    idle: Duration,
    ledger: Arc<Ledger>,
}

impl Datagrams {
    /// Decides, records and connects. `None` is a refusal, on record.
    pub(super) async fn open(sandbox: Arc<SandboxContext>, to: Authority) -> Option<Self> {
        let started = Instant::now();
        let request = CanonicalRequest::tunnel(Protocol::Udp, to.clone());
        let policy = sandbox.policy();
        let decision = policy.decide(&request);
        let place = sandbox.admit_exchange();
        let reason = if place.is_none() {
            Reason::LimitExceeded
        } else {
            decision.reason()
        };
        let permit = decision.permit().filter(|_| place.is_some());
        let verdict = if permit.is_some() {
            Verdict::Allow
        } else {
            Verdict::Deny
        };
        let event = |kind| sandbox.traffic_event(kind, Ingress::Link, Some(Protocol::Udp), &to);
        let opening = Event {
            verdict: Some(verdict),
            reason: Some(reason),
            rule: decision.rule().cloned(),
            closest: decision.closest().cloned(),
            would_deny: decision.would_deny().cloned(),
            policy_revision: Some(policy.revision().to_owned()),
            ..event(EventKind::Flow)
        };
        if let Err(error) = sandbox.services().audit.append(&opening).await {
            tracing::error!(%error, sandbox = sandbox.id(), "a flow was refused: it could not be recorded");
            return None;
        }
        let (permit, place) = (permit?, place?);
        let closing = Event {
            flow: Some(opening.id),
            ..event(EventKind::FlowClose)
        };
        let ledger = Ledger::new(Arc::clone(&sandbox), closing, started, place);
        match sandbox.services().upstream.connect_udp(permit).await {
            Ok(connected) => {
                ledger.note(|event| {
                    event.peer = Some(connected.peer);
                    event.timings = connected.timings;
                });
                Some(Self {
                    sandbox,
                    request,
                    upstream: connected.socket,
                    idle: IDLE,
                    ledger,
                })
            }
            Err(error) => {
                ledger.note(|event| {
                    event.peer = error.peer();
                    event.reason = Some(error.reason());
                    event.detail = Some(error.to_string());
                });
                None
            }
        }
    }

    /// Relays until the flow is idle, the guest's link or the peer is gone, or the policy forbids it.
    pub(super) async fn run(self, mut guest: DatagramFlow) {
        let Self {
            sandbox,
            request,
            upstream,
            idle,
            ledger,
        } = self;
        let mut buffer = vec![0; MAX_DATAGRAM];
        let relay = async {
            loop {
                let step = async {
                    tokio::select! {
                        datagram = guest.receive() => {
                            let Some(datagram) = datagram else { return Ok(false) };
                            match upstream.send(&datagram).await {
                                Ok(_) => ledger.sent(datagram.len()),
                                // Longer than the way takes: lost like any other.
                                Err(error) if is_too_long(&error) => {}
                                Err(error) => return Err(error),
                            }
                        }
                        received = upstream.recv(&mut buffer) => {
                            let len = received?;
                            if guest.send(buffer.get(..len).unwrap_or_default()) {
                                ledger.received(len);
                            }
                        }
                    }
                    Ok::<_, std::io::Error>(true)
                };
                match timeout(idle, step).await {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) | Err(_) => return Ok(()),
                    Ok(Err(error)) => return Err(error),
                }
            }
        };
        tokio::select! {
            ended = relay => if let Err(error) = ended {
                // Mostly that nobody listens there, as the peer's host says by ICMP.
                ledger.note(|event| {
                    event.reason = Some(Reason::UpstreamUnreachable);
                    event.detail = Some(error.to_string());
                });
            },
            reason = until_denied(&sandbox, &request) => {
                ledger.note(|event| event.reason = Some(reason));
            }
        }
    }
}

fn is_too_long(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{Receiver, Sender};

    use super::*;
    use crate::http::tests::{Lab, allow, load, patient};
    use crate::link::Reply;

    struct Relay {
        lab: Lab,
        port: u16,
        server: UdpSocket,
        guest: Sender<Vec<u8>>,
        replies: Receiver<Reply>,
    }

    async fn relay() -> Relay {
        relay_until(IDLE).await
    }

    async fn relay_until(idle: Duration) -> Relay {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let lab = Lab::new(&allow("udp", port, ""), None);
        let to = Authority::parse(&format!("a.test:{port}"), None).unwrap();
        let mut flow = Datagrams::open(Arc::clone(&lab.sandbox), to).await.unwrap();
        flow.idle = idle;
        let (guest_end, guest, replies) = DatagramFlow::for_test();
        tokio::spawn(flow.run(guest_end));
        Relay {
            lab,
            port,
            server,
            guest,
            replies,
        }
    }

    #[tokio::test]
    async fn datagrams_are_counted_and_only_the_peer_is_heard() {
        let mut relay = relay().await;
        relay.guest.send(b"ping".to_vec()).await.unwrap();
        let mut buffer = [0; 16];
        let (len, gateway) = patient(relay.server.recv_from(&mut buffer)).await.unwrap();
        assert_eq!(&buffer[..len], b"ping");
        // Somebody else who knows where the gateway listens: another port is another peer.
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        stranger.send_to(b"forged", gateway).await.unwrap();
        for reply in [&b""[..], b"pong"] {
            relay.server.send_to(reply, gateway).await.unwrap();
            assert_eq!(patient(relay.replies.recv()).await.unwrap().payload, reply);
        }
        drop(relay.guest);
        let (opened, closed) = (
            relay.lab.record("flow").await,
            relay.lab.record("flow_close").await,
        );
        assert_eq!(
            (&opened["verdict"], &opened["protocol"]),
            (&"allow".into(), &"udp".into())
        );
        assert_eq!(closed["flow"], opened["id"]);
        assert_eq!(
            (&closed["bytes_sent"], &closed["bytes_received"]),
            (&4.into(), &4.into())
        );
        assert_eq!(closed["peer"], format!("127.0.0.1:{}", relay.port));
    }

    #[tokio::test]
    async fn b178_a_flow_that_a_new_policy_denies_is_cut() {
        let relay = relay().await;
        let other = allow("udp", relay.port, "").replace("a.test", "b.test");
        relay.lab.sandbox.set_policy(load(&other));
        patient(relay.guest.closed()).await;
        assert_eq!(
            relay.lab.record("flow_close").await["reason"],
            "default_deny"
        );
    }

    #[tokio::test]
    async fn a_peer_that_does_not_listen_ends_the_flow() {
        let relay = relay().await;
        drop(relay.server);
        // The refusal of the first datagram is told with the second, or before it.
        while relay.guest.send(b"anybody?".to_vec()).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let closed = relay.lab.record("flow_close").await;
        assert_eq!(closed["reason"], "upstream_unreachable");
    }

    #[tokio::test]
    async fn a_silent_flow_ends() {
        let relay = relay_until(Duration::from_millis(5)).await;
        patient(relay.guest.closed()).await;
        assert!(relay.lab.record("flow_close").await["reason"].is_null());
    }

    #[tokio::test]
    async fn b114_what_no_rule_opens_is_refused_and_recorded() {
        let lab = Lab::new(&allow("udp", 4444, ""), None);
        for to in ["a.test:4445", "b.test:4444", "127.0.0.1:4444"] {
            let to = Authority::parse(to, None).unwrap();
            assert!(
                Datagrams::open(Arc::clone(&lab.sandbox), to)
                    .await
                    .is_none()
            );
        }
        assert_eq!(lab.record("flow").await["verdict"], "deny");
        assert_eq!(lab.count("flow"), 3);
    }
}
