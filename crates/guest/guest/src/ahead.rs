//! Routes for sandboxes that become others: start runtimes ahead of demand, and assign a pooled sandbox to a client, or one with
//! restored processes to its sandbox.
//!
//! A pooled sandbox holds no tenant data yet. Only the host calls these routes.

use std::io;

use arenite_model::protocol::{Assignment, BECOME_PATH, Become, PREPARE_PATH, RESTORED_PATH, Restored};
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::Request;
use http::header::CONTENT_TYPE;

use crate::SharedGuest;
use crate::inside::InsideSteps;
use crate::server;
use crate::services::Services;
use crate::trust;
use arenite_guest_code::jupyter::JupyterError;
use arenite_guest_runtime::http::{ApiError, Reply, ok, whole};

pub(crate) fn router(guest: &SharedGuest, services: Services, steps: InsideSteps) -> Router {
    let prepare = move |State(guest): State<SharedGuest>| prepare(guest, services.clone());
    let restored = move |State(guest): State<SharedGuest>, Json(told): Json<Restored>| restored(guest, steps.clone(), told);
    Router::new()
        .route(PREPARE_PATH, post(prepare))
        .route(BECOME_PATH, post(become_sandbox))
        .route(RESTORED_PATH, post(restored))
        .with_state(guest.clone())
}

/// Starts a kernel, if the image has one. Returns whether a spare kernel is ready.
async fn prepare(guest: SharedGuest, services: Services) -> Reply<bool> {
    let prepared = whole::<_, ApiError>(async move {
        rehearse(&guest, services).await;
        match guest.jupyter.prepare().await {
            Ok(waits) => Ok(waits),
            Err(JupyterError::NoKernels) => Ok(false),
            Err(error) => Err(error.into()),
        }
    });
    ok(prepared.await?)
}

/// Runs a command and forgets it, so that the client's first command finds bash and this program's code in memory.
async fn rehearse(guest: &SharedGuest, services: Services) {
    let request = Request::post("/v1/bash/exec").header(CONTENT_TYPE, "application/json");
    if let Ok(request) = request.body(Body::from(r#"{"command":"true"}"#)) {
        // An image without bash has nothing to rehearse.
        drop(services.call(request).await);
    }
    for session in guest.bash.sessions() {
        // Nobody else knows it.
        drop(session.session_id.parse().map(|id| guest.bash.close(&id)));
    }
}

async fn become_sandbox(State(guest): State<SharedGuest>, Json(told): Json<Become>) -> Reply<()> {
    if guest.runtime.config().assignment == Assignment::Assigned {
        return Err(already_assigned());
    }
    // Empty: it has its name from the start.
    if !told.hostname.is_empty() {
        name_files(&told.hostname)
            .map_err(|error| ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, format!("could not write /etc: {error}")))?;
    }
    if !guest.assign(told.config) {
        return Err(already_assigned());
    }
    server::begin(&guest).await;
    guest.jupyter.expire_prepared();
    ok(())
}

/// Makes this guest that of the sandbox that was restored. Its processes go on, so nothing is started.
async fn restored(guest: SharedGuest, steps: InsideSteps, told: Restored) -> Reply<()> {
    let failed = |reason| ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, reason);
    if !arenite_isolation::uts::has_hostname(&told.hostname) {
        return Err(failed("this runsc keeps the host name of before; install one of 2026 or newer".to_owned()));
    }
    // They are of the sandbox that was saved, which reports them itself.
    steps.forget();
    name_files(&told.hostname)
        .and_then(|()| std::fs::write("/etc/resolv.conf", told.resolver))
        .map_err(|error| failed(format!("could not write /etc: {error}")))?;
    guest.reassign(told.config);
    trust::install(&guest.runtime).await;
    guest.agent.begin(&guest.runtime).await;
    guest.ssh_agent.begin(&guest.runtime);
    ok(())
}

fn already_assigned() -> ApiError {
    ApiError::new(http::StatusCode::CONFLICT, "this sandbox is assigned already")
}

/// Writes the files that contain the host name. In a sandbox that is created on demand, they exist from the start.
fn name_files(hostname: &str) -> io::Result<()> {
    std::fs::write("/etc/hostname", format!("{hostname}\n"))?;
    std::fs::write("/etc/hosts", arenite_model::protocol::hosts_file(hostname))
}
