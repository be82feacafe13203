//! The sessions of a sandbox, for its forks. A fork opens them at its start.

use arenite_guest_shell::carry;
use arenite_model::protocol::{CarriedSessions, SESSIONS_PATH};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use crate::SharedGuest;

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(SESSIONS_PATH, get(tell)).with_state(guest.clone())
}

async fn tell(State(guest): State<SharedGuest>) -> Json<CarriedSessions> {
    Json(carry::carried(&guest.shell, &guest.bash).await)
}
