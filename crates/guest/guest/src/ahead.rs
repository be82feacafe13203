//! Routes for pooled sandboxes: start runtimes ahead of demand, then assign the sandbox to a client.
//!
//! A pooled sandbox holds no tenant data yet. Only the host calls these routes.

use std::io;

use arenite_model::protocol::{Assignment, BECOME_PATH, Become, PREPARE_PATH};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};

use crate::SharedGuest;
use crate::server;
use arenite_guest_code::jupyter::JupyterError;
use arenite_guest_runtime::http::{ApiError, Reply, ok, whole};

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(PREPARE_PATH, post(prepare)).route(BECOME_PATH, post(become_sandbox)).with_state(guest.clone())
}

/// Starts a kernel, if the image has one. Returns whether a spare kernel is ready.
async fn prepare(State(guest): State<SharedGuest>) -> Reply<bool> {
    let prepared = whole::<_, ApiError>(async move {
        match guest.jupyter.prepare().await {
            Ok(waits) => Ok(waits),
            Err(JupyterError::NoKernels) => Ok(false),
            Err(error) => Err(error.into()),
        }
    });
    ok(prepared.await?)
}

async fn become_sandbox(State(guest): State<SharedGuest>, Json(told): Json<Become>) -> Reply<()> {
    if guest.runtime.config().assignment == Assignment::Assigned {
        return Err(already_assigned());
    }
    name_files(&told.hostname)
        .map_err(|error| ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, format!("could not write /etc: {error}")))?;
    if !guest.assign(told.config) {
        return Err(already_assigned());
    }
    server::begin(&guest).await;
    guest.jupyter.expire_prepared();
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
