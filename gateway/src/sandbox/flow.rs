//! What a sandbox's link asks about: flows to open, names to answer, and what it dropped.
//!
//! A SYN is answered only once its flow is [open](SandboxContext::open); what was not opened is
//! answered with a reset.

use std::sync::Arc;

use outgate_policy::{Authority, Destination, Host, Reason, Verdict};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::audit::{Event, EventKind, Ingress};
use crate::link::{
    BoxFuture, DatagramOpening, Dropped, FlowDestination, FlowHandler, NameAdmission, NameAlarm,
    NameAnswer, Opening,
};

use super::datagrams::Datagrams;
use super::notes::Notes;
use super::{Opened, SandboxContext};

/// The one flow handler of a link. Dropping it ends everything that it opened.
pub(super) struct Flows {
    sandbox: Arc<SandboxContext>,
    notes: Notes,
    open: CancellationToken,
    _ends_with_the_link: DropGuard,
}

impl Flows {
    pub(super) fn new(sandbox: Arc<SandboxContext>) -> Self {
        let open = CancellationToken::new();
        Self {
            notes: Notes::spawn(Arc::clone(&sandbox)),
            sandbox,
            _ends_with_the_link: open.clone().drop_guard(),
            open,
        }
    }

    async fn decide(&self, to: FlowDestination) -> Opening {
        match self.sandbox.open(Ingress::Link, authority(to)).await {
            Ok(opened) => self.accept(opened),
            Err(_on_record) => Opening::Refuse,
        }
    }

    async fn decide_datagrams(&self, to: FlowDestination) -> DatagramOpening {
        let flow = Datagrams::open(Arc::clone(&self.sandbox), authority(to)).await;
        let Some(flow) = flow else {
            return DatagramOpening::Refuse;
        };
        let open = self.open.clone();
        DatagramOpening::Accept(Box::new(move |guest| {
            tokio::spawn(open.run_until_cancelled_owned(flow.run(guest)));
        }))
    }

    fn accept(&self, opened: Opened) -> Opening {
        let open = self.open.clone();
        Opening::Accept(Box::new(move |stream| {
            tokio::spawn(open.run_until_cancelled_owned(opened.serve(stream)));
        }))
    }
}

/// What a destination on the link is to the policy.
fn authority(to: FlowDestination) -> Authority {
    Authority {
        destination: match to.name {
            Some(name) => Destination::Name(name),
            None => Destination::from(to.ip),
        },
        port: to.port,
    }
}

impl FlowHandler for Flows {
    fn open(&self, to: FlowDestination) -> BoxFuture<'_, Opening> {
        Box::pin(self.decide(to))
    }

    fn admits_datagrams(&self, to: &FlowDestination) -> bool {
        let Authority { destination, port } = authority(to.clone());
        self.sandbox.policy().admits(&destination, port).udp
    }

    fn open_datagrams(&self, to: FlowDestination) -> BoxFuture<'_, DatagramOpening> {
        Box::pin(self.decide_datagrams(to))
    }

    fn resolve(&self, name: &Host) -> NameAdmission {
        let policy = self.sandbox.policy();
        if !policy.admits_name(name) {
            NameAdmission::Denied
        } else if policy.lists_name(name) {
            NameAdmission::Listed
        } else {
            NameAdmission::Wildcard
        }
    }

    fn dropped(&self, what: Dropped, count: u64) {
        self.notes.add(Event {
            count: Some(count),
            detail: Some(what.to_string()),
            ..self.sandbox.event(EventKind::Drop)
        });
    }

    fn name_query(&self, name: &str, answer: NameAnswer) {
        let (verdict, reason) = match answer {
            NameAnswer::Allowed => (Verdict::Allow, Reason::Allowed),
            NameAnswer::Denied => (Verdict::Deny, Reason::DnsNameDenied),
            NameAnswer::OverBudget => (Verdict::Deny, Reason::LimitExceeded),
            NameAnswer::TypeDenied => (Verdict::Deny, Reason::DnsTypeDenied),
        };
        self.notes.add(Event {
            host: Some(name.to_owned()),
            verdict: Some(verdict),
            reason: Some(reason),
            ..self.sandbox.event(EventKind::Dns)
        });
    }

    fn name_alarm(&self, alarm: &NameAlarm) {
        let NameAlarm {
            domain,
            names,
            bytes,
        } = alarm;
        let detail = format!(
            "the names asked for below this domain look like data on its way out: {bytes} bytes in \
             {names} names"
        );
        self.notes.add(Event {
            host: Some(domain.clone()),
            count: Some(*names),
            detail: Some(detail),
            ..self.sandbox.event(EventKind::Alarm)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::net::TcpListener;

    use super::*;
    use crate::http::tests::{Lab, allow, load, patient};

    fn to(name: &str, port: u16) -> FlowDestination {
        let ip = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
        let name = Some(Host::parse(name).unwrap());
        FlowDestination { ip, port, name }
    }

    async fn opens(lab: &Lab, to: FlowDestination) -> bool {
        let handler = lab.sandbox.flow_handler();
        matches!(patient(handler.open(to)).await, Opening::Accept(_))
    }

    #[tokio::test]
    async fn b007_only_what_a_rule_could_allow_is_opened() {
        let lab = Lab::new(&allow("https", 443, ""), None);
        assert!(opens(&lab, to("a.test", 443)).await);
        assert!(opens(&lab, to("outgate.internal", 80)).await);
        assert_eq!(lab.count("flow"), 0);
        assert!(!opens(&lab, to("a.test", 80)).await);
        assert!(!opens(&lab, to("evil.test", 443)).await);
        let by_address = FlowDestination {
            name: None,
            ..to("a.test", 443)
        };
        assert!(!opens(&lab, by_address).await);
        let record = lab.record("flow").await;
        assert_eq!(record["verdict"], "deny");
        assert_eq!(
            (&record["host"], &record["port"]),
            (&"a.test".into(), &80.into())
        );
        assert_eq!(lab.count("flow"), 3);
    }

    #[tokio::test]
    async fn a_byte_stream_is_open_only_once_it_is_dialled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lab = Lab::new(&allow("tcp", port, ""), None);
        assert!(opens(&lab, to("a.test", port)).await);
        assert_eq!(lab.record("flow").await["verdict"], "allow");

        drop(listener);
        let lab = Lab::new(&allow("tcp", port, ""), None);
        assert!(!opens(&lab, to("a.test", port)).await);
        let (flow, close) = (lab.record("flow").await, lab.record("flow_close").await);
        assert_eq!(close["flow"], flow["id"]);
        assert_eq!(close["reason"], "upstream_unreachable");
    }

    #[tokio::test]
    async fn b178_names_follow_the_policy_in_force_and_are_recorded() {
        let lab = Lab::new(&allow("https", 443, ""), None);
        let handler = lab.sandbox.flow_handler();
        let (a, b) = (
            Host::parse("a.test").unwrap(),
            Host::parse("b.test").unwrap(),
        );
        let (listed, denied) = (NameAdmission::Listed, NameAdmission::Denied);
        assert_eq!((handler.resolve(&a), handler.resolve(&b)), (listed, denied));
        lab.sandbox
            .set_policy(load(&allow("https", 443, "").replace("a.test", "b.test")));
        assert_eq!((handler.resolve(&a), handler.resolve(&b)), (denied, listed));
        handler.name_query("a.test", NameAnswer::Denied);
        handler.dropped(Dropped::Quic, 7);
        let (dns, drop) = (lab.record("dns").await, lab.record("drop").await);
        assert_eq!(
            (&dns["host"], &dns["verdict"]),
            (&"a.test".into(), &"deny".into())
        );
        assert_eq!(
            (&drop["detail"], &drop["count"]),
            (&"quic".into(), &7.into())
        );
    }
}
