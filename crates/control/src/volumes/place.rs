//! Where volumes are: in the storage of this host, or in the cluster that runs the sandboxes.

use std::collections::HashMap;
use std::sync::Arc;

use arenite_engine::{ClusterVolumes, EngineError, Storage, StorageError, StorageKind};
use arenite_model::{NodeName, VolumeId};

use super::{Volume, VolumeFacts};
use crate::{Control, ControlError};

/// The one place for all volumes of a server.
#[derive(Clone)]
pub(super) enum VolumePlace {
    Host(Arc<Storage>),
    Cluster(Arc<dyn ClusterVolumes>),
}

/// A volume that is there, with or without a row.
pub(super) struct FoundVolume {
    pub(super) id: VolumeId,
    pub(super) memo: Option<String>,
}

impl Control {
    pub(super) fn volume_place(&self) -> Result<VolumePlace, ControlError> {
        let host = self.engine.volumes().map(VolumePlace::Host);
        host.or_else(|| self.engine.cluster_volumes().map(VolumePlace::Cluster)).ok_or(ControlError::NoVolumes)
    }

    /// The node of a new volume. Those of a cluster are on none.
    pub(super) fn node_of_new_volume(&self) -> Option<NodeName> {
        self.engine.volumes().and_then(|_| self.own_node())
    }
}

/// Runs work that waits for the disk.
async fn on_storage<T: Send + 'static>(
    storage: &Arc<Storage>,
    work: impl FnOnce(&Storage) -> Result<T, StorageError> + Send + 'static,
) -> Result<T, ControlError> {
    let storage = Arc::clone(storage);
    let done = tokio::task::spawn_blocking(move || work(&storage)).await.map_err(|_| ControlError::Stopping)?;
    done.map_err(|error| EngineError::Storage { hint: error.hint(), reason: error.to_string() }.into())
}

impl VolumePlace {
    /// Makes an empty volume, or a copy of another one.
    pub(super) async fn create(&self, volume: &Volume, from: Option<VolumeId>) -> Result<(), ControlError> {
        let (id, size_bytes) = (volume.id.clone(), volume.size_bytes);
        match self {
            Self::Host(storage) => {
                let create = move |storage: &Storage| {
                    storage.check_writable()?;
                    match from {
                        Some(from) => storage.copy_volume(&from, &id, size_bytes),
                        None => storage.create_volume(&id, size_bytes),
                    }
                };
                on_storage(storage, create).await
            }
            Self::Cluster(_) if from.is_some() => Err(Self::no_copies_in_cluster()),
            Self::Cluster(cluster) => Ok(cluster.create(&id, size_bytes).await?),
        }
    }

    pub(super) fn check_copies(&self) -> Result<(), ControlError> {
        match self {
            Self::Host(storage) if storage.kind() == StorageKind::Plain => Err(ControlError::NoVolumeCopies {
                reason: "there is no storage pool",
                hint: "start the server with a pool: see docs/VOLUMES.md",
            }),
            Self::Host(_) => Ok(()),
            Self::Cluster(_) => Err(Self::no_copies_in_cluster()),
        }
    }

    fn no_copies_in_cluster() -> ControlError {
        ControlError::NoVolumeCopies {
            reason: "the cluster stores them",
            hint: "create another volume, and copy the files in a sandbox that mounts both",
        }
    }

    /// Refuses a size that a volume can't get.
    pub(super) fn check_resize(&self, volume: &Volume, size_bytes: u64) -> Result<(), ControlError> {
        match self {
            Self::Cluster(_) if size_bytes < volume.size_bytes => {
                Err(ControlError::VolumeOnlyGrows { name: volume.name.clone(), size_bytes: volume.size_bytes })
            }
            Self::Host(_) | Self::Cluster(_) => Ok(()),
        }
    }

    /// Sets what a volume may hold.
    pub(super) async fn resize(&self, volume: &Volume) -> Result<(), ControlError> {
        let (id, size_bytes) = (volume.id.clone(), volume.size_bytes);
        match self {
            Self::Host(storage) => on_storage(storage, move |storage| storage.limit_volume(&id, size_bytes)).await,
            Self::Cluster(cluster) => Ok(cluster.grow(&id, size_bytes).await?),
        }
    }

    pub(super) async fn write_memo(&self, id: &VolumeId, memo: String) -> Result<(), ControlError> {
        let id = id.clone();
        match self {
            Self::Host(storage) => on_storage(storage, move |storage| storage.write_volume_memo(&id, &memo)).await,
            Self::Cluster(cluster) => Ok(cluster.write_memo(&id, &memo).await?),
        }
    }

    pub(super) async fn remove(&self, id: &VolumeId) -> Result<(), ControlError> {
        let id = id.clone();
        match self {
            Self::Host(storage) => on_storage(storage, move |storage| storage.delete_volume(&id)).await,
            Self::Cluster(cluster) => Ok(cluster.remove(&id).await?),
        }
    }

    pub(super) async fn list(&self) -> Result<Vec<FoundVolume>, ControlError> {
        match self {
            Self::Host(storage) => {
                let found = |storage: &Storage| {
                    let ids = storage.list_volumes()?.into_iter();
                    Ok(ids.map(|id| FoundVolume { memo: storage.volume_memo(&id), id }).collect())
                };
                on_storage(storage, found).await
            }
            Self::Cluster(cluster) => {
                let found = cluster.list().await?.into_iter();
                Ok(found.map(|found| FoundVolume { id: found.id, memo: found.memo }).collect())
            }
        }
    }

    /// What is known of volumes, in the same order, but for their buckets and their use. None: another node has it.
    pub(super) async fn facts(&self, here: Vec<Option<VolumeId>>) -> Result<Vec<VolumeFacts>, ControlError> {
        match self {
            Self::Host(storage) => {
                let facts = move |storage: &Storage| {
                    let size_enforced = storage.kind().disk_limit_enforced();
                    let facts_of = |id: Option<VolumeId>| match id {
                        None => VolumeFacts { size_enforced, ..VolumeFacts::default() },
                        Some(id) => VolumeFacts {
                            used_bytes: storage.volume_usage(&id),
                            size_enforced,
                            is_missing: storage.open_volume(&id).is_err(),
                            ..VolumeFacts::default()
                        },
                    };
                    Ok(here.into_iter().map(facts_of).collect())
                };
                on_storage(storage, facts).await
            }
            Self::Cluster(cluster) => {
                if here.is_empty() {
                    return Ok(Vec::new());
                }
                let found = cluster.list().await?.into_iter();
                let problems: HashMap<VolumeId, Option<String>> = found.map(|found| (found.id, found.problem)).collect();
                // The storage of the cluster decides what a size means, and tells nobody here.
                let facts_of = |id: Option<VolumeId>| {
                    let problem = id.map(|id| problems.get(&id));
                    VolumeFacts {
                        is_missing: matches!(problem, Some(None)),
                        problem: problem.flatten().cloned().flatten(),
                        ..VolumeFacts::default()
                    }
                };
                Ok(here.into_iter().map(facts_of).collect())
            }
        }
    }
}
