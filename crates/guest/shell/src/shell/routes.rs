//! Routes of the service.
//!
//! `exec` and `view` answer with server-sent events when the request accepts `text/event-stream`:
//!
//! | event | data |
//! | --- | --- |
//! | `status` | the first event: `{"session_id": "…", "status": "running"}`, so that a follower can type and stop |
//! | `output` | `{"output": "…"}`: the lines finished since the last one |
//! | `end` | the last event: `data` of the answer without events, or `{"error": "…"}` |
//!
//! The lines of all `output` events together are the output of the command, except a last line that is not finished when the call
//! ends before its command.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::Serialize;
use serde_json::json;
use utoipa::OpenApi;

use super::run::{Phase, Run};
use super::service::{ShellError, session_id};
use super::terminal;
use super::types::*;
use crate::shell::ShellService;
use arenite_guest_runtime::http::{ApiError, Body, Envelope, Reply, ok, ok_message};
use arenite_guest_runtime::requirements::Requirement;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(
        exec_command, view_shell, wait_for_process, write_to_process, kill_process, create_session, update_session,
        get_terminal_url, get_session_stats, list_sessions, cleanup_all_sessions, cleanup_session
    ),
    tags((name = "shell", description = "Interactive shells that last"))
)]
pub struct ShellApi;

/// The service's routes, under `/v1`.
pub fn router(state: Arc<ShellService>) -> Router {
    Router::new()
        .route("/v1/shell/exec", post(exec_command))
        .route("/v1/shell/view", post(view_shell))
        .route("/v1/shell/wait", post(wait_for_process))
        .route("/v1/shell/write", post(write_to_process))
        .route("/v1/shell/kill", post(kill_process))
        .route("/v1/shell/sessions/create", post(create_session))
        .route("/v1/shell/sessions/update", post(update_session))
        .route("/v1/shell/sessions/stats", get(get_session_stats))
        .route("/v1/shell/sessions/{session_id}", delete(cleanup_session))
        .route("/v1/shell/sessions", get(list_sessions).delete(cleanup_all_sessions))
        .route("/v1/shell/terminal-url", get(get_terminal_url))
        .route("/v1/shell/ws", get(terminal::connect))
        .with_state(state)
}

impl From<ShellError> for ApiError {
    fn from(error: ShellError) -> Self {
        let message = error.to_string();
        match error {
            ShellError::SessionNotFound(_) => {
                ApiError::not_found(message).hint("create a session with /v1/shell/sessions/create or leave id out")
            }
            ShellError::QueueFull(_)
            | ShellError::TooManySessions
            | ShellError::TooManyViewers(_)
            | ShellError::TooManyAttached
            | ShellError::InputFull(_) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
            // Not a 5xx: AIO's JavaScript client would repeat the command.
            ShellError::NotStarted(_) => {
                ApiError::new(StatusCode::FAILED_DEPENDENCY, message).hint("the sandbox must have room for one more process")
            }
            ShellError::NoShell => Requirement::SHELL.error(),
            ShellError::TooLong(_) => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message),
            ShellError::BadId(_) | ShellError::NoDirectory(_) | ShellError::Nul => ApiError::bad_request(message),
        }
    }
}

/// Runs a command in a session's shell, which keeps its directory, variables and background jobs.
///
/// Commands of one session run one after another. `timeout` and `no_change_timeout` end the call and not the command;
/// `hard_timeout` stops the command.
#[utoipa::path(post, path = "/v1/shell/exec", tag = "shell", operation_id = "exec_command_v1_shell_exec_post", request_body = ShellExecRequest, responses((status = 200, body = Envelope<ShellCommandResult>)))]
async fn exec_command(
    State(shell): State<Arc<ShellService>>,
    headers: HeaderMap,
    Body(request): Body<ShellExecRequest>,
) -> Result<Response, ApiError> {
    if wants_events(&headers) {
        let submitted = shell.submit(request)?;
        let run = Arc::clone(&submitted.run);
        let begin = begins(submitted.session.id.as_str(), ShellStatus::Running);
        let last = async move {
            let status = submitted.follow().await;
            match submitted.result(status) {
                Ok(result) => event("end", &result),
                Err(error) => event("end", &json!({"error": error.to_string()})),
            }
        };
        return Ok(events(begin, run, Box::pin(last)));
    }
    let result = shell.exec(request).await?;
    let message = match result.status {
        ShellStatus::Running => "Command is running",
        ShellStatus::Completed => "Command completed",
        ShellStatus::NoChangeTimeout => "No new output; the command may still be running",
        ShellStatus::HardTimeout => "Command was stopped by its hard timeout",
        ShellStatus::Terminated => "Command was terminated",
    };
    let hint = result.hint.clone();
    let envelope = Envelope { success: true, message: Some(message.to_owned()), data: Some(result), hint };
    Ok(envelope.into_response())
}

/// What a session shows.
#[utoipa::path(post, path = "/v1/shell/view", tag = "shell", operation_id = "view_shell_v1_shell_view_post", request_body = ShellViewRequest, responses((status = 200, body = Envelope<ShellViewResult>)))]
async fn view_shell(
    State(shell): State<Arc<ShellService>>,
    headers: HeaderMap,
    Body(request): Body<ShellViewRequest>,
) -> Result<Response, ApiError> {
    let id = session_id(&request.id)?;
    let view = shell.view(&id)?;
    if !wants_events(&headers) {
        return Ok(ok(view)?.into_response());
    }
    let Some(run) = shell.current(&id)? else {
        let all = [begins(&view.session_id, view.status), event("output", &json!({"output": view.output})), event("end", &view)];
        let stream = futures_util::stream::iter(all.map(Ok::<_, Infallible>));
        return Ok(Sse::new(stream).into_response());
    };
    let watched = Arc::clone(&run);
    let begin = begins(&view.session_id, view.status);
    let last = async move {
        let mut phase = watched.watch();
        // The sender lives in `watched`.
        drop(phase.wait_for(|phase| matches!(phase, Phase::Ended(_))).await);
        // The session records the end just after those who wait for it are woken.
        tokio::task::yield_now().await;
        match shell.view(&id) {
            Ok(view) => event("end", &view),
            Err(error) => event("end", &json!({"error": error.to_string()})),
        }
    };
    Ok(events(begin, run, Box::pin(last)))
}

/// Waits until nothing runs in a session.
#[utoipa::path(post, path = "/v1/shell/wait", tag = "shell", operation_id = "wait_for_process", request_body = ShellWaitRequest, responses((status = 200, body = Envelope<ShellWaitResult>)))]
async fn wait_for_process(
    State(shell): State<Arc<ShellService>>,
    Body(request): Body<ShellWaitRequest>,
) -> Reply<ShellWaitResult> {
    ok(shell.wait(request).await?)
}

/// Types into a session's terminal.
#[utoipa::path(post, path = "/v1/shell/write", tag = "shell", operation_id = "write_to_process", request_body = ShellWriteRequest, responses((status = 200, body = Envelope<ShellWriteResult>)))]
async fn write_to_process(
    State(shell): State<Arc<ShellService>>,
    Body(request): Body<ShellWriteRequest>,
) -> Reply<ShellWriteResult> {
    ok(shell.write(request).await?)
}

/// Stops what runs in a session; the session goes on.
#[utoipa::path(post, path = "/v1/shell/kill", tag = "shell", operation_id = "kill_shell_process", request_body = ShellKillRequest, responses((status = 200, body = Envelope<ShellKillResult>)))]
async fn kill_process(State(shell): State<Arc<ShellService>>, Body(request): Body<ShellKillRequest>) -> Reply<ShellKillResult> {
    ok_message(shell.kill(&session_id(&request.id)?).await?, "Process terminated")
}

/// Creates a session. Returns an existing one unchanged.
#[utoipa::path(post, path = "/v1/shell/sessions/create", tag = "shell", operation_id = "create_shell_session", request_body = ShellCreateSessionRequest, responses((status = 200, body = Envelope<ShellCreateSessionResponse>)))]
async fn create_session(
    State(shell): State<Arc<ShellService>>,
    Body(request): Body<ShellCreateSessionRequest>,
) -> Reply<ShellCreateSessionResponse> {
    ok_message(shell.create(request).await?, "Session is ready")
}

/// Changes a session's settings.
#[utoipa::path(post, path = "/v1/shell/sessions/update", tag = "shell", operation_id = "update_shell_session", request_body = ShellUpdateSessionRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn update_session(State(shell): State<Arc<ShellService>>, Body(request): Body<ShellUpdateSessionRequest>) -> Reply<()> {
    shell.update(request)?;
    ok_message((), "Session updated")
}

/// Creates a session and returns the URL of its terminal for a person.
#[utoipa::path(get, path = "/v1/shell/terminal-url", tag = "shell", operation_id = "get_terminal_url", responses((status = 200, body = Envelope<String>)))]
async fn get_terminal_url(State(shell): State<Arc<ShellService>>, headers: HeaderMap) -> Reply<String> {
    let session = shell.create(ShellCreateSessionRequest::default()).await?;
    ok(terminal::url(&headers, &session.session_id))
}

/// Counts of sessions.
#[utoipa::path(get, path = "/v1/shell/sessions/stats", tag = "shell", operation_id = "get_shell_session_stats", responses((status = 200, body = Envelope<ShellSessionStats>)))]
async fn get_session_stats(State(shell): State<Arc<ShellService>>) -> Reply<ShellSessionStats> {
    ok(shell.stats())
}

/// All sessions.
#[utoipa::path(get, path = "/v1/shell/sessions", tag = "shell", operation_id = "list_shell_sessions", responses((status = 200, body = Envelope<ActiveShellSessionsResult>)))]
async fn list_sessions(State(shell): State<Arc<ShellService>>) -> Reply<ActiveShellSessionsResult> {
    ok(shell.list())
}

/// Ends all sessions and all their processes.
#[utoipa::path(delete, path = "/v1/shell/sessions", tag = "shell", operation_id = "cleanup_all_sessions", responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn cleanup_all_sessions(State(shell): State<Arc<ShellService>>) -> Reply<()> {
    let count = shell.cleanup_all().await;
    ok_message((), format!("{count} sessions cleaned up"))
}

/// Ends a session and all its processes.
#[utoipa::path(delete, path = "/v1/shell/sessions/{session_id}", tag = "shell", operation_id = "cleanup_shell_session", params(("session_id" = String, Path)), responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn cleanup_session(State(shell): State<Arc<ShellService>>, Path(given): Path<String>) -> Reply<()> {
    shell.cleanup(&session_id(&given)?).await?;
    ok_message((), "Session cleaned up")
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    accepts.filter_map(|value| value.to_str().ok()).any(|value| value.contains("text/event-stream"))
}

fn event(name: &str, data: &impl Serialize) -> Event {
    let text = serde_json::to_string(data).expect("results are made of strings and numbers");
    Event::default().event(name).data(text)
}

fn begins(session_id: &str, status: ShellStatus) -> Event {
    event("status", &json!({"session_id": session_id, "status": status}))
}

type LastEvent = Pin<Box<dyn Future<Output = Event> + Send>>;

struct Following {
    first: Option<Event>,
    run: Arc<Run>,
    offset: u64,
    last: LastEvent,
    closing: Option<Event>,
    done: bool,
}

/// The first event, the lines of a command as they come, and the last event.
fn events(first: Event, run: Arc<Run>, last: LastEvent) -> Response {
    let following = Following { first: Some(first), run, offset: 0, last, closing: None, done: false };
    let stream = futures_util::stream::unfold(following, |mut f| async move {
        if f.done {
            return None;
        }
        if let Some(event) = f.first.take() {
            return Some((Ok(event), f));
        }
        let run = Arc::clone(&f.run);
        loop {
            // Registered before the check, so that no change in between is missed.
            let grew = run.grew.notified();
            tokio::pin!(grew);
            grew.as_mut().enable();
            let (lines, offset) = run.lines_from(f.offset);
            if offset > f.offset {
                f.offset = offset;
                let event = event("output", &json!({"output": lines}));
                return Some((Ok::<_, Infallible>(event), f));
            }
            if let Some(event) = f.closing.take() {
                f.done = true;
                return Some((Ok(event), f));
            }
            tokio::select! {
                () = grew => {}
                event = &mut f.last => f.closing = Some(event),
            }
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}
