//! Host names and URLs as others define them: the WHATWG's and Unicode's own test data decide.
//!
//! We may refuse more than they do, and every kind of refusal is counted, so that a change is seen.
//! We may never accept what they refuse, or read another host, apart from the reviewed exceptions.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod idna;
mod packages;
mod paths;
mod table;
mod urls;
