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
    /// The HTTP status of this code.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden | Self::QuotaExceeded => 403,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Conflict => 409,
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
