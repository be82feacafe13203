//! State that all parts of control share.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arenite_engine::{Engine, EngineError};
use arenite_model::{SandboxName, SandboxState, TenantId};
use tokio::sync::{OwnedRwLockReadGuard, broadcast};

use crate::admission::Admission;
use crate::clock::Clock;
use crate::health::Health;
use crate::lease::Activity;
use crate::pool::Pool;
use crate::quarantine::Quarantine;
use crate::reaper::Deadlines;
use crate::registry::{Entry, Registry};
use crate::store::Store;
use crate::template::Templates;
use crate::{Change, ControlConfig, ControlError, Sandbox};

/// Number of changes that a subscriber may lag behind before it misses some.
const CHANGES: usize = 1024;

pub(crate) struct Core {
    pub(crate) config: ControlConfig,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) templates: Templates,
    pub(crate) admission: Admission,
    pub(crate) pool: Pool,
    pub(crate) quarantine: Quarantine,
    pub(crate) deadlines: Deadlines,
    pub(crate) activity: Arc<Activity>,
    pub(crate) health: Health,
    pub(crate) tally: Tally,
    pub(crate) changes: broadcast::Sender<Change>,
    pub(crate) stopping: AtomicBool,
    /// Held for reading by everything that changes sandboxes, and for writing by a stop.
    pub(crate) operations: Arc<tokio::sync::RwLock<()>>,
    registry: RwLock<Registry>,
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
    pub(crate) ended: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Core {
    pub(crate) fn new(config: ControlConfig, engine: Arc<dyn Engine>, store: Arc<dyn Store>) -> Self {
        let clock = Clock::start();
        Self {
            templates: Templates::new(&config),
            admission: Admission::new(config.limits.clone()),
            pool: Pool::default(),
            quarantine: Quarantine::default(),
            deadlines: Deadlines::default(),
            activity: Arc::new(Activity::new(clock)),
            health: Health::default(),
            tally: Tally::default(),
            changes: broadcast::Sender::new(CHANGES),
            stopping: AtomicBool::new(false),
            operations: Arc::default(),
            registry: RwLock::default(),
            config,
            engine,
            store,
            clock,
        }
    }

    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, tenant: &TenantId, name: &SandboxName) -> Result<Arc<Entry>, ControlError> {
        self.registry().by_name(tenant, name).cloned().ok_or_else(|| self.not_there(tenant, name))
    }

    /// The error for a name without a sandbox.
    pub(crate) fn not_there(&self, tenant: &TenantId, name: &SandboxName) -> ControlError {
        match self.quarantine.named(tenant, name) {
            Some(id) => ControlError::Quarantined { name: name.clone(), id },
            None => ControlError::NotFound { name: name.clone() },
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Delays a stop while it is held.
    pub(crate) fn operation(&self) -> Result<OwnedRwLockReadGuard<()>, ControlError> {
        if self.is_stopping() {
            return Err(ControlError::Stopping);
        }
        Arc::clone(&self.operations).try_read_owned().map_err(|_| ControlError::Stopping)
    }

    /// Runs an engine operation with a timeout.
    pub(crate) async fn bounded<T>(
        &self,
        what: &'static str,
        name: &SandboxName,
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, ControlError> {
        let limit = self.config.engine_timeout;
        match tokio::time::timeout(limit, work).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(ControlError::Timeout { what, name: name.clone(), limit }),
        }
    }

    /// The sandbox with another state.
    pub(crate) fn in_state(&self, entry: &Entry, state: SandboxState, reason: Option<String>) -> Sandbox {
        let mut sandbox = entry.current();
        debug_assert!(sandbox.state.may_become(state), "{} may not become {state}", sandbox.state);
        sandbox.state = state;
        sandbox.reason = reason;
        sandbox.state_since = self.clock.now();
        sandbox
    }

    /// Publishes a new state to readers, subscribers and the reaper. The caller holds the entry's lock.
    pub(crate) fn show(&self, entry: &Entry, sandbox: Sandbox) {
        let state = sandbox.state;
        entry.publish(sandbox);
        self.announce(entry, Some(state));
        self.reconsider(entry);
    }

    /// Publishes a state that the engine already has. A failing store is only logged: the next start queries the engine.
    pub(crate) async fn follow(&self, entry: &Entry, state: SandboxState, reason: Option<String>) -> Sandbox {
        let sandbox = self.in_state(entry, state, reason);
        self.show(entry, sandbox.clone());
        if let Err(error) = self.store.update(&sandbox).await {
            tracing::error!(id = %entry.id, %state, %error, "a sandbox's state could not be stored");
        }
        sandbox
    }

    pub(crate) fn announce(&self, entry: &Entry, state: Option<SandboxState>) {
        // An error only means that nobody subscribes.
        let _ = self.changes.send(Change { id: entry.id.clone(), tenant: entry.tenant.clone(), name: entry.name.clone(), state });
    }
}

/// Runs a change to completion, whether or not its caller waits for it.
pub(crate) async fn detached<T: Send + 'static>(
    change: impl Future<Output = Result<T, ControlError>> + Send + 'static,
) -> Result<T, ControlError> {
    match tokio::spawn(change).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ControlError::Stopping),
        },
    }
}
