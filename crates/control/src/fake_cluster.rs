//! A cluster's volumes without a cluster: entries in a map, for tests of control and the gateway. Like the fake engine, it outlives
//! the control that uses it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arenite_engine::{ClusterVolume, ClusterVolumes, EngineError};
use arenite_model::VolumeId;
use async_trait::async_trait;

/// A claim of the fake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeClaim {
    pub size_bytes: u64,
    pub memo: Option<String>,
    pub problem: Option<String>,
}

/// Fake [`ClusterVolumes`]; see the module's documentation.
#[derive(Default)]
pub struct FakeCluster {
    claims: Mutex<BTreeMap<VolumeId, FakeClaim>>,
    refuses_growth: AtomicBool,
}

impl FakeCluster {
    /// All claims, to look at or to change.
    pub fn claims(&self) -> MutexGuard<'_, BTreeMap<VolumeId, FakeClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether claims keep their sizes from now on.
    pub fn refuse_growth(&self, refuses: bool) {
        self.refuses_growth.store(refuses, Ordering::Release);
    }

    fn change(&self, id: &VolumeId, change: impl FnOnce(&mut FakeClaim)) -> Result<(), EngineError> {
        let gone = || EngineError::Storage { reason: format!("the claim {id} is gone"), hint: None };
        self.claims().get_mut(id).map(change).ok_or_else(gone)
    }
}

#[async_trait]
impl ClusterVolumes for FakeCluster {
    async fn list(&self) -> Result<Vec<ClusterVolume>, EngineError> {
        let claims = self.claims();
        let volume = |(id, claim): (&VolumeId, &FakeClaim)| ClusterVolume {
            id: id.clone(),
            memo: claim.memo.clone(),
            problem: claim.problem.clone(),
        };
        Ok(claims.iter().map(volume).collect())
    }

    async fn create(&self, id: &VolumeId, size_bytes: u64) -> Result<(), EngineError> {
        self.claims().entry(id.clone()).or_insert(FakeClaim { size_bytes, ..FakeClaim::default() });
        Ok(())
    }

    async fn grow(&self, id: &VolumeId, size_bytes: u64) -> Result<(), EngineError> {
        if self.refuses_growth.load(Ordering::Acquire) {
            return Err(EngineError::NoGrowth { reason: "its class can't".to_owned(), hint: "use allowVolumeExpansion" });
        }
        self.change(id, |claim| claim.size_bytes = size_bytes)
    }

    async fn write_memo(&self, id: &VolumeId, memo: &str) -> Result<(), EngineError> {
        self.change(id, |claim| claim.memo = Some(memo.to_owned()))
    }

    async fn remove(&self, id: &VolumeId) -> Result<(), EngineError> {
        self.claims().remove(id);
        Ok(())
    }
}
