//! Deletes or pauses sandboxes at their deadlines: one task, one sleep until the next deadline.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{DeathReason, PauseKind, SandboxId, SandboxState, TenantId};
use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore};

use crate::clock::later;
use crate::counters::{Tally, count};
use crate::registry::Entry;
use crate::{Control, ControlError, Deadline, DeadlineAction, DeadlineReason};

/// Number of sandboxes that are reaped concurrently.
const AT_ONCE: usize = 8;
/// Delay before a failed operation is retried.
const RETRY: Duration = Duration::from_secs(10);
/// Delay before a sandbox that is being changed is checked again.
const BUSY: Duration = Duration::from_secs(1);

/// When to check which sandbox. A time may be too early, never too late: the check recomputes it, so a call need not move it.
#[derive(Default)]
pub(crate) struct Deadlines {
    times: Mutex<Times>,
    earlier: Notify,
}

#[derive(Default)]
struct Times {
    in_order: BTreeSet<(Timestamp, SandboxId)>,
    of: HashMap<SandboxId, Timestamp>,
}

impl Times {
    fn forget(&mut self, id: &SandboxId) {
        if let Some(at) = self.of.remove(id) {
            self.in_order.remove(&(at, id.clone()));
        }
    }
}

impl Deadlines {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: &SandboxId, at: Timestamp) {
        let mut times = self.times();
        times.forget(id);
        times.of.insert(id.clone(), at);
        times.in_order.insert((at, id.clone()));
        if times.in_order.first().is_some_and(|(_, first)| first == id) {
            self.earlier.notify_one();
        }
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        self.times().forget(id);
    }

    /// Takes out the due sandboxes; also returns the time of the next.
    fn due(&self, now: Timestamp) -> (Vec<SandboxId>, Option<Timestamp>) {
        let mut times = self.times();
        let mut due = Vec::new();
        while let Some((at, id)) = times.in_order.first().cloned() {
            if at > now {
                return (due, Some(at));
            }
            times.forget(&id);
            due.push(id);
        }
        (due, None)
    }
}

/// The action at a sandbox's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its lifetime is over.
    Expired,
    IdleDelete,
    IdlePause(PauseKind),
    /// It was frozen for long enough.
    FrozenLong,
    /// Lost or failed, and kept long enough.
    Kept,
    /// A removal that started and failed.
    Retry,
}

impl Fate {
    /// Why it is deleted. One that has died before keeps its reason.
    fn death(self) -> DeathReason {
        match self {
            Self::Expired => DeathReason::Expired,
            Self::IdleDelete | Self::IdlePause(_) | Self::FrozenLong => DeathReason::Idle,
            Self::Kept | Self::Retry => DeathReason::Deleted,
        }
    }

    fn counter(self, tally: &Tally) -> Option<&std::sync::atomic::AtomicU64> {
        match self {
            Self::Expired => Some(&tally.reaped_timeout),
            Self::IdleDelete => Some(&tally.reaped_idle),
            Self::IdlePause(_) => Some(&tally.paused_idle),
            Self::FrozenLong => Some(&tally.paused_to_disk),
            Self::Kept => Some(&tally.reaped_lost),
            Self::Retry => None,
        }
    }
}

impl Control {
    /// The next timeout of a tenant's sandbox, if any.
    pub fn next_deadline(&self, tenant: &TenantId, id: &SandboxId) -> Option<Deadline> {
        use DeadlineAction::{Delete, Disk, Pause};
        let entry = self.registry().owned(tenant, id).cloned()?;
        let (at, fate) = self.deadline(&entry)?;
        let (reason, action) = match fate {
            Fate::Expired => (DeadlineReason::Timeout, Delete),
            Fate::IdleDelete => (DeadlineReason::Idle, Delete),
            Fate::IdlePause(PauseKind::Freeze) => (DeadlineReason::Idle, Pause),
            Fate::IdlePause(PauseKind::Disk) => (DeadlineReason::Idle, Disk),
            Fate::FrozenLong => (DeadlineReason::Paused, Disk),
            Fate::Kept => (DeadlineReason::Kept, Delete),
            Fate::Retry => return None,
        };
        Some(Deadline { at, reason, action })
    }

    /// Enqueues a sandbox for its next deadline.
    pub(crate) fn reconsider(&self, entry: &Entry) {
        match self.deadline(entry) {
            Some((at, _)) => self.deadlines.set(&entry.id, at),
            None => self.deadlines.forget(&entry.id),
        }
    }

    fn deadline(&self, entry: &Entry) -> Option<(Timestamp, Fate)> {
        let sandbox = entry.sandbox();
        let expiry = sandbox.expires_at.map(|at| (at, Fate::Expired));
        let other = match sandbox.state {
            SandboxState::Creating => return None,
            SandboxState::Deleting => {
                return Some((later(sandbox.state_since, RETRY), Fate::Retry));
            }
            // A paused sandbox is meant to be resumed.
            SandboxState::Paused if sandbox.is_stopped() => None,
            SandboxState::Paused => sandbox
                .spec
                .disk_after_seconds
                .map(|seconds| (later(sandbox.state_since, Duration::from_secs(seconds)), Fate::FrozenLong)),
            SandboxState::Lost | SandboxState::Failed => Some((later(sandbox.state_since, self.config.lost_keep), Fate::Kept)),
            SandboxState::Running => sandbox.spec.idle_timeout_seconds.filter(|_| !sandbox.name.is_default()).map(|seconds| {
                let from = if entry.leases() > 0 {
                    self.clock.now()
                } else {
                    // No call was possible while the server was down.
                    entry.last_used().max(self.clock.started_at())
                };
                let fate = sandbox.spec.idle_policy.pause_kind().map_or(Fate::IdleDelete, Fate::IdlePause);
                (later(from, Duration::from_secs(seconds)), fate)
            }),
        };
        expiry.into_iter().chain(other).min_by_key(|(at, _)| *at)
    }

    pub(crate) async fn reap_all(self: Arc<Self>) {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let (due, next) = self.deadlines.due(self.clock.now());
            for id in due {
                let Some(entry) = self.registry().by_id(&id).cloned() else {
                    continue;
                };
                match self.deadline(&entry) {
                    Some((at, _)) if at <= self.clock.now() => {
                        tokio::spawn(Arc::clone(&self).reap(entry, Arc::clone(&permits)));
                    }
                    Some((at, _)) => self.deadlines.set(&id, at),
                    None => {}
                }
            }
            tokio::select! {
                () = self.clock.sleep_until(next) => {}
                () = self.deadlines.earlier.notified() => {}
            }
        }
    }

    async fn reap(self: Arc<Self>, entry: Arc<Entry>, permits: Arc<Semaphore>) {
        let Ok(_permit) = permits.acquire().await else {
            return;
        };
        let Ok(_operation) = self.operation() else {
            return;
        };
        // The current change may take long, and other sandboxes wait for the reaper.
        let Ok(_change) = entry.change.try_lock() else {
            let soon = later(self.clock.now(), BUSY);
            return self.deadlines.set(&entry.id, soon);
        };
        if !self.registry().holds(&entry) {
            return;
        }
        // Checked again under the lock: it may have been used or changed since.
        let Some(fate) = self.fate_now(&entry) else {
            return self.reconsider(&entry);
        };
        if matches!(fate, Fate::IdleDelete | Fate::IdlePause(_)) {
            if !entry.close_if_unused() {
                return self.reconsider(&entry);
            }
            if self.fate_now(&entry) != Some(fate) {
                entry.open();
                return self.reconsider(&entry);
            }
            // A guest that doesn't answer can't delay its end.
            match self.engine.activity(&entry.id).await {
                Ok(None) => {}
                Ok(Some(work)) => {
                    tracing::debug!(id = %entry.id, work, "a sandbox without calls is in use");
                    entry.used_at(self.clock.now());
                    entry.open();
                    return self.reconsider(&entry);
                }
                Err(error) => tracing::warn!(id = %entry.id, %error, "a sandbox did not tell what goes on in it"),
            }
        }
        let done: Result<(), ControlError> = match fate {
            Fate::IdlePause(kind) => self.pause_closed(&entry, kind).await.map(drop),
            Fate::FrozenLong => self.stop_closed(&entry).await.map(drop),
            _ => self.destroy_locked(&entry, fate.death()).await,
        };
        match done {
            Ok(()) => {
                tracing::info!(id = %entry.id, name = %entry.name, why = ?fate, "reaped a sandbox");
                if let Some(counter) = fate.counter(&self.tally) {
                    count(counter);
                }
            }
            Err(error) => {
                tracing::error!(id = %entry.id, name = %entry.name, %error, "a sandbox could not be reaped; trying again");
                self.deadlines.set(&entry.id, later(self.clock.now(), RETRY));
            }
        }
    }

    fn fate_now(&self, entry: &Entry) -> Option<Fate> {
        let (at, fate) = self.deadline(entry)?;
        (at <= self.clock.now()).then_some(fate)
    }
}
