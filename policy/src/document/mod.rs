//! From text to the types of the language: YAML tree, keys and types, nothing of meaning.
//!
//! What a host or a path pattern may be is decided in [`crate::compile`]. Everything found here is
//! collected, so that a person sees all mistakes of a file at once.

mod amounts;
mod decode;
mod fields;
mod fuzzy;
mod spec;
mod yaml;

pub(crate) use self::decode::{decode, decode_cases, decode_includes};
pub(crate) use self::fields::{Findings, quotes_matter};
pub(crate) use self::fuzzy::nearest;
pub(crate) use self::spec::{
    Action, AskReuse, AskSpec, At, BudgetPer, BudgetSpec, CredentialEntry, EncodedSlash,
    Expectation, ExposeSpec, GitOperation, GitSpec, GrpcSpec, HeaderSpec, HttpSpec, LimitsSpec,
    Mode, PolicySpec, RequestMap, RequestSpec, RuleSpec, SourceSpec, TestSpec, TlsHandling,
    ValuesSpec, VaultSpec,
};
pub(crate) use self::yaml::{Commented, Kind, MAX_DEPTH, Node, Style, parse_commented};
