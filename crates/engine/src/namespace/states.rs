//! Sealed states of sandboxes' disks: checkpoints and snapshots.
//!
//! ```text
//!  data_dir/states/<state>.json    the manifest: what the state is, and the layers below it
//!  data_dir/states/<state>.removed it was given up
//!  root/snapshots/<state>          the sealed layer (see `storage::states`)
//!  root/processes/<state>/         the image of its processes, if it keeps them (see `kept`)
//! ```
//!
//! The layer comes first and goes last. So a layer without a manifest was never acknowledged, or its removal was interrupted: a
//! start removes it, and a manifest that lost its layer. A state that was given up stays while it is the beginning of a sandbox.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arenite_model::{SandboxId, SandboxSpec, StateId, Tier};
use jiff::Timestamp;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::gettid;
use serde::{Deserialize, Serialize};

use super::engine::{EngineShared, NamespaceEngine, blocking};
use super::host::failed_storage;
use super::kept::{KeptProcesses, wants_processes};
use super::record::Record;
use super::slot::{Kept, Slot};
use super::{at, storage::StorageError};
use crate::{DiskState, EngineError, History, Seal, Sealed, SealedState, StateKind};

/// The most checkpoints of one sandbox.
const MAX_CHECKPOINTS: usize = 1000;
/// The most processes of a sandbox that are looked at to see whether it is busy.
const MAX_LOOKED_AT: usize = 64;

/// The extension of the file that says that a state was given up.
const REMOVED: &str = "removed";

/// The file of a state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Manifest {
    #[serde(flatten)]
    pub(super) state: SealedState,
    /// The directories below it, the lowest first.
    pub(super) layers: Vec<PathBuf>,
    /// The processes that it keeps, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<KeptProcesses>,
    /// Given up: it is only kept as the beginning of sandboxes. On disk it is a file of its name, because a manifest that replaces
    /// another one would have to be flushed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
}

impl Manifest {
    pub(super) fn new(state: SealedState, layers: Vec<PathBuf>, processes: Option<KeptProcesses>) -> Self {
        Self { state, layers, processes, removed: false }
    }
}

/// The states of a data directory.
#[derive(Debug)]
pub(super) struct States {
    dir: PathBuf,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    all: BTreeMap<StateId, Manifest>,
    /// The checkpoints of each sandbox, by number.
    checkpoints: HashMap<SandboxId, BTreeMap<u32, StateId>>,
    /// How many sandboxes begin with a state.
    uses: HashMap<StateId, usize>,
}

impl Index {
    fn insert(&mut self, manifest: Manifest) {
        let state = &manifest.state;
        if state.kind == StateKind::Checkpoint {
            self.checkpoints.entry(state.sandbox.clone()).or_default().insert(state.number, state.id.clone());
        }
        self.all.insert(state.id.clone(), manifest);
    }

    fn remove(&mut self, id: &StateId) {
        let Some(Manifest { state, .. }) = self.all.remove(id) else { return };
        if let Some(theirs) = self.checkpoints.get_mut(&state.sandbox) {
            theirs.retain(|_, checkpoint| checkpoint != id);
            if theirs.is_empty() {
                self.checkpoints.remove(&state.sandbox);
            }
        }
    }
}

impl States {
    /// Reads the manifests. One that can't be read stays, with its layer, and is logged.
    pub(super) fn open(data_dir: &Path) -> io::Result<Self> {
        let dir = data_dir.join("states");
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        // A manifest that was not written to its end, and marks of manifests that are gone.
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let has = |extension: &str| path.extension().is_some_and(|found| found == extension);
            if has("new") || (has(REMOVED) && !path.with_extension("json").exists()) {
                fs::remove_file(path)?;
            }
        }
        let mut index = Index::default();
        for (path, read) in manifests(&dir)? {
            match read {
                Ok(mut manifest) => {
                    manifest.removed |= path.with_extension(REMOVED).exists();
                    index.insert(manifest);
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "the manifest of a state can't be read; it is kept")
                }
            }
        }
        Ok(Self { dir, index: Mutex::new(index) })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, state: &StateId) -> PathBuf {
        self.dir.join(format!("{state}.json"))
    }

    fn write(&self, manifest: &Manifest) -> io::Result<()> {
        let path = self.path(&manifest.state.id);
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(manifest)?)?;
        fs::rename(temporary, path)
    }

    /// Writes the manifest of a snapshot with a sealed layer.
    pub(super) fn add(&self, manifest: Manifest) -> io::Result<()> {
        self.write(&manifest)?;
        self.index().insert(manifest);
        Ok(())
    }

    pub(super) fn get(&self, state: &StateId) -> Option<Manifest> {
        self.index().all.get(state).cloned()
    }

    /// A state as the beginning of one more sandbox.
    ///
    /// # Errors
    /// [`EngineError::NoState`], also if it was given up.
    pub(super) fn begin_use(&self, state: &StateId) -> Result<Manifest, EngineError> {
        let mut index = self.index();
        let found = index.all.get(state).filter(|manifest| !manifest.removed).cloned();
        let manifest = found.ok_or_else(|| EngineError::NoState { id: state.clone() })?;
        *index.uses.entry(state.clone()).or_default() += 1;
        Ok(manifest)
    }

    pub(super) fn snapshots(&self) -> Vec<SealedState> {
        let index = self.index();
        let snapshots = index.all.values().filter(|manifest| manifest.state.kind == StateKind::Snapshot && !manifest.removed);
        snapshots.map(|manifest| manifest.state.clone()).collect()
    }

    /// How many checkpoints a sandbox has, and the number of the last one; 0: there is none.
    fn count_checkpoints(&self, sandbox: &SandboxId) -> (usize, u32) {
        let index = self.index();
        let theirs = index.checkpoints.get(sandbox);
        theirs.map_or((0, 0), |theirs| (theirs.len(), theirs.last_key_value().map_or(0, |(number, _)| *number)))
    }

    /// The oldest automatic checkpoint of a sandbox, apart from `head`.
    fn oldest_automatic(&self, sandbox: &SandboxId, head: Option<&StateId>) -> Option<StateId> {
        let index = self.index();
        let mut theirs = index.checkpoints.get(sandbox)?.values();
        theirs.find(|id| head != Some(*id) && index.all.get(*id).is_some_and(|manifest| manifest.state.auto)).cloned()
    }

    fn checkpoints(&self, sandbox: &SandboxId) -> Vec<SealedState> {
        let index = self.index();
        let theirs = index.checkpoints.get(sandbox).into_iter().flat_map(BTreeMap::values);
        theirs.filter_map(|id| Some(index.all.get(id)?.state.clone())).collect()
    }
}

/// The manifests in a directory, with why one can't be read.
fn manifests(dir: &Path) -> io::Result<Vec<(PathBuf, io::Result<Manifest>)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
            found.push((path, read));
        }
    }
    Ok(found)
}

/// The layers below the states of a data directory, with the images that they are of.
///
/// # Errors
/// If a manifest can't be read: then it is unknown which layers it uses.
pub(super) fn used_layers(data_dir: &Path) -> io::Result<Vec<(SealedState, Vec<PathBuf>)>> {
    let all = manifests(&data_dir.join("states"))?;
    all.into_iter().map(|(_, read)| read.map(|manifest| (manifest.state, manifest.layers))).collect()
}

/// Gives this thread the highest priority until it is dropped. Otherwise a sandbox with many busy processes keeps it from the
/// processor as soon as the first of them is thawed, and the others stay frozen meanwhile.
struct Urgent {
    before: Option<(Pid, i32)>,
}

impl Urgent {
    fn begin() -> Self {
        let thread = gettid();
        let before = getpriority_process(Some(thread)).ok();
        // Refused without CAP_SYS_NICE: then it only takes longer.
        let is_raised = setpriority_process(Some(thread), -20).is_ok();
        Self { before: before.filter(|_| is_raised).map(|before| (thread, before)) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some((thread, before)) = self.before
            && let Err(error) = setpriority_process(Some(thread), before)
        {
            tracing::warn!(%error, "a thread keeps a high priority");
        }
    }
}

pub(super) fn storage(what: &str) -> impl FnOnce(StorageError) -> EngineError + use<'_> {
    move |error| match error {
        StorageError::Held | StorageError::ReadOnly { .. } => failed_storage(error),
        error => at(what, io::Error::other(error)),
    }
}

impl EngineShared {
    /// The record of a sandbox, running or not.
    pub(super) fn record_of(&self, id: &SandboxId) -> Result<Record, EngineError> {
        if let Some(live) = self.state().live.get(id) {
            return Ok(live.record.clone());
        }
        let reading = self.host.records.read(id).map_err(|e| at("record", e))?;
        reading.record.ok_or_else(|| EngineError::NotFound { id: id.clone() })
    }

    /// The sealed state that a disk of a sandbox is. None: its disk as it is, or as it began, empty over the image.
    pub(super) fn sealed(&self, record: &Record, disk: &DiskState) -> Result<Option<Manifest>, EngineError> {
        let state = match disk {
            DiskState::Beginning => record.source.as_ref(),
            DiskState::Sealed(state) => Some(state),
            DiskState::Current => None,
        };
        let find = |state: &StateId| self.states.get(state).ok_or_else(|| EngineError::NoState { id: state.clone() });
        state.map(find).transpose()
    }

    /// Runs `work`, which seals the disk, while the sandbox is frozen. Returns how long it was; zero if it does not run or was
    /// frozen before.
    pub(super) fn while_frozen<T>(
        &self,
        record: &Record,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<(T, Duration), EngineError> {
        let slot = record.slot_id();
        let runs = self.state().live.contains_key(&record.id);
        if !runs || self.host.cgroups.is_frozen(slot).map_err(super::slot::cgroup)? {
            return Ok((work()?, Duration::ZERO));
        }
        let used = self.workload_cpu(record);
        let earlier = self.host.storage.begin_commit();
        // The snapshot waits for that commit, too. What a busy sandbox wrote takes longer, and it would be frozen meanwhile.
        if earlier.is_needed() && (self.has_runnable(record) || self.workload_cpu(record) != used) {
            earlier.wait();
        }
        let records = &self.host.records;
        records.begin_sealing(&record.id).map_err(|e| at("record", e))?;
        let _urgent = Urgent::begin();
        let begun = Instant::now();
        let frozen = self.host.freeze(slot);
        let done = frozen.and_then(|()| work());
        let thawed = self.host.cgroups.set_frozen(slot, false).map_err(super::slot::cgroup);
        let took = begun.elapsed();
        records.end_sealing(&record.id);
        let done = done?;
        thawed?;
        Ok((done, took))
    }

    /// Whether a process of the workload runs or waits for a processor.
    fn has_runnable(&self, record: &Record) -> bool {
        let pids = self.host.cgroups.processes(record.slot_id());
        pids.iter().take(MAX_LOOKED_AT).any(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name in brackets can have any characters.
            let (name, rest) = stat.rsplit_once(')').unwrap_or_default();
            rest.starts_with(" R") && !name.ends_with("(arenite")
        })
    }

    fn seal(self: &Arc<Self>, id: &SandboxId, seal: Seal) -> Result<Sealed, EngineError> {
        let host = &self.host;
        host.storage.check_writable().map_err(storage("seal"))?;
        let record = self.record_of(id)?;
        let is_live = self.state().live.contains_key(id);
        if record.tier == Some(Tier::Gvisor) && is_live && !seal.keep_processes {
            let reason = "gVisor keeps writes of a running sandbox in its memory; keep its processes, too".to_owned();
            return Err(EngineError::NoStates { reason });
        }
        if seal.kind == StateKind::Checkpoint {
            self.make_room_for_checkpoint(&record)?;
        }
        let (keeps_processes, for_forks) = (seal.keep_processes, seal.for_forks);
        let mut state = self.new_state(&record, seal)?;
        let snapshot = || {
            host.storage.snapshot(id, state.id.as_str(), true).map_err(storage("seal"))?;
            if for_forks {
                self.copy_for_fork(&state.id);
            }
            Ok(())
        };
        let (processes, frozen) = match keeps_processes {
            true => {
                let sealed = self.while_saved(&record, &state.id, snapshot);
                if sealed.is_err() {
                    // The disk may have been sealed before.
                    self.drop_copies_of(&state.id);
                    host.storage.delete_snapshot(state.id.as_str()).map_err(storage("seal"))?;
                }
                let ((), kept, frozen) = sealed?;
                (Some(kept), frozen)
            }
            false => (None, self.while_frozen(&record, snapshot)?.1),
        };
        state.memory_bytes = processes.as_ref().map(KeptProcesses::bytes);
        self.keep_state(record, state.clone(), processes).inspect_err(|_| self.drop_copies_of(&state.id))?;
        Ok(Sealed { state, frozen })
    }

    /// Describes a state of a sandbox's disk, as the next one of its history.
    pub(super) fn new_state(&self, record: &Record, seal: Seal) -> Result<SealedState, EngineError> {
        let (number, parent) = match seal.kind {
            StateKind::Snapshot => (0, None),
            StateKind::Checkpoint => {
                // Records of earlier versions have no number.
                let last = self.states.count_checkpoints(&record.id).1.max(record.last_checkpoint);
                (last + 1, record.head.clone())
            }
        };
        Ok(SealedState {
            id: StateId::random(),
            kind: seal.kind,
            number,
            parent,
            sandbox: record.id.clone(),
            image: record.image.parse().map_err(|e| at("image", io::Error::other(e)))?,
            image_owner: seal.image_owner,
            tier: record.tier.unwrap_or_default(),
            note: seal.note,
            memo: seal.memo,
            disk_bytes: self.host.storage.usage(&record.id),
            memory_bytes: None,
            created_at: Timestamp::now(),
            auto: false,
            hash: None,
        })
    }

    /// Removes the oldest automatic checkpoint of a sandbox that has as many as it may.
    pub(super) fn make_room_for_checkpoint(&self, record: &Record) -> Result<(), EngineError> {
        if self.states.count_checkpoints(&record.id).0 < MAX_CHECKPOINTS {
            return Ok(());
        }
        match self.states.oldest_automatic(&record.id, record.head.as_ref()) {
            Some(oldest) => self.give_up_state(&oldest),
            None => Err(EngineError::Busy {
                reason: format!("the sandbox has {MAX_CHECKPOINTS} checkpoints, which is the most; remove some"),
                retry_after: Duration::from_secs(60),
            }),
        }
    }

    /// Writes the manifest of a state with a sealed layer, and maybe with processes. If that fails, they are removed.
    pub(super) fn keep_state(
        &self,
        record: Record,
        state: SealedState,
        processes: Option<KeptProcesses>,
    ) -> Result<(), EngineError> {
        let manifest = Manifest::new(state, record.layers.clone(), processes);
        let (id, kind, number) = (manifest.state.id.clone(), manifest.state.kind, manifest.state.number);
        let noted = self.states.write(&manifest).map_err(|e| at("manifest", e));
        let noted = noted.and_then(|()| match kind {
            StateKind::Checkpoint => self.set_head(record, id.clone(), number),
            StateKind::Snapshot => Ok(()),
        });
        if let Err(error) = noted {
            self.delete(&id)?;
            return Err(error);
        }
        self.states.index().insert(manifest);
        Ok(())
    }

    fn set_head(&self, mut record: Record, head: StateId, number: u32) -> Result<(), EngineError> {
        (record.head, record.last_checkpoint) = (Some(head), number);
        record.revision += 1;
        self.host.records.overwrite(&record).map_err(|e| at("record", e))?;
        if let Some(live) = self.state().live.get_mut(&record.id) {
            live.record = record;
        }
        Ok(())
    }

    /// Removes the manifest, the image and the layer of a state.
    pub(super) fn delete(&self, state: &StateId) -> Result<(), EngineError> {
        // The manifest comes first: a mark without one says nothing.
        let path = self.states.path(state);
        for path in [&path, &path.with_extension(REMOVED)] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at("manifest", error)),
                _ => {}
            }
        }
        self.host.storage.delete_processes(state).map_err(storage("removal of a state"))?;
        self.host.storage.delete_snapshot(state.as_str()).map_err(storage("removal of a state"))
    }

    /// Gives up a state, and removes it unless a sandbox begins with it.
    fn give_up_state(&self, state: &StateId) -> Result<(), EngineError> {
        let is_used = {
            let mut index = self.states.index();
            let is_used = index.uses.contains_key(state);
            match index.all.get_mut(state) {
                None => return Ok(()),
                Some(manifest) if is_used => {
                    File::create(self.states.path(state).with_extension(REMOVED)).map_err(|e| at("manifest", e))?;
                    manifest.removed = true;
                }
                Some(_) => index.remove(state),
            }
            is_used
        };
        self.drop_copies_of(state);
        if is_used { Ok(()) } else { self.delete(state) }
    }

    /// Notes that a sandbox that began with a state is gone.
    pub(super) fn end_use(&self, state: &StateId) {
        let is_last = {
            let mut index = self.states.index();
            let left = index.uses.get_mut(state).map(|uses| {
                *uses = uses.saturating_sub(1);
                *uses
            });
            if left == Some(0) {
                index.uses.remove(state);
            }
            let is_last = left == Some(0) && index.all.get(state).is_some_and(|manifest| manifest.removed);
            if is_last {
                index.remove(state);
            }
            is_last
        };
        if is_last && let Err(error) = self.delete(state) {
            tracing::warn!(%state, %error, "a state that nothing uses could not be removed; the next start tries again");
        }
    }

    /// Removes the checkpoints of a sandbox that is gone, and its use of a state.
    pub(super) fn forget_states(&self, sandbox: &SandboxId, source: Option<&StateId>) {
        self.disks.forget(sandbox);
        self.drop_copy(sandbox);
        for checkpoint in self.states.checkpoints(sandbox) {
            if let Err(error) = self.give_up_state(&checkpoint.id) {
                tracing::warn!(id = %checkpoint.id, %error, "a checkpoint could not be removed; the next start tries again");
            }
        }
        if let Some(source) = source {
            self.end_use(source);
        }
    }

    /// Counts the uses of states by the sandboxes that exist, and removes what interrupted operations left.
    pub(super) fn settle_states(&self) -> Result<(), EngineError> {
        let mut uses: HashMap<StateId, usize> = HashMap::new();
        let mut sandboxes = std::collections::HashSet::new();
        for id in self.host.records.list().map_err(|e| at("records", e))? {
            let record = self.host.records.read(&id).map_err(|e| at("record", e))?.record;
            if let Some(source) = record.and_then(|record| record.source) {
                *uses.entry(source).or_default() += 1;
            }
            sandboxes.insert(id);
        }
        let layers = self.host.storage.list_states().map_err(storage("states"))?;
        let images = self.host.storage.list_processes().map_err(storage("states"))?;
        let gone: Vec<StateId> = {
            let mut index = self.states.index();
            let is_gone = |manifest: &Manifest| {
                let state = &manifest.state;
                let is_lost = layers.binary_search(&state.id).is_err();
                let is_orphan = state.kind == StateKind::Checkpoint && !sandboxes.contains(&state.sandbox);
                is_lost || ((manifest.removed || is_orphan) && !uses.contains_key(&state.id))
            };
            let mut gone: Vec<StateId> =
                index.all.values().filter(|manifest| is_gone(manifest)).map(|manifest| manifest.state.id.clone()).collect();
            // The layer comes first: without a manifest, it was not acknowledged.
            gone.extend(layers.iter().chain(&images).filter(|state| !self.states.path(state).exists()).cloned());
            for state in &gone {
                index.remove(state);
            }
            index.uses = uses;
            gone
        };
        for state in gone {
            self.delete(&state)?;
        }
        Ok(())
    }

    pub(super) fn check_states(&self) -> Result<(), EngineError> {
        match self.host.storage.has_states() {
            true => Ok(()),
            false => Err(EngineError::NoStates { reason: "the data directory has plain directories and no pool".to_owned() }),
        }
    }
}

impl EngineShared {
    /// Replaces the empty layer of a slot by a copy of the state that a spec starts as, if it names one.
    pub(super) fn fill_from_state(self: &Arc<Self>, slot: &mut Slot, spec: &SandboxSpec) -> Result<(), EngineError> {
        let Some(state) = &spec.state else { return Ok(()) };
        self.check_states()?;
        let manifest = self.states.begin_use(state)?;
        let wants_processes = wants_processes(spec, &manifest);
        // From here on, a failure ends the use.
        let kept = slot.kept.insert(Box::new(Kept {
            uid_index: None,
            layers: manifest.layers.clone(),
            revision: 0,
            source: Some(state.clone()),
            head: None,
            last_checkpoint: 0,
            stopped: false,
            processes: None,
            after: None,
        }));
        if wants_processes {
            kept.processes = Some(self.processes_of(&manifest)?);
        }
        self.copy_to_slot(state, &slot.id, spec.resources.disk_bytes).map_err(storage("writable layer"))?;
        match slot.is_restored() {
            // Its guest writes it: no file changes under restored processes.
            true => Ok(()),
            false => self.host.write_resolver(&slot.layer, slot.gateway),
        }
    }
}

impl NamespaceEngine {
    pub(super) async fn seal_disk(&self, id: &SandboxId, seal: Seal) -> Result<Sealed, EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        shared.check_states()?;
        blocking(move || {
            let sealed = shared.seal(&id, seal)?;
            if sealed.state.kind == StateKind::Checkpoint {
                shared.copy_checkpoint(&id, &sealed.state.id);
            }
            Ok(sealed)
        })
        .await
    }

    pub(super) async fn read_history(&self, id: &SandboxId) -> Result<History, EngineError> {
        let (shared, id) = (self.shared.clone(), id.clone());
        shared.check_states()?;
        blocking(move || {
            let head = shared.record_of(&id)?.head;
            Ok(History { checkpoints: shared.states.checkpoints(&id), head })
        })
        .await
    }

    pub(super) async fn drop_state(&self, state: &StateId) -> Result<(), EngineError> {
        let (shared, state) = (self.shared.clone(), state.clone());
        blocking(move || shared.give_up_state(&state)).await
    }
}
