//! A sandbox that is made before anybody asks: what is started in it ahead, and how it becomes somebody's.
//!
//! Nobody has used it until then, so nothing of anybody is in it. For the host alone.

use std::io;
use std::sync::atomic::Ordering;

use arenite_model::protocol::{BECOME_PATH, Become, PREPARE_PATH};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};

use crate::http::{ApiError, Reply, ok, whole};
use crate::jupyter::JupyterError;
use crate::{SharedGuest, server};

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(PREPARE_PATH, post(prepare)).route(BECOME_PATH, post(become_sandbox)).with_state(guest.clone())
}

/// Starts a kernel, if the image has one; says whether one waits.
async fn prepare(State(guest): State<SharedGuest>) -> Reply<bool> {
    let prepared = whole::<_, ApiError>(async move {
        match guest.jupyter.prepare(&guest).await {
            Ok(waits) => Ok(waits),
            Err(JupyterError::NoKernels) => Ok(false),
            Err(error) => Err(error.into()),
        }
    });
    ok(prepared.await?)
}

async fn become_sandbox(State(guest): State<SharedGuest>, Json(told): Json<Become>) -> Reply<()> {
    if !guest.is_nobodys.swap(false, Ordering::Relaxed) {
        return Err(ApiError::new(http::StatusCode::CONFLICT, "this sandbox is somebody's already"));
    }
    name_files(&told.hostname)
        .map_err(|error| ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, format!("could not write /etc: {error}")))?;
    guest.set_config(told.config);
    server::begin(&guest).await;
    guest.jupyter.expire_prepared(&guest);
    ok(())
}

/// The files that name the host; in a sandbox that is made when it is asked for, they are there from the start.
fn name_files(hostname: &str) -> io::Result<()> {
    std::fs::write("/etc/hostname", format!("{hostname}\n"))?;
    std::fs::write("/etc/hosts", arenite_model::protocol::hosts_file(hostname))
}
