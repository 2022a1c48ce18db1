//! The one form of every refusal.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A refusal: the body of every reply that isn't a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}; {how_to_fix} ({code})")]
pub struct ApiError {
    /// What kind of refusal.
    pub code: ErrorCode,
    /// What happened, for people.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What to do.
    pub how_to_fix: String,
}

impl ApiError {
    /// A refusal that the same request will meet again.
    pub fn new(code: ErrorCode, message: impl Into<String>, how_to_fix: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: matches!(code, ErrorCode::Unavailable | ErrorCode::LimitExceeded),
            how_to_fix: how_to_fix.into(),
        }
    }
}

/// The stable list of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request makes no sense.
    BadRequest,
    /// The id was used for something else.
    Conflict,
    /// The working directory can't be entered.
    ExecCwd,
    /// The program was found and can't be executed.
    ExecNotExecutable,
    /// The program was not found.
    ExecNotFound,
    /// The user is unknown or can't be taken on.
    ExecUser,
    /// The system refused, with its own words in the message.
    Io,
    /// Too many of something, or too much.
    LimitExceeded,
    /// The first request was not the configuration.
    NotConfigured,
    /// No such route, command or file.
    NotFound,
    /// The file may not be touched.
    PermissionDenied,
    /// The file ends before the range.
    RangeNotSatisfiable,
    /// The disk is full.
    StorageFull,
    /// Not now.
    Unavailable,
}

impl ErrorCode {
    /// The code as it is on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::Conflict => "conflict",
            Self::ExecCwd => "exec_cwd",
            Self::ExecNotExecutable => "exec_not_executable",
            Self::ExecNotFound => "exec_not_found",
            Self::ExecUser => "exec_user",
            Self::Io => "io",
            Self::LimitExceeded => "limit_exceeded",
            Self::NotConfigured => "not_configured",
            Self::NotFound => "not_found",
            Self::PermissionDenied => "permission_denied",
            Self::RangeNotSatisfiable => "range_not_satisfiable",
            Self::StorageFull => "storage_full",
            Self::Unavailable => "unavailable",
        }
    }

    /// The HTTP status that the refusal travels with.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::ExecCwd | Self::ExecNotExecutable | Self::ExecUser => 400,
            Self::PermissionDenied => 403,
            Self::ExecNotFound | Self::NotFound => 404,
            Self::Conflict | Self::NotConfigured => 409,
            Self::RangeNotSatisfiable => 416,
            Self::LimitExceeded => 429,
            Self::Io => 500,
            Self::Unavailable => 503,
            Self::StorageFull => 507,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_is_the_code() {
        for code in [
            ErrorCode::BadRequest,
            ErrorCode::ExecNotFound,
            ErrorCode::StorageFull,
        ] {
            let wire = serde_json::to_value(code).unwrap();
            assert_eq!(wire, serde_json::json!(code.as_str()));
        }
    }
}
