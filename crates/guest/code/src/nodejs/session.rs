//! A session: a Node.js process that keeps its state.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::process::NodeProcess;
use super::runtime::{self, NodeRuntime};
use super::types::NodeJSSessionInfo;
use arenite_guest_runtime::sessions::{self, SessionId, Turns};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) turns: Turns<Slot>,
    pub(super) runtime: NodeRuntime,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cwd: PathBuf,
    max_idle_seconds: i64,
}

/// The part of a session that the holder of the turn may change.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) process: Option<NodeProcess>,
    /// It has had a process before.
    pub(super) had_process: bool,
    pub(super) executions: i64,
}

impl Session {
    pub(super) fn new(id: SessionId, runtime: NodeRuntime, cwd: PathBuf, max_idle_seconds: i64) -> Self {
        Self { turns: Turns::new(id), runtime, state: Mutex::new(State { cwd, max_idle_seconds }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn id(&self) -> &SessionId {
        &self.turns.id
    }

    /// Whether it runs this version; `None` matches any.
    pub(super) fn is_of(&self, version: Option<&str>) -> bool {
        runtime::choose(vec![self.runtime.clone()], version).is_ok()
    }

    pub(super) fn cwd(&self) -> PathBuf {
        self.state().cwd.clone()
    }

    pub(super) fn set_cwd(&self, cwd: PathBuf) {
        self.state().cwd = cwd;
    }

    pub(super) fn set_max_idle(&self, seconds: i64) {
        self.state().max_idle_seconds = seconds;
    }

    pub(super) fn info(&self) -> NodeJSSessionInfo {
        let is_busy = self.turns.is_busy();
        let (used, used_at) = self.turns.used();
        let state = self.state();
        NodeJSSessionInfo {
            session_id: self.turns.id.to_string(),
            cwd: state.cwd.display().to_string(),
            created_at: self.turns.created.as_millisecond() as f64,
            last_used: used_at.as_millisecond() as f64,
            max_idle_time: state.max_idle_seconds * 1000,
            age_seconds: used.elapsed().as_secs(),
            state: if is_busy { "EXECUTING" } else { "IDLE" },
        }
    }
}

impl sessions::Session for Session {
    type Slot = Slot;

    fn turns(&self) -> &Turns<Slot> {
        &self.turns
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.state().max_idle_seconds.unsigned_abs())
    }

    async fn close(&self) {
        let process = self.turns.last_turn().await.process.take();
        if let Some(mut process) = process {
            process.end().await;
        }
    }
}
