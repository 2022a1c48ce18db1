//! The explicit proxy, black box: a real `outgate gateway --config FILE`, and clients that are told to
//! use it. Field cases keep their ids, as in the suite of the link.

#![expect(
    clippy::expect_used,
    reason = "clippy exempts tests from these lints, but not what tests share"
)]

mod absolute;
mod bounds;
mod config;
mod connect;
mod credentials;
mod reload;
mod socks;
mod tls;
mod transparent;
