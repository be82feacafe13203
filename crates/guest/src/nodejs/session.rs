//! A session: a Node.js process whose state lasts.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::process::NodeProcess;
use super::runtime::{self, Runtime};
use super::service::{MAX_WAITING, NodeError};
use super::types::NodeJSSessionInfo;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    runtime: Runtime,
    /// Cancelled when it is deleted: its process ends, and nobody else gets a turn.
    pub(super) closed: CancellationToken,
    created_at: Timestamp,
    state: Mutex<State>,
    turn: tokio::sync::Mutex<Slot>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct State {
    cwd: PathBuf,
    max_idle_seconds: i64,
    used: Instant,
    used_at: Timestamp,
}

/// What whoever has the turn may change.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) process: Option<NodeProcess>,
    /// A process was there before.
    pub(super) had_process: bool,
    pub(super) executions: i64,
}

impl Session {
    pub(super) fn new(id: String, runtime: Runtime, cwd: PathBuf, max_idle_seconds: i64) -> Arc<Self> {
        let state = State { cwd, max_idle_seconds, used: Instant::now(), used_at: Timestamp::now() };
        Arc::new(Self {
            id,
            runtime,
            closed: CancellationToken::new(),
            created_at: Timestamp::now(),
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Whether it runs this version; without one, any.
    pub(super) fn is_of(&self, version: Option<&str>) -> bool {
        runtime::choose(vec![self.runtime.clone()], version).is_ok()
    }

    /// Waits until nobody else uses the session, in the order of arrival.
    pub(super) async fn turn(&self, limit: Duration) -> Result<tokio::sync::MutexGuard<'_, Slot>, NodeError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(NodeError::TooManyWaiting { id: self.id.clone() });
        }
        let turn = timeout(limit, self.turn.lock()).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let turn = turn.map_err(|_| NodeError::Busy { id: self.id.clone(), seconds: limit.as_secs() })?;
        if self.closed.is_cancelled() {
            return Err(NodeError::SessionNotFound(self.id.clone()));
        }
        Ok(turn)
    }

    /// Somebody waits for a turn.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_busy(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    pub(super) fn touch(&self) {
        let mut state = self.state();
        state.used = Instant::now();
        state.used_at = Timestamp::now();
    }

    pub(super) fn last_used(&self) -> Instant {
        self.state().used
    }

    /// When it has been idle for its time.
    pub(super) fn due(&self) -> Instant {
        let state = self.state();
        state.used + Duration::from_secs(state.max_idle_seconds.unsigned_abs())
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
        let is_busy = self.is_busy();
        let state = self.state();
        NodeJSSessionInfo {
            session_id: self.id.clone(),
            cwd: state.cwd.display().to_string(),
            created_at: self.created_at.as_millisecond() as f64,
            last_used: state.used_at.as_millisecond() as f64,
            max_idle_time: state.max_idle_seconds * 1000,
            age_seconds: state.used.elapsed().as_secs(),
            state: if is_busy { "EXECUTING" } else { "IDLE" },
        }
    }

    /// Ends its process, whatever it does, and waits until that is gone.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        let process = self.turn.lock().await.process.take();
        if let Some(mut process) = process {
            process.end().await;
        }
    }
}
