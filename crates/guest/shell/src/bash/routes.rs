//! Routes of the service.

use arenite_isolation::spawner::SpawnError;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use std::sync::Arc;
use utoipa::OpenApi;

use super::service::{BashError, session_id};
use super::types::*;
use crate::bash::BashService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, Reply, ok, ok_message, whole};
use arenite_guest_runtime::requirements::Requirement;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(exec, output, write, kill, sessions, create_session, close_session),
    tags((name = "bash", description = "Commands as processes of their own, with separate streams"))
)]
pub struct BashApi;

/// The service's routes, under `/v1`.
pub fn router(state: Arc<BashService>) -> Router {
    Router::new()
        .route("/v1/bash/exec", post(exec))
        .route("/v1/bash/output", post(output))
        .route("/v1/bash/write", post(write))
        .route("/v1/bash/kill", post(kill))
        .route("/v1/bash/sessions", get(sessions))
        .route("/v1/bash/sessions/create", post(create_session))
        .route("/v1/bash/sessions/{session_id}/close", post(close_session))
        .with_state(state)
}

impl From<BashError> for ApiError {
    fn from(error: BashError) -> Self {
        let message = error.to_string();
        match error {
            BashError::SessionNotFound(_) => {
                ApiError::not_found(message).hint("create a session with /v1/bash/sessions/create or leave session_id out")
            }
            BashError::CommandNotFound(_) => ApiError::not_found(message).hint("a session keeps its last 100 commands"),
            BashError::NothingRuns(_) | BashError::NotWritten { .. } => ApiError::new(StatusCode::CONFLICT, message),
            BashError::TooManyCommands | BashError::TooManySessions => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            BashError::NotStarted(SpawnError::Nul | SpawnError::TooLong { .. }) => ApiError::bad_request(message),
            // Not a 5xx: AIO's JavaScript client would repeat the command.
            BashError::NotStarted(SpawnError::Gone(_)) => ApiError::new(StatusCode::FAILED_DEPENDENCY, message),
            BashError::NotStarted(_) => {
                ApiError::new(StatusCode::FAILED_DEPENDENCY, message).hint("the sandbox must have room for one more process")
            }
            BashError::NoShell => Requirement::SHELL.error(),
            BashError::BadId(_)
            | BashError::NoDirectory(_)
            | BashError::NoSnapshot(_)
            | BashError::BadSignal(_)
            | BashError::BadVariable(_) => ApiError::bad_request(message),
        }
    }
}

/// Runs a command in a fresh process.
///
/// `status` is its life, not its success: `completed` comes with any exit code. After `timeout` the answer says
/// `running` and the command goes on; `hard_timeout` kills it. `cd` and `export` do not last.
#[utoipa::path(post, path = "/v1/bash/exec", tag = "bash", operation_id = "exec", request_body = BashExecRequest, responses((status = 200, body = Envelope<BashExecResult>)))]
async fn exec(State(bash): State<Arc<BashService>>, Body(request): Body<BashExecRequest>) -> Reply<BashExecResult> {
    let result = whole(async move { bash.exec(request).await }).await?;
    let message = match result.status {
        CommandStatus::Running | CommandStatus::Pending => "Command is running",
        CommandStatus::Completed => "Command completed",
        CommandStatus::TimedOut => "Command was killed by its hard timeout",
        CommandStatus::Killed => "Command was killed",
    };
    ok_message(result, message)
}

/// Output of a command, or of a whole session, from byte offsets on.
#[utoipa::path(post, path = "/v1/bash/output", tag = "bash", operation_id = "output", request_body = BashOutputRequest, responses((status = 200, body = Envelope<BashOutputResult>)))]
async fn output(State(bash): State<Arc<BashService>>, Body(request): Body<BashOutputRequest>) -> Reply<BashOutputResult> {
    ok(bash.output(request).await?)
}

/// Writes to the standard input of a running command.
#[utoipa::path(post, path = "/v1/bash/write", tag = "bash", operation_id = "write", request_body = BashWriteRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn write(State(bash): State<Arc<BashService>>, Body(request): Body<BashWriteRequest>) -> Reply<()> {
    bash.write(request).await?;
    ok(())
}

/// Sends a signal to all processes of what runs in a session.
#[utoipa::path(post, path = "/v1/bash/kill", tag = "bash", operation_id = "kill", request_body = BashKillRequest, responses((status = 200, body = Envelope<BashKillResult>)))]
async fn kill(State(bash): State<Arc<BashService>>, Body(request): Body<BashKillRequest>) -> Reply<BashKillResult> {
    let result = bash.kill(request)?;
    let message = match result.signalled {
        0 => "Nothing was running",
        _ => "Signal sent",
    };
    ok_message(result, message)
}

/// All sessions.
#[utoipa::path(get, path = "/v1/bash/sessions", tag = "bash", operation_id = "sessions", responses((status = 200, body = Envelope<Vec<BashSessionInfo>>)))]
async fn sessions(State(bash): State<Arc<BashService>>) -> Reply<Vec<BashSessionInfo>> {
    ok(bash.sessions())
}

/// Creates a session. Returns an existing one unchanged.
#[utoipa::path(post, path = "/v1/bash/sessions/create", tag = "bash", operation_id = "create_session", request_body = BashSessionCreateRequest, responses((status = 200, body = Envelope<BashSessionInfo>)))]
async fn create_session(
    State(bash): State<Arc<BashService>>,
    Body(request): Body<BashSessionCreateRequest>,
) -> Reply<BashSessionInfo> {
    ok_message(bash.create(request)?, "Session is ready")
}

/// Ends all processes of a session and forgets it.
#[utoipa::path(post, path = "/v1/bash/sessions/{session_id}/close", tag = "bash", operation_id = "close_session", params(("session_id" = String, Path)), responses((status = 200, body = Envelope<BashSessionInfo>)))]
async fn close_session(State(bash): State<Arc<BashService>>, Path(given): Path<String>) -> Reply<BashSessionInfo> {
    ok_message(bash.close(&session_id(&given)?)?, "Session closed")
}
