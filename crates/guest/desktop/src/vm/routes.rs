//! State and reset of the VM. Its screen is under `/v1/display` and `/v1/browser/actions`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::Serialize;
use std::sync::Arc;
use utoipa::{OpenApi, ToSchema};

use super::qmp::QmpError;
use super::service::{VmError, VmStatus};
use crate::vm::VmService;
use arenite_guest_runtime::http::{ApiError, Envelope, Reply, ok, ok_message, whole};

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(status, reset))]
pub struct VmApi;

/// The service's routes.
pub fn router(state: Arc<VmService>) -> Router {
    let mut router = Router::new();
    // `machine` is the earlier name, which is no longer documented.
    for name in ["vm", "machine"] {
        router = router.route(&format!("/v1/{name}"), get(status)).route(&format!("/v1/{name}/reset"), post(reset));
    }
    router.with_state(state)
}

/// The route `path`, by which the engine keeps the VM with a state of the sandbox.
pub fn engine_router(path: &str, state: Arc<VmService>) -> Router {
    Router::new().route(path, post(save).put(continue_saved).delete(forget_saved)).with_state(state)
}

impl From<VmError> for ApiError {
    fn from(error: VmError) -> Self {
        let message = error.to_string();
        // No error is a 5xx: AIO's JavaScript client would retry.
        let refused = |message| ApiError::new(StatusCode::FAILED_DEPENDENCY, message);
        match error {
            VmError::NoVm => {
                ApiError::not_found(message).hint("make the sandbox of an image that `arenite vm build` or `arenite vm import` made")
            }
            VmError::Screen(error) => crate::desktop::DesktopError::Screen(error).into(),
            VmError::NoKeyFor(_) | VmError::LongText => ApiError::bad_request(message),
            VmError::NoWindows => {
                ApiError::bad_request(message).hint("GET /v1/display/accessibility tells what its programs show; its agent opens and closes windows")
            }
            VmError::NotReady { .. } => refused(message).hint(
                "look at that picture (GET /v1/file/download); the next call boots it again; ARENITE_VM_BOOT_SECONDS gives it longer",
            ),
            VmError::Ended { .. } | VmError::Qmp(QmpError::Gone) => {
                refused(message).hint("the next call starts it again, on the same disk")
            }
            _ => refused(message),
        }
    }
}

/// The result of a reset.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct VmReset {
    /// Whether it took a boot, because no state was saved.
    pub booted: bool,
}

/// The state of the sandbox's VM. Nothing is started.
#[utoipa::path(get, path = "/v1/vm", tag = "vm", operation_id = "get_vm_v1_vm_get",
    responses((status = 200, body = Envelope<VmStatus>)))]
async fn status(State(service): State<Arc<VmService>>) -> Reply<VmStatus> {
    ok(service.status().await?)
}

/// Resets the VM to the state in which it was first ready: its disk, its memory, its screen. It is started if it is not running.
#[utoipa::path(post, path = "/v1/vm/reset", tag = "vm", operation_id = "reset_vm_v1_vm_reset_post",
    responses((status = 200, body = Envelope<VmReset>)))]
async fn reset(State(service): State<Arc<VmService>>) -> Reply<VmReset> {
    let booted = whole(async move { service.reset().await }).await?;
    ok_message(VmReset { booted }, if booted { "It was rebooted" } else { "It is as it was" })
}

/// Returns the size of what was in memory, in bytes.
async fn save(State(service): State<Arc<VmService>>) -> Reply<u64> {
    ok(whole(async move { service.save().await }).await?)
}

async fn continue_saved(State(service): State<Arc<VmService>>) -> Reply<()> {
    ok(whole(async move { service.continue_saved().await }).await?)
}

async fn forget_saved(State(service): State<Arc<VmService>>) -> Reply<()> {
    ok(whole(async move { service.forget_saved().await }).await?)
}
