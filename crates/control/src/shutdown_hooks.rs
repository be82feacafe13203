//! Runs a sandbox's shutdown hooks before it is deleted.

use std::io;
use std::time::Duration;

use arenite_engine::Engine;
use arenite_model::protocol::{SHUTDOWN_PATH, SHUTDOWN_SECONDS};
use arenite_model::{SandboxId, SandboxState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::Control;

/// Time for the guest to report whether it has hooks. A stuck or hostile guest gets no more.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Time for the hooks to run, and for the guest to notice that they took too long.
const HOOKS_LIMIT: Duration = Duration::from_secs(SHUTDOWN_SECONDS + 1);

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
    let mut buffer = [0; 4096];
    let begin = async {
        let mut guest = engine.dial(id).await.map_err(io::Error::other)?;
        let request = format!("POST {SHUTDOWN_PATH} HTTP/1.1\r\nhost: guest\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        guest.write_all(request.as_bytes()).await?;
        let read = guest.read(&mut buffer).await?;
        Ok::<_, io::Error>((guest, buffer[..read].starts_with(b"HTTP/1.1 200 ")))
    };
    let (mut guest, has_hooks) = timeout(ANSWER_LIMIT, begin).await??;
    if has_hooks {
        let end = async {
            while guest.read(&mut buffer).await? > 0 {}
            Ok::<_, io::Error>(())
        };
        timeout(HOOKS_LIMIT, end).await??;
    }
    Ok(())
}
