//! The only way out of an Outgate sandbox.
//!
//! A sandbox reaches this crate through a link that carries Ethernet frames, or through a [`listener`].
//! [`link`] terminates TCP and DNS, [`http`] parses each request once, `outgate-policy` decides it, [`credential`]
//! adds what the sandbox must never see, [`upstream`] dials the checked address over verified TLS
//! ([`tls`]), and [`audit`] writes down every step. Nothing here knows how a sandbox is run.
#![forbid(unsafe_code)]

pub mod admin;
mod ahead;
pub mod audit;
pub mod config;
pub mod credential;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gateway;
pub mod http;
pub mod link;
pub mod listener;
mod rate;
pub mod sandbox;
pub mod tls;
mod unix_socket;
pub mod upstream;
