//! What the first process of a guest and its host say to each other.
//!
//! This library is the [`api`] alone: types, routes and the frame codec of the control channel. The
//! program that implements it is the binary of this package.

pub mod api;
