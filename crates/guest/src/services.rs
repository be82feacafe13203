//! The routes of all services. Those of one are put together when the first call for it comes: a sandbox that only runs
//! commands starts faster, and never touches the code and the memory of the others.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tower_service::Service;

use crate::{
    SharedGuest, bash, browser, code, desktop, files, hooks, jupyter, machine, mcp, nodejs, observe, pages, proxy, sandbox,
    shell, skills, util,
};

type Build = fn() -> Router<SharedGuest>;

/// How the paths of a service begin, and its routes.
const SERVICES: [(&str, Build); 23] = [
    ("/v1/bash/", bash::router),
    ("/v1/shell/", shell::router),
    ("/v1/file/", files::router),
    ("/v1/code/", code::router),
    ("/v1/jupyter/", jupyter::router),
    ("/v1/nodejs/", nodejs::router),
    ("/v1/sandbox", || sandbox::router().merge(hooks::router()).merge(observe::router())),
    ("/v1/ping", sandbox::router),
    ("/v1/capabilities", sandbox::router),
    ("/v1/skills", skills::router),
    ("/v1/util/", util::router),
    ("/v1/mcp/", mcp::router),
    ("/v1/proxy/", proxy::router),
    ("/v1/browser/", browser::router),
    ("/cdp/", browser::router),
    ("/json", browser::router),
    ("/v1/display/", desktop::router),
    ("/websockify", desktop::router),
    ("/v1/machine", machine::router),
    ("/code-server", pages::router),
    ("/jupyter", pages::router),
    ("/opencode", pages::router),
    ("/codex", pages::router),
];

/// What processes inside may call, too.
#[derive(Clone)]
pub(crate) struct Services(Arc<Inner>);

struct Inner {
    guest: SharedGuest,
    built: [OnceLock<Router>; SERVICES.len()],
}

impl Services {
    pub(crate) fn new(guest: SharedGuest) -> Self {
        Self(Arc::new(Inner { guest, built: Default::default() }))
    }

    /// Answers a call; 404 for a path of no service.
    pub(crate) async fn call(self, request: Request) -> Response {
        let path = request.uri().path();
        let found = SERVICES.iter().zip(&self.0.built).find(|((prefix, _), _)| path.starts_with(prefix));
        let Some(((_, build), built)) = found else { return StatusCode::NOT_FOUND.into_response() };
        let router = built.get_or_init(|| build().with_state(Arc::clone(&self.0.guest)));
        match router.clone().call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}
