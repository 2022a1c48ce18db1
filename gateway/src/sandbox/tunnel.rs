//! A byte stream of a `protocol: tcp` rule: dialled first, then pumped in both directions.
//!
//! The two directions know nothing of each other: one that is blocked or closed does not stop the
//! other. A tunnel whose rule is gone after a policy change is cut.

use std::sync::Arc;
use std::time::Instant;

use outgate_policy::{Authority, CanonicalRequest, Protocol, Reason, Verdict};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::audit::{Event, EventKind, Ingress};
use crate::upstream::UpstreamStream;

use super::{Ledger, Refusal, SandboxContext};

/// Bytes moved at once in each direction.
const PUMP_BYTES: usize = 64 * 1024;

/// A tunnel whose far end is connected and whose near end is not yet accepted.
pub(super) struct Tunnel {
    sandbox: Arc<SandboxContext>,
    request: CanonicalRequest,
    upstream: UpstreamStream,
    ledger: Arc<Ledger>,
}

impl Tunnel {
    /// Decides, records and dials.
    ///
    /// # Errors
    /// A [`Refusal`], on record.
    pub(super) async fn open(
        sandbox: Arc<SandboxContext>,
        ingress: Ingress,
        to: Authority,
    ) -> Result<Self, Refusal> {
        let started = Instant::now();
        let request = CanonicalRequest::tunnel(Protocol::Tcp, to.clone());
        let policy = sandbox.policy();
        let decision = policy.decide(&request);
        let place = sandbox.admit_exchange();
        let reason = if place.is_none() {
            Reason::LimitExceeded
        } else {
            decision.reason()
        };
        let permit = decision.permit().filter(|_| place.is_some());
        let opening = Event {
            verdict: Some(if permit.is_some() {
                Verdict::Allow
            } else {
                Verdict::Deny
            }),
            reason: Some(reason),
            rule: decision.rule().cloned(),
            closest: decision.closest().cloned(),
            would_deny: decision.would_deny().cloned(),
            policy_revision: Some(policy.revision().to_owned()),
            ..sandbox.traffic_event(EventKind::Flow, ingress, Some(Protocol::Tcp), &to)
        };
        let refused = |reason| Refusal {
            reason,
            rule: decision.rule().map(|rule| Arc::clone(&rule.id)),
            message: decision.message().map(str::to_owned),
            record: opening.id,
        };
        if let Err(error) = sandbox.services().audit.append(&opening).await {
            tracing::error!(%error, sandbox = sandbox.id(), "a flow was refused: it could not be recorded");
            return Err(refused(Reason::AuditUnavailable));
        }
        let (Some(permit), Some(place)) = (permit, place) else {
            return Err(refused(reason));
        };
        let closing = Event {
            flow: Some(opening.id),
            ..sandbox.traffic_event(EventKind::FlowClose, ingress, Some(Protocol::Tcp), &to)
        };
        let ledger = Ledger::new(Arc::clone(&sandbox), closing, started, place);
        match sandbox.services().upstream.connect_tcp(permit).await {
            Ok(connected) => {
                ledger.note(|event| {
                    event.peer = Some(connected.peer);
                    event.timings = connected.timings;
                });
                Ok(Self {
                    sandbox,
                    request,
                    upstream: connected.stream,
                    ledger,
                })
            }
            Err(error) => {
                ledger.note(|event| {
                    event.peer = error.peer();
                    event.reason = Some(error.reason());
                    event.detail = Some(error.to_string());
                });
                Err(refused(error.reason()))
            }
        }
    }

    /// Pumps until both directions ended, one failed, or the policy forbids it.
    pub(super) async fn run(self, guest: impl AsyncRead + AsyncWrite + Send) {
        let Self {
            sandbox,
            request,
            upstream,
            ledger,
        } = self;
        let (mut from_guest, mut to_guest) = tokio::io::split(guest);
        let (mut from_upstream, mut to_upstream) = tokio::io::split(upstream);
        let pumps = async {
            tokio::try_join!(
                pump(&mut from_guest, &mut to_upstream, |bytes| ledger
                    .sent(bytes)),
                pump(&mut from_upstream, &mut to_guest, |bytes| ledger
                    .received(bytes)),
            )
        };
        tokio::select! {
            ended = pumps => if let Err(error) = ended {
                ledger.note(|event| event.detail = Some(error.to_string()));
            },
            reason = until_denied(&sandbox, &request) => {
                ledger.note(|event| event.reason = Some(reason));
            }
        }
    }
}

/// Moves bytes until `from` ends, then ends `to`: a half-close goes on as one.
async fn pump<R, W>(from: &mut R, to: &mut W, count: impl Fn(usize)) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; PUMP_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).await?;
        to.flush().await?;
        count(read);
    }
}

/// Resolves when a new policy denies what an earlier one allowed.
pub(super) async fn until_denied(sandbox: &SandboxContext, request: &CanonicalRequest) -> Reason {
    let mut changes = sandbox.policy_changes();
    loop {
        let decision = sandbox.policy().decide(request);
        if decision.permit().is_none() {
            return decision.reason();
        }
        if changes.changed().await.is_err() {
            // The sender lives in the sandbox that this function borrows.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::net::TcpListener;

    use super::*;
    use crate::http::tests::{Lab, allow, load, patient};

    /// More than all buffers on the way together.
    const BIG: usize = 32 * 1024 * 1024;

    async fn tunnel() -> (Lab, u16, TcpListener, DuplexStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lab = Lab::new(&allow("tcp", port, ""), None);
        let to = Authority::parse(&format!("a.test:{port}"), None).unwrap();
        let tunnel = Tunnel::open(Arc::clone(&lab.sandbox), Ingress::Link, to)
            .await
            .unwrap();
        let (guest, stream) = tokio::io::duplex(64 * 1024);
        tokio::spawn(tunnel.run(stream));
        (lab, port, listener, guest)
    }

    #[tokio::test]
    async fn an_echo_larger_than_all_buffers_and_a_half_close_get_through() {
        let (lab, _, listener, guest) = tunnel().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
            // Said only after the guest has ended its direction.
            to.write_all(b"end").await.unwrap();
        });
        let (mut from, mut to) = tokio::io::split(guest);
        let write = async {
            to.write_all(&vec![b'x'; BIG]).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let mut echoed = Vec::new();
        let read = from.read_to_end(&mut echoed);
        let ((), read) = patient(async { tokio::join!(write, read) }).await;
        assert_eq!(read.unwrap(), BIG + 3);
        assert!(echoed.ends_with(b"xend"));
        let record = lab.record("flow_close").await;
        assert_eq!(record["bytes_sent"], BIG);
        assert_eq!(record["bytes_received"], BIG + 3);
        assert!(record["reason"].is_null(), "{record}");
    }

    #[tokio::test]
    async fn b178_a_tunnel_that_a_new_policy_denies_is_cut() {
        let (lab, port, listener, mut guest) = tunnel().await;
        let (_stream, _) = listener.accept().await.unwrap();
        // A policy that still allows it changes nothing.
        lab.sandbox.set_policy(load(&allow("tcp", port, "")));
        guest.write_all(b"x").await.unwrap();
        lab.sandbox
            .set_policy(load(&allow("tcp", port, "").replace("a.test", "b.test")));
        assert_eq!(patient(guest.read(&mut [0])).await.unwrap(), 0);
        assert_eq!(lab.record("flow_close").await["reason"], "default_deny");
    }
}
