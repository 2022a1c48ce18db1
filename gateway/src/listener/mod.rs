//! Ways in for other people's isolation: listeners that clients connect to, instead of a link.
//!
//! A listener finds out which sandbox a connection belongs to, from a credential or from what the
//! operator said of the socket, never from an address or a header that a guest may choose; then it
//! opens flows in that sandbox ([`SandboxContext::open`](crate::sandbox::SandboxContext)). What it
//! refuses: to serve anybody it does not know, to tell a missing credential from a wrong one, to wait
//! for slow heads, and to hold more connections than `accept.rs` says.

mod accept;
mod bind;
mod client;
mod directory;
mod entrance;
mod refusals;
mod socks;
mod tls;
mod transparent;
mod transport;

pub use self::accept::{Kind, Listener, ListenerConfig, MAX_CONNECTIONS, Origin, Protocols, Who};
pub use self::bind::{Bound, ListenAt, ListenError};
pub(crate) use self::client::{Client, FIRST_TIME, Presented, Unknown, record_reject};
pub(crate) use self::directory::Guest;
pub use self::directory::{Directory, MAX_CONNECTIONS_PER_SANDBOX, Recognised, TokenHash};
pub use self::tls::{ServerTls, ServerTlsError};
pub(crate) use self::transport::Transport;
#[cfg(feature = "fuzzing")]
pub(crate) use self::{
    socks::message,
    transparent::{Sniffed, Sniffer},
};
