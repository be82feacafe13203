//! Routes of the service.

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use std::sync::Arc;
use utoipa::OpenApi;

use super::service;
use super::service::CodeService;
use super::types::*;
use arenite_guest_runtime::http::{Body, Envelope, Reply, ok, whole};

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(execute, info), tags((name = "code", description = "Code, whatever its language")))]
pub struct CodeApi;

/// The service's routes, under `/v1`.
pub fn router(state: Arc<CodeService>) -> Router {
    Router::new().route("/v1/code/execute", post(execute)).route("/v1/code/info", get(info)).with_state(state)
}

/// Executes code, in its own runtime or, when `stateful`, in a session that keeps its state.
///
/// The value of the last expression is a result. Code that raises is no failed call: `status` says `error`.
#[utoipa::path(post, path = "/v1/code/execute", tag = "code", operation_id = "execute_code_v1_code_execute_post", request_body = CodeExecuteRequest, responses((status = 200, body = Envelope<CodeExecuteResponse>)))]
async fn execute(State(code): State<Arc<CodeService>>, Body(request): Body<CodeExecuteRequest>) -> Reply<CodeExecuteResponse> {
    whole(async move { service::execute(&code, request, None).await }).await
}

/// The languages, and the versions of their runtimes.
#[utoipa::path(get, path = "/v1/code/info", tag = "code", operation_id = "code_info_v1_code_info_get", responses((status = 200, body = Envelope<CodeInfoResponse>)))]
async fn info(State(code): State<Arc<CodeService>>) -> Reply<CodeInfoResponse> {
    ok(service::info(&code).await?)
}
