//! Automatic checkpoints: a disk is sealed around each step that can change it, and the checkpoint stays if something changed.
//!
//! ```text
//!  before a step: did a process run since the last seal? ──no──► the last checkpoint
//!                      │ yes
//!  after a step ───────┴──► seal ──► was an inode written since? ──no──► drop it ──► the last checkpoint
//!                                       │ yes
//!                                       └──► hash ──► do content and times differ? ──no──► drop it
//!                                                          │ yes
//!                                                          └──► it is the last checkpoint
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arenite_model::{SandboxId, StateId, TenantId, Tier};

use super::at;
use super::engine::{EngineShared, NamespaceEngine, blocking};
use super::fingerprint::{Digests, Fingerprint, fingerprint};
use super::record::Record;
use super::states::storage;
use crate::{AutoSealed, EngineError, Seal, SealTime, SealedState, StateKind};

/// What is known of the disks of sandboxes with automatic checkpoints, until they end.
#[derive(Default)]
pub(super) struct Disks(Mutex<HashMap<SandboxId, Arc<Mutex<Disk>>>>);

#[derive(Default)]
struct Disk {
    last: Option<Last>,
    digests: Digests,
    /// A step began, and no seal came after it.
    is_dirty: bool,
}

/// The last seal.
struct Last {
    /// The checkpoint with this content.
    state: SealedState,
    exact: Option<[u8; 32]>,
    /// The subvolume that was sealed, and in which transaction.
    subvolume: u64,
    transaction: u64,
    /// The processor time of the workload until then, in nanoseconds.
    cpu: Option<u64>,
}

impl Disks {
    fn get(&self, id: &SandboxId) -> Arc<Mutex<Disk>> {
        let mut disks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(disks.entry(id.clone()).or_default())
    }

    pub(super) fn forget(&self, id: &SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl EngineShared {
    fn seal_automatically(
        &self,
        id: &SandboxId,
        when: SealTime,
        image_owner: Option<TenantId>,
    ) -> Result<AutoSealed, EngineError> {
        let disk = self.disks.get(id);
        let mut disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.record_of(id)?;
        if record.tier == Some(Tier::Gvisor) {
            return Err(EngineError::NoStates { reason: "gVisor keeps writes of a running sandbox in its memory".to_owned() });
        }
        let subvolume = self.host.storage.layer_subvolume(id).map_err(storage("seal"))?;
        // A rollback replaces the subvolume, and a client can remove a checkpoint.
        disk.last.take_if(|last| last.subvolume != subvolume || self.states.get(&last.state.id).is_none());
        let was_dirty = std::mem::replace(&mut disk.is_dirty, when == SealTime::BeforeStep);
        if when == SealTime::BeforeStep
            && !was_dirty
            && let Some(last) = &disk.last
            && last.cpu.is_some()
            && last.cpu == self.workload_cpu(&record)
        {
            return Ok(AutoSealed { state: last.state.clone(), changed: false });
        }
        let sealed = self.seal_if_changed(record, subvolume, &mut disk, image_owner);
        disk.is_dirty |= sealed.is_err();
        sealed
    }

    pub(super) fn workload_cpu(&self, record: &Record) -> Option<u64> {
        self.host.cgroups.workload_cpu_nanoseconds(record.slot_id())
    }

    fn seal_if_changed(
        &self,
        record: Record,
        subvolume: u64,
        disk: &mut Disk,
        image_owner: Option<TenantId>,
    ) -> Result<AutoSealed, EngineError> {
        self.make_room_for_checkpoint(&record)?;
        let seal =
            Seal { kind: StateKind::Checkpoint, note: None, memo: None, image_owner, keep_processes: false, for_forks: false };
        let mut state = self.new_state(&record, seal)?;
        state.auto = true;
        let (cpu, _) = self.while_frozen(&record, || {
            self.host.storage.snapshot(&record.id, state.id.as_str(), true).map_err(storage("seal"))?;
            Ok(self.workload_cpu(&record))
        })?;
        let (transaction, found) = match self.examine(&record, &state.id, disk) {
            Ok(examined) => examined,
            Err(error) => {
                self.delete(&state.id)?;
                return Err(error);
            }
        };
        let is_same = |last: &Last| found.as_ref().is_none_or(|now| now.exact.is_some() && now.exact == last.exact);
        if let Some(last) = disk.last.as_mut().filter(|last| is_same(last)) {
            (last.transaction, last.cpu) = (transaction, cpu);
            self.delete(&state.id)?;
            return Ok(AutoSealed { state: last.state.clone(), changed: false });
        }
        let (content, exact) = found.map_or((None, None), |now| (now.content, now.exact));
        let before = match &disk.last {
            Some(last) => Some(last.state.clone()),
            // The server started since, or the sandbox returned to it.
            None => record.head.as_ref().and_then(|head| self.states.get(head)).map(|manifest| manifest.state),
        };
        let changed = content.is_none() || before.is_some_and(|before| before.hash != content);
        state.hash = content;
        self.keep_state(record, state.clone(), None)?;
        disk.last = Some(Last { state: state.clone(), exact, subvolume, transaction, cpu });
        Ok(AutoSealed { state, changed })
    }

    /// The transaction in which a state was sealed, and its hashes. No hashes: nothing was written since the last seal.
    fn examine(&self, record: &Record, state: &StateId, disk: &mut Disk) -> Result<(u64, Option<Fingerprint>), EngineError> {
        let disks = &self.host.storage;
        let transaction = disks.sealed_in(state).map_err(storage("seal"))?;
        if let Some(last) = &disk.last
            && !disks.is_changed_since(state, last.transaction).map_err(storage("seal"))?
        {
            return Ok((transaction, None));
        }
        let layer = disks.state_path(state).join("upper");
        let found = fingerprint(layer, &record.layers, &mut disk.digests).map_err(|e| at("hash of the disk", e))?;
        Ok((transaction, Some(found)))
    }
}

impl NamespaceEngine {
    pub(super) async fn seal_around_step(
        &self,
        id: &SandboxId,
        when: SealTime,
        image_owner: Option<TenantId>,
    ) -> Result<AutoSealed, EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        shared.check_states()?;
        blocking(move || shared.seal_automatically(&id, when, image_owner)).await
    }
}
