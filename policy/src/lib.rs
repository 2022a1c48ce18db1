//! The policy language of Outgate: what may leave a sandbox.
//!
//! Inputs in, decision out. This crate does no I/O, has no clock and no async, and can't panic on
//! input. A request is first made canonical ([`CanonicalRequest`]), then decided
//! ([`Policy::decide`]); the [`Permit`] of an allow is the only way on.
//!
//! ```
//! use outgate_policy::{Authority, CanonicalRequest, Policy, Protocol, RequestParts, Source, Verdict};
//!
//! let text = "
//! version: 1
//! rules:
//!   - id: docs
//!     action: allow
//!     to: { hosts: [docs.example.com] }
//!     http: { methods: [GET], paths: [\"/guide/**\"] }
//! ";
//! let policy = Policy::load(&[Source::new("docs.yaml", text)])?;
//! let authority = Authority::parse("docs.example.com", 443).unwrap();
//! let request = CanonicalRequest::new(RequestParts {
//!     protocol: Protocol::Https,
//!     authority: &authority,
//!     method: "GET",
//!     target: "/guide/start",
//!     body_len: None,
//! }).unwrap();
//! assert_eq!(policy.decide(&request).verdict(), Verdict::Allow);
//! # Ok::<(), outgate_policy::Diagnostics>(())
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod address;
mod admit;
mod authority;
mod body;
mod canonical;
mod compare;
mod compile;
mod content;
mod credential;
mod decide;
mod decision;
mod destination_set;
mod diagnostic;
mod document;
mod effective;
mod explain;
mod feature;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod host;
mod host_pattern;
mod index;
mod limits;
mod lint;
mod policy;
mod policy_tests;
mod reason;
mod recorded;
mod rule;
mod schema;
mod source;
mod suggest;
mod yaml_text;

pub use address::AddressClass;
pub use authority::{Authority, Destination, Protocol};
pub use canonical::{CanonicalRequest, MAX_TARGET, QueryPairs, Reject, RequestParts, RequestUrl};
pub use compare::{Answer, Aspect, Beside, Change, Difference, Extent, Region, Undecided, Within};
pub use content::Needs;
pub use credential::{
    CredentialName, CredentialSource, CredentialSpec, Expose, HeaderAttach, Shape,
};
pub use decision::{Admission, Closest, Decision, Permit, RuleRef, Verdict, WouldDeny};
pub use diagnostic::{Diagnostic, Diagnostics, Label, Severity};
pub use effective::{
    Effective, EffectiveCredential, EffectiveExpose, EffectiveHeader, EffectiveLayer,
    EffectiveRule, EffectiveSource,
};
pub use explain::{Considered, Explanation};
pub use feature::Feature;
pub use format::format;
pub use host::{Host, HostError};
pub use limits::{AskTerms, Budget, Limits, Rate};
pub use policy::Policy;
pub use policy_tests::{TestDifference, TestOutcome};
pub use reason::Reason;
pub use rule::Mismatch;
pub use schema::schema;
pub use source::{Included, Source};
pub use suggest::{LeftOut, Seen, Sighting, SuggestedRule, Suggester, Suggestions, suggested_rule};
