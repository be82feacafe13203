//! Changes of an existing sandbox: delete, pause, resume, restart, and its guest's end.

use std::sync::Arc;

use arenite_engine::{Ended, EngineError};
use arenite_model::{Death, DeathReason, PauseKind, SandboxName, SandboxSpec, SandboxState, TenantId};
use tokio::sync::broadcast;

use crate::counters::count;
use crate::events::EventKind;
use crate::nodes::SandboxKey;
use crate::registry::Entry;
use crate::{Control, ControlError, Sandbox, memo};

impl Control {
    /// Deletes a sandbox in any state. Cancels a create in progress.
    pub async fn delete(&self, tenant: &TenantId, name: &SandboxName) -> Result<(), ControlError> {
        loop {
            let operation = self.operation()?;
            let (claim, entry) = {
                let registry = self.registry();
                (registry.claim(tenant, name).cloned(), registry.by_name(tenant, name).cloned())
            };
            if let Some(claim) = claim {
                claim.cancel();
                drop(operation);
                // Canceled, or it failed by itself: either way the sandbox does not exist now.
                if claim.finished().await.is_err() {
                    return Ok(());
                }
                continue;
            }
            let Some(entry) = entry else {
                drop(operation);
                return match self.get_of_other(tenant, SandboxKey::Name(name.clone())).await? {
                    Some(sandbox) => self.delete_of_other(&sandbox).await,
                    None => Err(self.not_there(tenant, name)),
                };
            };
            return self.detached(operation, |control| async move { control.destroy(&entry, DeathReason::Deleted).await }).await;
        }
    }

    /// Destroys this sandbox, and not another that has its name in the meantime.
    pub(crate) async fn destroy(&self, entry: &Arc<Entry>, why: DeathReason) -> Result<(), ControlError> {
        let _change = entry.change.lock().await;
        if !self.registry().holds(entry) {
            return Err(ControlError::NotFound { name: entry.name.clone() });
        }
        self.destroy_locked(entry, why).await
    }

    /// The caller holds the entry's lock. A sandbox that has died keeps its reason.
    pub(crate) async fn destroy_locked(&self, entry: &Arc<Entry>, why: DeathReason) -> Result<(), ControlError> {
        let state = entry.sandbox().state;
        entry.close();
        self.sample_last(entry).await;
        if state != SandboxState::Deleting {
            let mut deleting = self.in_state(entry, SandboxState::Deleting, None);
            let died = entry.sandbox().died.clone();
            deleting.pause_kind = entry.sandbox().pause();
            deleting.died = Some(died.unwrap_or_else(|| Death::new(why).noticed_at(deleting.state_since)));
            // A store that can't be written, as on a full disk, must not prevent a delete that frees space.
            if let Err(error) = self.store.update(&deleting).await {
                tracing::warn!(id = %entry.id, %error, "a deletion that is under way could not be stored");
            }
            self.show(entry, deleting);
        }
        if entry.sandbox().provenance.child_budget.is_some() {
            // A panic of the task was logged, and a start cleans up.
            let _ = self.end_children(&entry.sandbox()).await;
        }
        self.run_shutdown_hooks(&entry.id, state).await;
        let destroy = self.engine.destroy(&entry.id);
        self.bounded("the removal", &entry.name, destroy).await?;
        self.store.remove(&entry.id).await.map_err(ControlError::store("forget a sandbox"))?;
        self.vanish(entry);
        count(&self.tally.deleted);
        tracing::info!(id = %entry.id, name = %entry.name, "removed a sandbox");
        Ok(())
    }

    pub(crate) fn vanish(&self, entry: &Arc<Entry>) {
        self.registry_mut().remove(entry);
        self.deadlines.forget(&entry.id);
        self.forget_meter(&entry.id);
        let sandbox = entry.sandbox();
        let kind = if sandbox.state == SandboxState::Creating { EventKind::CreateFailed } else { EventKind::Deleted };
        self.announce(&sandbox, kind);
    }

    /// Pauses a sandbox until it is resumed or called. Does nothing if it is paused, unless it is frozen and is to be paused to its
    /// disk.
    ///
    /// # Errors
    /// If the engine does not have this kind of pause.
    pub async fn pause(&self, tenant: &TenantId, name: &SandboxName, kind: PauseKind) -> Result<Sandbox, ControlError> {
        self.check_pause(kind)?;
        let operation = self.operation()?;
        let entry = self.find(tenant, name)?;
        self.detached(operation, |control| async move {
            let _change = entry.change.lock().await;
            control.still_there(&entry)?;
            let now = entry.current();
            match (now.state, now.pause(), kind) {
                (SandboxState::Paused, Some(PauseKind::Freeze), PauseKind::Disk) => control.stop_closed(&entry).await,
                (SandboxState::Paused, ..) => Ok(now),
                (SandboxState::Running, ..) => {
                    entry.close();
                    control.pause_closed(&entry, kind).await
                }
                _ => Err(unfit(&now, "paused")),
            }
        })
        .await
    }

    /// Refuses a kind of pause that the engine does not have.
    pub(crate) fn check_pause(&self, kind: PauseKind) -> Result<(), ControlError> {
        match kind {
            PauseKind::Disk if !self.engine.can_stop() => Err(EngineError::NoPauseToDisk { engine: self.engine.name() }.into()),
            PauseKind::Disk | PauseKind::Freeze => Ok(()),
        }
    }

    /// Refuses a spec by which a sandbox would be paused in a way that the engine does not have.
    pub(crate) fn check_pauses_of(&self, spec: &SandboxSpec) -> Result<(), ControlError> {
        let to_disk = spec.idle_policy.pause_kind() == Some(PauseKind::Disk)
            || spec.disk_after_seconds.is_some()
            || spec.disk_under_pressure;
        if to_disk { self.check_pause(PauseKind::Disk) } else { Ok(()) }
    }

    /// Pauses a running sandbox that is already closed for leases; reopens it on failure.
    pub(crate) async fn pause_closed(&self, entry: &Entry, kind: PauseKind) -> Result<Sandbox, ControlError> {
        if kind == PauseKind::Disk {
            return self.stop_closed(entry).await;
        }
        let pause = self.engine.pause(&entry.id);
        if let Err(error) = self.bounded("the pause", &entry.name, pause).await {
            entry.open();
            return Err(error);
        }
        let frozen = Sandbox { pause_kind: Some(kind), ..self.in_state(entry, SandboxState::Paused, None) };
        Ok(self.settle(entry, frozen).await)
    }

    /// Pauses a sandbox to its disk: a running one that is already closed for leases, or a frozen one. On failure, it is as
    /// before.
    pub(crate) async fn stop_closed(&self, entry: &Entry) -> Result<Sandbox, ControlError> {
        let before = entry.current();
        self.run_shutdown_hooks(&entry.id, before.state).await;
        // Its counters end with its processes.
        self.sample_last(entry).await;
        if let Err(error) = self.bounded("the pause", &entry.name, self.engine.stop(&entry.id)).await {
            match before.state {
                SandboxState::Running => entry.open(),
                // The hooks needed running processes.
                _ => {
                    if let Err(error) = self.engine.pause(&entry.id).await {
                        tracing::warn!(id = %entry.id, %error, "a sandbox could not be frozen again");
                    }
                }
            }
            return Err(error);
        }
        let mut stopped = match before.state {
            // It has been paused all the time.
            SandboxState::Paused => before,
            _ => self.in_state(entry, SandboxState::Paused, None),
        };
        stopped.pause_kind = Some(PauseKind::Disk);
        tracing::info!(id = %entry.id, name = %entry.name, "paused a sandbox to its disk");
        Ok(self.settle(entry, stopped).await)
    }

    /// Resumes a sandbox. Does nothing if it is running.
    pub async fn resume(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        self.wake(self.find(tenant, name)?, None).await
    }

    /// Resumes a sandbox. `woken` is the reason for the log if no client asked for it.
    pub(crate) async fn wake(&self, entry: Arc<Entry>, woken: Option<&'static str>) -> Result<Sandbox, ControlError> {
        let operation = self.operation()?;
        let failed = entry.failed_wakes();
        self.detached(operation, |control| async move {
            let _change = entry.change.lock().await;
            control.still_there(&entry)?;
            let now = entry.current();
            match now.state {
                SandboxState::Running => Ok(now),
                SandboxState::Paused if now.is_stopped() => control.wake_stopped(&entry, now, woken, failed).await,
                SandboxState::Paused => control.resume_locked(&entry, woken).await,
                _ => Err(unfit(&now, "resumed")),
            }
        })
        .await
    }

    async fn resume_locked(&self, entry: &Entry, woken: Option<&'static str>) -> Result<Sandbox, ControlError> {
        let resume = self.engine.resume(&entry.id);
        self.bounded("the resumption", &entry.name, resume).await?;
        entry.used_at(self.clock.now());
        let running = self.follow(entry, SandboxState::Running, None).await;
        entry.open();
        self.note_wake(entry, woken);
        Ok(running)
    }

    /// Starts a sandbox that is paused to its disk. Callers that waited for a start that failed get its error, and start nothing.
    async fn wake_stopped(
        &self,
        entry: &Entry,
        before: Sandbox,
        woken: Option<&'static str>,
        failed: u64,
    ) -> Result<Sandbox, ControlError> {
        if let Some(error) = entry.failed_wake_since(failed) {
            return Err(error);
        }
        let running = self.restart_locked(entry, before).await.inspect_err(|error| entry.note_failed_wake(error))?;
        self.note_wake(entry, woken);
        Ok(running)
    }

    fn note_wake(&self, entry: &Entry, woken: Option<&'static str>) {
        if let Some(why) = woken {
            count(&self.tally.woken);
            tracing::info!(id = %entry.id, why, "woke a sandbox");
        }
    }

    /// Restarts a failed or lost sandbox on its disk. Does nothing if it is running; resumes it if it is paused.
    pub async fn start_sandbox(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        let operation = self.operation()?;
        let entry = self.find(tenant, name)?;
        let failed = entry.failed_wakes();
        self.detached(operation, |control| async move {
            let _change = entry.change.lock().await;
            control.still_there(&entry)?;
            let now = entry.current();
            match now.state {
                SandboxState::Running => Ok(now),
                SandboxState::Paused if now.is_stopped() => control.wake_stopped(&entry, now, None, failed).await,
                SandboxState::Paused => control.resume_locked(&entry, None).await,
                SandboxState::Failed | SandboxState::Lost => control.restart_locked(&entry, now).await,
                _ => Err(unfit(&now, "started")),
            }
        })
        .await
    }

    /// Reserves what a sandbox without processes needs to run. A failed start gives it back with its state.
    pub(crate) async fn reserve_to_run(&self, before: &Sandbox) -> Result<(), ControlError> {
        let limits = self.tenant_limits(&before.tenant).of_restarts();
        if !limits.apply_to_sandboxes() {
            return Ok(());
        }
        let running = Sandbox { state: SandboxState::Running, pause_kind: None, ..before.clone() };
        self.store.reserve(&running, &limits).await.map_err(ControlError::store("reserve what a sandbox needs"))
    }

    /// Runs a sandbox without processes again, if host and quotas have room for it.
    async fn restart_locked(&self, entry: &Entry, before: Sandbox) -> Result<Sandbox, ControlError> {
        let _permit = self.admission.admit(&*self.engine).await?;
        self.reserve_to_run(&before).await?;
        self.reset_meter(entry).await;
        let row = memo::row(&before);
        let spec = self.spec_for_engine(&before)?;
        let restart = self.engine.restart(&row, &spec);
        match self.bounded("the start", &entry.name, restart).await {
            Ok(created) => {
                let running = self.in_state(entry, SandboxState::Running, None);
                let mut running = running.isolated(created.tier, created.isolation);
                running.last_used_at = running.state_since;
                entry.used_at(running.state_since);
                self.show(entry, running.clone());
                // The next start queries the engine.
                if let Err(error) = self.store.update(&running).await {
                    tracing::error!(id = %entry.id, %error, "a sandbox's state could not be stored");
                }
                entry.open();
                tracing::info!(id = %entry.id, name = %entry.name, was = %before.state, "started a sandbox again");
                Ok(running)
            }
            Err(error) => {
                tracing::warn!(id = %entry.id, name = %entry.name, %error, "a sandbox could not be started again");
                let still = Sandbox { reason: Some(format!("it could not be started again: {error}")), ..before };
                self.show(entry, still.clone());
                if let Err(error) = self.store.update(&still).await {
                    tracing::error!(id = %entry.id, %error, "a sandbox's state could not be stored");
                }
                Err(error)
            }
        }
    }

    pub(crate) fn still_there(&self, entry: &Arc<Entry>) -> Result<(), ControlError> {
        match self.registry().holds(entry) {
            true => Ok(()),
            false => Err(ControlError::NotFound { name: entry.name.clone() }),
        }
    }

    /// The sandbox with another state.
    pub(crate) fn in_state(&self, entry: &Entry, state: SandboxState, died: Option<Death>) -> Sandbox {
        let mut sandbox = entry.current();
        debug_assert!(sandbox.state.may_become(state), "{} may not become {state}", sandbox.state);
        (sandbox.state, sandbox.pause_kind) = (state, None);
        sandbox.reason = died.as_ref().map(|death| death.message.clone());
        sandbox.state_since = self.clock.now();
        sandbox.died = died.map(|death| death.noticed_at(sandbox.state_since));
        sandbox
    }

    /// Publishes a new state to readers, subscribers and the reaper. The caller holds the entry's lock.
    pub(crate) fn show(&self, entry: &Entry, sandbox: Sandbox) {
        let before = entry.sandbox();
        entry.publish(sandbox);
        let after = entry.sandbox();
        self.announce(&after, EventKind::of_change(&before, &after));
        self.reconsider(entry);
    }

    /// Publishes a state that the engine already has. A failing store is only logged: the next start queries the engine.
    pub(crate) async fn follow(&self, entry: &Entry, state: SandboxState, died: Option<Death>) -> Sandbox {
        let sandbox = self.in_state(entry, state, died);
        self.settle(entry, sandbox).await
    }

    /// The same with a sandbox that is in its state.
    pub(crate) async fn settle(&self, entry: &Entry, sandbox: Sandbox) -> Sandbox {
        self.show(entry, sandbox.clone());
        if let Err(error) = self.store.update(&sandbox).await {
            tracing::error!(id = %entry.id, state = %sandbox.state, %error, "a sandbox's state could not be stored");
        }
        sandbox
    }

    pub(crate) fn announce(&self, sandbox: &Sandbox, kind: EventKind) {
        self.events.publish(kind, sandbox, self.clock.now());
    }

    /// Listens for guests that end by themselves.
    pub(crate) async fn listen(self: Arc<Self>, mut ended: broadcast::Receiver<Ended>) {
        loop {
            match ended.recv().await {
                Ok(Ended { id, death }) => {
                    let entry = self.registry().by_id(&id).cloned();
                    if entry.is_none() {
                        self.drop_from_pool(id).await;
                    } else if let Some(entry) = entry {
                        // Each in a separate task: a sandbox that is being changed must not delay the others.
                        tokio::spawn(Arc::clone(&self).ended(entry, death));
                    }
                }
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "ends of guests were missed; looking at all sandboxes");
                    let all: Vec<_> = self.registry().all().cloned().collect();
                    for entry in all {
                        let gone =
                            matches!(self.engine.usage(&entry.id).await, Err(arenite_engine::EngineError::NotFound { .. }));
                        if gone {
                            tokio::spawn(Arc::clone(&self).ended(entry, Death::new(DeathReason::Unknown)));
                        }
                    }
                }
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    async fn ended(self: Arc<Self>, entry: Arc<Entry>, death: Death) {
        let _change = entry.change.lock().await;
        let state = entry.sandbox().state;
        // The end of a stopped sandbox's processes is no death.
        let is_alive = matches!(state, SandboxState::Running | SandboxState::Paused) && !entry.sandbox().is_stopped();
        if self.registry().holds(&entry) && is_alive && self.engine.has_ended(&entry.id).await {
            entry.close();
            tracing::warn!(
                id = %entry.id, name = %entry.name, reason = death.reason.as_str(), message = death.message, "a sandbox ended by itself"
            );
            count(&self.tally.ended);
            let failed = self.follow(&entry, SandboxState::Failed, Some(death)).await;
            drop(self.end_children(&failed));
        }
    }
}

/// The error for a sandbox in a state that does not allow the operation.
pub(crate) fn unfit(sandbox: &Sandbox, wanted: &'static str) -> ControlError {
    match sandbox.state {
        SandboxState::Failed | SandboxState::Lost => ControlError::Gone {
            name: sandbox.name.clone(),
            state: sandbox.state,
            reason: sandbox.reason.clone().unwrap_or_default(),
        },
        state => ControlError::Conflict { name: sandbox.name.clone(), state, wanted },
    }
}
