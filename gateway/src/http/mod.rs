//! HTTP as a guest speaks it: read strictly, judged request by request, answered as a stream.
//!
//! `serve` takes one accepted flow. It finds out whether TLS or clear text is spoken, is the
//! origin to the guest ([`crate::tls`]), reads HTTP/1 through the strict `front` or HTTP/2, and has
//! each request become one `exchange`: canonical, decided under the policy of that moment, recorded,
//! given its credential and sent, in this order. What it refuses: tunnels, upgrades, a request for
//! any other host than that of the flow, and to send anything that is not recorded.

mod body;
mod denial;
mod exchange;
mod front;
mod guest_body;
mod headers;
mod internal;
mod placeholder;
mod proxy;
mod replay;
mod serve;

#[cfg(feature = "fuzzing")]
pub(crate) use self::proxy::fuzzing;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::front::host_of_head;
pub(crate) use self::proxy::serve as serve_proxy;
pub(crate) use self::serve::{Flow, serve};
