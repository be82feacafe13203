//! Runs a sandbox's shutdown hooks before it is deleted.

use std::io;
use std::time::Duration;

use arenite_engine::{Engine, request_guest};
use arenite_model::protocol::{SHUTDOWN_PATH, SHUTDOWN_SECONDS};
use arenite_model::{SandboxId, SandboxState};
use tokio::time::timeout;

use crate::Control;

/// Time for the guest to report whether it has hooks. A stuck or hostile guest gets no more.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Time for the hooks to run, and for the guest to notice that they took too long.
const HOOKS_LIMIT: Duration = Duration::from_secs(SHUTDOWN_SECONDS + 1);
/// Maximum size of its answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

impl Control {
    /// Runs the hooks of a sandbox that is about to be destroyed. A failure does not keep it alive.
    pub(crate) async fn run_shutdown_hooks(&self, id: &SandboxId, was: SandboxState) {
        match was {
            SandboxState::Running => {}
            // Hooks need running processes.
            SandboxState::Paused if self.engine.resume(id).await.is_ok() => {}
            _ => return,
        }
        if let Err(error) = ask(&*self.engine, id).await {
            tracing::debug!(%id, %error, "no shutdown hooks were run");
        }
    }
}

async fn ask(engine: &dyn Engine, id: &SandboxId) -> io::Result<()> {
    let begin = async {
        let guest = engine.dial(id).await.map_err(io::Error::other)?;
        request_guest(guest, "POST", SHUTDOWN_PATH, Vec::new()).await
    };
    let answer = timeout(ANSWER_LIMIT, begin).await??;
    // The body ends when the hooks have ended.
    if answer.is_ok() {
        timeout(HOOKS_LIMIT, answer.text(MAX_ANSWER)).await??;
    }
    Ok(())
}
