//! Client work that continues without a waiting call. It keeps a sandbox from counting as idle.
//!
//! Only work that a client started counts. The main command, hooks, and background jobs of a shell do not: otherwise a sandbox
//! that runs a server would never be idle.

use arenite_model::protocol::{ACTIVITY_PATH, Activity};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use crate::SharedGuest;

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(ACTIVITY_PATH, get(activity)).with_state(guest.clone())
}

async fn activity(State(guest): State<SharedGuest>) -> Json<Activity> {
    let work = [
        ("a command", guest.bash.is_busy()),
        ("a shell session's command", guest.shell.runs_anything()),
        ("code in a Jupyter kernel", guest.jupyter.is_busy()),
        ("code in Node.js", guest.nodejs.is_busy()),
        ("a download", guest.browser.downloads_run()),
        ("a recording of a page", guest.browser.is_recording()),
        ("a recording of the screen", guest.desktop.is_recording()),
    ];
    let running = work.into_iter().find_map(|(what, runs)| runs.then(|| what.to_owned()));
    Json(Activity { running })
}
