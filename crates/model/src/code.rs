//! Stable error codes, the same in every dialect.

use serde::Serialize;
use utoipa::ToSchema;

/// The kind of an error: stable across versions, for programs to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    InvalidRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    /// The version that `If-Match` names is not the current one.
    PreconditionFailed,
    /// The `Idempotency-Key` belongs to another request.
    IdempotencyKeyReused,
    TooLarge,
    /// A limit of rate, queue, memory, disk or number was reached; retry later.
    Exhausted,
    /// The request exceeds a quota by itself, so a retry does not help.
    QuotaExceeded,
    /// The host or the engine does not support it, and says why.
    Unsupported,
    Timeout,
    /// The sandbox or its guest failed.
    SandboxFailed,
    Internal,
}

impl ErrorCode {
    /// All codes, in the order of their statuses.
    pub const ALL: [Self; 15] = [
        Self::InvalidRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::QuotaExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Conflict,
        Self::PreconditionFailed,
        Self::TooLarge,
        Self::IdempotencyKeyReused,
        Self::Exhausted,
        Self::Internal,
        Self::Unsupported,
        Self::SandboxFailed,
        Self::Timeout,
    ];

    /// What errors with this code have in common, for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::InvalidRequest => "Invalid request",
            Self::Unauthorized => "Credentials are missing or not valid",
            Self::Forbidden => "Not allowed",
            Self::QuotaExceeded => "Quota exceeded",
            Self::NotFound => "Not found",
            Self::AlreadyExists => "The name is taken",
            Self::Conflict => "Conflict with the current state",
            Self::PreconditionFailed => "Changed since it was read",
            Self::TooLarge => "Too large",
            Self::IdempotencyKeyReused => "The idempotency key belongs to another request",
            Self::Exhausted => "A limit is reached for now",
            Self::Internal => "Internal error",
            Self::Unsupported => "Not supported here",
            Self::SandboxFailed => "The sandbox failed",
            Self::Timeout => "The work took too long",
        }
    }

    /// The usual HTTP status of this code.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden | Self::QuotaExceeded => 403,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::PreconditionFailed => 412,
            Self::TooLarge => 413,
            Self::IdempotencyKeyReused => 422,
            Self::Exhausted => 429,
            Self::Unsupported => 501,
            Self::Timeout => 504,
            Self::SandboxFailed => 502,
            Self::Internal => 500,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Conflict => "conflict",
            Self::PreconditionFailed => "precondition_failed",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::TooLarge => "too_large",
            Self::Exhausted => "exhausted",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Unsupported => "unsupported",
            Self::Timeout => "timeout",
            Self::SandboxFailed => "sandbox_failed",
            Self::Internal => "internal",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_is_listed_once_and_has_its_own_title() {
        let names: BTreeSet<_> = ErrorCode::ALL.map(ErrorCode::as_str).into();
        let titles: BTreeSet<_> = ErrorCode::ALL.map(ErrorCode::title).into();
        assert_eq!((names.len(), titles.len()), (ErrorCode::ALL.len(), ErrorCode::ALL.len()));
        // The schema has all variants.
        let schema = serde_json::to_value(<ErrorCode as utoipa::PartialSchema>::schema()).unwrap();
        let listed: BTreeSet<_> = schema["enum"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
        assert_eq!(names, listed);
        assert!(ErrorCode::ALL.is_sorted_by_key(|code| code.http_status()));
    }
}
