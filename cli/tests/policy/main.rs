//! `outgate policy` from outside: the built program, files in a folder, standard output and exit
//! codes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod check;
mod compare;
mod desk;
mod explain;
mod fmt;
mod logs;
mod show;
mod test;
