//! States on other nodes than those that sealed them.
//!
//! ```text
//!  snapshot of the node A ──its archive──► a file without a name on B ──► a state of B ──► a record: B has a copy
//! ```
//!
//! A copy belongs to its snapshot: it has no name, and counts in no quota. Its record names the state that it is of, so the copy of a
//! snapshot that was removed is never taken for another one with the same name. A removal of the snapshot removes the records of
//! copies, and each node its own states: at once, or at its next start. What a fork needs on another node is such a state without
//! any record, which a start gives up.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arenite_engine::{EngineError, HeldState, ImportedState, SealedState, StagedState};
use arenite_image::{Image, SnapshotArchive, SnapshotReader};
use arenite_model::{NodeName, SandboxSpec, SnapshotName, StateId, TenantId, Tier};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::exchange::{CancelOnDrop, blocking, check_size};
use super::{LocalSnapshot, Snapshot};
use crate::images::owner_of;
use crate::store::{Record, RecordId, RecordKind, StoreError, to_json};
use crate::{Control, ControlError};

/// The record of a copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Copied {
    node: NodeName,
    /// The state of the snapshot.
    of: StateId,
    /// The state on that node.
    state: StateId,
}

/// The record of a snapshot that was removed while its node did not run. Its key is the state.
#[derive(Serialize, Deserialize)]
struct Removal {
    node: NodeName,
}

/// What the engine keeps with a copy. Earlier versions can't read it as a snapshot, and remove it.
#[derive(Serialize, Deserialize)]
struct CopyMemo {
    copy_of: Snapshot,
}

/// Where a snapshot's disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPlace {
    pub node: NodeName,
    /// The state on that node.
    pub state: StateId,
}

/// A state that is sent to another node. It stays on the disk until this value is dropped.
#[derive(Debug)]
pub struct SentState {
    pub archive: SnapshotArchive,
    _held: HeldState,
    _place: OwnedSemaphorePermit,
}

/// The right to receive a state, with the file for its archive, which has no name.
#[derive(Debug)]
pub struct ReceivedState {
    file: File,
    _place: OwnedSemaphorePermit,
}

impl ReceivedState {
    /// The file to fill, from its start.
    pub fn file(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }
}

impl Snapshot {
    fn copy_id(&self, node: &NodeName) -> RecordId {
        RecordId { kind: RecordKind::SnapshotCopy, tenant: self.tenant.clone(), key: format!("{}/{node}", self.name) }
    }
}

impl Control {
    /// What this server has on its disk of a snapshot.
    pub(super) fn local_copy(&self, snapshot: &Snapshot) -> Option<LocalSnapshot> {
        let local = self.snapshots.get(&snapshot.tenant, &snapshot.name);
        local.filter(|local| local.snapshot.state == snapshot.state)
    }

    /// Whether this server has a snapshot's disk.
    pub fn has_snapshot(&self, snapshot: &Snapshot) -> bool {
        self.local_copy(snapshot).is_some()
    }

    /// The nodes that have a snapshot's disk, its own first. Empty without a cluster.
    pub async fn places_of_snapshot(&self, snapshot: &Snapshot) -> Result<Vec<SnapshotPlace>, ControlError> {
        Ok(self.places_of_snapshots(&snapshot.tenant, std::slice::from_ref(snapshot)).await?.pop().unwrap_or_default())
    }

    /// The same of several snapshots of a tenant, in their order.
    pub async fn places_of_snapshots(
        &self,
        tenant: &TenantId,
        snapshots: &[Snapshot],
    ) -> Result<Vec<Vec<SnapshotPlace>>, ControlError> {
        if self.nodes_store().is_none() {
            return Ok(vec![Vec::new(); snapshots.len()]);
        }
        let mut copies: BTreeMap<StateId, Vec<SnapshotPlace>> = BTreeMap::new();
        for Copied { node, of, state } in self.copies_of(Some(tenant)).await?.into_values() {
            copies.entry(of).or_default().push(SnapshotPlace { node, state });
        }
        let places_of = |snapshot: &Snapshot| {
            let own = snapshot.node.clone().map(|node| SnapshotPlace { node, state: snapshot.state.clone() });
            own.into_iter().chain(copies.remove(&snapshot.state).unwrap_or_default()).collect()
        };
        Ok(snapshots.iter().map(places_of).collect())
    }

    async fn copies_of(&self, tenant: Option<&TenantId>) -> Result<BTreeMap<RecordId, Copied>, ControlError> {
        let unread = ControlError::store("read the copies of snapshots");
        let records = match tenant {
            Some(tenant) => self.store.records_of(RecordKind::SnapshotCopy, tenant).await,
            None => self.store.records(RecordKind::SnapshotCopy).await,
        };
        let read = |record: Record| Ok::<_, StoreError>((record.id.clone(), record.parse()?));
        records.map_err(&unread)?.into_iter().map(read).collect::<Result<_, _>>().map_err(unread)
    }

    /// Reads a state of this server, to send it to another node. Its processes are left out.
    ///
    /// # Errors
    /// [`ControlError::Exhausted`] if others are sent for too long.
    pub async fn send_state(&self, state: &StateId) -> Result<SentState, ControlError> {
        let missing = || EngineError::NoState { id: state.clone() };
        let sealed = self.engine.state(state).ok_or_else(missing)?;
        let store = self.images()?.store().clone();
        let place = self.exchanges.wait_to_send().await?;
        let held = self.engine.hold_state(state).await?;
        let cancel = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(Arc::clone(&cancel));
        blocking(move || {
            let config = store.get_of(sealed.image_owner.as_ref(), &sealed.image)?.config;
            let archive = SnapshotArchive::plan(&sealed.image, &config, &held.layers, BTreeMap::new(), &cancel)?;
            Ok(SentState { archive, _held: held, _place: place })
        })
        .await
    }

    /// Waits for a place to receive a state of another node, before anything of it is sent.
    ///
    /// # Errors
    /// [`ControlError::Exhausted`] if others are received for too long.
    pub async fn wait_to_receive(&self) -> Result<OwnedSemaphorePermit, ControlError> {
        self.engine.check_states()?;
        self.images()?;
        self.exchanges.wait_to_receive().await
    }

    /// The file for a state of this size.
    ///
    /// # Errors
    /// Too little disk, or an archive that is too large.
    pub async fn begin_receive(&self, place: OwnedSemaphorePermit, bytes: u64) -> Result<ReceivedState, ControlError> {
        check_size(bytes)?;
        Ok(ReceivedState { file: self.file_for_archive(bytes).await?, _place: place })
    }

    /// Adds a complete archive as a copy of a snapshot of another node.
    ///
    /// # Errors
    /// [`ControlError::NoSnapshot`] if it was removed meanwhile; those of an import.
    pub async fn add_copy(&self, received: ReceivedState, snapshot: Snapshot) -> Result<(), ControlError> {
        self.detached(self.operation()?, |control| async move {
            let tenant = snapshot.tenant.clone();
            let (unpacked, _place) = control.unpack_received(&tenant, received).await?;
            let image = unpacked.image.name.clone();
            let added = control.keep_copy(snapshot, unpacked).await;
            if added.is_err() {
                let _change = control.snapshots.change.lock().await;
                control.forget_snapshot_image(&tenant, &image).await;
            }
            added
        })
        .await
    }

    async fn keep_copy(&self, snapshot: Snapshot, unpacked: UnpackedState) -> Result<(), ControlError> {
        let failed = ControlError::store("remember the copy of a snapshot");
        let own = self.own_node().ok_or_else(|| ControlError::NoSnapshot { name: snapshot.name.clone() })?;
        let _change = self.snapshots.change.lock().await;
        self.check_unchanged(&snapshot).await?;
        let memo = to_json(&CopyMemo { copy_of: snapshot.clone() }).map_err(&failed)?;
        let image = unpacked.image.name.clone();
        let state = self.seal_received(&snapshot.tenant, unpacked, snapshot.tier, snapshot.note.clone(), Some(memo)).await?;
        let copied = Copied { node: own.clone(), of: snapshot.state.clone(), state: state.id.clone() };
        let local = LocalSnapshot { snapshot: snapshot.clone(), state: state.id, image };
        let record = to_json(&copied).map(|value| Record { id: snapshot.copy_id(&own), value, expires_at: None });
        let written = match record {
            Ok(record) => self.store.put_record(record).await,
            Err(error) => Err(error),
        };
        // A removal that did not see the record has removed the snapshot's before.
        let kept = match written {
            Ok(()) => self.check_unchanged(&snapshot).await,
            Err(error) => Err(failed(error)),
        };
        if let Err(error) = kept {
            self.remove_local(&local).await?;
            return Err(error);
        }
        tracing::info!(snapshot = %snapshot.name, state = %local.state, "copied a snapshot from another node");
        if let Some(stale) = self.snapshots.put(local) {
            self.engine.remove_state(&stale.state).await?;
        }
        Ok(())
    }

    async fn check_unchanged(&self, snapshot: &Snapshot) -> Result<(), ControlError> {
        match self.snapshot(&snapshot.tenant, &snapshot.name).await? {
            now if now.state == snapshot.state => Ok(()),
            _ => Err(ControlError::NoSnapshot { name: snapshot.name.clone() }),
        }
    }

    /// Adds a complete archive as a state for forks: [`Control::end_received_fork`] gives it up. Returns the spec with that state.
    pub async fn add_fork(
        &self,
        received: ReceivedState,
        tenant: &TenantId,
        spec: SandboxSpec,
    ) -> Result<SandboxSpec, ControlError> {
        let tenant = tenant.clone();
        self.detached(self.operation()?, move |control| async move {
            let (unpacked, _place) = control.unpack_received(&tenant, received).await?;
            let image = unpacked.image.name.clone();
            match control.seal_received(&tenant, unpacked, spec.tier.unwrap_or_default(), None, None).await {
                Ok(state) => Ok(SandboxSpec { image, image_owner: owner_of(&tenant), state: Some(state.id), ..spec }),
                Err(error) => {
                    let _change = control.snapshots.change.lock().await;
                    control.forget_snapshot_image(&tenant, &image).await;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Gives up the state of forks of another node's sandbox.
    pub async fn end_received_fork(&self, tenant: &TenantId, spec: &SandboxSpec) {
        if let Some(state) = &spec.state {
            self.end_fork(state).await;
        }
        let _change = self.snapshots.change.lock().await;
        self.forget_snapshot_image(tenant, &spec.image).await;
    }

    async fn unpack_received(
        &self,
        tenant: &TenantId,
        received: ReceivedState,
    ) -> Result<(UnpackedState, OwnedSemaphorePermit), ControlError> {
        let (store, owner) = (self.images()?.store().clone(), owner_of(tenant));
        let ReceivedState { file, _place: place } = received;
        let (reader, image) = blocking(move || {
            let reader = SnapshotReader::open(file)?;
            let image = reader.install_image(&store, owner.as_ref())?;
            Ok((reader, image))
        })
        .await?;
        match self.unpack_own_layer(reader, &image).await {
            Ok((staged, layers)) => Ok((UnpackedState { image, staged, layers }, place)),
            Err(error) => {
                let _change = self.snapshots.change.lock().await;
                self.forget_snapshot_image(tenant, &image.name).await;
                Err(error)
            }
        }
    }

    async fn seal_received(
        &self,
        tenant: &TenantId,
        unpacked: UnpackedState,
        tier: Tier,
        note: Option<String>,
        memo: Option<String>,
    ) -> Result<SealedState, ControlError> {
        let UnpackedState { image, staged, layers } = unpacked;
        let image_owner = owner_of(tenant);
        if !self.images()?.store().has(image_owner.as_ref(), &image.name) {
            return Err(arenite_image::ImageError::NotFound { name: image.name }.into());
        }
        let about = ImportedState { image: image.name, image_owner, layers, tier, note, memo };
        Ok(self.engine.import_state(staged, about).await?)
    }

    /// Removes this server's copy with this state, after the snapshot was removed. Fine if there is none.
    pub async fn drop_copy(&self, state: &StateId) -> Result<(), ControlError> {
        let state = state.clone();
        self.detached(self.operation()?, move |control| async move {
            let _change = control.snapshots.change.lock().await;
            let find = |local: &&LocalSnapshot| local.is_copy() && local.state == state;
            let local = control.snapshots.map().values().find(find).cloned();
            let Some(local) = local else { return Ok(()) };
            match control.check_unchanged(&local.snapshot).await {
                Err(ControlError::NoSnapshot { .. }) => {}
                unchanged => return unchanged,
            }
            control.snapshots.map().remove(&(local.snapshot.tenant.clone(), local.snapshot.name.clone()));
            control.remove_local(&local).await
        })
        .await
    }

    /// Removes this server's copies of snapshots that were removed: the message of another node may not have arrived.
    pub(crate) async fn drop_stale_copies(&self) -> Result<(), ControlError> {
        let copies: Vec<LocalSnapshot> = self.snapshots.map().values().filter(|local| local.is_copy()).cloned().collect();
        for local in copies {
            self.drop_copy(&local.state).await?;
        }
        Ok(())
    }

    /// Removes a copy that is not in the map, with its record. The caller holds the lock of snapshots.
    pub(super) async fn remove_local(&self, local: &LocalSnapshot) -> Result<(), ControlError> {
        self.engine.remove_state(&local.state).await?;
        if let Some(own) = self.own_node().filter(|_| local.is_copy()) {
            let id = local.snapshot.copy_id(&own);
            let failed = ControlError::store("forget the copy of a snapshot");
            // That of a newer copy stays.
            let record = self.store.record(&id).await.map_err(&failed)?;
            let copied = record.map(|record| record.parse::<Copied>()).transpose().map_err(&failed)?;
            if copied.is_some_and(|copied| copied.state == local.state) {
                self.store.remove_record(&id).await.map_err(&failed)?;
            }
        }
        self.forget_snapshot_image(&local.snapshot.tenant, &local.image).await;
        Ok(())
    }

    /// Notes that a node which does not run has to remove the state of a snapshot.
    pub(super) async fn note_removal(&self, snapshot: &Snapshot, node: NodeName) -> Result<(), ControlError> {
        let failed = ControlError::store("note the removal of a snapshot");
        let value = to_json(&Removal { node }).map_err(&failed)?;
        let record = Record { id: removal_id(&snapshot.tenant, &snapshot.state), value, expires_at: None };
        self.store.put_record(record).await.map_err(failed)
    }

    /// Removes the states of snapshots that other nodes removed while this one did not run.
    pub(super) async fn remove_states_of_others(&self, sealed: &mut BTreeMap<StateId, SealedState>) -> Result<(), ControlError> {
        let Some(own) = self.own_node() else { return Ok(()) };
        let failed = ControlError::store("read the removals of snapshots");
        for record in self.store.records(RecordKind::SnapshotRemoval).await.map_err(&failed)? {
            if record.parse::<Removal>().map_err(&failed)?.node != own {
                continue;
            }
            let state: Option<StateId> = record.id.key.parse().ok();
            if let Some(state) = state.filter(|state| sealed.remove(state).is_some()) {
                self.engine.remove_state(&state).await?;
            }
            self.store.remove_record(&record.id).await.map_err(&failed)?;
        }
        Ok(())
    }

    /// Takes over this server's copies from `sealed`. Those of removed snapshots are removed, and records without a copy.
    pub(super) async fn load_copies(
        &self,
        sealed: &mut BTreeMap<StateId, SealedState>,
        of_others: &BTreeMap<StateId, Snapshot>,
    ) -> Result<(), ControlError> {
        let Some(own) = self.own_node() else { return Ok(()) };
        let failed = ControlError::store("read the copies of snapshots");
        let mut records = self.copies_of(None).await?;
        records.retain(|_, copied| copied.node == own);
        let mut stale = Vec::new();
        let memo_of = |state: &SealedState| serde_json::from_str::<CopyMemo>(state.memo.as_deref()?).ok();
        let copies: Vec<(SealedState, Snapshot)> =
            sealed.values().filter_map(|state| Some((state.clone(), memo_of(state)?.copy_of))).collect();
        for (state, snapshot) in copies {
            sealed.remove(&state.id);
            let local = LocalSnapshot { snapshot, state: state.id, image: state.image };
            if !of_others.contains_key(&local.snapshot.state) {
                stale.push(local);
                continue;
            }
            let id = local.snapshot.copy_id(&own);
            if records.remove(&id).is_none_or(|copied| copied.state != local.state) {
                let copied = Copied { node: own.clone(), of: local.snapshot.state.clone(), state: local.state.clone() };
                let record = Record { id, value: to_json(&copied).map_err(&failed)?, expires_at: None };
                self.store.put_record(record).await.map_err(&failed)?;
            }
            if let Some(twice) = self.snapshots.put(local) {
                self.engine.remove_state(&twice.state).await?;
            }
        }
        for id in records.into_keys() {
            self.store.remove_record(&id).await.map_err(&failed)?;
        }
        for local in stale {
            self.remove_local(&local).await?;
        }
        Ok(())
    }

    /// Which nodes besides this one have a copy of a snapshot: they have to remove it.
    pub async fn copies_elsewhere(&self, tenant: &TenantId, name: &SnapshotName) -> Result<Vec<SnapshotPlace>, ControlError> {
        if self.nodes_store().is_none() {
            return Ok(Vec::new());
        }
        let (own, prefix) = (self.own_node(), format!("{name}/"));
        let copies = self.copies_of(Some(tenant)).await?.into_iter();
        let theirs = copies.filter(|(id, copied)| id.key.starts_with(&prefix) && Some(&copied.node) != own.as_ref());
        Ok(theirs.map(|(_, copied)| SnapshotPlace { node: copied.node, state: copied.state }).collect())
    }
}

/// A state that was received and unpacked, and is not sealed yet.
struct UnpackedState {
    image: Image,
    staged: StagedState,
    /// The directories below its own layer.
    layers: Vec<PathBuf>,
}

fn removal_id(tenant: &TenantId, state: &StateId) -> RecordId {
    RecordId { kind: RecordKind::SnapshotRemoval, tenant: tenant.clone(), key: state.to_string() }
}
