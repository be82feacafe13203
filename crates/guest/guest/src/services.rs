//! The routes of all services. The routes of a service are built on its first call: a sandbox that only runs commands starts
//! faster, and never loads the code and the memory of the others.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tower_service::Service;

use crate::Guest;
use crate::hooks;
use crate::mcp;
use crate::observe;
use crate::pages;
use crate::sandbox;
use arenite_guest_browser as browser;
use arenite_guest_code::code;
use arenite_guest_code::jupyter;
use arenite_guest_code::nodejs;
use arenite_guest_desktop::desktop;
use arenite_guest_desktop::vm;
use arenite_guest_files::files;
use arenite_guest_files::skills;
use arenite_guest_files::util;
use arenite_guest_proxy as proxy;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_shell::bash;
use arenite_guest_shell::shell;

type Build = fn(&Arc<Guest>) -> Router;

/// The path prefixes of the services, and the functions that build their routes.
const SERVICES: [(&str, Build); 24] = [
    ("/v1/bash/", |guest| bash::router(guest.bash.clone())),
    ("/v1/shell/", |guest| shell::router(guest.shell.clone())),
    ("/v1/file/", |guest| files::router(guest.files.clone())),
    ("/v1/code/", |guest| code::router(guest.code.clone())),
    ("/v1/jupyter/", |guest| jupyter::router(guest.jupyter.clone())),
    ("/v1/nodejs/", |guest| nodejs::router(guest.nodejs.clone())),
    ("/v1/sandbox", |guest| {
        sandbox::router(guest.sandbox.clone())
            .merge(hooks::router(guest.hooks.clone()))
            .merge(observe::router(guest.observer.clone()))
    }),
    ("/v1/ping", |guest| sandbox::router(guest.sandbox.clone())),
    ("/v1/capabilities", |guest| sandbox::router(guest.sandbox.clone())),
    ("/v1/skills", |guest| skills::router(guest.skills.clone())),
    ("/v1/util/", |guest| util::router(guest.converter.clone())),
    ("/v1/mcp/", |guest| mcp::router(guest.clone())),
    ("/v1/proxy/", |guest| proxy::router(guest.proxy.clone())),
    ("/v1/browser/", |guest| browser::router(guest.browser.clone())),
    ("/cdp/", |guest| browser::router(guest.browser.clone())),
    ("/json", |guest| browser::router(guest.browser.clone())),
    ("/v1/display/", |guest| desktop::router(guest.desktop.clone())),
    ("/websockify", |guest| desktop::router(guest.desktop.clone())),
    ("/v1/vm", |guest| vm::router(guest.vm.clone())),
    ("/v1/machine", |guest| vm::router(guest.vm.clone())),
    ("/code-server", |guest| pages::router(guest.pages.clone())),
    ("/jupyter", |guest| pages::router(guest.pages.clone())),
    ("/opencode", |guest| pages::router(guest.pages.clone())),
    ("/codex", |guest| pages::router(guest.pages.clone())),
];

/// The API that processes inside may also call.
#[derive(Clone)]
pub(crate) struct Services(Arc<Inner>);

struct Inner {
    guest: Arc<Guest>,
    built: [OnceLock<Router>; SERVICES.len()],
}

impl Services {
    pub(crate) fn new(guest: Arc<Guest>) -> Self {
        Self(Arc::new(Inner { guest, built: Default::default() }))
    }

    /// Answers a call. 404 if no service has the path.
    pub(crate) async fn call(self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let found = SERVICES.iter().zip(&self.0.built).find(|((prefix, _), _)| path.starts_with(prefix));
        let Some(((_, build), built)) = found else { return explained(&path, StatusCode::NOT_FOUND.into_response()) };
        let router = built.get_or_init(|| build(&self.0.guest));
        match router.clone().call(request).await {
            Ok(answer) => explained(&path, answer),
            Err(never) => match never {},
        }
    }
}

/// Gives a refusal of the router, which has no body, the API's error body.
fn explained(path: &str, answer: Response) -> Response {
    let is_bare = answer.body().is_end_stream() && !answer.headers().contains_key(CONTENT_TYPE);
    if !path.starts_with("/v1/") || !is_bare {
        return answer;
    }
    let shown: String = path.chars().take(200).collect();
    let refusal = match answer.status() {
        StatusCode::NOT_FOUND => ApiError::not_found(format!("there is nothing at {shown}")),
        StatusCode::METHOD_NOT_ALLOWED => {
            let allowed = answer.headers().get(ALLOW).and_then(|methods| methods.to_str().ok()).unwrap_or("another method");
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{shown} takes {}", allowed.replace(',', ", ")))
        }
        _ => return answer,
    };
    let mut explained = refusal.hint("GET /v1/docs shows all paths with their methods").into_response();
    if let Some(allowed) = answer.headers().get(ALLOW) {
        explained.headers_mut().insert(ALLOW, allowed.clone());
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};

    #[tokio::test]
    async fn refusals_of_the_router_are_explained() {
        let bare = |status| Response::builder().status(status).header(ALLOW, "GET,HEAD").body(Body::empty()).unwrap();
        for (path, status, word) in [
            ("/v1/nothing", StatusCode::NOT_FOUND, "nothing at /v1/nothing"),
            ("/v1/bash/exec", StatusCode::METHOD_NOT_ALLOWED, "takes GET, HEAD"),
        ] {
            let answer = explained(path, bare(status));
            assert_eq!((answer.status(), answer.headers()[ALLOW].to_str().unwrap()), (status, "GET,HEAD"));
            let body: serde_json::Value = serde_json::from_slice(&to_bytes(answer.into_body(), 1 << 16).await.unwrap()).unwrap();
            assert!(body["message"].as_str().unwrap().contains(word) && body["hint"].is_string(), "{body}");
            assert_eq!(body["success"], false);
        }
        // Answers with a body, and paths outside the API, are unchanged.
        let said = explained("/v1/file/download", (StatusCode::NOT_FOUND, "gone").into_response());
        assert_eq!(to_bytes(said.into_body(), 1 << 16).await.unwrap(), "gone");
        let of_program = explained("/jupyter/x", bare(StatusCode::NOT_FOUND));
        assert!(of_program.body().is_end_stream());
    }
}
