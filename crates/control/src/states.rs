//! States of sandboxes' disks: checkpoints and returns of one sandbox, and snapshots of a tenant.
//!
//! ```text
//!  sandbox ──checkpoint──► its history ──rollback──► the same sandbox, with other processes
//!     │ ▲
//!     │ └──reset── its beginning, or a snapshot of the same layers
//!     └──snapshot──► named, the tenant's ──create──► other sandboxes
//! ```
//!
//! The engine seals disks and keeps what they need. Checkpoints are its alone: they end with their sandbox. A snapshot has a
//! record in the store too, with its name and its tenant, which the engine keeps as well. A start recreates records that the
//! store lost, and gives up states without a name, which interrupted forks left. A removal starts at the engine, so nothing
//! that was removed comes back.

mod copies;
mod exchange;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_engine::{
    AutoSealed, Comparison, DiskState, EngineError, History, LayeredTree, NetworkLog, Return, Returned, Seal, SealTime, Sealed,
    SealedState, StateKind,
};
use arenite_model::protocol::CarriedSessions;
use arenite_model::{
    Death, DeathReason, ImageName, NodeName, SandboxName, SandboxSpec, SandboxState, SnapshotName, StateId, TenantId, Tier,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::life::unfit;
use crate::registry::Entry;
use crate::store::{Record, RecordId, RecordKind, StoreError};
use crate::tenants::{Quota, QuotaExceeded};
use crate::{Control, ControlError, Sandbox, check_labels, memo};

pub use copies::{ReceivedState, SentState, SnapshotPlace};
pub(crate) use exchange::Exchanges;
pub use exchange::{SnapshotExport, SnapshotImport};

/// The longest comment of a state, in characters.
const MAX_NOTE: usize = 1000;
/// The most snapshots of a tenant without its own quota.
const MAX_SNAPSHOTS: u64 = 10_000;

/// A named state of a sandbox's disk, from which other sandboxes are created. Its JSON is the value of its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub tenant: TenantId,
    pub name: SnapshotName,
    pub state: StateId,
    /// The name of its sandbox at that time.
    pub sandbox: SandboxName,
    pub image: ImageName,
    pub tier: Tier,
    pub labels: BTreeMap<String, String>,
    pub note: Option<String>,
    /// The size of the disk, in bytes; none if the storage can't tell.
    pub disk_bytes: Option<u64>,
    /// The size of the image of its processes, in bytes; none: it has none.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    pub created_at: Timestamp,
    /// The node that has it; none: the server is not one of a cluster.
    pub node: Option<NodeName>,
}

/// A request for a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotRequest {
    pub name: SnapshotName,
    pub labels: BTreeMap<String, String>,
    pub note: Option<String>,
    /// Keeps the processes, too.
    pub keep_processes: bool,
}

impl Snapshot {
    fn id(&self) -> RecordId {
        RecordId { kind: RecordKind::Snapshot, tenant: self.tenant.clone(), key: self.name.to_string() }
    }

    fn record(&self) -> Result<Record, StoreError> {
        Ok(Record { id: self.id(), value: crate::store::to_json(self)?, expires_at: None })
    }

    fn read(record: &Record) -> Result<Self, StoreError> {
        record.parse()
    }
}

/// What the engine keeps with a snapshot.
#[derive(Serialize, Deserialize)]
struct Named {
    tenant: TenantId,
    name: SnapshotName,
    sandbox: SandboxName,
    labels: BTreeMap<String, String>,
    node: Option<NodeName>,
}

impl Named {
    fn snapshot(self, state: SealedState) -> Snapshot {
        Snapshot {
            tenant: self.tenant,
            name: self.name,
            state: state.id,
            sandbox: self.sandbox,
            image: state.image,
            tier: state.tier,
            labels: self.labels,
            note: state.note,
            disk_bytes: state.disk_bytes,
            memory_bytes: state.memory_bytes,
            created_at: state.created_at,
            node: self.node,
        }
    }
}

/// A snapshot that this server has on its disk: its own, or a copy of another node's.
#[derive(Debug, Clone)]
pub(crate) struct LocalSnapshot {
    pub(crate) snapshot: Snapshot,
    /// The state here: another one than the snapshot's if it is a copy.
    pub(crate) state: StateId,
    /// The image below it here.
    pub(crate) image: ImageName,
}

impl LocalSnapshot {
    fn own(snapshot: Snapshot) -> Self {
        let (state, image) = (snapshot.state.clone(), snapshot.image.clone());
        Self { snapshot, state, image }
    }

    fn is_copy(&self) -> bool {
        self.state != self.snapshot.state
    }
}

type Map = BTreeMap<(TenantId, SnapshotName), LocalSnapshot>;

/// The snapshots on this server's disk.
#[derive(Default)]
pub(crate) struct Snapshots {
    map: Mutex<Map>,
    /// Held while the store and the map change.
    change: tokio::sync::Mutex<()>,
}

impl Snapshots {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what had its name: a copy of one that was removed.
    fn put(&self, local: LocalSnapshot) -> Option<LocalSnapshot> {
        self.map().insert((local.snapshot.tenant.clone(), local.snapshot.name.clone()), local)
    }

    fn get(&self, tenant: &TenantId, name: &SnapshotName) -> Option<LocalSnapshot> {
        self.map().get(&(tenant.clone(), name.clone())).cloned()
    }
}

fn check_note(note: Option<&String>) -> Result<(), ControlError> {
    match note.filter(|note| note.chars().count() > MAX_NOTE) {
        Some(_) => {
            Err(arenite_model::SpecError::Invalid { field: "note", reason: format!("give at most {MAX_NOTE} characters") }.into())
        }
        None => Ok(()),
    }
}

impl Control {
    /// Reads the snapshots, and compares them with the engine's.
    pub(crate) async fn load_snapshots(&self) -> Result<(), ControlError> {
        if self.engine.check_states().is_err() {
            return Ok(());
        }
        let unread = ControlError::store("read the snapshots");
        let own = self.own_node();
        let mut sealed: BTreeMap<StateId, SealedState> =
            self.engine.snapshots().into_iter().map(|state| (state.id.clone(), state)).collect();
        self.remove_states_of_others(&mut sealed).await?;
        let mut of_others = BTreeMap::new();
        for record in self.store.records(RecordKind::Snapshot).await.map_err(&unread)? {
            let snapshot = Snapshot::read(&record).map_err(&unread)?;
            if snapshot.node != own {
                of_others.insert(snapshot.state.clone(), snapshot);
                continue;
            }
            match sealed.remove(&snapshot.state) {
                Some(_) => drop(self.snapshots.put(LocalSnapshot::own(snapshot))),
                // Its removal was interrupted.
                None => self.store.remove_record(&record.id).await.map_err(&unread)?,
            }
        }
        self.load_copies(&mut sealed, &of_others).await?;
        for (id, state) in sealed {
            let named = state.memo.as_deref().map(serde_json::from_str::<Named>);
            match named {
                Some(Ok(named)) => {
                    let snapshot = named.snapshot(state);
                    self.store.put_record(snapshot.record().map_err(&unread)?).await.map_err(&unread)?;
                    tracing::info!(name = %snapshot.name, state = %id, "recreated the record of a snapshot");
                    self.snapshots.put(LocalSnapshot::own(snapshot));
                }
                _ => self.engine.remove_state(&id).await?,
            }
        }
        Ok(())
    }

    /// Runs a change of a sandbox's disk under its lock.
    async fn with_disk<T: Send + 'static, F: Future<Output = Result<T, ControlError>> + Send + 'static>(
        &self,
        tenant: &TenantId,
        name: &SandboxName,
        work: impl FnOnce(std::sync::Arc<Self>, std::sync::Arc<Entry>) -> F + Send + 'static,
    ) -> Result<T, ControlError> {
        self.engine.check_states()?;
        let operation = self.operation()?;
        let entry = self.find(tenant, name)?;
        self.detached(operation, |control| async move {
            let lock = std::sync::Arc::clone(&entry);
            let _change = lock.change.lock().await;
            control.still_there(&entry)?;
            let now = entry.current();
            match now.state {
                SandboxState::Creating | SandboxState::Deleting => Err(unfit(&now, "sealed")),
                _ => work(control, entry).await,
            }
        })
        .await
    }

    /// Seals the disk of a sandbox as a checkpoint of its history, maybe with its processes. It is not woken.
    pub async fn checkpoint(
        &self,
        tenant: &TenantId,
        name: &SandboxName,
        note: Option<String>,
        keep_processes: bool,
    ) -> Result<Sealed, ControlError> {
        check_note(note.as_ref())?;
        self.with_disk(tenant, name, move |control, entry| async move {
            let seal =
                Seal { kind: StateKind::Checkpoint, note, memo: None, image_owner: None, keep_processes, for_forks: false };
            control.seal(&entry, seal).await
        })
        .await
    }

    async fn seal(&self, entry: &Entry, seal: Seal) -> Result<Sealed, ControlError> {
        let seal = Seal { image_owner: entry.sandbox().spec.image_owner.clone(), ..seal };
        // Connections end when processes are saved, so calls that arrive meanwhile wait.
        let is_closed = seal.keep_processes && entry.sandbox().state == SandboxState::Running;
        if is_closed {
            entry.close();
        }
        let sealed = self.bounded("sealing the disk", &entry.name, self.engine.seal(&entry.id, seal)).await;
        if is_closed && entry.sandbox().state == SandboxState::Running {
            entry.open();
        }
        sealed
    }

    /// Seals the disk of a sandbox around a step, unless nothing changed since the last automatic checkpoint.
    pub async fn seal_around_step(&self, sandbox: &Sandbox, when: SealTime) -> Result<AutoSealed, ControlError> {
        let (id, image_owner) = (sandbox.id.clone(), sandbox.spec.image_owner.clone());
        self.with_disk(&sandbox.tenant, &sandbox.name, move |control, entry| async move {
            if entry.id != id {
                return Err(ControlError::NoSuchId { id });
            }
            let sealed = control.engine.seal_around(&entry.id, when, image_owner);
            control.bounded("sealing the disk", &entry.name, sealed).await
        })
        .await
    }

    /// What the egress proxy decided for a sandbox.
    pub fn network_log(&self, sandbox: &Sandbox) -> NetworkLog {
        self.engine.network_log(&sandbox.id)
    }

    /// A sandbox's checkpoints.
    pub async fn history(&self, tenant: &TenantId, name: &SandboxName) -> Result<History, ControlError> {
        let entry = self.find(tenant, name)?;
        Ok(self.engine.history(&entry.id).await?)
    }

    /// Removes a checkpoint.
    pub async fn remove_checkpoint(&self, tenant: &TenantId, name: &SandboxName, state: StateId) -> Result<(), ControlError> {
        self.with_disk(tenant, name, |control, entry| async move {
            control.own_checkpoint(&entry, &state)?;
            Ok(control.engine.remove_state(&state).await?)
        })
        .await
    }

    /// Refuses a state that is no checkpoint of this sandbox.
    fn own_checkpoint(&self, entry: &Entry, state: &StateId) -> Result<SealedState, ControlError> {
        let found = self.engine.state(state);
        let own = found.filter(|found| found.kind == StateKind::Checkpoint && found.sandbox == entry.id);
        own.ok_or_else(|| EngineError::NoState { id: state.clone() }.into())
    }

    /// Returns a sandbox to one of its checkpoints, to its beginning, or to a snapshot of the same layers. Its processes end.
    pub async fn return_to(
        &self,
        tenant: &TenantId,
        name: &SandboxName,
        back: Return,
        snapshot: Option<SnapshotName>,
    ) -> Result<(Sandbox, Returned), ControlError> {
        self.engine.check_states()?;
        let back = match snapshot {
            Some(name) => Return { to: DiskState::Sealed(self.snapshot_here(tenant, &name).await?.state), ..back },
            None => back,
        };
        self.with_disk(tenant, name, |control, entry| async move {
            if let DiskState::Sealed(state) = &back.to
                && control.engine.state(state).is_none_or(|found| found.kind == StateKind::Checkpoint)
            {
                control.own_checkpoint(&entry, state)?;
            }
            control.return_locked(&entry, back).await
        })
        .await
    }

    async fn return_locked(&self, entry: &Entry, back: Return) -> Result<(Sandbox, Returned), ControlError> {
        let before = entry.current();
        let is_dead = matches!(before.state, SandboxState::Failed | SandboxState::Lost) || before.is_stopped();
        if is_dead {
            self.reserve_to_run(&before).await?;
        }
        entry.close();
        self.sample_last(entry).await;
        self.reset_meter(entry).await;
        let row = memo::row(&before);
        let spec = self.spec_for_engine(&before)?;
        let returned = self.engine.return_to(&row, &spec, back);
        match self.bounded("the return", &entry.name, returned).await {
            Ok((created, returned)) => {
                let running = Sandbox { state: SandboxState::Running, reason: None, died: None, pause_kind: None, ..before };
                let mut running = running.isolated(created.tier, created.isolation);
                running.stages =
                    created.stages.iter().map(|(name, time)| ((*name).to_owned(), time.as_secs_f64() * 1e3)).collect();
                let now = self.clock.now();
                (running.state_since, running.last_used_at) = (now, now);
                entry.used_at(now);
                let running = self.settle(entry, running).await;
                entry.open();
                tracing::info!(id = %entry.id, name = %entry.name, "returned a sandbox to an earlier state");
                Ok((running, returned))
            }
            Err(error) => {
                let runs = self.engine.usage(&entry.id).await.is_ok();
                if runs && before.state == SandboxState::Running {
                    entry.open();
                } else if !runs && !is_dead {
                    let message = format!("it could not be started on the disk that it returned to: {error}");
                    self.follow(entry, SandboxState::Failed, Some(Death::with_message(DeathReason::GuestFailed, message))).await;
                }
                Err(error)
            }
        }
    }

    /// Compares two states of a sandbox's disk. It is not woken.
    pub async fn compare(
        &self,
        tenant: &TenantId,
        name: &SandboxName,
        before: DiskState,
        after: DiskState,
        limit: usize,
    ) -> Result<Comparison, ControlError> {
        let entry = self.find(tenant, name)?;
        for side in [&before, &after] {
            if let DiskState::Sealed(state) = side {
                self.own_checkpoint(&entry, state)?;
            }
        }
        Ok(self.engine.compare(&entry.id, before, after, limit).await?)
    }

    /// Seals the disk of a sandbox as a snapshot of its tenant. It is not woken.
    ///
    /// # Errors
    /// [`ControlError::SnapshotExists`]; [`ControlError::Quota`] beyond the tenant's number of snapshots.
    pub async fn create_snapshot(
        &self,
        tenant: &TenantId,
        sandbox: &SandboxName,
        request: SnapshotRequest,
    ) -> Result<Snapshot, ControlError> {
        check_labels(&request.labels)?;
        check_note(request.note.as_ref())?;
        self.with_disk(tenant, sandbox, move |control, entry| async move {
            let SnapshotRequest { name, labels, note, keep_processes } = request;
            let _change = control.snapshots.change.lock().await;
            control.check_new_snapshot(&entry.tenant, Some(&name)).await?;
            let failed = ControlError::store("describe a snapshot");
            let named =
                Named { tenant: entry.tenant.clone(), name, sandbox: entry.name.clone(), labels, node: control.own_node() };
            let memo = Some(crate::store::to_json(&named).map_err(&failed)?);
            let seal = Seal { kind: StateKind::Snapshot, note, memo, image_owner: None, keep_processes, for_forks: false };
            let state = control.seal(&entry, seal).await?.state;
            control.remember_snapshot(named, state).await
        })
        .await
    }

    /// Refuses a name that is taken, and more snapshots than the tenant may have.
    async fn check_new_snapshot(&self, tenant: &TenantId, name: Option<&SnapshotName>) -> Result<(), ControlError> {
        let failed = ControlError::store("remember a snapshot");
        if let Some(name) = name {
            let id = RecordId { kind: RecordKind::Snapshot, tenant: tenant.clone(), key: name.to_string() };
            if self.store.record(&id).await.map_err(&failed)?.is_some() {
                return Err(ControlError::SnapshotExists { name: name.clone() });
            }
        }
        let used = self.store.count_records(RecordKind::Snapshot, tenant).await.map_err(&failed)?;
        let limit = self.tenant_limits(tenant).snapshots.unwrap_or(MAX_SNAPSHOTS);
        if used >= limit {
            return Err(QuotaExceeded { quota: Quota::Snapshots, limit, used, requested: 1 }.into());
        }
        Ok(())
    }

    /// Writes the record of a sealed snapshot. If that fails, its state is removed.
    async fn remember_snapshot(&self, named: Named, state: SealedState) -> Result<Snapshot, ControlError> {
        let id = state.id.clone();
        let snapshot = named.snapshot(state);
        let written = match snapshot.record() {
            Ok(record) => self.store.put_record(record).await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            self.engine.remove_state(&id).await?;
            return Err(ControlError::store("remember a snapshot")(error));
        }
        if let Some(stale) = self.snapshots.put(LocalSnapshot::own(snapshot.clone())) {
            self.remove_local(&stale).await?;
        }
        Ok(snapshot)
    }

    /// The images that snapshots on this server's disk are of.
    pub(crate) fn images_of_snapshots(&self) -> Vec<ImageName> {
        self.snapshots.map().values().map(|local| local.image.clone()).collect()
    }

    /// A tenant's snapshots on all nodes, by name.
    pub async fn snapshots(&self, tenant: &TenantId) -> Result<Vec<Snapshot>, ControlError> {
        if self.nodes_store().is_none() {
            let map = self.snapshots.map();
            return Ok(map.values().map(|local| &local.snapshot).filter(|one| one.tenant == *tenant).cloned().collect());
        }
        let unread = ControlError::store("read the snapshots");
        let records = self.store.records_of(RecordKind::Snapshot, tenant).await.map_err(&unread)?;
        let mut found: Vec<Snapshot> = records.iter().map(Snapshot::read).collect::<Result<_, _>>().map_err(unread)?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// A snapshot of any node.
    pub async fn snapshot(&self, tenant: &TenantId, name: &SnapshotName) -> Result<Snapshot, ControlError> {
        let none = || ControlError::NoSnapshot { name: name.clone() };
        if self.nodes_store().is_none() {
            return self.snapshots.get(tenant, name).map(|local| local.snapshot).ok_or_else(none);
        }
        let unread = ControlError::store("read a snapshot");
        let id = RecordId { kind: RecordKind::Snapshot, tenant: tenant.clone(), key: name.to_string() };
        let record = self.store.record(&id).await.map_err(&unread)?.ok_or_else(none)?;
        Snapshot::read(&record).map_err(unread)
    }

    /// A snapshot that is on this server's disk.
    async fn snapshot_here(&self, tenant: &TenantId, name: &SnapshotName) -> Result<LocalSnapshot, ControlError> {
        let snapshot = self.snapshot(tenant, name).await?;
        match (self.local_copy(&snapshot), snapshot.node) {
            (Some(local), _) => Ok(local),
            (None, Some(node)) => Err(ControlError::SnapshotElsewhere { name: name.clone(), node }),
            (None, None) => Err(ControlError::NoSnapshot { name: name.clone() }),
        }
    }

    /// The files of a snapshot's disk, as a sandbox would see them.
    pub async fn snapshot_files(&self, tenant: &TenantId, name: &SnapshotName) -> Result<(Snapshot, LayeredTree), ControlError> {
        let local = self.snapshot_here(tenant, name).await?;
        let files = self.engine.state_files(&local.state).await?;
        Ok((local.snapshot, files))
    }

    /// Removes a snapshot, on this node. Sandboxes that were created from it keep their disks and their beginning. If it is
    /// another node's that does not run, that node removes its state when it starts again.
    ///
    /// # Errors
    /// [`ControlError::SnapshotElsewhere`] if that node runs, and has to do it.
    pub async fn remove_snapshot(&self, tenant: &TenantId, name: &SnapshotName) -> Result<Snapshot, ControlError> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.detached(self.operation()?, |control| async move {
            let _change = control.snapshots.change.lock().await;
            let snapshot = control.snapshot(&tenant, &name).await?;
            match snapshot.node.clone().filter(|node| Some(node) != control.own_node().as_ref()) {
                None => control.engine.remove_state(&snapshot.state).await?,
                Some(node) if control.may_answer(&node) => return Err(ControlError::SnapshotElsewhere { name, node }),
                Some(node) => control.note_removal(&snapshot, node).await?,
            }
            control.store.remove_record(&snapshot.id()).await.map_err(ControlError::store("forget a snapshot"))?;
            let local = control.snapshots.map().remove(&(tenant.clone(), name));
            match local {
                Some(local) if local.is_copy() => control.remove_local(&local).await?,
                _ => control.forget_snapshot_image(&tenant, &snapshot.image).await,
            }
            Ok(snapshot)
        })
        .await
    }

    /// The spec that a sandbox from a snapshot starts with.
    pub(crate) fn spec_of_snapshot(&self, tenant: &TenantId, name: &SnapshotName) -> Result<SandboxSpec, ControlError> {
        let none = || ControlError::NoSnapshot { name: name.clone() };
        let local = self.snapshots.get(tenant, name).ok_or_else(none)?;
        let state = self.engine.state(&local.state).ok_or_else(none)?;
        Ok(spec_of_state(&state))
    }

    /// The state that forks of a sandbox start as: a checkpoint of it, or its disk, which is sealed for them, maybe with its
    /// processes. Without them, the forks get the sessions of a running parent. Then [`Control::end_fork`] gives the state up.
    pub async fn begin_fork(
        &self,
        tenant: &TenantId,
        name: &SandboxName,
        checkpoint: Option<StateId>,
        keep_processes: bool,
    ) -> Result<(Sandbox, StateId, Option<Arc<CarriedSessions>>), ControlError> {
        self.with_disk(tenant, name, move |control, entry| async move {
            if let Some(checkpoint) = checkpoint {
                control.own_checkpoint(&entry, &checkpoint)?;
                return Ok((entry.current(), checkpoint, None));
            }
            // Shells go on with kept processes, except beside a VM.
            let go_on = keep_processes && entry.sandbox().spec.tier != Some(Tier::Machine);
            let sessions = async { if go_on { None } else { control.sessions_for_forks(&entry).await } };
            let seal =
                Seal { kind: StateKind::Snapshot, note: None, memo: None, image_owner: None, keep_processes, for_forks: true };
            let (sessions, sealed) = tokio::join!(sessions, control.seal(&entry, seal));
            Ok((entry.current(), sealed?.state.id, sessions.map(Arc::new)))
        })
        .await
    }

    /// Whether a sandbox of this spec started with the processes of a state. None: it did not start as a state.
    pub fn keeps_processes(&self, spec: &SandboxSpec) -> Option<bool> {
        let state = self.engine.state(spec.state.as_ref()?);
        Some(!spec.restart_processes && state.is_some_and(|state| state.memory_bytes.is_some()))
    }

    /// Gives up the state of forks: it stays as long as one of them exists.
    pub async fn end_fork(&self, state: &StateId) {
        if let Err(error) = self.engine.remove_state(state).await {
            tracing::warn!(%state, %error, "the state of forks stays until the next start");
        }
    }
}

/// A spec with a state's image, owner and tier, and otherwise defaults.
fn spec_of_state(state: &SealedState) -> SandboxSpec {
    SandboxSpec {
        state: Some(state.id.clone()),
        image_owner: state.image_owner.clone(),
        tier: Some(state.tier),
        ..SandboxSpec::of_image(state.image.clone())
    }
}
