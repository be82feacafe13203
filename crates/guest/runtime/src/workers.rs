//! Threads that do a call's file operations with the rights of its user.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arenite_isolation::identity::{self, Identity};
use tokio::sync::{Semaphore, oneshot};

use crate::users::User;
use thiserror::Error;

/// The most concurrent calls on single files. Further calls wait in order.
const BRIEF_WORKERS: usize = 8;
/// The most concurrent calls that walk directories or read through a file. Further calls wait in order.
const SCANNERS: usize = 4;
/// The time of such a call, in seconds: less than the 60 s after which AIO's clients give up.
const SCAN_SECONDS: u64 = 50;

/// Why a call on a thread has no result.
#[derive(Debug, Error)]
pub enum WorkError {
    #[error("no thread could be started as {user:?}: {source}")]
    NotStarted { user: String, source: io::Error },
    #[error("it took longer than {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("the caller has gone")]
    Cancelled,
    #[error("the thread failed in itself; please report it")]
    Panicked,
}

impl From<WorkError> for io::Error {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::NotStarted { source, .. } => source,
            error => Self::other(error),
        }
    }
}

/// Bounds concurrent file operations.
#[derive(Debug)]
pub struct Workers {
    brief: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

impl Default for Workers {
    fn default() -> Self {
        Self { brief: Arc::new(Semaphore::new(BRIEF_WORKERS)), scans: Arc::new(Semaphore::new(SCANNERS)) }
    }
}

/// How long a call may take, and which limit bounds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Touches one file of bounded size, and finishes even when the caller has left.
    Brief,
    /// Walks or reads an unbounded amount; ends when the caller leaves or time is up.
    Scan,
}

/// A running call, as its thread sees it.
#[derive(Debug, Clone)]
pub struct Work {
    cancelled: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Work {
    /// Fails when the caller has left or time is up. Call it every few hundred microseconds of work.
    pub fn check(&self) -> Result<(), WorkError> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        if self.cancelled.load(Ordering::Relaxed) {
            Err(WorkError::Cancelled)
        } else if Instant::now() > deadline {
            Err(WorkError::TimedOut { seconds: SCAN_SECONDS })
        } else {
            Ok(())
        }
    }

    /// A reader that checks before each read.
    pub fn watch<R: Read>(&self, inner: R) -> Watched<R> {
        Watched { inner, work: self.clone() }
    }
}

/// See [`Work::watch`].
#[derive(Debug)]
pub struct Watched<R> {
    inner: R,
    work: Work,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.work.check().map_err(io::Error::other)?;
        self.inner.read(buffer)
    }
}

/// Notifies the thread when the caller leaves.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The identity that a thread takes. None: the guest already has it, or can't change its identity, not being root (development).
fn identity(user: &User) -> Option<Identity> {
    (user.uid != 0 && rustix::process::geteuid().is_root()).then(|| Identity {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
    })
}

impl Workers {
    /// Runs `work` on a thread with the rights of `user`.
    pub async fn run<T: Send + 'static, E: From<WorkError> + Send + 'static>(
        &self,
        kind: Kind,
        user: &User,
        work: impl FnOnce(&Work) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let permits = match kind {
            Kind::Brief => &self.brief,
            Kind::Scan => &self.scans,
        };
        let permit = permits.clone().acquire_owned().await.expect("the semaphores are never closed");
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(cancelled.clone());
        let context =
            Work { cancelled, deadline: (kind == Kind::Scan).then(|| Instant::now() + Duration::from_secs(SCAN_SECONDS)) };
        let (sender, receiver) = oneshot::channel();
        let not_started = |source| WorkError::NotStarted { user: user.name.clone(), source };
        identity::spawn_as(
            identity(user),
            move || work(&context),
            move |result| {
                // Held until the thread ends, even when the caller has left: it bounds the threads.
                drop(permit);
                drop(sender.send(result));
            },
        )
        .map_err(not_started)?;
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(not_started(error).into()),
            Err(_) => Err(WorkError::Panicked.into()),
        }
    }
}
