//! Leases: a call's hold on a running sandbox.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_model::{DeathReason, SandboxId, SandboxName, SandboxState, TenantId};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::life::unfit;
use crate::registry::Entry;
use crate::{Control, ControlError, CreateRequest, Sandbox};

/// Maximum delay until a last use is stored.
const STORE_EVERY: Duration = Duration::from_secs(5);
/// Number of state changes that one lease waits for before it fails.
const MOST_ROUNDS: usize = 16;

/// A call's hold on a running sandbox: while it lives, the sandbox is not idle. It does not prevent a delete or a pause by
/// request.
pub struct Lease {
    /// A snapshot from when the lease started.
    pub sandbox: Arc<Sandbox>,
    entry: Arc<Entry>,
    activity: Arc<Activity>,
}

impl Lease {
    /// Meters the call as one of a tool.
    pub fn count_call(&self) {
        self.entry.count_call();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.activity.note(&self.entry);
        self.entry.leave();
    }
}

/// Last uses that are not stored yet.
pub(crate) struct Activity {
    clock: Clock,
    used: Mutex<Vec<Arc<Entry>>>,
    some: Notify,
}

impl Activity {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, used: Mutex::default(), some: Notify::new() }
    }

    /// Marks the sandbox as in use now. Enqueues it once per write of its last use.
    fn note(&self, entry: &Arc<Entry>) {
        entry.used_at(self.clock.now());
        if !entry.note() {
            self.used.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(entry));
            self.some.notify_one();
        }
    }
}

impl Control {
    /// Stores last uses, combined into one write; sleeps while there are none.
    pub(crate) async fn store_activity(self: Arc<Self>) {
        loop {
            self.activity.some.notified().await;
            tokio::time::sleep(STORE_EVERY).await;
            self.flush_activity().await;
        }
    }

    pub(crate) async fn flush_activity(&self) {
        let entries = std::mem::take(&mut *self.activity.used.lock().unwrap_or_else(PoisonError::into_inner));
        if entries.is_empty() {
            return;
        }
        let used = entries
            .iter()
            .map(|entry| {
                // Before the time is read: a use in between enqueues it again.
                entry.unnote();
                (entry.id.clone(), entry.last_used())
            })
            .collect();
        if let Err(error) = self.store.touch(used).await {
            tracing::warn!(%error, "last uses of sandboxes could not be stored");
        }
    }

    fn try_lease(&self, entry: &Arc<Entry>) -> Option<Lease> {
        if !entry.enter() {
            return None;
        }
        self.activity.note(entry);
        Some(Lease { sandbox: entry.sandbox(), entry: Arc::clone(entry), activity: Arc::clone(&self.activity) })
    }

    /// Leases a sandbox for one call: finds it (or creates `default` on first use, once for all callers), wakes it if it is
    /// paused, waits if it is being created, and marks it as in use.
    pub async fn lease(&self, tenant: &TenantId, name: &SandboxName) -> Result<Lease, ControlError> {
        for _ in 0..MOST_ROUNDS {
            let (entry, claim) = {
                let registry = self.registry();
                if let Some(entry) = registry.by_name(tenant, name)
                    && let Some(lease) = self.try_lease(entry)
                {
                    return Ok(lease);
                }
                (registry.by_name(tenant, name).cloned(), registry.claim(tenant, name).cloned())
            };
            match (entry, claim) {
                // Being created: all waiting callers get its error, and none retries by itself.
                (_, Some(claim)) => claim.finished().await?,
                (Some(entry), None) => self.ready(&entry, name.is_default()).await?,
                (None, None) if name.is_default() => self.make_default(tenant, name).await?,
                (None, None) => return Err(self.not_there(tenant, name)),
            }
        }
        Err(self.restless(tenant, name))
    }

    /// Leases an existing sandbox by id. Another tenant's sandbox is not found, and does not change.
    pub async fn lease_by_id(&self, tenant: &TenantId, id: &SandboxId) -> Result<Lease, ControlError> {
        let gone = || ControlError::NoSuchId { id: id.clone() };
        let mut last = None;
        for _ in 0..MOST_ROUNDS {
            // The tenant is compared before the lease, which would wake it and record a use.
            let entry = self.registry().owned(tenant, id).cloned().ok_or_else(gone)?;
            if let Some(lease) = self.try_lease(&entry) {
                return Ok(lease);
            }
            self.ready(&entry, false).await?;
            last = Some(entry);
        }
        Err(last.map_or_else(gone, |entry| unfit(&entry.sandbox(), "called")))
    }

    fn restless(&self, tenant: &TenantId, name: &SandboxName) -> ControlError {
        match self.find(tenant, name) {
            Ok(entry) => unfit(&entry.sandbox(), "called"),
            Err(error) => error,
        }
    }

    /// Brings the sandbox closer to a lease, or waits for the task that changes it. The caller then checks again.
    async fn ready(&self, entry: &Arc<Entry>, renew: bool) -> Result<(), ControlError> {
        let sandbox = entry.sandbox();
        match sandbox.state {
            SandboxState::Paused => match self.wake(Arc::clone(entry), Some("it was called")).await {
                // Another change happened to it first.
                Ok(_) | Err(ControlError::NotFound { .. } | ControlError::Conflict { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            SandboxState::Failed | SandboxState::Lost if renew => {
                tracing::warn!(
                    id = %entry.id, state = %sandbox.state, reason = sandbox.reason.as_deref(),
                    "the default sandbox is recreated"
                );
                self.clear(entry).await
            }
            SandboxState::Failed | SandboxState::Lost => Err(unfit(&sandbox, "called")),
            SandboxState::Creating | SandboxState::Running | SandboxState::Deleting => {
                drop(entry.change.lock().await);
                let stuck = entry.sandbox().state == SandboxState::Deleting && self.registry().holds(entry);
                match (stuck, renew) {
                    (true, true) => self.clear(entry).await,
                    (true, false) => Err(unfit(&entry.sandbox(), "called")),
                    (false, _) => Ok(()),
                }
            }
        }
    }

    async fn clear(&self, entry: &Arc<Entry>) -> Result<(), ControlError> {
        let operation = self.operation()?;
        let entry = Arc::clone(entry);
        match self.detached(operation, |control| async move { control.destroy(&entry, DeathReason::Deleted).await }).await {
            Err(ControlError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn make_default(&self, tenant: &TenantId, name: &SandboxName) -> Result<(), ControlError> {
        let mut spec = self.config.default_spec.clone();
        spec.timeout_seconds = Some(0);
        spec.idle_timeout_seconds = Some(0);
        let request =
            CreateRequest { name: Some(name.clone()), spec, origin: "first call".to_owned(), ..CreateRequest::default() };
        match self.create(tenant, request).await {
            // Another call was first.
            Ok(_) | Err(ControlError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
