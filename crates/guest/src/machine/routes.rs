//! The machine itself: how it is, and back to how it was. Its screen is under `/v1/display` and `/v1/browser/actions`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

use super::qmp::QmpError;
use super::service::{MachineError, MachineStatus};
use crate::SharedGuest;
use crate::http::{ApiError, Envelope, Reply, ok, ok_message, whole};

/// Its part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(status, reset))]
pub struct MachineApi;

/// Its routes.
pub fn router() -> Router<SharedGuest> {
    Router::new().route("/v1/machine", get(status)).route("/v1/machine/reset", post(reset))
}

impl From<MachineError> for ApiError {
    fn from(error: MachineError) -> Self {
        let message = error.to_string();
        // None is a 5xx: AIO's JavaScript client would do the same once more.
        let refused = |message| ApiError::new(StatusCode::FAILED_DEPENDENCY, message);
        match error {
            MachineError::NoMachine => {
                ApiError::not_found(message).hint("make the sandbox of an image that `arenite vm build` or `arenite vm import` made")
            }
            MachineError::Screen(error) => crate::desktop::DesktopError::Screen(error).into(),
            MachineError::NoKeyFor(_) | MachineError::LongText => ApiError::bad_request(message),
            MachineError::NoWindows => {
                ApiError::bad_request(message).hint("GET /v1/display/accessibility tells what its programs show; its agent opens and closes windows")
            }
            MachineError::NotReady { .. } => refused(message).hint(
                "look at that picture (GET /v1/file/download); the next call boots it again; ARENITE_MACHINE_BOOT_SECONDS gives it longer",
            ),
            MachineError::Ended { .. } | MachineError::Qmp(QmpError::Gone) => {
                refused(message).hint("the next call starts it again, on the same disk")
            }
            _ => refused(message),
        }
    }
}

/// How a reset was done.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct MachineReset {
    /// It took a boot, since no state was kept.
    pub booted: bool,
}

/// How the sandbox's machine is. Nothing is started by it.
#[utoipa::path(get, path = "/v1/machine", tag = "machine", operation_id = "get_machine_v1_machine_get",
    responses((status = 200, body = Envelope<MachineStatus>)))]
async fn status(State(guest): State<SharedGuest>) -> Reply<MachineStatus> {
    ok(guest.machine.status(&guest).await?)
}

/// Has the machine be as it was when it was ready for the first time: its disk, its memory, its screen. It is started when it
/// does not run.
#[utoipa::path(post, path = "/v1/machine/reset", tag = "machine", operation_id = "reset_machine_v1_machine_reset_post",
    responses((status = 200, body = Envelope<MachineReset>)))]
async fn reset(State(guest): State<SharedGuest>) -> Reply<MachineReset> {
    let booted = whole(async move { guest.machine.reset(&guest).await }).await?;
    ok_message(MachineReset { booted }, if booted { "It has booted anew" } else { "It is as it was" })
}
