//! The sessions of a sandbox in its forks. What they hold is between two sandboxes of one tenant, and the server only passes it on.

use std::io;
use std::time::Duration;

use arenite_engine::{Engine, request_guest};
use arenite_model::protocol::{CarriedSessions, MAX_CARRIED, SESSIONS_PATH};
use arenite_model::{SandboxId, SandboxState};
use tokio::time::timeout;

use crate::Control;
use crate::registry::Entry;

/// Time for a guest to answer. A stuck or hostile one gets no more.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

impl Control {
    /// The sessions of a running sandbox that is about to be forked. None if it has none, or does not answer.
    pub(crate) async fn sessions_for_forks(&self, entry: &Entry) -> Option<CarriedSessions> {
        if entry.sandbox().state != SandboxState::Running {
            return None;
        }
        match timeout(ANSWER_LIMIT, read(&*self.engine, &entry.id)).await.unwrap_or_else(|late| Err(late.into())) {
            Ok(carried) => Some(carried).filter(|carried| !carried.shell.is_empty() || !carried.bash.is_empty()),
            Err(error) => {
                tracing::debug!(id = %entry.id, %error, "its forks get none of its sessions");
                None
            }
        }
    }
}

async fn read(engine: &dyn Engine, id: &SandboxId) -> io::Result<CarriedSessions> {
    let guest = engine.dial(id).await.map_err(io::Error::other)?;
    let answer = request_guest(guest, "GET", SESSIONS_PATH, Vec::new()).await?;
    if !answer.is_ok() {
        return Err(io::Error::other("the guest is of a version that does not tell its sessions"));
    }
    Ok(serde_json::from_str(&answer.text(MAX_CARRIED).await?)?)
}
