//! `/opencode` and `/codex`: the terminal's page with that program started in it.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode};
use axum::response::IntoResponse;
use std::sync::Arc;

use super::message::{self, Message};
use super::routes::redirect;
use crate::pages::PagesService;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::requirements::MISSING_PROGRAM;
use arenite_guest_shell::shell::{ShellCreateSessionRequest, ShellError, ShellWriteRequest};

struct Agent {
    name: &'static str,
    command: &'static str,
    /// The npm package.
    package: &'static str,
}

const OPENCODE: Agent = Agent { name: "OpenCode", command: "opencode", package: "opencode-ai" };
const CODEX: Agent = Agent { name: "Codex", command: "codex", package: "@openai/codex" };

pub(super) async fn opencode(State(pages): State<Arc<PagesService>>, request: Request) -> Response<Body> {
    open(&pages, &OPENCODE, request).await
}

pub(super) async fn codex(State(pages): State<Arc<PagesService>>, request: Request) -> Response<Body> {
    open(&pages, &CODEX, request).await
}

async fn open(pages: &Arc<PagesService>, agent: &Agent, request: Request) -> Response<Body> {
    let (parts, _) = request.into_parts();
    if pages.runtime.locate(agent.command).is_none() {
        return missing(agent, message::is_wanted(&parts));
    }
    if parts.method == Method::HEAD {
        return redirect("terminal");
    }
    match started(pages, agent).await {
        // Relative, so a prefix that a proxy has removed from the path is kept.
        Ok(session) => redirect(&format!("terminal?session_id={session}")),
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// Creates a shell session and types the program's name: a user who leaves the program is at the shell's prompt.
async fn started(pages: &Arc<PagesService>, agent: &Agent) -> Result<String, ShellError> {
    let wanted = ShellCreateSessionRequest { id: None, exec_dir: None, no_change_timeout: None, preserve_symlinks: None };
    let session = pages.shell.create(wanted).await?.session_id;
    let typed = ShellWriteRequest { id: session.clone(), input: agent.command.to_owned(), press_enter: true };
    pages.shell.write(typed).await?;
    Ok(session)
}

fn missing(agent: &Agent, is_person: bool) -> Response<Body> {
    let Agent { name, command, package } = agent;
    let text = format!("this sandbox's image has no {name} ({command})");
    let install = format!("npm install --global {package}");
    if !is_person {
        let error = ApiError::new(StatusCode::FAILED_DEPENDENCY, text).code(MISSING_PROGRAM);
        return error
            .hint(format!("run `sudo {install}` in a sandbox of the image `code`, or add it to an Imagefile"))
            .into_response();
    }
    let lines = format!(
        "# in a sandbox of the image `code`\nsudo {install}\n\n# or in an Imagefile\nFROM code\nUSER root\nRUN {install}\nUSER gem"
    );
    let hint = Some("Then load this page again.");
    Message { status: StatusCode::FAILED_DEPENDENCY, title: name, text: &text, hint, lines: &lines }.page()
}
