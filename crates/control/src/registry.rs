//! The sandboxes in memory, used by every call. The store is only read at start.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};

use arenite_model::{SandboxId, SandboxName, TenantId};
use jiff::Timestamp;
use tokio::sync::{Mutex, Notify, watch};

use crate::children::PendingChild;
use crate::models::ModelUse;
use crate::usage::UsedAmounts;
use crate::{ControlError, Sandbox};

/// One sandbox. A task that changes its state holds `change` from the first write to the last; all others read `snapshot`.
pub(crate) struct Entry {
    pub(crate) id: SandboxId,
    pub(crate) tenant: TenantId,
    pub(crate) name: SandboxName,
    pub(crate) change: Mutex<()>,
    snapshot: watch::Sender<Arc<Sandbox>>,
    gate: Gate,
    /// Microseconds since 1970.
    last_used: AtomicI64,
    /// Its last use is not stored yet.
    noted: AtomicBool,
    /// Calls that are not metered yet.
    calls: AtomicU64,
    /// The same for calls of models.
    models: StdMutex<UsedAmounts>,
    /// The number of failed starts of the sandbox while it was paused to its disk, and the last error.
    failed_wakes: StdMutex<(u64, Option<ControlError>)>,
}

/// Counts leases, and refuses new ones unless the sandbox runs. It is one atomic, so no lease can be taken between a check of
/// the count and a change of the state.
struct Gate(AtomicU32);

const CLOSED: u32 = 1 << 31;

impl Gate {
    fn enter(&self) -> bool {
        let open = self.0.fetch_add(1, Ordering::AcqRel) & CLOSED == 0;
        if !open {
            self.leave();
        }
        open
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Entry {
    /// A closed entry. [`Entry::open`] allows leases of `sandbox`.
    pub(crate) fn new(sandbox: Sandbox) -> Self {
        Self {
            id: sandbox.id.clone(),
            tenant: sandbox.tenant.clone(),
            name: sandbox.name.clone(),
            change: Mutex::new(()),
            gate: Gate(AtomicU32::new(CLOSED)),
            last_used: AtomicI64::new(sandbox.last_used_at.as_microsecond()),
            noted: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            models: StdMutex::default(),
            failed_wakes: StdMutex::default(),
            snapshot: watch::Sender::new(Arc::new(sandbox)),
        }
    }

    pub(crate) fn sandbox(&self) -> Arc<Sandbox> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// A copy with the current last use.
    pub(crate) fn current(&self) -> Sandbox {
        let mut sandbox = Sandbox::clone(&self.snapshot.borrow());
        sandbox.last_used_at = self.last_used();
        sandbox
    }

    pub(crate) fn publish(&self, sandbox: Sandbox) {
        self.snapshot.send_replace(Arc::new(sandbox));
    }

    pub(crate) fn last_used(&self) -> Timestamp {
        Timestamp::from_microsecond(self.last_used.load(Ordering::Relaxed)).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(crate) fn used_at(&self, now: Timestamp) {
        self.last_used.fetch_max(now.as_microsecond(), Ordering::Relaxed);
    }

    /// Marks its last use as not stored. True if it was already marked.
    pub(crate) fn note(&self) -> bool {
        // Read first: a swap by every call would move the cache line between cores.
        self.noted.load(Ordering::Acquire) || self.noted.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn unnote(&self) {
        self.noted.store(false, Ordering::Release);
    }

    pub(crate) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_models(&self, used: &ModelUse) {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).add_models(used);
    }

    /// What was measured, with the calls that were counted since this was asked last.
    pub(crate) fn take_counted(&self, measured: UsedAmounts) -> UsedAmounts {
        let models = std::mem::take(&mut *self.models.lock().unwrap_or_else(PoisonError::into_inner));
        UsedAmounts {
            tool_calls: self.calls.swap(0, Ordering::Relaxed),
            model_calls: models.model_calls,
            model_input_tokens: models.model_input_tokens,
            model_output_tokens: models.model_output_tokens,
            model_cost_usd: models.model_cost_usd,
            ..measured
        }
    }

    fn failures(&self) -> MutexGuard<'_, (u64, Option<ControlError>)> {
        self.failed_wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed_wakes(&self) -> u64 {
        self.failures().0
    }

    pub(crate) fn note_failed_wake(&self, error: &ControlError) {
        let mut failures = self.failures();
        *failures = (failures.0 + 1, Some(error.clone()));
    }

    /// The last error, if there were more failed starts than `before`.
    pub(crate) fn failed_wake_since(&self, before: u64) -> Option<ControlError> {
        let failures = self.failures();
        failures.1.clone().filter(|_| failures.0 > before)
    }

    /// Takes a lease if the sandbox runs.
    pub(crate) fn enter(&self) -> bool {
        self.gate.enter()
    }

    pub(crate) fn leave(&self) {
        self.gate.leave();
    }

    pub(crate) fn leases(&self) -> u32 {
        self.gate.0.load(Ordering::Acquire) & !CLOSED
    }

    pub(crate) fn open(&self) {
        self.gate.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Refuses new leases; existing ones continue.
    pub(crate) fn close(&self) {
        self.gate.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Closes it unless there is a lease.
    pub(crate) fn close_if_unused(&self) -> bool {
        self.gate.0.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A name that a create in progress has reserved.
pub(crate) struct Claim {
    cancelled: AtomicBool,
    cancel: Notify,
    done: watch::Sender<Option<Result<(), ControlError>>>,
}

impl Claim {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { cancelled: AtomicBool::new(false), cancel: Notify::new(), done: watch::Sender::new(None) })
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.cancel.notify_one();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Only the create itself waits here.
    pub(crate) async fn cancelled(&self) {
        while !self.is_cancelled() {
            self.cancel.notified().await;
        }
    }

    pub(crate) fn finish(&self, result: Result<(), ControlError>) {
        self.done.send_replace(Some(result));
    }

    /// Finishes a claim that ended without a result.
    pub(crate) fn finish_if_open(&self) {
        self.done.send_if_modified(|done| {
            let open = done.is_none();
            if open {
                *done = Some(Ok(()));
            }
            open
        });
    }

    /// The result of the create; also works if it was canceled in the queue.
    pub(crate) async fn finished(&self) -> Result<(), ControlError> {
        let mut done = self.done.subscribe();
        match done.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }
}

/// All sandboxes, by id and by name.
#[derive(Default)]
pub(crate) struct Registry {
    by_id: HashMap<SandboxId, Arc<Entry>>,
    by_name: HashMap<TenantId, Tenant>,
    /// Creates in progress without an entry yet.
    pub(crate) pending: usize,
    /// Those of them that agents create.
    pub(crate) children: Vec<Arc<PendingChild>>,
}

#[derive(Default)]
pub(crate) struct Tenant {
    pub(crate) entries: HashMap<SandboxName, Arc<Entry>>,
    pub(crate) claims: HashMap<SandboxName, Arc<Claim>>,
    /// Creates in progress without an entry yet.
    pub(crate) pending: usize,
    /// Creates in progress or in the queue.
    pub(crate) creating: usize,
}

impl Registry {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_id.values()
    }

    pub(crate) fn by_id(&self, id: &SandboxId) -> Option<&Arc<Entry>> {
        self.by_id.get(id)
    }

    /// A tenant's sandbox by id. Another tenant's sandbox is not found.
    pub(crate) fn owned(&self, tenant: &TenantId, id: &SandboxId) -> Option<&Arc<Entry>> {
        self.by_id(id).filter(|entry| entry.tenant == *tenant)
    }

    pub(crate) fn by_name(&self, tenant: &TenantId, name: &SandboxName) -> Option<&Arc<Entry>> {
        self.by_name.get(tenant)?.entries.get(name)
    }

    pub(crate) fn claim(&self, tenant: &TenantId, name: &SandboxName) -> Option<&Arc<Claim>> {
        self.by_name.get(tenant)?.claims.get(name)
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &Arc<Claim>> {
        self.by_name.values().flat_map(|t| t.claims.values())
    }

    #[cfg(any(test, feature = "fake-engine"))]
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.by_name.values()
    }

    pub(crate) fn tenant(&self, tenant: &TenantId) -> Option<&Tenant> {
        self.by_name.get(tenant)
    }

    pub(crate) fn tenant_mut(&mut self, tenant: &TenantId) -> &mut Tenant {
        self.by_name.entry(tenant.clone()).or_default()
    }

    pub(crate) fn holds(&self, entry: &Arc<Entry>) -> bool {
        self.by_id(&entry.id).is_some_and(|held| Arc::ptr_eq(held, entry))
    }

    /// Returns false and does nothing if id or name is taken.
    pub(crate) fn insert(&mut self, entry: &Arc<Entry>) -> bool {
        if self.by_id.contains_key(&entry.id) || self.by_name(&entry.tenant, &entry.name).is_some() {
            return false;
        }
        self.by_id.insert(entry.id.clone(), Arc::clone(entry));
        self.tenant_mut(&entry.tenant).entries.insert(entry.name.clone(), Arc::clone(entry));
        true
    }

    pub(crate) fn remove(&mut self, entry: &Arc<Entry>) {
        if !self.holds(entry) {
            return;
        }
        self.by_id.remove(&entry.id);
        self.tenant_mut(&entry.tenant).entries.remove(&entry.name);
        self.forget_if_empty(&entry.tenant);
    }

    pub(crate) fn forget_child(&mut self, child: Option<Arc<PendingChild>>) {
        self.children.retain(|pending| child.as_ref().is_none_or(|child| !Arc::ptr_eq(pending, child)));
    }

    pub(crate) fn forget_if_empty(&mut self, tenant: &TenantId) {
        if self.by_name.get(tenant).is_some_and(|t| t.entries.is_empty() && t.claims.is_empty() && t.creating == 0) {
            self.by_name.remove(tenant);
        }
    }
}
