//! The gateway, black box: a real `outgate gateway` between the lab and a guest on a real link.
//! Field cases keep their ids (`b023`, `c07`): each is something that went wrong for somebody.

#![expect(
    clippy::expect_used,
    reason = "clippy exempts tests from these lints, but not what tests share"
)]

mod audit;
mod credentials;
mod dns;
mod gateway_restart;
mod headers;
mod http2;
mod isolation;
mod link;
mod next_hop;
mod policy_content;
mod policy_http;
mod policy_load;
mod raw;
mod resolvers;
mod smuggling;
mod streaming;
mod targets;
mod tls;
mod udp;
