//! Hooks in AIO's wire format.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi};

use super::service::{self, HookError, RegisterHookRequest, SandboxHook};
use crate::hooks::Hooks;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok, ok_message};

/// The service's routes, under `/v1`.
pub fn router(state: Arc<Hooks>) -> Router {
    Router::new()
        .route("/v1/sandbox/hooks", get(list).post(register))
        .route("/v1/sandbox/hooks/{name}", delete(remove))
        .with_state(state)
}

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(register, list, remove))]
pub struct HooksApi;

impl From<HookError> for ApiError {
    fn from(error: HookError) -> Self {
        let status = match error {
            HookError::UnknownEvent(_) | HookError::NotListed(_) | HookError::NoTime => StatusCode::BAD_REQUEST,
            HookError::FromEnvironment(_) => StatusCode::FORBIDDEN,
            HookError::NotFound(_) => StatusCode::NOT_FOUND,
            HookError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        };
        ApiError::new(status, error.to_string())
    }
}

/// Have a command run when the sandbox ends.
///
/// It runs by `sh -c` as the sandbox's user before the sandbox is deleted. All of them together have 30 seconds.
#[utoipa::path(post, path = "/v1/sandbox/hooks", tag = "sandbox", operation_id = "register_hook_v1_sandbox_hooks_post",
    request_body = RegisterHookRequest, responses((status = 200, body = Envelope<SandboxHook>)))]
async fn register(State(hooks): State<Arc<Hooks>>, Body(request): Body<RegisterHookRequest>) -> Reply<SandboxHook> {
    ok(service::register(&hooks, request)?)
}

fn shutdown() -> String {
    service::SHUTDOWN.to_owned()
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    #[serde(default = "shutdown")]
    #[param(default = "shutdown", required = false)]
    event: String,
}

/// The hooks of an event, in the order in which they run.
#[utoipa::path(get, path = "/v1/sandbox/hooks", tag = "sandbox", operation_id = "list_hooks_v1_sandbox_hooks_get",
    params(ListQuery), responses((status = 200, body = Envelope<Vec<SandboxHook>>)))]
async fn list(State(hooks): State<Arc<Hooks>>, QueryArgs(query): QueryArgs<ListQuery>) -> Reply<Vec<SandboxHook>> {
    ok(service::list_of(&hooks, &query.event)?)
}

/// Forget a hook; those of the environment stay.
#[utoipa::path(delete, path = "/v1/sandbox/hooks/{name}", tag = "sandbox",
    operation_id = "remove_hook_v1_sandbox_hooks__name__delete", params(("name" = String, Path)),
    responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn remove(State(hooks): State<Arc<Hooks>>, Path(name): Path<String>) -> Reply<SandboxHook> {
    let removed = service::remove(&hooks, &name)?;
    ok_message(removed, format!("Hook {name} removed"))
}
