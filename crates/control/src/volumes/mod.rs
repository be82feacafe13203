//! Volumes: storage of a tenant that outlives sandboxes, and that several of them mount at once.
//!
//! ```text
//!            create, copy                        remove
//! (nothing) ──────────────► ready ──────────────────────────► removing ──► (nothing)
//!     files, row, memo        │                                  files, then the row
//!                             └─ its files are not there: missing
//! ```
//!
//! A volume is on the node that made it. Its row is in the store, its files are in the engine's storage, with a memo of the row
//! that is written last. So a start knows what a crash interrupted: files without row and memo were being made, and are removed;
//! files with a memo and no row belong to a row that the store has lost, which is written again. A row says that its volume is
//! being removed before anything of it is removed.
//!
//! Where a cluster runs the sandboxes, its volumes are claims there, and on no node. Their memos are annotations.
//!
//! The files of a volume in a bucket are objects below `TENANT/ID` there, and what the engine's storage has is a cache. Objects
//! are removed before it.
//!
//! A create of a sandbox counts as a use of its volumes from the moment it has found them. A removal begins only without any use,
//! and no create finds the volume after that.

mod place;
mod recovery;
mod uses;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arenite_engine::file_tree::FileTree;
use arenite_engine::{Backing, BucketError, Buckets, EngineError, StorageError};
use arenite_model::{ErrorCode, NodeName, SandboxName, SandboxSpec, SandboxState, SpecError, TenantId, VolumeId, VolumeName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::place::VolumePlace;
use self::uses::HeldVolumes;
pub(crate) use self::uses::VolumeUses;
use crate::registry::Entry;
use crate::store::{Record, RecordId, RecordKind, StoreError};
use crate::tenants::TenantLimits;
use crate::{Control, ControlError, check_labels};

/// The most volumes of a tenant, whatever its quotas are.
const MAX_VOLUMES: usize = 10_000;
pub(crate) const WHAT: &str = "volumes of this tenant";
/// The smallest and the largest size, in bytes.
const SIZES: [u64; 2] = [16 << 20, 1 << 50];
const DEFAULT_SIZE: u64 = 10 << 30;
/// Attempts at a change of a row that others change at the same time.
const ATTEMPTS: usize = 8;

/// A volume of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub tenant: TenantId,
    pub name: VolumeName,
    pub id: VolumeId,
    /// Its limit, in bytes. Of one in a bucket, it bounds what waits for its upload.
    pub size_bytes: u64,
    /// The bucket that has its files, as the operator named it; none: the storage has them.
    pub bucket: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub created_at: Timestamp,
    /// The node that has its files; none without nodes.
    pub node: Option<NodeName>,
    /// Its removal has begun.
    pub is_removing: bool,
}

/// What is known of a volume beside its row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// None: the storage can't tell, or another node has it.
    pub used_bytes: Option<u64>,
    /// Whether writes beyond its size fail.
    pub size_enforced: bool,
    /// Its row is here, and its files are not.
    pub is_missing: bool,
    /// Why its bucket or its claim can't be used now.
    pub problem: Option<String>,
    /// Of a volume in a bucket: files that are not there yet. None: unknown.
    pub waiting_uploads: Option<u64>,
    /// Those of this node that have it, in any state.
    pub sandboxes: Vec<SandboxName>,
}

/// A request for a volume.
#[derive(Debug, Clone)]
pub struct NewVolume {
    pub name: VolumeName,
    /// None: 10 GiB, or the size of the volume that is copied.
    pub size_bytes: Option<u64>,
    /// The bucket for its files; none: the storage.
    pub bucket: Option<String>,
    pub labels: BTreeMap<String, String>,
}

/// A change of a volume.
#[derive(Debug, Clone, Default)]
pub struct VolumeChange {
    pub size_bytes: Option<u64>,
    /// Labels to set; none: to remove.
    pub labels: BTreeMap<String, Option<String>>,
}

/// The value of a record. The store adds up `size_bytes`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    id: VolumeId,
    size_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeName>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_removing: bool,
}

/// What is kept beside a volume's files.
#[derive(Serialize, Deserialize)]
struct Memo {
    tenant: TenantId,
    name: VolumeName,
    #[serde(flatten)]
    stored: Stored,
}

impl Volume {
    fn record_id(&self) -> RecordId {
        RecordId { kind: RecordKind::Volume, tenant: self.tenant.clone(), key: self.name.to_string() }
    }

    fn stored(&self) -> Stored {
        Stored {
            id: self.id.clone(),
            size_bytes: self.size_bytes,
            bucket: self.bucket.clone(),
            labels: self.labels.clone(),
            created_at: self.created_at,
            node: self.node.clone(),
            is_removing: self.is_removing,
        }
    }

    fn value(&self) -> Result<String, StoreError> {
        crate::store::to_json(&self.stored())
    }

    fn memo(&self) -> Result<String, StoreError> {
        crate::store::to_json(&Memo { tenant: self.tenant.clone(), name: self.name.clone(), stored: self.stored() })
    }

    fn new(tenant: TenantId, name: VolumeName, stored: Stored) -> Self {
        let Stored { id, size_bytes, bucket, labels, created_at, node, is_removing } = stored;
        Self { tenant, name, id, size_bytes, bucket, labels, created_at, node, is_removing }
    }

    /// Where its objects are, if it is in a bucket.
    fn backing(&self) -> Option<Backing> {
        let bucket = self.bucket.clone()?;
        Some(Backing { bucket, folder: format!("{}/{}", self.tenant, self.id) })
    }

    fn read(record: &Record) -> Result<Self, StoreError> {
        Ok(Self::new(record.id.tenant.clone(), record.parse_key()?, record.parse()?))
    }
}

fn check_size(size_bytes: u64) -> Result<u64, ControlError> {
    let [least, most] = SIZES;
    if (least..=most).contains(&size_bytes) {
        return Ok(size_bytes);
    }
    Err(SpecError::OutOfBounds { field: "size_bytes", value: size_bytes, least, most }.into())
}

impl Control {
    /// A tenant's volumes on all nodes, in any order.
    pub async fn volumes(&self, tenant: &TenantId) -> Result<Vec<Volume>, ControlError> {
        let unread = ControlError::store("read the volumes");
        let records = self.store.records_of(RecordKind::Volume, tenant).await.map_err(&unread)?;
        records.iter().map(Volume::read).collect::<Result<_, _>>().map_err(unread)
    }

    /// The volumes of all tenants that this server has on its disk, with their sizes in bytes. Those in buckets are left out.
    pub(crate) async fn measured_volumes(&self) -> Result<Vec<(Volume, u64)>, ControlError> {
        let Some(storage) = self.engine.volumes() else { return Ok(Vec::new()) };
        let unread = ControlError::store("read the volumes");
        let records = self.store.records(RecordKind::Volume).await.map_err(&unread)?;
        let volumes: Vec<Volume> = records.iter().map(Volume::read).collect::<Result<_, _>>().map_err(unread)?;
        let here = volumes.into_iter().filter(|volume| self.is_here(volume) && volume.bucket.is_none());
        let here: Vec<Volume> = here.collect();
        let measure = move |volume: Volume| Some((storage.volume_usage(&volume.id)?, volume));
        let measured = move || here.into_iter().filter_map(measure).map(|(bytes, volume)| (volume, bytes)).collect();
        tokio::task::spawn_blocking(measured).await.map_err(|_| ControlError::Stopping)
    }

    /// A volume. Another tenant's is not found.
    pub async fn volume(&self, tenant: &TenantId, name: &VolumeName) -> Result<Volume, ControlError> {
        let volume = self.find_volume(tenant, name).await?;
        volume.ok_or_else(|| ControlError::NoVolume { name: name.clone() })
    }

    async fn find_volume(&self, tenant: &TenantId, name: &VolumeName) -> Result<Option<Volume>, ControlError> {
        let unread = ControlError::store("read a volume");
        let id = RecordId { kind: RecordKind::Volume, tenant: tenant.clone(), key: name.to_string() };
        let record = self.store.record(&id).await.map_err(&unread)?;
        record.as_ref().map(Volume::read).transpose().map_err(unread)
    }

    /// The other node that has a volume. None: it is here, nowhere, or there is no cluster.
    pub async fn node_of_volume(&self, tenant: &TenantId, name: &VolumeName) -> Result<Option<NodeName>, ControlError> {
        let Some(own) = self.own_node() else { return Ok(None) };
        Ok(self.find_volume(tenant, name).await?.and_then(|volume| volume.node).filter(|node| *node != own))
    }

    /// The node that this server is; none: it is in no cluster.
    pub fn own_node(&self) -> Option<NodeName> {
        self.nodes_store().map(|store| store.claim().name.clone())
    }

    fn is_here(&self, volume: &Volume) -> bool {
        volume.node.is_none() || volume.node == self.own_node()
    }

    /// A volume that has its files here.
    async fn volume_here(&self, tenant: &TenantId, name: &VolumeName) -> Result<Volume, ControlError> {
        let volume = self.volume(tenant, name).await?;
        match &volume.node {
            Some(node) if !self.is_here(&volume) => Err(ControlError::VolumeElsewhere { name: name.clone(), node: node.clone() }),
            _ => Ok(volume),
        }
    }

    fn buckets(&self) -> Result<Arc<Buckets>, ControlError> {
        let none = || BucketError::NoClient { reason: format!("the engine {} mounts none", self.engine.name()) };
        Ok(self.engine.buckets().ok_or_else(none).map_err(EngineError::from)?)
    }

    /// Runs work that waits for a bucket.
    async fn on_buckets<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Buckets>) -> Result<T, BucketError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let buckets = self.buckets()?;
        let done = tokio::task::spawn_blocking(move || work(&buckets)).await.map_err(|_| ControlError::Stopping)?;
        Ok(done.map_err(EngineError::from)?)
    }

    /// What is known of volumes, in the same order. With `look`, their buckets are asked whether they can be reached.
    pub async fn volume_facts(&self, volumes: &[Volume], look: bool) -> Result<Vec<VolumeFacts>, ControlError> {
        let mut users: HashMap<VolumeId, BTreeSet<SandboxName>> = HashMap::new();
        for entry in self.registry().all() {
            for mount in &entry.sandbox().spec.volumes {
                if let Some(id) = &mount.volume_id {
                    users.entry(id.clone()).or_default().insert(entry.name.clone());
                }
            }
        }
        let here: Vec<Option<VolumeId>> = volumes.iter().map(|volume| self.is_here(volume).then(|| volume.id.clone())).collect();
        let mut facts = self.volume_place()?.facts(here).await?;
        let in_buckets: Vec<Option<VolumeId>> =
            volumes.iter().map(|volume| (volume.bucket.is_some() && self.is_here(volume)).then(|| volume.id.clone())).collect();
        if in_buckets.iter().any(Option::is_some) && self.engine.buckets().is_some() {
            let of_buckets = self
                .on_buckets(move |buckets| {
                    Ok(in_buckets.into_iter().map(|id| Some(buckets.facts(&id?, look))).collect::<Vec<_>>())
                })
                .await?;
            for (facts, of_bucket) in facts.iter_mut().zip(of_buckets) {
                let Some(of_bucket) = of_bucket else { continue };
                (facts.problem, facts.waiting_uploads) = (of_bucket.problem, of_bucket.waiting_uploads);
            }
        }
        for (volume, facts) in volumes.iter().zip(&mut facts) {
            if volume.bucket.is_some() {
                // The storage has a part of the files, and limits only that.
                (facts.used_bytes, facts.size_enforced) = (None, false);
            }
            facts.sandboxes = users.remove(&volume.id).unwrap_or_default().into_iter().collect();
        }
        Ok(facts)
    }

    /// Creates an empty volume.
    pub async fn create_volume(&self, tenant: &TenantId, new: NewVolume) -> Result<Volume, ControlError> {
        self.add_volume(tenant, new, None).await
    }

    /// Creates a volume with the content of another one, at a cost that does not depend on its size.
    pub async fn copy_volume(&self, tenant: &TenantId, source: &VolumeName, new: NewVolume) -> Result<Volume, ControlError> {
        self.volume_place()?.check_copies()?;
        let source = self.volume_here(tenant, source).await?;
        if source.bucket.is_some() || new.bucket.is_some() {
            return Err(ControlError::NoBucketCopies { name: source.name });
        }
        let held = self.hold_volumes(&[&source])?;
        self.add_volume(tenant, new, Some((source, held))).await
    }

    async fn add_volume(
        &self,
        tenant: &TenantId,
        new: NewVolume,
        source: Option<(Volume, HeldVolumes)>,
    ) -> Result<Volume, ControlError> {
        check_labels(&new.labels)?;
        let size_of_source = source.as_ref().map(|(source, _)| source.size_bytes);
        let size_bytes = check_size(new.size_bytes.or(size_of_source).unwrap_or(DEFAULT_SIZE))?;
        let place = self.volume_place()?;
        if let Some(bucket) = new.bucket.clone() {
            self.on_buckets(move |buckets| buckets.check(&bucket)).await?;
        }
        let volume = Volume {
            tenant: tenant.clone(),
            name: new.name,
            id: VolumeId::random(),
            size_bytes,
            bucket: new.bucket,
            labels: new.labels,
            created_at: self.clock.now(),
            node: self.node_of_new_volume(),
            is_removing: false,
        };
        self.detached(self.operation()?, |control| async move {
            // The store decides about creates that race.
            if control.find_volume(&volume.tenant, &volume.name).await?.is_some() {
                return Err(ControlError::VolumeExists { name: volume.name });
            }
            let count = control.store.count_records(RecordKind::Volume, &volume.tenant).await;
            if count.map_err(ControlError::store("count the volumes"))? >= MAX_VOLUMES as u64 {
                return Err(ControlError::TooMany { what: WHAT, most: MAX_VOLUMES });
            }
            place.create(&volume, source.as_ref().map(|(source, _)| source.id.clone())).await?;
            if let Some(backing) = volume.backing() {
                let id = volume.id.clone();
                if let Err(error) = control.on_buckets(move |buckets| buckets.create(&id, &backing)).await {
                    place.remove(&volume.id).await?;
                    return Err(error);
                }
            }
            let limits = control.tenant_limits(&volume.tenant);
            match control.write_volume(&volume, None, &limits).await {
                Ok(()) => {}
                Err(error) => {
                    // Otherwise the row may be there: the next start finds out.
                    if matches!(error, StoreError::Taken | StoreError::Quota(_)) {
                        control.remove_files(&volume, false).await?;
                    }
                    return Err(match error {
                        StoreError::Taken => ControlError::VolumeExists { name: volume.name },
                        error => ControlError::store("remember a volume")(error),
                    });
                }
            }
            control.keep_memo(&place, &volume).await;
            tracing::info!(tenant = %volume.tenant, volume = %volume.name, id = %volume.id, "made a volume");
            drop(source);
            Ok(volume)
        })
        .await
    }

    async fn write_volume(&self, volume: &Volume, before: Option<&Volume>, limits: &TenantLimits) -> Result<(), StoreError> {
        let record = Record { id: volume.record_id(), value: volume.value()?, expires_at: None };
        let before = before.map(Volume::value).transpose()?;
        self.store.put_volume(record, volume.size_bytes, before, limits).await
    }

    /// A volume without a memo is whole, and only not safe from a loss of the store.
    async fn keep_memo(&self, place: &VolumePlace, volume: &Volume) {
        let written = match volume.memo() {
            Ok(memo) => place.write_memo(&volume.id, memo).await,
            Err(error) => Err(ControlError::store("describe a volume")(error)),
        };
        if let Err(error) = written {
            tracing::warn!(volume = %volume.name, %error, "a volume's memo could not be written; the next start tries again");
        }
    }

    /// Changes size and labels. In the storage of this host, a size below what the volume holds makes all further writes fail. A
    /// volume of a cluster can only grow.
    pub async fn change_volume(
        &self,
        tenant: &TenantId,
        name: &VolumeName,
        change: VolumeChange,
    ) -> Result<Volume, ControlError> {
        change.size_bytes.map_or(Ok(0), check_size)?;
        let (tenant, name) = (tenant.clone(), name.clone());
        self.detached(self.operation()?, |control| async move {
            for _ in 0..ATTEMPTS {
                let before = control.volume_here(&tenant, &name).await?;
                let place = control.volume_place()?;
                if before.is_removing {
                    return Err(ControlError::VolumeRemoving { name });
                }
                let mut after = before.clone();
                after.size_bytes = change.size_bytes.unwrap_or(before.size_bytes);
                for (key, value) in &change.labels {
                    match value {
                        Some(value) => after.labels.insert(key.clone(), value.clone()),
                        None => after.labels.remove(key),
                    };
                }
                check_labels(&after.labels)?;
                if after == before {
                    return Ok(after);
                }
                place.check_resize(&before, after.size_bytes)?;
                // What a tenant has already is never refused.
                let limits = match after.size_bytes > before.size_bytes {
                    true => TenantLimits { volumes: None, ..control.tenant_limits(&tenant) },
                    false => TenantLimits::default(),
                };
                match control.write_volume(&after, Some(&before), &limits).await {
                    Ok(()) => {}
                    Err(StoreError::Taken) => continue,
                    Err(error) => return Err(ControlError::store("remember a change of a volume")(error)),
                }
                if after.size_bytes != before.size_bytes
                    && let Err(error) = place.resize(&after).await
                {
                    control.undo_change(&before, &after).await;
                    return Err(error);
                }
                control.keep_memo(&place, &after).await;
                return Ok(after);
            }
            Err(ControlError::VolumeBusy { name })
        })
        .await
    }

    /// Gives a volume its former row, since its size could not be changed.
    async fn undo_change(&self, before: &Volume, after: &Volume) {
        if let Err(error) = self.write_volume(before, Some(after), &TenantLimits::default()).await {
            tracing::error!(volume = %before.name, %error, "a failed change of a volume could not be undone; the next start tries it again");
        }
    }

    /// Removes a volume with its files. `force` also takes it from sandboxes that have ended, which can't be started again then.
    ///
    /// # Errors
    /// [`ControlError::VolumeInUse`] if sandboxes have it.
    pub async fn remove_volume(&self, tenant: &TenantId, name: &VolumeName, force: bool) -> Result<Volume, ControlError> {
        let volume = self.volume_here(tenant, name).await?;
        self.volume_place()?;
        self.detached(self.operation()?, |control| async move {
            let _removing = control.begin_removal(&volume)?;
            let users: Vec<Arc<Entry>> = {
                let registry = control.registry();
                let has_it = |entry: &&Arc<Entry>| {
                    entry.sandbox().spec.volumes.iter().any(|mount| mount.volume_id.as_ref() == Some(&volume.id))
                };
                registry.all().filter(has_it).cloned().collect()
            };
            // A sandbox that is started or deleted holds its lock.
            let locks: Option<Vec<_>> = users.iter().map(|entry| entry.change.try_lock().ok()).collect();
            let has_ended = |entry: &Arc<Entry>| matches!(entry.sandbox().state, SandboxState::Failed | SandboxState::Lost);
            let may_force = locks.is_some() && users.iter().all(has_ended);
            if !(users.is_empty() || force && may_force) {
                let sandboxes = users.iter().map(|entry| entry.name.clone()).collect();
                return Err(ControlError::VolumeInUse { name: volume.name.clone(), sandboxes, may_force });
            }
            control.carry_out_removal(&volume, force).await?;
            tracing::info!(tenant = %volume.tenant, volume = %volume.name, id = %volume.id, "removed a volume");
            drop(locks);
            Ok(volume)
        })
        .await
    }

    /// Can be repeated after a failure at any point.
    async fn carry_out_removal(&self, volume: &Volume, force: bool) -> Result<(), ControlError> {
        if !volume.is_removing {
            let removing = Volume { is_removing: true, ..volume.clone() };
            let marked = self.write_volume(&removing, Some(volume), &TenantLimits::default()).await;
            marked.map_err(|error| match error {
                StoreError::Taken => ControlError::VolumeBusy { name: volume.name.clone() },
                error => ControlError::store("remember the removal of a volume")(error),
            })?;
        }
        self.remove_files(volume, force).await?;
        self.store.remove_record(&volume.record_id()).await.map_err(ControlError::store("forget a volume"))
    }

    /// Removes a volume's files and objects. With `force`, objects stay in a bucket that can't be reached.
    async fn remove_files(&self, volume: &Volume, force: bool) -> Result<(), ControlError> {
        if volume.bucket.is_some() && (!force || self.engine.buckets().is_some()) {
            let id = volume.id.clone();
            let removed = self.on_buckets(move |buckets| buckets.remove_objects(&id)).await;
            match removed {
                Err(error) if force && !matches!(error.code(), ErrorCode::Conflict) => {
                    tracing::warn!(volume = %volume.name, id = %volume.id, %error, "the objects of a removed volume stay in its bucket");
                }
                other => other?,
            }
        }
        self.volume_place()?.remove(&volume.id).await
    }

    /// Finds the volumes that a spec names among the tenant's; the rest are the operator's directories. With `own_only`, there may
    /// be no rest.
    pub(crate) async fn find_volumes(
        &self,
        tenant: &TenantId,
        spec: &mut SandboxSpec,
        own_only: bool,
    ) -> Result<HeldVolumes, ControlError> {
        let mut found: Vec<Volume> = Vec::new();
        for mount in &mut spec.volumes {
            let own = match mount.name.parse::<VolumeName>() {
                Ok(name) => match found.iter().find(|volume| volume.name == name) {
                    Some(known) => Some(known.clone()),
                    None => self.find_volume(tenant, &name).await?,
                },
                // Operators may use more characters.
                Err(_) => None,
            };
            let id = own.as_ref().map(|volume| volume.id.clone());
            if mount.volume_id.is_some() && mount.volume_id != id {
                let reason = format!("the volume_id of {:?} is not its own; the server sets it", mount.name);
                return Err(SpecError::Invalid { field: "volumes", reason }.into());
            }
            match own {
                Some(volume) if !self.is_here(&volume) => {
                    let node = volume.node.unwrap_or_else(|| unreachable!("a volume without a node is here"));
                    return Err(ControlError::VolumeElsewhere { name: volume.name, node });
                }
                Some(volume) => found.push(volume),
                None if own_only => return Err(ControlError::NotOwnVolume { name: mount.name.clone() }),
                None => {}
            }
            mount.volume_id = id;
        }
        self.hold_volumes(&found.iter().collect::<Vec<_>>())
    }

    /// The files of a volume.
    pub async fn volume_files(&self, tenant: &TenantId, name: &VolumeName) -> Result<(Volume, FileTree), ControlError> {
        let volume = self.volume_here(tenant, name).await?;
        if volume.is_removing {
            return Err(ControlError::VolumeRemoving { name: volume.name });
        }
        let id = volume.id.clone();
        if volume.bucket.is_some() {
            let (top, held) = self.on_buckets(move |buckets| buckets.open_volume(&id)).await?;
            return Ok((volume, FileTree::of_bucket(top, held)));
        }
        let VolumePlace::Host(storage) = self.volume_place()? else {
            return Err(ControlError::NoVolumeFiles { name: volume.name });
        };
        let opened = tokio::task::spawn_blocking(move || storage.open_volume(&id)).await.map_err(|_| ControlError::Stopping)?;
        match opened {
            Ok(top) => Ok((volume, FileTree::new(top))),
            Err(StorageError::NoVolume { .. }) => Err(ControlError::VolumeMissing { name: volume.name }),
            Err(error) => Err(EngineError::Storage { hint: error.hint(), reason: error.to_string() }.into()),
        }
    }

    /// The number of a tenant's volumes, and the sum of their sizes.
    pub async fn volume_totals(&self, tenant: &TenantId) -> Result<(u64, u64), ControlError> {
        let volumes = self.volumes(tenant).await?;
        Ok((volumes.len() as u64, volumes.iter().map(|volume| volume.size_bytes).sum()))
    }

    /// Removes all volumes of a tenant that is being removed.
    pub async fn remove_volumes_of(&self, tenant: &TenantId) -> Result<(), ControlError> {
        for volume in self.volumes(tenant).await? {
            match self.remove_volume(tenant, &volume.name, true).await {
                Ok(_) | Err(ControlError::NoVolume { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
