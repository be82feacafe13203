//! Errors of operations in pages.

use axum::http::StatusCode;
use thiserror::Error;

use super::super::service::BrowserError;
use arenite_guest_cdp::CdpError;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::http::ApiError;

/// The message for a call that lost its document.
const WENT_ON: &str = "the page went to another document before it answered";

#[derive(Debug, Error)]
pub enum PageError {
    /// The request is invalid.
    #[error("{0}")]
    Bad(String),
    /// The requested thing does not exist.
    #[error("{0}")]
    Missing(String),
    /// The page or the browser failed to do it.
    #[error("{0}")]
    Failed(String),
    #[error("timed out after {seconds} s: {what}")]
    TooSlow { what: &'static str, seconds: f64 },
    /// An exception from the page's JavaScript, or the caller's.
    #[error("{0}")]
    Threw(String),
    #[error("the page crashed")]
    Crashed,
    #[error("the tab was closed")]
    Closed,
    #[error(transparent)]
    File(#[from] Failure),
    #[error(transparent)]
    Cdp(#[from] CdpError),
    #[error(transparent)]
    Browser(#[from] BrowserError),
}

impl From<PageError> for ApiError {
    fn from(error: PageError) -> Self {
        // The browser's message is about its internal objects.
        let message = if is_gone(&error) { WENT_ON.to_owned() } else { error.to_string() };
        let failed = |message| ApiError::new(StatusCode::FAILED_DEPENDENCY, message);
        match error {
            PageError::Bad(_) => ApiError::bad_request(message),
            PageError::Missing(_) => ApiError::not_found(message),
            PageError::File(failure) if failure.errno() == Some(rustix::io::Errno::NOENT) => ApiError::not_found(message),
            PageError::File(_) => ApiError::bad_request(message),
            PageError::Crashed => failed(message).hint("the next call reloads the page"),
            PageError::Closed => failed(message).hint("GET /v1/browser/tabs tells which tabs there are"),
            PageError::TooSlow { .. } | PageError::Failed(_) | PageError::Threw(_) => failed(message),
            error if is_gone(&error) => failed(message).hint("call again to work in the document that the page shows now"),
            PageError::Cdp(error) => BrowserError::from(error).into(),
            PageError::Browser(error) => error.into(),
        }
    }
}

/// Whether a page's context, or an object in it, disappeared during the call: the call can be repeated.
pub(super) fn is_gone(error: &PageError) -> bool {
    let message = match error {
        PageError::Cdp(CdpError::Superseded { .. }) => return true,
        PageError::Cdp(CdpError::Refused { message, .. }) => message,
        _ => return false,
    };
    [
        "Cannot find context",
        "Execution context was destroyed",
        "Inspected target navigated",
        "uniqueContextId not found",
        "Could not find object",
        "Cannot find object",
        "Argument should belong to the same JavaScript world",
        "Node with given id does not belong",
        "No node with given id",
        "Could not find node",
        "Object id doesn't reference",
    ]
    .iter()
    .any(|words| message.contains(words))
}
