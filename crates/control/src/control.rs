//! The state that all parts of control share, its start, and its stop.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use arenite_engine::{Engine, EngineError};
use arenite_model::{DeathReason, SandboxId, SandboxName, TenantId};
use tokio::sync::{OwnedRwLockReadGuard, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::admission::Admission;
use crate::children::AgentSecret;
use crate::clock::Clock;
use crate::counters::Tally;
use crate::events::{EventId, EventReader, Events};
use crate::groups::Groups;
use crate::health::Health;
use crate::idempotency::Idempotency;
use crate::images::{Images, Logins};
use crate::lease::Activity;
use crate::models::ModelMeters;
use crate::nodes::{Cluster, NodeStore};
use crate::pool::Pool;
use crate::quarantine::Quarantine;
use crate::reaper::Deadlines;
use crate::registry::{Entry, Registry};
use crate::secrets::Secrets;
use crate::states::{Exchanges, Snapshots};
use crate::store::{self, Store, counted_here, current_waits};
use crate::template::Templates;
use crate::tenants::{Quota, QuotaExceeded, Rates, Reserved, TenantLimits, Tenants};
use crate::usage::Meters;
use crate::volumes::VolumeUses;
use crate::webhooks::Webhooks;
use crate::{ControlConfig, ControlError, Limits, Sandbox, Template};

/// Number of sandboxes that are removed concurrently by a stop, or with their group.
const REMOVE_AT_ONCE: usize = 16;

/// Tenants' sandboxes.
pub struct Control {
    pub(crate) config: ControlConfig,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) store: Arc<dyn Store>,
    /// None: `default` is the only tenant.
    tenants: Option<Arc<Tenants>>,
    /// None: the store keeps none.
    webhooks: Option<Arc<Webhooks>>,
    rates: Rates,
    pub(crate) meters: Meters,
    pub(crate) clock: Clock,
    pub(crate) templates: Templates,
    pub(crate) admission: Admission,
    pub(crate) agent_secret: AgentSecret,
    pub(crate) pool: Pool,
    pub(crate) quarantine: Quarantine,
    pub(crate) deadlines: Deadlines,
    pub(crate) activity: Arc<Activity>,
    pub(crate) groups: Groups,
    pub(crate) snapshots: Snapshots,
    pub(crate) exchanges: Exchanges,
    pub(crate) health: Health,
    pub(crate) idempotency: Idempotency,
    /// None: the engine keeps them itself.
    pub(crate) images: Option<Images>,
    pub(crate) registry_logins: Logins,
    pub(crate) models: ModelMeters,
    pub(crate) secrets: Secrets,
    pub(crate) volume_uses: VolumeUses,
    pub(crate) tally: Tally,
    pub(crate) events: Arc<Events>,
    stopping: AtomicBool,
    pub(crate) cluster: Cluster,
    /// Set when the cluster has given this node up.
    pub(crate) given_up: watch::Sender<bool>,
    /// Held for reading by everything that changes sandboxes, and for writing by a stop.
    operations: Arc<tokio::sync::RwLock<()>>,
    registry: RwLock<Registry>,
    /// The reaper and the other tasks that run until a stop. They keep the control alive.
    tasks: Mutex<JoinSet<()>>,
    /// Itself. See [`Control::shared`].
    this: Weak<Self>,
}

impl Control {
    /// Opens the store in the data directory, migrates its schema, re-adopts sandboxes, and starts the reaper. Runs until
    /// [`Control::stop`].
    ///
    /// # Errors
    /// If the store can't be opened or has a newer version, or if the engine can't recover.
    pub async fn start(config: ControlConfig, engine: Arc<dyn Engine>) -> Result<Arc<Self>, ControlError> {
        let store = store::open(&config.data_dir, None).await?;
        Self::start_with(config, engine, store).await
    }

    /// Like [`Control::start`], with the given store.
    pub async fn start_with(
        config: ControlConfig,
        engine: Arc<dyn Engine>,
        store: Arc<dyn Store>,
    ) -> Result<Arc<Self>, ControlError> {
        // Before the recovery, so that no end in between is missed.
        let ended = engine.ended();
        let tenants = if config.tenants {
            let store = Arc::clone(&store).tenant_store().ok_or(ControlError::NoTenantStore)?;
            Some(Arc::new(Tenants::open(store, Clock::start(config.host_clock)).await?))
        } else {
            None
        };
        let webhooks = match Arc::clone(&store).webhook_store() {
            Some(store) => {
                let clock = Clock::start(config.host_clock);
                Some(Arc::new(Webhooks::open(store, clock, config.webhook_retry).await?))
            }
            None => None,
        };
        let meters = Meters::open(&store).await?;
        let control = Self::new(config, engine, store, tenants, webhooks, meters);
        control.recover().await?;
        control.recover_volumes().await?;
        control.remove_interrupted_builds().await;
        control.forget_meters_of_gone();
        control.load_groups().await?;
        control.load_snapshots().await?;
        control.load_registry_logins().await?;
        control.pass_all_secrets().await?;
        // Logs which templates are unusable.
        control.templates.list();
        let nodes = control.nodes_store();
        if let Some(nodes) = &nodes {
            // A node that drains prepares nothing.
            let found = nodes.nodes().await.map_err(ControlError::store("read the nodes"))?;
            control.learn(&**nodes, found).await;
        }
        let mut tasks = control.tasks();
        tasks.spawn(Arc::clone(&control).listen(ended));
        tasks.spawn(Arc::clone(&control).reap_all());
        tasks.spawn(Arc::clone(&control).relieve_pressure());
        tasks.spawn(Arc::clone(&control).store_activity());
        tasks.spawn(Arc::clone(&control).keep_pools());
        tasks.spawn(Arc::clone(&control).meter_all());
        tasks.spawn(Arc::clone(&control).reap_groups());
        tasks.spawn(Arc::clone(&control).end_orphans());
        tasks.spawn(Arc::clone(&control).expire_records());
        tasks.spawn(Arc::clone(&control).keep_images());
        if let Some(tenants) = &control.tenants {
            tasks.spawn(Arc::clone(tenants).write_refusals());
            tasks.spawn(Arc::clone(&control).follow_floors());
        }
        if let Some(nodes) = nodes {
            tasks.spawn(Arc::clone(&control).keep_lease(nodes));
        }
        drop(tasks);
        Ok(control)
    }

    fn new(
        config: ControlConfig,
        engine: Arc<dyn Engine>,
        store: Arc<dyn Store>,
        tenants: Option<Arc<Tenants>>,
        webhooks: Option<Arc<Webhooks>>,
        meters: Meters,
    ) -> Arc<Self> {
        let clock = Clock::start(config.host_clock);
        Arc::new_cyclic(|this| Self {
            templates: Templates::new(&config),
            admission: Admission::new(config.limits.clone()),
            agent_secret: AgentSecret::default(),
            pool: Pool::default(),
            quarantine: Quarantine::default(),
            deadlines: Deadlines::default(),
            activity: Arc::new(Activity::new(clock)),
            groups: Groups::default(),
            snapshots: Snapshots::default(),
            exchanges: Exchanges::default(),
            health: Health::default(),
            idempotency: Idempotency::default(),
            images: config.images.clone().map(Images::new),
            registry_logins: Logins::default(),
            models: ModelMeters::default(),
            secrets: Secrets::default(),
            volume_uses: VolumeUses::default(),
            tally: Tally::default(),
            events: Arc::new(Events::new(clock.now())),
            stopping: AtomicBool::new(false),
            cluster: Cluster::default(),
            given_up: watch::Sender::new(false),
            operations: Arc::default(),
            registry: RwLock::default(),
            config,
            engine,
            store,
            tenants,
            webhooks,
            rates: Rates::default(),
            meters,
            clock,
            tasks: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    /// None: the server is not one of a cluster.
    pub(crate) fn nodes_store(&self) -> Option<Arc<dyn NodeStore>> {
        Arc::clone(&self.store).node_store()
    }

    /// A sandbox in its current state.
    pub async fn get(&self, tenant: &TenantId, name: &SandboxName) -> Result<Sandbox, ControlError> {
        Ok(self.find(tenant, name)?.current())
    }

    /// The same by id. Another tenant's sandbox is not found.
    pub async fn get_by_id(&self, tenant: &TenantId, id: &SandboxId) -> Result<Sandbox, ControlError> {
        let entry = self.registry().owned(tenant, id).cloned();
        Ok(entry.ok_or_else(|| ControlError::NoSuchId { id: id.clone() })?.current())
    }

    /// A tenant's sandboxes, the oldest first.
    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<Sandbox>, ControlError> {
        let mut all: Vec<Sandbox> = {
            let registry = self.registry();
            let theirs = registry.tenant(tenant);
            let entries = theirs.iter().flat_map(|tenant| tenant.entries.values());
            entries.map(|entry| entry.current()).collect()
        };
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(all)
    }

    /// The sandboxes of all tenants. Only for the server itself.
    pub fn list_all(&self) -> Vec<Sandbox> {
        self.registry().all().map(|entry| entry.current()).collect()
    }

    /// The tenant of a sandbox on this node.
    pub fn tenant_of(&self, id: &SandboxId) -> Option<TenantId> {
        self.registry().by_id(id).map(|entry| entry.tenant.clone())
    }

    /// Whether a tenant has a sandbox with this id here, in any state.
    pub fn has_id(&self, tenant: &TenantId, id: &SandboxId) -> bool {
        self.registry().owned(tenant, id).is_some()
    }

    /// Whether a tenant has a sandbox, or creates one.
    pub fn has_sandboxes(&self, tenant: &TenantId) -> bool {
        self.registry().tenant(tenant).is_some()
    }

    /// Tenants and their keys; none if `default` is the only tenant.
    pub fn tenants(&self) -> Option<&Arc<Tenants>> {
        self.tenants.as_ref()
    }

    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Tenants' webhooks; none if the store keeps none.
    pub fn webhooks(&self) -> Option<&Arc<Webhooks>> {
        self.webhooks.as_ref()
    }

    /// The limits of a tenant: its own, otherwise the server's defaults.
    pub fn tenant_limits(&self, tenant: &TenantId) -> TenantLimits {
        let own = self.tenants.as_ref().map_or_else(TenantLimits::default, |tenants| tenants.limits(tenant));
        own.over(&self.config.tenant_limits)
    }

    /// What a tenant's sandboxes and builds hold of its quotas. Visits each of them.
    pub fn reserved(&self, tenant: &TenantId) -> Reserved {
        let registry = self.registry();
        let entries = registry.tenant(tenant).into_iter().flat_map(|tenant| tenant.entries.values());
        let of_builds = self.images.as_ref().map(|images| images.builds.reserved(tenant)).unwrap_or_default();
        entries.map(|entry| Reserved::from_sandbox(&entry.sandbox())).chain([of_builds]).sum()
    }

    /// A tenant's creates in progress or in the queue.
    pub fn creates_of(&self, tenant: &TenantId) -> u64 {
        self.registry().tenant(tenant).map_or(0, |tenant| tenant.creating as u64)
    }

    /// Counts a request of a tenant.
    ///
    /// # Errors
    /// [`ControlError::Quota`] beyond its rate.
    pub fn admit_request(&self, tenant: &TenantId) -> Result<(), ControlError> {
        match self.tenant_limits(tenant).requests_per_second {
            Some(limit) if !self.rates.take(tenant, limit) => {
                Err(QuotaExceeded { quota: Quota::RequestsPerSecond, limit, used: limit, requested: 1 }.into())
            }
            _ => Ok(()),
        }
    }

    /// The usable templates, by name.
    pub fn templates(&self) -> Vec<Template> {
        self.templates.list()
    }

    /// The template of that name.
    ///
    /// # Errors
    /// If there is none, or its file can't be used.
    pub fn template(&self, name: &str) -> Result<Template, ControlError> {
        self.templates.get(name)
    }

    /// The engine that runs the sandboxes.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Changes of all tenants' sandboxes from now on.
    pub fn subscribe(&self) -> EventReader {
        self.events.subscribe()
    }

    /// Changes of all tenants' sandboxes after an event, or all that are left.
    pub fn read_events(&self, after: Option<EventId>) -> EventReader {
        after.map_or_else(|| self.events.read_all(), |after| self.events.read_after(after))
    }

    /// Accepts no more changes, cancels creates in progress, waits for the rest, and closes engine and store. Sandboxes stay
    /// unless `remove_sandboxes` is set. A second stop does nothing.
    pub async fn stop(&self, remove_sandboxes: bool) {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        self.admission.close();
        if let Some(images) = &self.images {
            images.close();
        }
        for claim in self.registry().claims() {
            claim.cancel();
        }
        // Each operation is bounded by the engine's timeout; a create's cleanup needs as much again.
        let wait = self.config.engine_timeout * 2;
        let rest = tokio::time::timeout(wait, self.operations.write()).await;
        if rest.is_err() {
            tracing::error!(?wait, "changes of sandboxes did not end; stopping regardless");
        }
        self.tasks().abort_all();
        if remove_sandboxes {
            self.remove_all().await;
        }
        self.close_pools().await;
        self.flush_activity().await;
        if let Err(error) = self.sample_all().await {
            tracing::warn!(%error, "the last usage could not be stored");
        }
        if let Some(tenants) = &self.tenants {
            tenants.flush_refusals().await;
        }
        self.engine.close().await;
        self.leave_cluster().await;
        self.store.close().await;
    }

    async fn remove_all(&self) {
        let entries: Vec<_> = self.registry().all().cloned().collect();
        for (entry, destroyed) in self.destroy_each(entries, DeathReason::ServerStopped).await {
            if let Err(error) = destroyed {
                tracing::error!(id = %entry.id, %error, "a sandbox could not be removed");
            }
        }
    }

    /// Destroys several sandboxes concurrently.
    pub(crate) async fn destroy_each(
        &self,
        entries: Vec<Arc<Entry>>,
        why: DeathReason,
    ) -> Vec<(Arc<Entry>, Result<(), ControlError>)> {
        let permits = Arc::new(Semaphore::new(REMOVE_AT_ONCE));
        let mut removals = JoinSet::new();
        for entry in entries {
            let (control, permits) = (self.shared(), Arc::clone(&permits));
            removals.spawn(async move {
                let _permit = permits.acquire().await;
                let destroyed = control.destroy(&entry, why).await;
                (entry, destroyed)
            });
        }
        removals.join_all().await
    }

    pub(crate) fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another reference, for what outlives the caller.
    pub(crate) fn shared(&self) -> Arc<Self> {
        self.this.upgrade().expect("a control is in an Arc while it is borrowed")
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

    /// Runs a change to completion, whether or not its caller waits for it. `operation` makes a stop wait for it.
    pub(crate) async fn detached<T, F>(
        &self,
        operation: OwnedRwLockReadGuard<()>,
        change: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, ControlError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ControlError>> + Send + 'static,
    {
        self.detached_boxed(operation, Box::pin(change(self.shared()))).await
    }

    /// The same, compiled once for each type of result.
    async fn detached_boxed<T: Send + 'static>(
        &self,
        operation: OwnedRwLockReadGuard<()>,
        change: Pin<Box<dyn Future<Output = Result<T, ControlError>> + Send>>,
    ) -> Result<T, ControlError> {
        let changed = async move {
            let _operation = operation;
            change.await
        };
        let changed = tokio::spawn(counted_here(current_waits(), changed).in_current_span());
        match changed.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ControlError::Stopping),
            },
        }
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
}
