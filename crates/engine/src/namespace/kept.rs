//! Processes of a state, kept with its disk: an image of the memory of a sandbox under gVisor, or of its VM.
//!
//! ```text
//!  gVisor
//!   seal:     the first process saves ──► the disk is sealed ──► the processes run on     (`isolation/src/keeper/saves.rs`)
//!   restore:  a copy of the disk ──► runsc restores the image in a slot ──► its guest learns which sandbox it is of now
//!  VM
//!   seal:     QEMU saves the VM in its own disk file ──► the disk is sealed ──► QEMU drops that        (`guest/desktop/src/vm`)
//!   restore:  a copy of the disk ──► a sandbox starts with it ──► its QEMU loads the VM
//! ```
//!
//! An image was made from a hostile sandbox. Only runsc or QEMU reads it, in the namespaces of the sandbox that it becomes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arenite_isolation::keeper::Saving;
use arenite_isolation::mounts::{self, Attributes};
use arenite_model::protocol::{RESTORED_PATH, Restored, VM_STATE_PATH};
use arenite_model::{SandboxId, SandboxSpec, StateId, Tier};
use serde::{Deserialize, Serialize};

use super::at;
use super::engine::EngineShared;
use super::guest_calls::{self, Guest};
use super::record::Record;
use super::slot::{Slot, cgroup, resolver};
use super::states::Manifest;
use crate::EngineError;

/// Time for a restored guest to learn which sandbox it is of.
const RESTORED_LIMIT: Duration = Duration::from_secs(10);
/// Time for a VM to save itself, or to continue: its memory is written or read. Less than what control gives the operation.
const VM_LIMIT: Duration = Duration::from_secs(100);
/// What an image needs beyond the memory that the sandbox uses, in bytes.
const HEADROOM: u64 = 64 << 20;
/// Threads that gVisor may start to save itself.
const SPARE_PIDS: u64 = 32;
/// Files of an image; runsc writes three.
const MAX_FILES: usize = 16;

/// The part of a state's manifest about its processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum KeptProcesses {
    Gvisor(GvisorImage),
    /// In the disk. QEMU's version does not matter here: it is a program of the image.
    Vm {
        vm_bytes: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GvisorImage {
    /// The version of the guest's program: its code is not in the image.
    program: String,
    /// The size of the runsc that wrote the image, in bytes: other versions can't read it.
    runsc_bytes: u64,
    /// The sizes of the image's files, by name.
    files: BTreeMap<String, u64>,
}

impl KeptProcesses {
    /// The size of the image.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Gvisor(image) => image.files.values().sum(),
            Self::Vm { vm_bytes } => *vm_bytes,
        }
    }
}

/// What goes on in a new slot.
#[derive(Debug)]
pub(super) enum Continued {
    /// The processes of the image in this directory.
    Gvisor(PathBuf),
    /// The VM in the disk.
    Vm,
}

fn refused(reason: impl Into<String>) -> EngineError {
    EngineError::NoProcesses { reason: reason.into() }
}

impl EngineShared {
    /// Whether the processes of a sandbox can be saved now.
    fn check_saves(&self, record: &Record) -> Result<(), EngineError> {
        if !matches!(record.tier, Some(Tier::Gvisor | Tier::Machine)) {
            let tier = record.tier.unwrap_or_default();
            return Err(refused(format!("only the tiers gvisor and machine can save them, and the sandbox has the tier {tier}")));
        }
        let state = self.state();
        match state.live.get(&record.id) {
            None => return Err(refused("the sandbox does not run")),
            Some(live) if self.host.cgroups.is_frozen(live.record.slot_id()).map_err(cgroup)? => {
                return Err(refused("the sandbox is frozen; resume it first"));
            }
            Some(_) => {}
        }
        drop(state);
        // Without them, gVisor would end while it saves.
        let spare = self.host.cgroups.spare_pids(record.slot_id()).map_err(cgroup)?;
        if record.tier == Some(Tier::Gvisor) && spare < SPARE_PIDS {
            return Err(refused(format!("it takes up to {SPARE_PIDS} processes, and the sandbox's limit leaves {spare}")));
        }
        let memory = self.host.cgroups.counts(record.slot_id()).map_err(cgroup)?.memory_bytes;
        let (free, _) = self.host.storage.free().map_err(|e| at("storage", io::Error::other(e)))?;
        if free < memory + HEADROOM {
            return Err(EngineError::Storage {
                reason: format!("saving the processes may take {memory} bytes, and the storage has {free} left"),
                hint: Some("remove snapshots or checkpoints, or seal the disk alone".to_owned()),
            });
        }
        Ok(())
    }

    /// Saves the processes of a sandbox, and runs `work`, which seals the disk. Returns also how long they were still.
    pub(super) fn while_saved<T>(
        &self,
        record: &Record,
        state: &StateId,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<(T, KeptProcesses, Duration), EngineError> {
        self.check_saves(record)?;
        match record.tier {
            Some(Tier::Machine) => self.while_vm_saved(record, work),
            _ => self.while_image_saved(record, state, work),
        }
    }

    /// The VM saves its disk with its memory, so it may run on while the sandbox's disk is sealed.
    fn while_vm_saved<T>(
        &self,
        record: &Record,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<(T, KeptProcesses, Duration), EngineError> {
        let begun = Instant::now();
        let answer = self.ask_vm(&record.id, "POST").map_err(|error| refused(error.to_string()))?;
        let still = begun.elapsed();
        let done = serde_json::from_str(&answer)
            .map_err(|error| at("saving the VM", error.into()))
            .and_then(|Saved { data: vm_bytes }| Ok((vm_bytes, self.while_frozen(record, work)?)));
        if let Err(error) = self.ask_vm(&record.id, "DELETE") {
            tracing::warn!(id = %record.id, %error, "what a VM saved stays in its disk until it saves again");
        }
        let (vm_bytes, (done, frozen)) = done?;
        Ok((done, KeptProcesses::Vm { vm_bytes }, still + frozen))
    }

    /// Calls the guest of a sandbox, and returns its answer. Blocks; call it from a thread of the runtime.
    fn ask_guest(&self, id: &SandboxId, method: &str, path: &str, body: Vec<u8>, limit: Duration) -> io::Result<String> {
        let socket = self.host.records.socket(id);
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        runtime.block_on(guest_calls::ask(Guest::Socket(&socket), method, path, body, limit)).map(|answer| answer.text)
    }

    fn ask_vm(&self, id: &SandboxId, method: &str) -> io::Result<String> {
        self.ask_guest(id, method, VM_STATE_PATH, Vec::new(), VM_LIMIT)
    }

    /// Continues the VM of a sandbox that started with a state. Blocks; call it from a thread of the runtime.
    pub(super) fn continue_vm(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.ask_vm(id, "PUT").map(drop).map_err(|error| refused(error.to_string()))
    }

    fn while_image_saved<T>(
        &self,
        record: &Record,
        state: &StateId,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<(T, KeptProcesses, Duration), EngineError> {
        let runsc_bytes = self.runsc_bytes()?;
        let owner = super::slot::IdRanges::base(record.uid_index);
        let storage = &self.host.storage;
        let dir = storage.create_processes(state, owner).map_err(|e| at("image of processes", io::Error::other(e)))?;
        let saved = (|| {
            let opened = File::open(&dir).map_err(|e| at("image of processes", e))?;
            let begun = Instant::now();
            let failed = |error| at("saving processes", io::Error::other(error));
            let saving = Saving::begin(&self.host.records.keeper(&record.id), opened.as_fd()).map_err(failed)?;
            // However it ends, the processes go on.
            let done = work();
            let resumed = saving.end().map_err(failed);
            let took = begun.elapsed();
            let done = done?;
            resumed?;
            let files = storage.close_processes(state, MAX_FILES).map_err(|e| at("image of processes", io::Error::other(e)))?;
            let image = GvisorImage { program: self.host.program.name().to_owned(), runsc_bytes, files };
            Ok((done, KeptProcesses::Gvisor(image), took))
        })();
        if saved.is_err()
            && let Err(error) = storage.delete_processes(state)
        {
            tracing::warn!(%state, %error, "an image of processes could not be removed; the next start tries again");
        }
        saved
    }

    fn runsc_bytes(&self) -> Result<u64, EngineError> {
        let path = super::find_runsc(self.host.config.runsc.as_deref()).map_err(refused)?;
        Ok(std::fs::metadata(path).map_err(|e| at("gVisor", e))?.len())
    }

    /// The processes of a state, if they can go on here.
    ///
    /// # Errors
    /// [`EngineError::NoProcesses`] if the state has none, or an image that can't be restored.
    pub(super) fn processes_of(&self, manifest: &Manifest) -> Result<Continued, EngineError> {
        let kept = match &manifest.processes {
            None => return Err(refused(format!("the state {} has none", manifest.state.id))),
            Some(KeptProcesses::Vm { .. }) => return Ok(Continued::Vm),
            Some(KeptProcesses::Gvisor(image)) => image,
        };
        if kept.program != self.host.program.name() {
            return Err(refused("another version of arenite saved them; use the disk alone, with processes: restart"));
        }
        if kept.runsc_bytes != self.runsc_bytes()? {
            return Err(refused("another version of runsc saved them; use the disk alone, with processes: restart"));
        }
        let dir = self.host.storage.processes_path(&manifest.state.id);
        for (name, bytes) in &kept.files {
            let found = std::fs::symlink_metadata(dir.join(name)).map_or(0, |about| about.len());
            if found != *bytes {
                return Err(refused(format!("their image is damaged: {name} has {found} bytes instead of {bytes}")));
            }
        }
        Ok(Continued::Gvisor(dir))
    }

    /// The mount of an image for a slot, which its root alone reads.
    pub(super) fn image_mount(dir: &Path, slot: &Slot) -> Result<OwnedFd, EngineError> {
        let attributes = Attributes { read_only: true, restricted: true, idmap: Some(slot.userns.as_fd()) };
        mounts::detached(dir, attributes).map_err(|e| at("image of processes", e))
    }

    /// Tells the restored guest of a slot which sandbox it is of. Blocks; call it from a thread of the runtime.
    pub(super) fn tell_restored(&self, slot: &Slot, restored: Restored) -> Result<(), EngineError> {
        let failed = |error| at("restored guest", error);
        let body = serde_json::to_vec(&restored).map_err(|e| failed(e.into()))?;
        self.ask_guest(slot.sandbox_id(), "POST", RESTORED_PATH, body, RESTORED_LIMIT).map(drop).map_err(failed)
    }
}

/// The guest's answer when its VM was saved.
#[derive(Deserialize)]
struct Saved {
    /// The size of what was in memory, in bytes.
    data: u64,
}

/// Whether a sandbox that starts with a state gets its processes.
pub(super) fn wants_processes(spec: &SandboxSpec, manifest: &Manifest) -> bool {
    manifest.processes.is_some() && !spec.restart_processes
}

/// What a restored guest learns.
pub(super) fn restored(config: arenite_model::protocol::GuestConfig, hostname: &str, slot: &Slot) -> Restored {
    Restored { config, hostname: hostname.to_owned(), resolver: resolver(slot.gateway) }
}
