//! The way out against local origins and a local DNS server, over real sockets.

mod http;
mod lab;
mod names;
mod next_hop;
mod pooling;
mod resolvers;
mod trust;
