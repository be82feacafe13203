//! The sandbox service in AIO's wire format.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use std::sync::Arc;
use utoipa::{OpenApi, ToSchema};

use super::service::{self, SandboxDetail, VERSION};
use crate::sandbox::SandboxService;
use arenite_guest_code::packages::{self, Package};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::http::{ApiError, Envelope, Reply, ok};

/// The service's routes, under `/v1`.
pub fn router(state: Arc<SandboxService>) -> Router {
    Router::new()
        .route("/v1/sandbox", get(context))
        .route("/v1/sandbox/packages/python", get(python_packages))
        .route("/v1/sandbox/packages/nodejs", get(nodejs_packages))
        .route("/v1/ping", get(ping))
        .route("/v1/capabilities", get(capabilities))
        .with_state(state)
}

/// The service's part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(paths(context, python_packages, nodejs_packages))]
#[derive(Debug)]
pub struct SandboxApi;

/// An envelope with a text as its `data`, and the context beside it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SandboxResponse {
    success: bool,
    message: Option<String>,
    /// The context in words.
    data: Option<String>,
    hint: Option<String>,
    home_dir: String,
    workspace: Option<String>,
    version: String,
    detail: SandboxDetail,
}

fn failed(failure: Failure) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("could not look at the sandbox: {failure}"))
}

/// What the sandbox is: system, user, directories, runtimes, tools and used ports.
#[utoipa::path(get, path = "/v1/sandbox", tag = "sandbox", operation_id = "get_sandbox_context_v1_sandbox_get",
    responses((status = 200, body = SandboxResponse)))]
async fn context(State(sandbox): State<Arc<SandboxService>>) -> Result<Json<SandboxResponse>, ApiError> {
    let context = service::context(&sandbox).await.map_err(failed)?;
    Ok(Json(SandboxResponse {
        success: true,
        message: Some("Operation successful".to_owned()),
        data: Some(context.summary),
        hint: None,
        home_dir: context.home_dir,
        workspace: Some(context.workspace),
        version: context.version.to_owned(),
        detail: context.detail,
    }))
}

/// Installed Python packages.
#[utoipa::path(get, path = "/v1/sandbox/packages/python", tag = "sandbox",
    operation_id = "python_packages_v1_sandbox_packages_python_get", responses((status = 200, body = Envelope<Vec<Package>>)))]
async fn python_packages(State(sandbox): State<Arc<SandboxService>>) -> Reply<Vec<Package>> {
    ok(packages::python(&sandbox.runtime).await.map_err(failed)?)
}

/// Global Node.js packages.
#[utoipa::path(get, path = "/v1/sandbox/packages/nodejs", tag = "sandbox",
    operation_id = "nodejs_packages_v1_sandbox_packages_nodejs_get", responses((status = 200, body = Envelope<Vec<Package>>)))]
async fn nodejs_packages(State(sandbox): State<Arc<SandboxService>>) -> Reply<Vec<Package>> {
    ok(packages::nodejs(&sandbox.runtime).await.map_err(failed)?)
}

async fn ping() -> Reply<&'static str> {
    ok("pong")
}

/// The guest's capabilities, for clients that check before they call.
#[derive(Debug, Serialize)]
struct Capabilities {
    version: &'static str,
    services: &'static [&'static str],
    files: &'static [&'static str],
}

async fn capabilities() -> Reply<Capabilities> {
    ok(Capabilities {
        version: VERSION,
        services: &[
            "sandbox", "hooks", "observe", "shell", "bash", "file", "jupyter", "nodejs", "code", "skills", "mcp", "proxy",
            "util", "browser", "display",
        ],
        files: &[
            "read",
            "write",
            "replace",
            "search",
            "find",
            "grep",
            "glob",
            "list",
            "watch",
            "upload",
            "download",
            "str_replace_editor",
        ],
    })
}
