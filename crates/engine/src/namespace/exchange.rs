//! States as files for clients, and on their way from and to other servers.

use std::path::PathBuf;
use std::sync::Arc;

use arenite_model::{SandboxId, StateId};
use jiff::Timestamp;

use super::at;
use super::engine::{EngineShared, NamespaceEngine, blocking};
use super::states::{Manifest, storage};
use crate::states::OnDrop;
use crate::{EngineError, HeldState, ImportedState, LayeredTree, SealedState, StagedState, StateKind};

impl EngineShared {
    /// The directories of a state's disk, the lowest first.
    fn layers_of_state(&self, manifest: Manifest) -> Vec<PathBuf> {
        let upper = self.host.storage.state_path(&manifest.state.id).join("upper");
        manifest.layers.into_iter().chain([upper]).collect()
    }

    /// Counts as the beginning of a sandbox until it is dropped.
    pub(super) fn hold_state(self: &Arc<Self>, state: &StateId) -> Result<HeldState, EngineError> {
        self.check_states()?;
        let manifest = self.states.begin_use(state)?;
        let (shared, state) = (Arc::clone(self), state.clone());
        let held = OnDrop::new(move || shared.end_use(&state));
        Ok(HeldState { layers: self.layers_of_state(manifest), _held: held })
    }

    fn begin_import(self: &Arc<Self>, limit_bytes: u64) -> Result<StagedState, EngineError> {
        let id = StateId::random();
        let shared = Arc::clone(self);
        let of_drop = id.clone();
        let staged = OnDrop::new(move || {
            if let Err(error) = shared.host.storage.drop_import(&of_drop) {
                tracing::warn!(%error, "what was imported could not be removed; the next start tries again");
            }
        });
        let files = self.host.storage.stage_import(&id, limit_bytes).map_err(storage("import"))?;
        Ok(StagedState { id, files, _staged: staged })
    }

    fn end_import(&self, staged: &StagedState, about: ImportedState) -> Result<SealedState, EngineError> {
        let store = &self.host.storage;
        let id = staged.id.clone();
        let disk_bytes = store.seal_import(&id).map_err(storage("import"))?;
        let state = SealedState {
            id: id.clone(),
            kind: StateKind::Snapshot,
            number: 0,
            parent: None,
            // Its sandbox was another server's.
            sandbox: SandboxId::random(),
            image: about.image,
            image_owner: about.image_owner,
            tier: about.tier,
            note: about.note,
            memo: about.memo,
            disk_bytes,
            memory_bytes: None,
            created_at: Timestamp::now(),
            auto: false,
            hash: None,
        };
        if let Err(error) = self.states.add(Manifest::new(state.clone(), about.layers, None)) {
            self.delete(&id)?;
            return Err(at("manifest", error));
        }
        Ok(state)
    }
}

impl NamespaceEngine {
    pub(super) async fn open_state(&self, state: &StateId) -> Result<LayeredTree, EngineError> {
        let (shared, state) = (self.shared.clone(), state.clone());
        blocking(move || {
            let manifest = shared.states.get(&state).ok_or(EngineError::NoState { id: state })?;
            let layers: Vec<PathBuf> = shared.layers_of_state(manifest).into_iter().rev().collect();
            LayeredTree::open(&layers).map_err(|e| at("the files of a state", e))
        })
        .await
    }

    pub(super) async fn stage_import(&self, limit_bytes: u64) -> Result<StagedState, EngineError> {
        let shared = self.shared.clone();
        shared.check_states()?;
        blocking(move || {
            shared.host.storage.check_writable().map_err(storage("import"))?;
            shared.begin_import(limit_bytes)
        })
        .await
    }

    pub(super) async fn keep_import(&self, staged: StagedState, about: ImportedState) -> Result<SealedState, EngineError> {
        let shared = self.shared.clone();
        blocking(move || shared.end_import(&staged, about)).await
    }
}
