//! Phase one, before anything is read: could some rule allow something to this place?

use std::sync::Arc;

use crate::compile::Layer;
use crate::decide::closed_address;
use crate::policy::Policy;
use crate::rule::{Protocols, Rule};
use crate::{Admission, Destination, Host, Protocol, Reason};

impl Policy {
    /// Which protocols could some rule allow to this place? Whatever [`Self::decide`] allows is
    /// admitted.
    #[must_use]
    pub fn admits(&self, destination: &Destination, port: u16) -> Admission {
        let mut open = if self.layers.is_empty() {
            Protocols::NONE
        } else {
            Protocols::ALL
        };
        let mut rule = None;
        let mut private = true;
        for layer in &self.layers {
            let found = Opened::by(layer, destination, port);
            private &= found.private;
            if layer.observes {
                open = open.and(found.protocols.or(Protocols::HTTP));
            } else {
                open = open.and(found.protocols);
                rule = rule.or(found.closed_by);
            }
        }
        let reason = match (open.is_empty(), closed_address(destination, private)) {
            (true, _) if self.layers.is_empty() => Reason::NoPolicy,
            (true, _) if rule.is_some() => Reason::RuleDeny,
            (true, _) => Reason::DefaultDeny,
            (false, Some(reason)) => {
                open = Protocols::NONE;
                reason
            }
            (false, None) => Reason::Allowed,
        };
        Admission {
            https: open.has(Protocol::Https),
            http: open.has(Protocol::Http),
            tcp: open.has(Protocol::Tcp),
            udp: open.has(Protocol::Udp),
            tls: open.has(Protocol::Tls),
            reason,
            rule: if reason == Reason::RuleDeny {
                rule.map(|rule| Arc::clone(&rule.reference))
            } else {
                None
            },
        }
    }

    /// Whether some allow rule of every layer could match this name, at any port. A name that no
    /// rule can match must not be resolved.
    #[must_use]
    pub fn admits_name(&self, name: &Host) -> bool {
        let destination = Destination::Name(name.clone());
        !self.layers.is_empty()
            && self.layers.iter().all(|layer| {
                let (mut allowed, mut closed) = (layer.observes, false);
                layer.index.buckets(&destination, |bucket| {
                    for (opening, every_port) in bucket.all_openings() {
                        allowed |= !opening.allowed.is_empty();
                        closed |= every_port && opening.denied == Protocols::ALL;
                    }
                });
                allowed && (layer.observes || !closed)
            })
    }

    /// Whether some allow rule names this host in full. Of a name that only wildcards match, whoever
    /// asks for it chose a part.
    #[must_use]
    pub fn lists_name(&self, name: &Host) -> bool {
        self.layers.iter().any(|layer| {
            layer.index.exact(name).is_some_and(|bucket| {
                bucket
                    .all_openings()
                    .any(|(opening, _)| !opening.allowed.is_empty())
            })
        })
    }
}

/// What one layer could allow to a place.
struct Opened<'a> {
    protocols: Protocols,
    private: bool,
    closed_by: Option<&'a Rule>,
}

impl<'a> Opened<'a> {
    fn by(layer: &'a Layer, destination: &Destination, port: u16) -> Self {
        let mut allowed = Protocols::NONE;
        let mut denied = Protocols::NONE;
        let mut private = false;
        let mut closed_by: Option<u32> = None;
        layer.index.buckets(destination, |bucket| {
            for opening in bucket.openings(port) {
                allowed = allowed.or(opening.allowed);
                denied = denied.or(opening.denied);
                private |= opening.private;
                closed_by = closed_by.into_iter().chain(opening.closed_by).min();
            }
        });
        Self {
            protocols: allowed.without(denied),
            private,
            closed_by: closed_by.and_then(|position| layer.rules.get(position as usize)),
        }
    }
}
