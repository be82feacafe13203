//! Calls that their client left. AgentFlow's client waits as long as the tool may take, and then repeats the request, up to three
//! times. So a call continues for a moment without its client, which finds it in progress when it repeats the request. After
//! that, the call is cancelled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::execute::Done;

/// How long a call continues without its client, which repeats the request after 1 or 2 s.
pub const GRACE: Duration = Duration::from_secs(4);

/// Identifies a request: the hash of its tenant and its bytes.
pub(crate) type Request = [u8; 32];

/// A call in progress.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) done: watch::Receiver<Option<Done>>,
    pub(crate) cancel: CancellationToken,
}

impl Running {
    /// Waits for its answer. None if its task died.
    pub(crate) async fn wait(&mut self) -> Option<Done> {
        self.done.wait_for(Option::is_some).await.ok()?.clone()
    }
}

#[derive(Default)]
pub(crate) struct Orphans {
    calls: Mutex<HashMap<Request, (u64, Running)>>,
    count: AtomicUsize,
    next: AtomicUsize,
}

impl Orphans {
    fn calls(&self) -> MutexGuard<'_, HashMap<Request, (u64, Running)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it holds no calls; then no request needs to be hashed.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The call of the same request, if its client left it a moment ago.
    pub(crate) fn adopt(&self, request: &Request) -> Option<Running> {
        let (_, running) = self.calls().remove(request)?;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(running)
    }

    /// Registers a call that its client left.
    pub(crate) fn leave(self: &Arc<Self>, request: Request, running: Running) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let before = self.calls().insert(request, (number, running));
        match before {
            // Of two equal calls, only the later one can be adopted.
            Some((_, before)) => before.cancel.cancel(),
            None => drop(self.count.fetch_add(1, Ordering::AcqRel)),
        }
        let orphans = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(GRACE).await;
            let mut calls = orphans.calls();
            if calls.get(&request).is_some_and(|(theirs, _)| *theirs == number)
                && let Some((_, running)) = calls.remove(&request)
            {
                orphans.count.fetch_sub(1, Ordering::AcqRel);
                running.cancel.cancel();
            }
        });
    }
}

/// Held while a client waits for a call. Dropping it before the answer leaves the call to [`Orphans`].
pub(crate) struct Waiting {
    pub(crate) orphans: Arc<Orphans>,
    /// The tenant and the request's bytes, hashed only when they are needed.
    pub(crate) request: Box<dyn Fn() -> Request + Send + Sync>,
    pub(crate) running: Option<Running>,
}

impl Waiting {
    pub(crate) async fn wait(&mut self) -> Option<Done> {
        let done = self.running.as_mut()?.wait().await;
        self.running = None;
        done
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // Without a runtime, the server is ending.
            if tokio::runtime::Handle::try_current().is_ok() {
                self.orphans.leave((self.request)(), running);
            }
        }
    }
}
