//! Routes of the pages.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use std::sync::Arc;

use super::agents;
use super::error::PageError;
use super::message::{self, Message};
use super::pass::pass;
use super::program::Program;
use crate::pages::PagesService;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::process::told;

pub(crate) fn router(state: Arc<PagesService>) -> Router {
    let vscode = |State(pages): State<Arc<PagesService>>, request: Request| answer(pages, Program::VsCode, request);
    let lab = |State(pages): State<Arc<PagesService>>, request: Request| answer(pages, Program::JupyterLab, request);
    Router::new()
        .route("/code-server", any(vscode))
        .route("/code-server/", any(vscode))
        .route("/code-server/{*path}", any(vscode))
        .route("/jupyter", any(lab))
        .route("/jupyter/", any(lab))
        .route("/jupyter/{*path}", any(lab))
        .route("/opencode", get(agents::opencode))
        .route("/codex", get(agents::codex))
        .with_state(state)
}

async fn answer(pages: Arc<PagesService>, program: Program, request: Request) -> Response<Body> {
    if program.is_off(&pages.runtime) {
        let (parts, _) = request.into_parts();
        return refused(program, message::is_wanted(&parts), &PageError::Off(program));
    }
    // A folder: relative links of its page need the slash.
    if request.uri().path() == program.root() {
        return with_slash(program, request.uri().query());
    }
    let (parts, body) = request.into_parts();
    let is_person = message::is_wanted(&parts);
    match pass(&pages, program, Request::from_parts(parts, body)).await {
        Ok(answer) => answer,
        Err(error) => refused(program, is_person, &error),
    }
}

/// Redirects to the path with a slash. Relative, so a prefix that a proxy has removed from the path is kept.
fn with_slash(program: Program, query: Option<&str>) -> Response<Body> {
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    redirect(&format!("{}/{query}", program.root().trim_start_matches('/')))
}

/// Redirects temporarily to another page.
pub(super) fn redirect(to: &str) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    if let Ok(to) = HeaderValue::from_str(to) {
        answer.headers_mut().insert(LOCATION, to);
    }
    answer
}

/// The answer to a refused request: a page for people, an API error for other clients.
fn refused(program: Program, is_person: bool, error: &PageError) -> Response<Body> {
    if !is_person {
        return ApiError::from(error).into_response();
    }
    let (whole, hint) = (error.to_string(), error.hint());
    let text = whole.strip_suffix(&told(error.said())).unwrap_or(&whole);
    let message = Message { status: error.status(), title: program.name(), text, hint: hint.as_deref(), lines: error.said() };
    message.page()
}
