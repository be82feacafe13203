//! AIO's `display` service, and what errors of the desktop are in HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use utoipa::OpenApi;

use super::record::{DisplayRecordRequest, DisplayRecordResult, DisplayRecordStatus};
use super::screen::ScreenError;
use super::service::DesktopError;
use super::vnc;
use crate::SharedGuest;
use crate::http::{ApiError, Body, Envelope, Reply, ok_message, whole};

/// Said with an error that another image would not have.
pub(crate) const OTHER_IMAGE: &str = "make the sandbox of the image `browser`";

/// Its part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(record))]
pub struct DisplayApi;

/// Its routes.
pub fn router() -> Router<SharedGuest> {
    Router::new().route("/v1/display/record", post(record)).route("/websockify", get(vnc::connect))
}

impl From<DesktopError> for ApiError {
    fn from(error: DesktopError) -> Self {
        let message = error.to_string();
        // None is a 5xx: AIO's JavaScript client would do the same once more.
        match error {
            DesktopError::NoServer | DesktopError::NoRecorder => {
                ApiError::new(StatusCode::FAILED_DEPENDENCY, message).hint(OTHER_IMAGE)
            }
            DesktopError::RecordsAlready => ApiError::new(StatusCode::CONFLICT, message).hint("stop it first"),
            DesktopError::LongText => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message),
            DesktopError::Screen(ScreenError::TooMany) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            DesktopError::Screen(ScreenError::NoKey(_)) => ApiError::bad_request(message)
                .hint("name keys as `Return`, `ctrl`, `F5`, `PageDown`, or by the character on them"),
            DesktopError::Screen(
                ScreenError::Outside { .. } | ScreenError::NoCharacter(_) | ScreenError::NoSize { .. } | ScreenError::NoWindow(_),
            ) => ApiError::bad_request(message),
            DesktopError::Screen(ScreenError::Gone | ScreenError::Hung) => {
                ApiError::new(StatusCode::FAILED_DEPENDENCY, message).hint("the next call starts another desktop")
            }
            DesktopError::NotSpawned(_)
            | DesktopError::Ended { .. }
            | DesktopError::TooSlow { .. }
            | DesktopError::Io { .. }
            | DesktopError::Screen(_) => ApiError::new(StatusCode::FAILED_DEPENDENCY, message),
        }
    }
}

/// Starts, stops or looks at a recording of the whole screen.
///
/// There is one at a time. It stops by itself after `max_duration`, and the file is whole then too.
#[utoipa::path(post, path = "/v1/display/record", tag = "display", operation_id = "record_v1_display_record_post",
    request_body = DisplayRecordRequest, responses((status = 200, body = Envelope<DisplayRecordResult>)))]
async fn record(State(guest): State<SharedGuest>, Body(request): Body<DisplayRecordRequest>) -> Reply<DisplayRecordResult> {
    let result = whole(async move { guest.desktop.record(&guest, &request).await }).await?;
    let message = match result.status {
        DisplayRecordStatus::Idle => "Nothing was recorded yet",
        DisplayRecordStatus::Recording => "Recording",
        DisplayRecordStatus::Stopped => "The recording has stopped",
    };
    ok_message(result, message)
}
