//! Volumes of tenants that a cluster stores, as opposed to those of this host's storage.

use arenite_model::VolumeId;
use async_trait::async_trait;

use crate::EngineError;

/// A volume that the cluster has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterVolume {
    pub id: VolumeId,
    /// Content from which control recreates its row. The cluster doesn't read it. None: its creation was interrupted.
    pub memo: Option<String>,
    /// Why it can't be used now.
    pub problem: Option<String>,
}

/// Creates and removes volumes of a cluster. Each call can be repeated.
#[async_trait]
pub trait ClusterVolumes: Send + Sync {
    /// The volumes of this installation, in any order, without those that are being removed.
    async fn list(&self) -> Result<Vec<ClusterVolume>, EngineError>;

    /// Requests an empty volume. The cluster may provide it only when a sandbox mounts it.
    async fn create(&self, id: &VolumeId, size_bytes: u64) -> Result<(), EngineError>;

    /// Requests a larger size.
    ///
    /// # Errors
    /// [`EngineError::NoGrowth`] if the cluster keeps it at its size.
    async fn grow(&self, id: &VolumeId, size_bytes: u64) -> Result<(), EngineError>;

    async fn write_memo(&self, id: &VolumeId, memo: &str) -> Result<(), EngineError>;

    /// Removes a volume with its files. Fine if it doesn't exist.
    async fn remove(&self, id: &VolumeId) -> Result<(), EngineError>;
}
