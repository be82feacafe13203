//! Counters and usage of sandboxes.

use std::sync::atomic::{AtomicU64, Ordering};

use arenite_engine::Usage;
use arenite_model::{SandboxName, SandboxState, TenantId};

use crate::life::unfit;
use crate::{Control, ControlError, Counters, Sandbox};

/// What a running or paused sandbox uses.
#[derive(Debug, Clone)]
pub struct MeasuredSandbox {
    pub sandbox: Sandbox,
    pub usage: Usage,
    /// Calls in progress.
    pub calls: u32,
}

/// What is in memory for operations in progress: all zero without any.
#[cfg(any(test, feature = "fake-engine"))]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InProgress {
    /// Names that creates hold.
    pub claims: usize,
    /// Creates that hold one of the sandboxes of the server, or of their tenant.
    pub pending: usize,
    /// Creates that hold a part of a budget.
    pub children: usize,
    /// Creates that count as concurrent.
    pub creating: usize,
    /// Sandboxes that are being changed.
    pub locked: usize,
    pub leases: usize,
    /// Idempotency keys of creates.
    pub keys: usize,
    /// Permits of admission, and creates that wait for one.
    pub admitted: usize,
    /// Meters of sandboxes that are gone.
    pub meters: usize,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) created: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) adopted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) deleted: AtomicU64,
    pub(crate) reaped_timeout: AtomicU64,
    pub(crate) reaped_idle: AtomicU64,
    pub(crate) paused_idle: AtomicU64,
    pub(crate) reaped_lost: AtomicU64,
    pub(crate) woken: AtomicU64,
    pub(crate) paused_to_disk: AtomicU64,
    pub(crate) ended: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Control {
    /// The sandbox's current usage. Queries the engine each time.
    pub async fn usage(&self, tenant: &TenantId, name: &SandboxName) -> Result<Usage, ControlError> {
        let entry = self.find(tenant, name)?;
        let sandbox = entry.sandbox();
        match sandbox.state {
            SandboxState::Running | SandboxState::Paused => {
                let usage = self.engine.usage(&entry.id);
                self.bounded("the reading", &entry.name, usage).await
            }
            _ => Err(unfit(&sandbox, "measured")),
        }
    }

    /// For tests: what operations hold.
    #[cfg(any(test, feature = "fake-engine"))]
    pub fn in_progress(&self) -> InProgress {
        let registry = self.registry();
        let tenants = || registry.tenants();
        InProgress {
            claims: tenants().map(|tenant| tenant.claims.len()).sum(),
            pending: registry.pending + tenants().map(|tenant| tenant.pending).sum::<usize>(),
            children: registry.children.len(),
            creating: tenants().map(|tenant| tenant.creating).sum(),
            locked: registry.all().filter(|entry| entry.change.try_lock().is_err()).count(),
            leases: registry.all().map(|entry| entry.leases() as usize).sum(),
            keys: self.idempotency.held(),
            admitted: self.admission.under_way() + self.admission.queued(),
            meters: self.meters.ids().iter().filter(|id| registry.by_id(id).is_none()).count(),
        }
    }

    /// Counters for metrics. Visits every sandbox.
    pub fn counters(&self) -> Counters {
        use SandboxState::*;
        let mut sandboxes: Vec<(SandboxState, u64)> =
            [Creating, Running, Paused, Deleting, Failed, Lost].map(|state| (state, 0)).into();
        let mut leases = 0;
        for entry in self.registry().all() {
            leases += u64::from(entry.leases());
            let state = entry.sandbox().state;
            if let Some((_, number)) = sandboxes.iter_mut().find(|(s, _)| *s == state) {
                *number += 1;
            }
        }
        let tally = &self.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            sandboxes,
            creates_ok: read(&tally.created),
            creates_failed: read(&tally.failed),
            creates_from_pool: read(&tally.adopted),
            pooled: self.pool.len() as u64,
            creates_refused: read(&tally.refused),
            creating: self.admission.under_way() as u64,
            queued: self.admission.queued() as u64,
            deleted: read(&tally.deleted),
            reaped_timeout: read(&tally.reaped_timeout),
            reaped_idle: read(&tally.reaped_idle),
            paused_idle: read(&tally.paused_idle),
            paused_to_disk: read(&tally.paused_to_disk),
            reaped_lost: read(&tally.reaped_lost),
            woken: read(&tally.woken),
            ended: read(&tally.ended),
            leases,
        }
    }

    /// The usage of the `most` most recently called running and paused sandboxes, and the number of the rest.
    pub async fn usages(&self, most: usize) -> (Vec<MeasuredSandbox>, usize) {
        let all = self.registry().all().map(|entry| (entry.current(), entry.leases())).collect();
        self.measure(all, most).await
    }

    /// The same of a tenant's sandboxes.
    pub async fn usages_of(&self, tenant: &TenantId, most: usize) -> (Vec<MeasuredSandbox>, usize) {
        let all = {
            let registry = self.registry();
            let entries = registry.tenant(tenant).into_iter().flat_map(|tenant| tenant.entries.values());
            entries.map(|entry| (entry.current(), entry.leases())).collect()
        };
        self.measure(all, most).await
    }

    async fn measure(&self, mut all: Vec<(Sandbox, u32)>, most: usize) -> (Vec<MeasuredSandbox>, usize) {
        all.retain(|(sandbox, _)| matches!(sandbox.state, SandboxState::Running | SandboxState::Paused));
        all.sort_by_key(|(sandbox, _)| std::cmp::Reverse(sandbox.last_used_at));
        let more = all.len().saturating_sub(most);
        all.truncate(most);
        let mut loads = Vec::with_capacity(all.len());
        for (sandbox, calls) in all {
            if let Ok(usage) = self.engine.usage(&sandbox.id).await {
                loads.push(MeasuredSandbox { sandbox, usage, calls });
            }
        }
        (loads, more)
    }
}
