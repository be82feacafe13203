//! Routes of the service.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use std::sync::Arc;
use utoipa::OpenApi;

use super::service::{Executed, NodeError};
use super::types::*;
use crate::nodejs::NodeService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, QueryArgs, Reply, ok, ok_message, whole};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::sessions::SessionId;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(execute, info, create_session, list_sessions, get_session, update_session, delete_session),
    tags((name = "nodejs", description = "JavaScript in Node.js"))
)]
pub struct NodeApi;

/// The service's routes, under `/v1`.
pub fn router(state: Arc<NodeService>) -> Router {
    Router::new()
        .route("/v1/nodejs/execute", post(execute))
        .route("/v1/nodejs/info", get(info))
        .route("/v1/nodejs/sessions", get(list_sessions).post(create_session))
        .route("/v1/nodejs/sessions/{session_id}", get(get_session).patch(update_session).delete(delete_session))
        .with_state(state)
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> Self {
        let message = error.to_string();
        match error {
            NodeError::Session(error) => error.into(),
            NodeError::NoDirectory(_)
            | NodeError::NoVersion { .. }
            | NodeError::BadFile(_)
            | NodeError::TooManyFiles
            | NodeError::StdinInSession => ApiError::bad_request(message),
            NodeError::OtherVersion { .. } => ApiError::new(StatusCode::CONFLICT, message)
                .hint("leave version out, use another session_id, or delete the session"),
            NodeError::TooManySingle => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            // Not a 5xx: AIO's JavaScript client would repeat the execution.
            NodeError::NoRuntime => Requirement::NODE.error(),
            NodeError::NotStarted(_)
            | NodeError::NotReady { .. }
            | NodeError::Io { .. }
            | NodeError::NotLooked(_)
            | NodeError::NoAnswer { .. }
            | NodeError::NotWritten(_) => ApiError::new(StatusCode::FAILED_DEPENDENCY, message),
        }
    }
}

/// The message and the hint in the envelope of an execution.
pub fn call_message(executed: &Executed, seconds: i64) -> (String, Option<String>) {
    let response = &executed.response;
    let message = match (&executed.ended, response.status) {
        (Some(reason), _) if response.session_id.is_some() => format!("The session's process is gone: {reason}"),
        (Some(reason), _) => format!("Its process is gone: {reason}"),
        (None, "ok") => "Code executed".to_owned(),
        (None, "timeout") if response.session_id.is_some() => {
            format!("Code was interrupted after {seconds} s; the session lives on")
        }
        (None, "timeout") => format!("Code was killed after {seconds} s"),
        (None, _) => "Code raised an error".to_owned(),
    };
    let hint = match (&executed.restarted, &executed.ended) {
        (Some(reason), _) => Some(format!("the session's process was restarted ({reason}): variables of earlier calls are gone")),
        (None, Some(_)) if response.session_id.is_some() => {
            Some("the session's next call starts a new process: variables of earlier calls are gone".to_owned())
        }
        (None, _) => None,
    };
    (message, hint)
}

/// Executes JavaScript, with await at its top; the value of its last expression is the result.
///
/// Each execution has a separate process, which ends when the code has nothing left to do. With `stateful` or a `session_id`, it
/// runs in a session, which keeps its variables. Code that raises is no failed call: `status` says `error`.
#[utoipa::path(post, path = "/v1/nodejs/execute", tag = "nodejs", operation_id = "execute_nodejs_code", request_body = NodeJSExecuteRequest, responses((status = 200, body = Envelope<NodeJSExecuteResponse>)))]
async fn execute(
    State(nodejs): State<Arc<NodeService>>,
    Body(request): Body<NodeJSExecuteRequest>,
) -> Reply<NodeJSExecuteResponse> {
    let seconds = request.timeout.unwrap_or(DEFAULT_TIMEOUT);
    let executed = whole(async move { nodejs.execute(request).await }).await?;
    let (message, hint) = call_message(&executed, seconds);
    Ok(Envelope { success: true, message: Some(message), data: Some(executed.response), hint })
}

/// The versions that are installed, and the global packages.
#[utoipa::path(get, path = "/v1/nodejs/info", tag = "nodejs", operation_id = "get_nodejs_info", responses((status = 200, body = Envelope<NodeJSRuntimeInfo>)))]
async fn info(State(nodejs): State<Arc<NodeService>>) -> Reply<NodeJSRuntimeInfo> {
    let info = nodejs.info().await;
    let Some(error) = info.error.clone() else { return ok(info) };
    Ok(Envelope { success: false, message: Some(error), hint: Some(Requirement::NODE.hint()), data: Some(info) })
}

/// Creates a session and starts its process. Returns an existing one unchanged.
#[utoipa::path(post, path = "/v1/nodejs/sessions", tag = "nodejs", operation_id = "create_nodejs_session", params(VersionQuery), request_body = NodeJSCreateSessionRequest, responses((status = 200, body = Envelope<NodeJSCreateSessionResponse>)))]
async fn create_session(
    State(nodejs): State<Arc<NodeService>>,
    QueryArgs(query): QueryArgs<VersionQuery>,
    Body(request): Body<NodeJSCreateSessionRequest>,
) -> Reply<NodeJSCreateSessionResponse> {
    ok(whole(async move { nodejs.create(request, query.version.as_deref()).await }).await?)
}

/// All sessions.
#[utoipa::path(get, path = "/v1/nodejs/sessions", tag = "nodejs", operation_id = "list_nodejs_sessions", params(VersionQuery), responses((status = 200, body = Envelope<NodeJSSessionListResponse>)))]
async fn list_sessions(
    State(nodejs): State<Arc<NodeService>>,
    QueryArgs(query): QueryArgs<VersionQuery>,
) -> Reply<NodeJSSessionListResponse> {
    ok(NodeJSSessionListResponse { sessions: nodejs.sessions(query.version.as_deref()) })
}

/// One session.
#[utoipa::path(get, path = "/v1/nodejs/sessions/{session_id}", tag = "nodejs", operation_id = "get_nodejs_session", params(("session_id" = String, Path), VersionQuery), responses((status = 200, body = Envelope<NodeJSSessionResponse>)))]
async fn get_session(
    State(nodejs): State<Arc<NodeService>>,
    Path(session_id): Path<String>,
    QueryArgs(query): QueryArgs<VersionQuery>,
) -> Reply<NodeJSSessionResponse> {
    ok(NodeJSSessionResponse { session: nodejs.info_of(&SessionId::existing(&session_id)?, query.version.as_deref())? })
}

/// Changes a session's time or directory.
#[utoipa::path(patch, path = "/v1/nodejs/sessions/{session_id}", tag = "nodejs", operation_id = "update_nodejs_session", params(("session_id" = String, Path), VersionQuery), request_body = NodeJSUpdateSessionRequest, responses((status = 200, body = Envelope<NodeJSUpdateSessionResponse>)))]
async fn update_session(
    State(nodejs): State<Arc<NodeService>>,
    Path(session_id): Path<String>,
    QueryArgs(query): QueryArgs<VersionQuery>,
    Body(request): Body<NodeJSUpdateSessionRequest>,
) -> Reply<NodeJSUpdateSessionResponse> {
    let version = query.version;
    let update = async move { nodejs.update(&SessionId::existing(&session_id)?, version.as_deref(), request).await };
    ok(NodeJSUpdateSessionResponse { updated: true, session: whole(update).await? })
}

/// Ends a session with its process and all processes that it started.
#[utoipa::path(delete, path = "/v1/nodejs/sessions/{session_id}", tag = "nodejs", operation_id = "delete_nodejs_session", params(("session_id" = String, Path), VersionQuery), responses((status = 200, body = Envelope<NodeJSDeleteSessionResponse>)))]
async fn delete_session(
    State(nodejs): State<Arc<NodeService>>,
    Path(session_id): Path<String>,
    QueryArgs(query): QueryArgs<VersionQuery>,
) -> Reply<NodeJSDeleteSessionResponse> {
    whole(async move { nodejs.delete(&SessionId::existing(&session_id)?, query.version.as_deref()).await }).await?;
    ok_message(NodeJSDeleteSessionResponse { deleted: true }, "Session deleted")
}
