//! The API of this crate for the gateway and the command line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arenite_engine::{Engine, HostCapacity, Usage};
use arenite_model::{SandboxId, SandboxName, SandboxState, TenantId};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::{AbortHandle, JoinSet};

use crate::core::Core;
use crate::life::unfit;
use crate::store::{SqliteStore, Store};
use crate::{
    Change, ControlConfig, ControlError, Counters, CreateRequest, Deadline, Lease, QuarantinedSandbox, Sandbox, Template,
};

/// Number of sandboxes that a stop removes concurrently.
const REMOVE_AT_ONCE: usize = 16;

/// Tenants' sandboxes.
pub struct Control {
    core: Arc<Core>,
    tasks: Vec<AbortHandle>,
}

impl Control {
    /// Opens the store in the data directory, migrates its schema, re-adopts sandboxes, and starts the reaper.
    ///
    /// # Errors
    /// If the store can't be opened or has a newer version, or if the engine can't recover.
    pub async fn start(config: ControlConfig, engine: Arc<dyn Engine>) -> Result<Arc<Self>, ControlError> {
        let path = config.data_dir.join("control.sqlite");
        let store = tokio::task::spawn_blocking(move || SqliteStore::open(path)).await.map_err(|_| ControlError::Stopping)??;
        Self::start_with(config, engine, Arc::new(store)).await
    }

    /// Like [`Control::start`], with the given store.
    pub async fn start_with(
        config: ControlConfig,
        engine: Arc<dyn Engine>,
        store: Arc<dyn Store>,
    ) -> Result<Arc<Self>, ControlError> {
        // Before the recovery, so that no end in between is missed.
        let ended = engine.ended();
        let core = Arc::new(Core::new(config, engine, store));
        core.recover().await?;
        // Logs which templates are unusable.
        core.templates.list();
        let tasks = vec![
            tokio::spawn(Arc::clone(&core).listen(ended)).abort_handle(),
            tokio::spawn(Arc::clone(&core).reap_all()).abort_handle(),
            tokio::spawn(Arc::clone(&core).store_activity()).abort_handle(),
            tokio::spawn(Arc::clone(&core).keep_pools()).abort_handle(),
        ];
        Ok(Arc::new(Self { core, tasks }))
    }

    /// Creates a sandbox; when this returns, it serves calls. The create completes even if the caller disconnects, unless it
    /// still waits in the queue.
    pub async fn create(&self, tenant: &TenantId, request: CreateRequest) -> Result<Sandbox, ControlError> {
        self.core.create(tenant, request).await
    }

    pub async fn get(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        Ok(self.core.find(tenant, name)?.current())
    }

    /// A tenant's sandboxes, the oldest first.
    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<Sandbox>, ControlError> {
        let mut all: Vec<Sandbox> = {
            let registry = self.core.registry();
            let theirs = registry.tenant(tenant);
            let entries = theirs.iter().flat_map(|tenant| tenant.entries.values());
            entries.map(|entry| entry.current()).collect()
        };
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(all)
    }

    /// Deletes a sandbox in any state. Cancels a create in progress.
    pub async fn delete(&self, tenant: &TenantId, name: &SandboxName) -> Result<(), ControlError> {
        self.core.delete(tenant, name).await
    }

    /// Freezes a sandbox until it is resumed or called. Does nothing if it is paused.
    pub async fn pause(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        self.core.pause(tenant, name).await
    }

    /// Resumes a sandbox. Does nothing if it is running.
    pub async fn resume(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        let entry = self.core.find(tenant, name)?;
        self.core.resume(entry, None).await
    }

    /// Restarts a failed or lost sandbox on its disk. Does nothing if it is running; resumes it if it is paused.
    pub async fn start_sandbox(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        self.core.start(tenant, name).await
    }

    /// Leases a sandbox for one call: finds it (or creates `default` on first use, once for all callers), wakes it if it is
    /// paused, waits if it is being created, and marks it as in use.
    pub async fn lease(&self, tenant: &TenantId, name: &SandboxName) -> Result<Lease, ControlError> {
        self.core.lease(tenant, name).await
    }

    /// Leases an existing sandbox by id. Another tenant's sandbox is not found, and does not change.
    pub async fn lease_by_id(&self, tenant: &TenantId, id: &SandboxId) -> Result<Lease, ControlError> {
        self.core.lease_by_id(tenant, id).await
    }

    /// The usable templates, by name.
    pub fn templates(&self) -> Vec<Template> {
        self.core.templates.list()
    }

    /// The sandbox's current usage. Queries the engine each time.
    pub async fn usage(&self, tenant: &TenantId, name: &SandboxName) -> Result<Usage, ControlError> {
        let entry = self.core.find(tenant, name)?;
        let sandbox = entry.sandbox();
        match sandbox.state {
            SandboxState::Running | SandboxState::Paused => {
                let usage = self.core.engine.usage(&entry.id);
                self.core.bounded("the reading", &entry.name, usage).await
            }
            _ => Err(unfit(&sandbox, "measured")),
        }
    }

    /// Sandboxes that the last start could not explain. Queries the engine about each.
    pub async fn quarantine(&self) -> Vec<QuarantinedSandbox> {
        self.core.list_quarantine().await
    }

    /// Makes a quarantined sandbox an ordinary one, optionally with a new name. Without a usable record, its processes end and
    /// it becomes lost, with its disk. `tenant` owns it if nothing names its owner.
    pub async fn adopt_quarantined(
        &self,
        tenant: &TenantId,
        id: &SandboxId,
        name: Option<SandboxName>,
    ) -> Result<Sandbox, ControlError> {
        self.core.adopt_quarantined(tenant.clone(), id.clone(), name).await
    }

    /// Ends the processes of a quarantined sandbox and removes its disk.
    pub async fn remove_quarantined(&self, id: &SandboxId) -> Result<(), ControlError> {
        self.core.remove_quarantined(id.clone()).await
    }

    /// Current warnings for the operator, as text.
    pub fn warnings(&self) -> Vec<String> {
        self.core.store.notes().into_iter().chain(self.core.quarantine_warning()).collect()
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.core.engine
    }

    /// Counters for metrics. Visits every sandbox.
    pub fn counters(&self) -> Counters {
        use SandboxState::*;
        let mut sandboxes: Vec<(SandboxState, u64)> =
            [Creating, Running, Paused, Deleting, Failed, Lost].map(|state| (state, 0)).into();
        let mut leases = 0;
        for entry in self.core.registry().all() {
            leases += u64::from(entry.leases());
            let state = entry.sandbox().state;
            if let Some((_, number)) = sandboxes.iter_mut().find(|(s, _)| *s == state) {
                *number += 1;
            }
        }
        let tally = &self.core.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            sandboxes,
            creates_ok: read(&tally.created),
            creates_failed: read(&tally.failed),
            creates_from_pool: read(&tally.adopted),
            pooled: self.core.pool.len() as u64,
            creates_refused: read(&tally.refused),
            creating: self.core.admission.under_way() as u64,
            queued: self.core.admission.queued() as u64,
            deleted: read(&tally.deleted),
            reaped_timeout: read(&tally.reaped_timeout),
            reaped_idle: read(&tally.reaped_idle),
            paused_idle: read(&tally.paused_idle),
            reaped_lost: read(&tally.reaped_lost),
            woken: read(&tally.woken),
            ended: read(&tally.ended),
            leases,
        }
    }

    /// The usage of the `most` most recently called running and paused sandboxes, and the number of the rest.
    pub async fn usages(&self, most: usize) -> (Vec<(Sandbox, Usage)>, usize) {
        let alive = |sandbox: &Sandbox| matches!(sandbox.state, SandboxState::Running | SandboxState::Paused);
        let mut all: Vec<Sandbox> = self.core.registry().all().map(|entry| entry.current()).filter(alive).collect();
        all.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.last_used_at));
        let more = all.len().saturating_sub(most);
        all.truncate(most);
        let mut usages = Vec::with_capacity(all.len());
        for sandbox in all {
            if let Ok(usage) = self.core.engine.usage(&sandbox.id).await {
                usages.push((sandbox, usage));
            }
        }
        (usages, more)
    }

    /// The host's free capacity.
    pub async fn capacity(&self) -> Result<HostCapacity, ControlError> {
        Ok(self.core.engine.capacity().await?)
    }

    /// Why no sandbox could be created now; empty if one could. Without paths, since anyone may read it. At most about two
    /// seconds old.
    pub async fn problems(&self) -> Arc<[String]> {
        self.core.problems().await
    }

    /// The next timeout of a sandbox, if any.
    pub fn next_deadline(&self, id: &SandboxId) -> Option<Deadline> {
        self.core.next_deadline(id)
    }

    /// Changes from now on. A receiver that falls more than 1,024 changes behind misses some and gets `Lagged`.
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.core.changes.subscribe()
    }

    /// Accepts no more changes, cancels creates in progress, waits for the rest, and closes engine and store. Sandboxes stay
    /// unless `remove_sandboxes` is set. A second stop does nothing.
    pub async fn stop(&self, remove_sandboxes: bool) {
        let core = &self.core;
        if core.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        core.admission.close();
        for claim in core.registry().claims() {
            claim.cancel();
        }
        // Each operation is bounded by the engine's timeout; a create's cleanup needs as much again.
        let wait = core.config.engine_timeout * 2;
        let rest = tokio::time::timeout(wait, core.operations.write()).await;
        if rest.is_err() {
            tracing::error!(?wait, "changes of sandboxes did not end; stopping regardless");
        }
        for task in &self.tasks {
            task.abort();
        }
        if remove_sandboxes {
            self.remove_all().await;
        }
        core.close_pools().await;
        core.flush_activity().await;
        core.engine.close().await;
        core.store.close().await;
    }

    async fn remove_all(&self) {
        let permits = Arc::new(Semaphore::new(REMOVE_AT_ONCE));
        let entries: Vec<_> = self.core.registry().all().cloned().collect();
        let mut removals = JoinSet::new();
        for entry in entries {
            let (core, permits) = (Arc::clone(&self.core), Arc::clone(&permits));
            removals.spawn(async move {
                let _permit = permits.acquire().await;
                if let Err(error) = core.destroy(&entry).await {
                    tracing::error!(id = %entry.id, %error, "a sandbox could not be removed");
                }
            });
        }
        while removals.join_next().await.is_some() {}
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
