//! A session: a name for a kernel, which executes one thing after the other.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::kernel::Kernel;
use super::kernelspec::KernelSpec;
use super::service::JupyterError;
use super::types::SessionInfo;

/// Calls that wait for their turn in one session.
pub(super) const MAX_WAITING: usize = 64;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) spec: KernelSpec,
    /// Where its kernel starts.
    pub(super) cwd: PathBuf,
    /// Cancelled when it is deleted: its kernel ends, and nobody else gets a turn.
    pub(super) closed: CancellationToken,
    created: Instant,
    used: Mutex<(Instant, Timestamp)>,
    turn: tokio::sync::Mutex<Slot>,
    waiting: AtomicUsize,
}

/// What whoever has the turn may change.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) kernel: Option<Kernel>,
    /// A kernel was there before.
    pub(super) had_kernel: bool,
}

impl Session {
    pub(super) fn new(id: String, spec: KernelSpec, cwd: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            id,
            spec,
            cwd,
            closed: CancellationToken::new(),
            created: Instant::now(),
            used: Mutex::new((Instant::now(), Timestamp::now())),
            turn: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Waits until nobody else uses the session, in the order of arrival.
    pub(super) async fn turn(&self, limit: Duration) -> Result<MutexGuard<'_, Slot>, JupyterError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(JupyterError::TooManyWaiting { id: self.id.clone() });
        }
        let turn = timeout(limit, self.turn.lock()).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let turn = turn.map_err(|_| JupyterError::Busy { id: self.id.clone(), seconds: limit.as_secs() })?;
        if self.closed.is_cancelled() {
            return Err(JupyterError::SessionNotFound(self.id.clone()));
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
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), Timestamp::now());
    }

    pub(super) fn last_used(&self) -> Instant {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn info(&self) -> SessionInfo {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner).1;
        SessionInfo {
            kernel_name: self.spec.name.clone(),
            last_used: used.as_millisecond() as f64 / 1e3,
            age_seconds: self.created.elapsed().as_secs(),
        }
    }

    /// Ends its kernel, whatever it does, and waits until that is gone.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        let kernel = self.turn.lock().await.kernel.take();
        if let Some(kernel) = kernel {
            kernel.shut_down().await;
        }
    }
}
