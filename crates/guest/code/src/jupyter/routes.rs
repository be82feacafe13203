//! Routes of the service.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use std::sync::Arc;
use utoipa::OpenApi;

use super::kernel::Status;
use super::service::{Executed, JupyterError};
use super::types::*;
use crate::jupyter::JupyterService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, Reply, ok, ok_message, whole};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::sessions::SessionId;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(execute, info, sessions, delete_sessions, delete_session, create_session),
    tags((name = "jupyter", description = "Code in Jupyter kernels"))
)]
pub struct JupyterApi;

/// The service's routes, under `/v1`.
pub fn router(state: Arc<JupyterService>) -> Router {
    Router::new()
        .route("/v1/jupyter/execute", post(execute))
        .route("/v1/jupyter/info", get(info))
        .route("/v1/jupyter/sessions", get(sessions).delete(delete_sessions))
        .route("/v1/jupyter/sessions/create", post(create_session))
        .route("/v1/jupyter/sessions/{session_id}", delete(delete_session))
        .with_state(state)
}

impl From<JupyterError> for ApiError {
    fn from(error: JupyterError) -> Self {
        let message = error.to_string();
        match error {
            JupyterError::Session(error) => error.into(),
            JupyterError::NoDirectory(_) | JupyterError::NoKernel { .. } => ApiError::bad_request(message),
            JupyterError::FixedDirectory(_) => ApiError::bad_request(message).hint("leave cwd out, or use a new session"),
            JupyterError::OtherKernel { .. } => ApiError::new(StatusCode::CONFLICT, message)
                .hint("leave kernel_name out, use another session_id, or delete the session"),
            JupyterError::TooManySingle => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            // Not a 5xx: AIO's JavaScript client would repeat the execution.
            JupyterError::NoKernels => Requirement::KERNEL.error(),
            JupyterError::NotStarted(_) | JupyterError::NotLooked(_) => ApiError::new(StatusCode::FAILED_DEPENDENCY, message),
        }
    }
}

/// The message and the hint in the envelope of an execution.
pub fn call_message(executed: &Executed, seconds: i64) -> (String, Option<String>) {
    let execution = &executed.execution;
    let message = match (&execution.ended, execution.status) {
        (Some(reason), Status::Timeout) => format!("Code timed out after {seconds} s; its kernel ended: {reason}"),
        (Some(reason), _) => format!("The kernel ended: {reason}"),
        (None, Status::Ok) => "Code executed".to_owned(),
        (None, Status::Error) => "Code raised an error".to_owned(),
        (None, Status::Timeout) if executed.session_id.is_some() => {
            format!("Code was interrupted after {seconds} s; the session lives on")
        }
        (None, Status::Timeout) => format!("Code was interrupted after {seconds} s"),
    };
    let stdin = execution.outputs.iter().any(|output| output.ename.as_deref() == Some("StdinNotImplementedError"));
    let hint = if let Some(reason) = &executed.restarted {
        Some(format!("the session's kernel was restarted ({reason}): variables of earlier calls are gone"))
    } else if execution.ended.is_some() && executed.session_id.is_some() {
        Some("the session's next call starts a new kernel: variables of earlier calls are gone".to_owned())
    } else if stdin {
        Some("nobody answers input() here: put its value into the code".to_owned())
    } else {
        None
    };
    (message, hint)
}

/// Executes code in a kernel that keeps its state as long as its session.
///
/// Code that raises is no failed call: `status` says `error`, and the last output is the traceback. After `timeout` the code is
/// interrupted and the session lives on.
#[utoipa::path(post, path = "/v1/jupyter/execute", tag = "jupyter", operation_id = "jupyter_execute_code", request_body = JupyterExecuteRequest, responses((status = 200, body = Envelope<JupyterExecuteResponse>)))]
async fn execute(
    State(jupyter): State<Arc<JupyterService>>,
    Body(request): Body<JupyterExecuteRequest>,
) -> Reply<JupyterExecuteResponse> {
    let (executed, request) = whole(async move { jupyter.execute(&request).await.map(|executed| (executed, request)) }).await?;
    let (message, hint) = call_message(&executed, request.timeout.unwrap_or(DEFAULT_TIMEOUT));
    let Executed { execution, kernel_name, session_id, .. } = executed;
    let data = JupyterExecuteResponse {
        kernel_name,
        session_id,
        status: execution.status.as_str().to_owned(),
        execution_count: execution.execution_count,
        outputs: execution.outputs,
        code: request.code,
        msg_id: Some(execution.msg_id).filter(|id| !id.is_empty()),
    };
    Ok(Envelope { success: true, message: Some(message), data: Some(data), hint })
}

/// The kernels that are installed, and the limits of sessions.
#[utoipa::path(get, path = "/v1/jupyter/info", tag = "jupyter", operation_id = "get_jupyter_info", responses((status = 200, body = Envelope<JupyterInfoResponse>)))]
async fn info(State(jupyter): State<Arc<JupyterService>>) -> Reply<JupyterInfoResponse> {
    ok(jupyter.info().await?)
}

/// All sessions.
#[utoipa::path(get, path = "/v1/jupyter/sessions", tag = "jupyter", operation_id = "list_jupyter_sessions", responses((status = 200, body = Envelope<ActiveSessionsResult>)))]
async fn sessions(State(jupyter): State<Arc<JupyterService>>) -> Reply<ActiveSessionsResult> {
    ok(ActiveSessionsResult { sessions: jupyter.sessions() })
}

/// Ends all sessions.
#[utoipa::path(delete, path = "/v1/jupyter/sessions", tag = "jupyter", operation_id = "delete_jupyter_sessions", responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn delete_sessions(State(jupyter): State<Arc<JupyterService>>) -> Reply<()> {
    let number = whole(async move { Ok::<_, JupyterError>(jupyter.delete_all().await) }).await?;
    ok_message((), format!("{number} sessions deleted"))
}

/// Ends a session with its kernel and all processes that it started.
#[utoipa::path(delete, path = "/v1/jupyter/sessions/{session_id}", tag = "jupyter", operation_id = "delete_jupyter_session", params(("session_id" = String, Path)), responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn delete_session(State(jupyter): State<Arc<JupyterService>>, Path(session_id): Path<String>) -> Reply<()> {
    let message = format!("Session {session_id} deleted");
    whole(async move { jupyter.delete(&SessionId::existing(&session_id)?).await }).await?;
    ok_message((), message)
}

/// Creates a session and starts its kernel. Returns an existing one unchanged.
#[utoipa::path(post, path = "/v1/jupyter/sessions/create", tag = "jupyter", operation_id = "create_jupyter_session", request_body = JupyterCreateSessionRequest, responses((status = 200, body = Envelope<JupyterCreateSessionResponse>)))]
async fn create_session(
    State(jupyter): State<Arc<JupyterService>>,
    Body(request): Body<JupyterCreateSessionRequest>,
) -> Reply<JupyterCreateSessionResponse> {
    let made = whole(async move { jupyter.create(&request).await }).await?;
    let message = made.message.clone();
    ok_message(made, message)
}
