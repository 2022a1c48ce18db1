//! The admin socket: where a node registers its sandboxes and hands over their links.
//!
//! A unix socket with mode 0600; only the gateway's own user and root may connect. It can't be
//! reached from a link.

mod client;
mod descriptor;
pub mod protocol;
mod server;

pub use client::{Connection, RegisterError, ask};
pub use server::{Reload, serve};
