//! All workers of a server, and their sessions.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::{NodeName, TenantId};
use arenite_trajectory::Recorder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;

use crate::answer::{naive, random_hex};
use crate::backend::Backend;
use crate::catalog::{Catalog, Listed, Loaded};
use crate::error::SynthesisError;
use crate::keep::Keep;
use crate::names::session_name;
use crate::retry::Orphans;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest, Sandboxes};
use crate::session::{Facts, Session, SessionInfo, SessionStatus};
use crate::store::Store;
use crate::worker::{LABEL, TEMPORARY, Worker, label};

/// AgentFlow's message for a session without a backend.
const COMPATIBLE: &str = "was created for compatibility but no initialization was performed.";
/// Workers with remembered numbers, though they have no session.
const MAX_WORKERS: usize = 100_000;
/// Sessions of one worker, one for each type of resource.
const MAX_SESSIONS: usize = 64;
/// Between two checks for expired sessions.
const SWEEP: Duration = Duration::from_secs(1);
/// Time for a request of a list to wait for backends that are discovering their tools.
const DISCOVERY: Duration = Duration::from_secs(30);
/// For calls in progress when the server stops. Calls without a client end within [`crate::GRACE`].
const FAREWELL: Duration = Duration::from_secs(10);

/// Configuration of the workers' part of a server.
pub struct Setup {
    /// Folder in which sessions are stored.
    pub dir: PathBuf,
    pub recorder: Recorder,
    pub sandboxes: Arc<dyn Sandboxes>,
    /// In the order of tool lists.
    pub backends: Vec<Arc<dyn Backend>>,
    /// Default idle time after which a session ends.
    pub session_ttl: Duration,
    /// Default properties of workers' sandboxes.
    pub sandbox_request: SandboxRequest,
}

/// A request for a session.
#[derive(Debug, Clone, Default)]
pub struct Create {
    pub worker: String,
    pub resource_type: String,
    pub config: Map<String, Value>,
    pub custom_name: Option<String>,
    /// In seconds.
    pub ttl: Option<f64>,
    pub auto_extend: Option<bool>,
}

/// The session of a request. `new`: it was created now.
pub struct Created {
    pub session: Arc<Session>,
    pub new: bool,
}

impl Created {
    pub fn error(&self) -> Option<&str> {
        self.session.error()
    }

    pub fn status(&self) -> &'static str {
        self.session.status()
    }

    /// The message for a session without a backend.
    pub fn compatibility(&self) -> Option<String> {
        let kind = &self.session.facts.resource_type;
        self.session
            .compatible
            .then(|| format!("Resource type '{kind}' does not require session initialization. This session {COMPATIBLE}"))
    }
}

/// A worker with its sessions.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkerInfo {
    pub worker_id: String,
    /// Null without a cluster.
    pub node: Option<NodeName>,
    pub sessions: Vec<SessionInfo>,
}

type Key = (TenantId, String);

/// All workers of a server.
pub struct Synthesis {
    pub(crate) catalog: Catalog,
    /// Whether backends have finished discovering their tools, successfully or not.
    discovered: watch::Sender<bool>,
    pub(crate) recorder: Recorder,
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) orphans: Arc<Orphans>,
    /// Tasks that continue without a client: ending calls, removal of sandboxes.
    pub(crate) tasks: TaskTracker,
    workers: Mutex<HashMap<Key, Arc<Worker>>>,
    store: Store,
    ttl: Duration,
    sandbox_request: SandboxRequest,
    /// The label of sandboxes that backends keep ready.
    kept: String,
}

impl Synthesis {
    /// Restores stored sessions.
    ///
    /// # Errors
    /// Why the sessions' file can't be opened.
    pub fn start(setup: Setup) -> Result<Arc<Self>, String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} {}: {error}", setup.dir.display());
        std::fs::create_dir_all(&setup.dir).map_err(|error| failed("could not make", &error))?;
        let path = setup.dir.join("sessions.db");
        let store = Store::open(&path).map_err(|error| failed("could not open the workers' sessions in", &error))?;
        let kept = store.all().map_err(|error| failed("could not read the workers' sessions in", &error))?;
        let keep = Keep::new(Arc::clone(&setup.sandboxes), setup.sandbox_request.clone());
        for backend in &setup.backends {
            backend.bind(keep.clone());
        }
        let catalog = Catalog::new(setup.backends);
        let discovers = catalog.resources().any(|loaded| loaded.backend.discovers());
        let synthesis = Self {
            catalog,
            discovered: watch::Sender::new(!discovers),
            recorder: setup.recorder,
            sandboxes: setup.sandboxes,
            orphans: Arc::default(),
            tasks: TaskTracker::new(),
            workers: Mutex::default(),
            store,
            ttl: setup.session_ttl,
            sandbox_request: setup.sandbox_request,
            kept: keep.label().to_owned(),
        };
        for kept in kept {
            let Ok(tenant) = kept.tenant.parse::<TenantId>() else { continue };
            let worker = synthesis.worker(&tenant, &kept.facts.worker);
            let session = Session::new(kept.facts, kept.compatible, true);
            *session.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = kept.sandbox;
            worker.restore(Arc::new(session));
        }
        Ok(Arc::new(synthesis))
    }

    /// Removes what a killed server left behind, then ends expired sessions, until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        for tenant in self.sandboxes.tenants().await {
            self.remove_leftovers(&tenant).await;
        }
        while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
            let now = Timestamp::now();
            for ((tenant, _), worker) in self.all() {
                for session in worker.sessions().into_iter().filter(|session| session.is_expired(now)) {
                    let (synthesis, worker, tenant) = (Arc::clone(&self), Arc::clone(&worker), tenant.clone());
                    self.tasks.spawn(async move {
                        tracing::info!(session = session.facts.id, "a worker's session was idle for its time and ends");
                        synthesis.end(&own(tenant), &worker, &session).await;
                    });
                }
            }
        }
        self.tasks.close();
        // Work that a backend never ends, such as a plugin that never prepares a session, must not block the server.
        if tokio::time::timeout(FAREWELL, self.tasks.wait()).await.is_err() {
            tracing::warn!("calls and sessions of workers that do not end are left");
        }
        for loaded in self.catalog.all() {
            loaded.backend.shutdown().await;
        }
    }

    /// Removes sandboxes of calls that were open in a killed server, and of sessions that are not stored.
    async fn remove_leftovers(&self, tenant: &TenantId) {
        let caller = own(tenant.clone());
        let mut wanted: Vec<String> = Vec::new();
        for (_, worker) in self.all().into_iter().filter(|((theirs, _), _)| theirs == tenant) {
            wanted.extend(worker.sessions().iter().filter_map(|session| session.sandbox()));
        }
        // All are listed first, then those that are kept ready: one that is created in between is not only in the first list.
        let all = self.sandboxes.labelled(tenant, LABEL).await;
        wanted.extend(self.sandboxes.labelled(tenant, &self.kept).await);
        for name in all {
            if !wanted.contains(&name) {
                tracing::info!(sandbox = name, "a worker's sandbox that no session uses is removed");
                self.sandboxes.remove(&caller, &name).await;
            }
        }
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<Key, Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<(Key, Arc<Worker>)> {
        self.workers().iter().map(|(key, worker)| (key.clone(), Arc::clone(worker))).collect()
    }

    fn known(&self, tenant: &TenantId, worker: &str) -> Option<Arc<Worker>> {
        self.workers().get(&(tenant.clone(), worker.to_owned())).cloned()
    }

    pub(crate) fn worker(&self, tenant: &TenantId, worker: &str) -> Arc<Worker> {
        let mut workers = self.workers();
        if workers.len() >= MAX_WORKERS {
            // Their numbers start over, but session ids stay unique.
            workers.retain(|_, worker| worker.count() > 0 || Arc::strong_count(worker) > 1);
        }
        let key = (tenant.clone(), worker.to_owned());
        Arc::clone(workers.entry(key).or_insert_with(|| Arc::new(Worker::new(worker))))
    }

    /// The number of workers that had a session and did not leave, and the number of sessions.
    pub fn counts(&self) -> (usize, usize) {
        let workers = self.workers();
        (workers.len(), workers.values().map(|worker| worker.shown_sessions().len()).sum())
    }

    pub fn tools_count(&self) -> usize {
        self.catalog.len()
    }

    /// Warms up the backends that discover their tools.
    pub async fn discover(&self) {
        let names: Vec<String> = self.catalog.resources().filter(|loaded| loaded.backend.discovers()).map(name_of).collect();
        if !names.is_empty() {
            for (backend, warmed) in self.warm_up(Some(&names)).await {
                if let Err(error) = warmed {
                    tracing::warn!(backend, "not all of a backend's tools were found: {error}");
                }
            }
        }
        self.discovered.send_replace(true);
    }

    /// Whether the backend of this name discovers its tools.
    pub fn discovers(&self, name: &str) -> bool {
        self.catalog.resource(name).is_some_and(|loaded| loaded.backend.discovers())
    }

    /// Waits for [`Synthesis::discover`], for a limited time.
    pub async fn discovered(&self) {
        let mut discovered = self.discovered.subscribe();
        let _ = tokio::time::timeout(DISCOVERY, discovered.wait_for(|done| *done)).await;
    }

    /// The problems of each backend.
    pub fn problems(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let problems = self.catalog.resources().map(|loaded| (name_of(loaded), loaded.backend.problems()));
        problems.filter(|(_, problems)| !problems.is_empty()).collect()
    }

    pub fn tools(&self, include_hidden: bool) -> Vec<Listed> {
        self.catalog.list(include_hidden)
    }

    /// Finds a tool by its full name, or by any other unambiguous name.
    pub fn tool(&self, name: &str) -> Option<Listed> {
        self.catalog.get(name)
    }

    /// The facts of a session that is about to be created.
    pub(crate) fn facts(&self, create: &Create, number: u32, auto_created: bool) -> (Facts, bool) {
        let loaded = self.catalog.resource(&create.resource_type);
        let mut config = loaded.map(|loaded| loaded.backend.default_config()).unwrap_or_default();
        config.extend(create.config.clone());
        let name = session_name(&create.resource_type, &create.worker, number, create.custom_name.as_deref());
        let facts = Facts {
            id: format!("{name}_{}", random_hex(8)),
            name,
            worker: create.worker.clone(),
            resource_type: create.resource_type.clone(),
            config,
            custom_name: create.custom_name.clone(),
            created_at: Timestamp::now(),
            auto_created,
            ttl_seconds: create.ttl.unwrap_or(self.ttl.as_secs_f64()),
            auto_extend: create.auto_extend.unwrap_or(true),
        };
        (facts, loaded.is_none())
    }

    /// The worker's session of this type. Creates and prepares it if there is none, and recreates one that failed before.
    ///
    /// # Errors
    /// If the worker has too many.
    pub async fn create(self: &Arc<Self>, caller: &Caller, create: Create) -> Result<Created, String> {
        let worker = self.worker(&caller.tenant, &create.worker);
        if let Some(session) = worker.session(&create.resource_type) {
            if session.error().is_none() {
                self.make_ready(caller, &worker, &session).await;
            }
            if session.error().is_none() {
                return Ok(Created { session, new: false });
            }
            self.end(caller, &worker, &session).await;
        } else if worker.count() >= MAX_SESSIONS {
            return Err(SynthesisError::TooManySessions { most: MAX_SESSIONS }.into());
        }
        let (session, new) = worker.session_or(&create.resource_type, |number| {
            let (facts, compatible) = self.facts(&create, number, false);
            Session::new(facts, compatible, false)
        });
        self.make_ready(caller, &worker, &session).await;
        Ok(Created { session, new })
    }

    /// Waits until the session is ready, or known to be unusable. The work runs in a separate task, so that a client that leaves
    /// does not interrupt it.
    pub(crate) async fn make_ready(self: &Arc<Self>, caller: &Caller, worker: &Arc<Worker>, session: &Arc<Session>) {
        if session.ready.initialized() {
            return;
        }
        // The server prepares it, not the agent.
        let (synthesis, caller) = (Arc::clone(self), Caller { origin: None, ..caller.clone() });
        let (worker, session) = (Arc::clone(worker), Arc::clone(session));
        let task = self.tasks.spawn(async move {
            let making = async || synthesis.initialize(&caller, &worker, &session).await.map_err(String::from);
            session.ready.get_or_init(making).await;
        });
        if let Err(error) = task.await {
            tracing::error!(%error, "making a worker's session ready broke off");
        }
    }

    async fn initialize(&self, caller: &Caller, worker: &Worker, session: &Arc<Session>) -> Result<(), SynthesisError> {
        let done = self.prepare(caller, worker, session).await;
        // A failed one is only kept in memory.
        if done.is_ok()
            && let Err(error) =
                self.store.put(caller.tenant.as_str(), &session.facts, session.sandbox().as_deref(), session.compatible)
        {
            tracing::error!(%error, session = session.facts.id, "a worker's session is not remembered over a restart");
        }
        done
    }

    async fn prepare(&self, caller: &Caller, worker: &Worker, session: &Arc<Session>) -> Result<(), SynthesisError> {
        let loaded = self.catalog.resource(&session.facts.resource_type);
        let sandbox_request = match loaded {
            Some(loaded) => loaded.backend.sandbox_request(&session.facts.config),
            None => session.is_hidden().then(SandboxRequest::default),
        };
        let handle = match sandbox_request {
            None => None,
            Some(sandbox_request) => {
                let before = session.sandbox().filter(|_| session.restored);
                let mut sandbox_request =
                    SandboxRequest::from_config(&session.facts.config)?.over(&sandbox_request).over(&self.sandbox_request);
                if let Some(of) = sandbox_request.fork_of.take() {
                    sandbox_request.fork_of = Some(self.sandbox_of(caller, worker, &of).await?);
                }
                let resumed = before.clone();
                let handle = match before {
                    Some(name) if session.is_alone() => {
                        let there = self.sandboxes.is_there(caller, &name).await;
                        self.handle(caller, session).filter(|_| there)
                    }
                    Some(name) => worker.reclaim(&self.sandboxes, caller, &name).await,
                    None => None,
                };
                let handle = match handle {
                    Some(handle) => handle,
                    None if session.is_alone() => self.spare_or_own_sandbox(caller, session, &sandbox_request, false).await?,
                    None => worker.claim(&self.sandboxes, caller, &sandbox_request).await?,
                };
                session.resumed.store(resumed.as_ref() == Some(&handle.name), Ordering::Relaxed);
                *session.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle.name.clone());
                Some(handle)
            }
        };
        let made = match loaded {
            Some(loaded) => loaded.backend.initialize(session, handle.as_ref()).await,
            None => Ok(()),
        };
        if made.is_err()
            && let Some(handle) = handle
        {
            *session.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.release(caller, worker, session, Some(handle)).await;
        }
        made
    }

    /// The sandbox of the worker that another one is a fork of.
    async fn sandbox_of(&self, caller: &Caller, worker: &Worker, of: &str) -> Result<String, SynthesisError> {
        let reason = if of == worker.id {
            format!("fork_of is {of:?}, the worker itself")
        } else {
            match self.known(&caller.tenant, of) {
                Some(parent) => match parent.sandbox().await {
                    Some(name) => return Ok(name),
                    None => format!("fork_of is {of:?}, a worker without a sandbox"),
                },
                None => format!("fork_of is {of:?}, and there is no such worker on this server"),
            }
        };
        Err(SynthesisError::SessionConfiguration { reason })
    }

    /// The sandbox of a session, for a call.
    pub(crate) fn handle(&self, caller: &Caller, session: &Session) -> Option<SandboxHandle> {
        let name = session.sandbox()?;
        Some(SandboxHandle { sandboxes: Arc::clone(&self.sandboxes), caller: caller.clone(), name })
    }

    /// Releases the sandbox of a session that no longer needs it.
    async fn release(&self, caller: &Caller, worker: &Worker, session: &Session, handle: Option<SandboxHandle>) {
        let shared = handle.is_some() && !session.is_alone();
        if let Some(handle) = handle.filter(|_| session.is_alone()) {
            self.sandboxes.remove(caller, &handle.name).await;
        }
        worker.release(&self.sandboxes, caller, shared).await;
    }

    /// A sandbox for one session: a prepared one of its backend, or a new one.
    pub(crate) async fn spare_or_own_sandbox(
        &self,
        caller: &Caller,
        session: &Session,
        sandbox_request: &SandboxRequest,
        temporary: bool,
    ) -> Result<SandboxHandle, SynthesisError> {
        let sandbox_request = sandbox_request.clone().over(&self.sandbox_request);
        let (kind, config) = (&session.facts.resource_type, &session.facts.config);
        if let Some(loaded) = self.catalog.resource(kind)
            && let Some(name) = loaded.backend.spare(caller, config, &sandbox_request).await
        {
            return Ok(SandboxHandle { sandboxes: Arc::clone(&self.sandboxes), caller: caller.clone(), name });
        }
        self.own_sandbox(caller, &session.facts.worker, &sandbox_request, temporary).await
    }

    /// A sandbox for one call, or for one session.
    pub(crate) async fn own_sandbox(
        &self,
        caller: &Caller,
        worker: &str,
        sandbox_request: &SandboxRequest,
        temporary: bool,
    ) -> Result<SandboxHandle, SynthesisError> {
        let mut labels = BTreeMap::from([(LABEL.to_owned(), label(worker))]);
        if temporary {
            labels.insert(TEMPORARY.to_owned(), "true".to_owned());
        }
        let name = self.sandboxes.make(caller, &sandbox_request.clone().over(&self.sandbox_request), labels).await?;
        Ok(SandboxHandle { sandboxes: Arc::clone(&self.sandboxes), caller: caller.clone(), name })
    }

    /// Ends a session: no call can find it any more, open calls are cancelled, and then it is cleaned up. False: another task is
    /// already ending it.
    pub(crate) async fn end(&self, caller: &Caller, worker: &Worker, session: &Arc<Session>) -> bool {
        if !worker.take(session) {
            return false;
        }
        session.ended.cancel();
        session.calls.close();
        session.calls.wait().await;
        session.note_end(&self.recorder, &caller.tenant);
        // Waits for one that is still being prepared.
        let _ = session.ready.get_or_init(async || Err(SynthesisError::SessionEnded.into())).await;
        let handle = self.handle(caller, session);
        if session.error().is_none()
            && let Some(loaded) = self.catalog.resource(&session.facts.resource_type)
        {
            loaded.backend.cleanup(session, handle.as_ref()).await;
        }
        self.release(caller, worker, session, handle).await;
        if let Err(error) = self.store.remove(&session.facts.id) {
            tracing::error!(%error, session = session.facts.id, "a worker's session could not be forgotten");
        }
        true
    }

    /// Ends the worker's session of this type. None if there is none.
    pub async fn destroy(self: &Arc<Self>, caller: &Caller, worker: &str, resource_type: &str) -> Option<Arc<Session>> {
        let worker = self.known(&caller.tenant, worker)?;
        let session = worker.session(resource_type)?;
        let ended = self.detached_end(caller, &worker, &session).await;
        ended.then_some(session)
    }

    /// The same as a separate task, which continues without the client.
    async fn detached_end(self: &Arc<Self>, caller: &Caller, worker: &Arc<Worker>, session: &Arc<Session>) -> bool {
        let (synthesis, caller) = (Arc::clone(self), Caller { origin: None, ..caller.clone() });
        let (worker, session) = (Arc::clone(worker), Arc::clone(session));
        let ending = self.tasks.spawn(async move { synthesis.end(&caller, &worker, &session).await });
        ending.await.unwrap_or(false)
    }

    /// Ends all sessions of a worker, and forgets the worker. Returns the number of sessions.
    pub async fn disconnect(self: &Arc<Self>, caller: &Caller, worker: &str) -> usize {
        let Some(known) = self.known(&caller.tenant, worker) else { return 0 };
        let ending = known.sessions().into_iter().map(|session| {
            let known = Arc::clone(&known);
            async move { self.detached_end(caller, &known, &session).await && !session.is_hidden() }
        });
        let ended = futures_util::future::join_all(ending).await.into_iter().filter(|ended| *ended).count();
        let mut workers = self.workers();
        // Unless it came back meanwhile.
        if known.count() == 0 {
            workers.remove(&(caller.tenant.clone(), worker.to_owned()));
        }
        ended
    }

    /// Ends all sessions of a tenant's workers.
    pub async fn disconnect_all(self: &Arc<Self>, caller: &Caller) -> usize {
        let mine: Vec<String> =
            self.all().into_iter().filter(|((tenant, _), _)| *tenant == caller.tenant).map(|((_, id), _)| id).collect();
        let ending = mine.iter().map(|worker| self.disconnect(caller, worker));
        futures_util::future::join_all(ending).await.into_iter().sum()
    }

    /// Sessions of a worker in the format of `session/list`.
    pub fn list(&self, tenant: &TenantId, worker: &str) -> Vec<SessionInfo> {
        self.sessions(tenant, worker).iter().map(|session| session.listed()).collect()
    }

    /// The types of a worker's sessions, and each session in the format of `lifecycle/status`.
    pub fn status(&self, tenant: &TenantId, worker: &str) -> (Vec<String>, BTreeMap<String, SessionStatus>) {
        let sessions = self.sessions(tenant, worker);
        let told = sessions.iter().map(|session| (session.facts.resource_type.clone(), session.told())).collect();
        (sessions.iter().map(|session| session.facts.resource_type.clone()).collect(), told)
    }

    /// Restarts the idle time of one session, or of all. Returns their types, ids, and expiry times.
    pub fn refresh(&self, tenant: &TenantId, worker: &str, resource_type: Option<&str>) -> Vec<(String, String, String)> {
        let wanted = |session: &&Arc<Session>| resource_type.is_none_or(|wanted| session.facts.resource_type == wanted);
        let refreshed =
            |session: &Arc<Session>| (session.facts.resource_type.clone(), session.facts.id.clone(), naive(session.refresh()));
        self.sessions(tenant, worker).iter().filter(wanted).map(refreshed).collect()
    }

    /// The sessions that clients requested.
    fn sessions(&self, tenant: &TenantId, worker: &str) -> Vec<Arc<Session>> {
        self.known(tenant, worker).map(|worker| worker.shown_sessions()).unwrap_or_default()
    }

    /// Warms up the named backends, or all. Returns whether each is warm, or its error.
    pub async fn warm_up(&self, names: Option<&[String]>) -> Vec<(String, Result<(), String>)> {
        let all: Vec<String> = self.catalog.resources().map(|loaded| loaded.backend.name().to_owned()).collect();
        let names = names.filter(|names| !names.is_empty()).unwrap_or(&all);
        let warming = names.iter().map(|name| {
            let all = &all;
            async move {
                let warmed = match self.catalog.resource(name) {
                    Some(loaded) => {
                        let warmed = loaded.warm_up().await;
                        if loaded.backend.discovers() {
                            self.catalog.refresh();
                        }
                        warmed.map_err(|error| format!("Warmup exception: {error}"))
                    }
                    None => {
                        let known: Vec<String> = all.iter().map(|name| format!("'{name}'")).collect();
                        Err(format!("Backend not found: {name}. Available backends: [{}]", known.join(", ")))
                    }
                };
                (name.clone(), warmed)
            }
        });
        futures_util::future::join_all(warming).await
    }

    /// Whether each backend is warm.
    pub fn warm(&self) -> Vec<(String, bool)> {
        self.catalog.resources().map(|loaded| (loaded.backend.name().to_owned(), loaded.is_warm())).collect()
    }

    /// All workers of a tenant with their sessions.
    pub fn overview(&self, tenant: &TenantId) -> Vec<WorkerInfo> {
        let mine = self.all().into_iter().filter(|((theirs, _), _)| theirs == tenant);
        let info = |((_, worker_id), worker): (Key, Arc<Worker>)| WorkerInfo {
            worker_id,
            node: None,
            sessions: worker.shown_sessions().iter().map(|session| session.listed()).collect(),
        };
        mine.map(info).collect()
    }
}

fn name_of(loaded: &Arc<Loaded>) -> String {
    loaded.backend.name().to_owned()
}

/// The server itself as caller.
fn own(tenant: TenantId) -> Caller {
    Caller { tenant, request_id: String::new(), origin: None }
}
