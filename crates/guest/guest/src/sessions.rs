//! The sessions of a sandbox for its forks: told by the parent, and opened by each fork.

use arenite_guest_shell::carry;
use arenite_model::protocol::{CarriedSessions, SESSIONS_PATH};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};

use crate::SharedGuest;

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(SESSIONS_PATH, get(tell).post(take_over)).with_state(guest.clone())
}

async fn tell(State(guest): State<SharedGuest>) -> Json<CarriedSessions> {
    Json(carry::carried(&guest.shell, &guest.bash).await)
}

async fn take_over(State(guest): State<SharedGuest>, Json(carried): Json<CarriedSessions>) -> StatusCode {
    carry::take_over(&guest.shell, &guest.bash, carried);
    StatusCode::NO_CONTENT
}
