//! End-to-end tests of Outgate: the [`lab`] on the far side of the gateway, the [`guest`] on the
//! near side of the link, and the [`harness`] that puts a real `outgate` between them.
//!
//! Nothing here knows the gateway's insides: it is driven by its command line, its admin socket
//! and Ethernet frames, and judged by what the upstreams received and by its audit log.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness reports a broken precondition by failing the test that meets it"
)]

pub mod guest;
pub mod harness;
pub mod lab;
