//! Refusals in a form that clients of both dialects read.

use axum::body::Body;
use http::{Response, StatusCode};
use serde_json::json;

use crate::refusal::{Refusal, json_response};

/// `error` has `type` and `message` for both, `code` and `param` for OpenAI's clients; `type` beside it is for Anthropic's.
pub(crate) fn refuse(refusal: &Refusal) -> Response<Body> {
    let kind = match refusal.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    // Not codes of this server: the upstream failed.
    let code = match refusal.status {
        StatusCode::BAD_GATEWAY => "upstream_failed",
        StatusCode::GATEWAY_TIMEOUT => "upstream_timeout",
        _ => refusal.code.as_str(),
    };
    let error = json!({ "type": kind, "code": code, "message": refusal.message, "param": null, "hint": refusal.hint });
    refusal.finish(json_response(refusal.status, &json!({ "type": "error", "error": error })))
}
