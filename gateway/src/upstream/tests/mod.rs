//! The way out against local origins and a local DNS server, over real sockets.

mod http;
mod lab;
mod names;
mod pooling;
mod resolvers;
mod trust;
