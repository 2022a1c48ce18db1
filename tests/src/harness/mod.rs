//! Puts a real `outgate` between the lab and a guest, and reads its audit log.

mod admin;
mod audit;
mod gateway;
mod proxy;
mod wait;
mod world;

pub use admin::{Refused, Registered, Registration, SandboxSpec, register};
pub use audit::{AuditTrail, Record};
pub use gateway::{Gateway, GatewayHome, outgate};
pub use proxy::{PROXY, ProxyWorld, SANDBOX, TOKEN, authorization, basic};
pub use wait::eventually;
pub use world::{PUBLIC, SECRET, SECRET_VARIABLE, World, lab, policy, sandbox};
