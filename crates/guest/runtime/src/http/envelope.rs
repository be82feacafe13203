//! The envelope of answers: `{success, message, data, hint}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use serde::Serialize;
use utoipa::ToSchema;

/// The answer of every operation, except those listed in the contract.
#[derive(Debug, Serialize, ToSchema)]
pub struct Envelope<T> {
    pub success: bool,
    pub message: Option<String>,
    pub data: Option<T>,
    /// Advice for agents.
    pub hint: Option<String>,
}

impl<T: Serialize> IntoResponse for Envelope<T> {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

/// An envelope or an error.
pub type Reply<T> = Result<Envelope<T>, ApiError>;

/// A success with AIO's usual message.
pub fn ok<T>(data: T) -> Reply<T> {
    ok_message(data, "Operation successful")
}

pub fn ok_message<T>(data: T, message: impl Into<String>) -> Reply<T> {
    Ok(Envelope { success: true, message: Some(message.into()), data: Some(data), hint: None })
}

/// Runs a call in a separate task, so that a client that disconnects does not cancel it halfway.
pub async fn whole<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
    call: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, ApiError> {
    // Without the call's type: the code of a task is compiled for each type of future.
    let call: BoxFuture<'static, Result<T, E>> = Box::pin(call);
    let task = tokio::spawn(call);
    let done = task.await.map_err(|e| ApiError::new(StatusCode::FAILED_DEPENDENCY, format!("the call broke off: {e}")))?;
    done.map_err(Into::into)
}

/// A failure with an HTTP status. Expected failures of a tool (a missing file, a command that exits with 1) are not HTTP errors:
/// they answer 200, since AIO's JavaScript client repeats calls that got a 5xx.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    pub hint: Option<String>,
    /// For programs: stays the same when the message changes. None: the status says enough.
    pub code: Option<&'static str>,
}

/// An error's envelope.
#[derive(Debug, Serialize)]
struct ErrorBody {
    success: bool,
    message: String,
    data: Option<()>,
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None, code: None }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, message, hint, code } = self;
        (status, Json(ErrorBody { success: false, message, data: None, hint, code })).into_response()
    }
}
