//! Refusals, in the format of each dialect.

use arenite_control::ControlError;
use arenite_control::images::{BuildError, BuildFailure};
use arenite_control::tenants::{Quota, QuotaExceeded};
use arenite_model::{ErrorCode, IdError};
use arenite_trajectory::TrajectoryError;
use axum::body::Body;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

/// Seconds after which records may have been removed.
const RETRY_WHEN_FULL: u64 = 30;

/// The reason for a refused request.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: ErrorCode,
    /// The code's own status, unless HTTP has a more exact one.
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// The quota that was exceeded.
    pub(crate) quota: Option<Box<QuotaExceeded>>,
    /// The step of a build that failed.
    pub(crate) build: Option<Box<BuildFailure>>,
    /// In seconds.
    pub(crate) retry_after: Option<u64>,
    pub(crate) allow: Option<Box<str>>,
    /// The path of the request, or what its step recorded.
    pub(crate) instance: Option<Box<str>>,
    /// The audit log has it.
    pub(crate) is_audited: bool,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            status: StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            message: message.into(),
            hint: None,
            quota: None,
            build: None,
            retry_after: None,
            allow: None,
            instance: None,
            is_audited: false,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    pub(crate) fn method_not_allowed(methods: &[Method]) -> Self {
        let allow = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            allow: Some(allow.as_str().into()),
            ..Self::new(ErrorCode::InvalidRequest, format!("this path takes {allow}"))
        }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The envelope for AIO's clients.
    pub(crate) fn envelope(&self) -> Response<Body> {
        let mut body = json!({ "success": false, "message": self.message, "data": null, "hint": self.hint, "code": self.code });
        if let Some(quota) = &self.quota {
            body["quota"] = json!(quota);
        }
        self.finish(json_response(self.status, &body))
    }

    /// The headers that belong to a refusal.
    pub(crate) fn finish(&self, mut answer: Response<Body>) -> Response<Body> {
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if let Some(allow) = self.allow.as_deref().and_then(|a| HeaderValue::from_str(a).ok()) {
            answer.headers_mut().insert(ALLOW, allow);
        }
        if self.code == ErrorCode::Unauthorized {
            // Not Basic, because browsers would open a password dialog.
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// A refusal in AIO Sandbox's envelope.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct RefusedEnvelope {
    success: bool,
    message: String,
    /// The kind of error, for programs.
    code: ErrorCode,
    /// How to go on.
    hint: Option<String>,
    /// The quota of the tenant that was exceeded.
    #[schema(nullable = false)]
    quota: Option<QuotaExceeded>,
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Self {
        let refusal = Self::new(error.code(), error.to_string());
        let quota = if let ControlError::Quota(exceeded) = &error { Some(Box::new(*exceeded)) } else { None };
        Self {
            quota,
            status: if error.is_unavailable() { StatusCode::SERVICE_UNAVAILABLE } else { refusal.status },
            hint: error.hint(),
            retry_after: error.retry_after().map(|d| d.as_secs().max(1)),
            ..refusal
        }
    }
}

impl From<BuildError> for Refusal {
    fn from(BuildError { error, failure }: BuildError) -> Self {
        Self { build: failure, ..error.into() }
    }
}

impl From<IdError> for Refusal {
    fn from(error: IdError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<TrajectoryError> for Refusal {
    fn from(error: TrajectoryError) -> Self {
        let refusal = Self { hint: error.hint(), ..Self::new(error.code(), error.to_string()) };
        match error {
            TrajectoryError::TenantFull { used, limit } => {
                let quota = QuotaExceeded { quota: Quota::TrajectoryBytes, limit, used, requested: 1 };
                Self { quota: Some(Box::new(quota)), retry_after: Some(RETRY_WHEN_FULL), ..refusal }
            }
            _ => refusal,
        }
    }
}

/// A JSON answer.
pub(crate) fn json_response(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(body).unwrap_or_else(|_| b"{}".to_vec());
    let mut answer = Response::new(Body::from(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
