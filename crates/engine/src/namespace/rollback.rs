//! Returns a sandbox to a state of its disk, in place.
//!
//! ```text
//!  slot ──► stage the state ──► kill ──► exchange the disks ──► wait ──► start in the slot ──► remove what was before
//! ```
//!
//! The sandbox keeps its id, its name and its record. All else is of a prepared slot: processes, cgroups, user ids and the
//! address. So the new processes start as fast as those of a new sandbox, and nothing of the former ones reaches them.

use std::io;
use std::thread;

use arenite_image::Image;
use arenite_model::{SandboxId, SandboxSpec};

use super::engine::{EngineShared, Live, NamespaceEngine, blocking};
use super::record::Record;
use super::slot::{Kept, Slot, kill};
use super::{at, kvm, restart, volumes};
use crate::{AfterReturn, Created, DiskState, EngineError, ProcessFate, Return, Returned, Row, Stages};

/// The most processes that an answer names.
const MAX_NAMED: usize = 100;

impl NamespaceEngine {
    pub(super) async fn roll_back(
        &self,
        row: &Row,
        spec: &SandboxSpec,
        back: Return,
    ) -> Result<(Created, Returned), EngineError> {
        let shared = self.shared.clone();
        shared.check_states()?;
        let mut stages = Stages::begin();
        if !matches!(&back.to, DiskState::Sealed(state) if shared.copies.includes(&row.id, state)) {
            // The copy waits for the commit of what was written before.
            drop(shared.host.storage.begin_commit());
        }
        let image = shared.image(spec)?;
        volumes::find_all(&shared.host.config.volumes, Some(&shared.host.storage), spec)?;
        let kvm = kvm::is_for(&image, &shared.host.config.data_dir);
        let mut slot = self.take_slot(spec.network, kvm).await?;
        stages.done("slot");
        let (row, mut spec, owner) = (row.clone(), spec.clone(), shared.clone());
        if back.processes == Some(AfterReturn::End) {
            (spec.args, spec.image_command) = (Vec::new(), false);
        }
        let (id, pidfd, tier, returned, stages) = blocking(move || {
            let (staged, names) = thread::scope(|scope| {
                // The copy waits for the disk meanwhile.
                let names = thread::Builder::new().spawn_scoped(scope, || owner.names(&row.id));
                let staged = owner.stage(&row.id, &mut slot, &back, &image);
                (staged, names.ok().and_then(|names| names.join().ok()).unwrap_or_default())
            });
            let (record, fate) = match staged {
                Ok(staged) => staged,
                Err(error) => {
                    owner.host.discard(&slot);
                    let _ = owner.host.storage.drop_staged(&slot.id);
                    return Err(error);
                }
            };
            stages.done("copy");
            owner.kill_for_return(&record, &mut slot);
            let begun = owner.exchange_and_begin(&row, &spec, &image, &mut slot, &mut stages);
            let of_slot = slot.id.clone();
            owner.remove_later(move |owner| {
                owner.remove_former(&record, &of_slot);
                owner.make_copy(&record.id);
            });
            match begun {
                Ok(live) => {
                    let (pidfd, tier) = (live.pidfd.clone(), live.tier());
                    let mut state = owner.state();
                    state.stopped.remove(&row.id);
                    state.live.insert(row.id.clone(), live);
                    drop(state);
                    Ok((row.id, pidfd, tier, Returned { ended: names, processes: fate }, stages.done))
                }
                Err(error) => {
                    owner.host.discard(&slot);
                    Err(error)
                }
            }
        })
        .await?;
        shared.watch(id, pidfd);
        Ok((Created { tier, isolation: shared.isolation(tier), stages }, returned))
    }
}

impl EngineShared {
    /// Makes the copy that becomes the disk, and assigns the slot to the sandbox.
    ///
    /// # Errors
    /// Processes were asked for that the state does not have, or that can't be restored. Nothing has changed then.
    fn stage(&self, id: &SandboxId, slot: &mut Slot, back: &Return, image: &Image) -> Result<(Record, ProcessFate), EngineError> {
        let record = self.record_of(id)?;
        let storage = &self.host.storage;
        let manifest = self.sealed(&record, &back.to)?;
        let has_processes = manifest.as_ref().is_some_and(|manifest| manifest.processes.is_some());
        let fate = match back.processes {
            Some(AfterReturn::Keep) => ProcessFate::Kept,
            None if has_processes => ProcessFate::Kept,
            None | Some(AfterReturn::Restart) => ProcessFate::Restarted,
            Some(AfterReturn::End) => ProcessFate::Ended,
        };
        let processes = match (&manifest, fate) {
            (Some(manifest), ProcessFate::Kept) => Some(self.processes_of(manifest)?),
            (None, ProcessFate::Kept) => {
                return Err(EngineError::NoProcesses { reason: "the sandbox began without any".to_owned() });
            }
            _ => None,
        };
        let staged = match manifest {
            Some(manifest) if manifest.layers != record.layers => {
                return Err(EngineError::OtherLayers { id: manifest.state.id });
            }
            Some(manifest) => self.stage_copy(id, &manifest.state.id, &slot.id),
            None => storage.stage_layer(&slot.id),
        };
        staged.map_err(|e| at("writable layer", io::Error::other(e)))?;
        slot.sandbox = Some(id.clone());
        let head = match &back.to {
            DiskState::Sealed(state) if record.source.as_ref() != Some(state) => Some(state.clone()),
            _ => None,
        };
        slot.kept = Some(Box::new(Kept {
            uid_index: None,
            revision: record.revision,
            layers: restart::layers(self, image, Some(record.clone()))?,
            source: record.source.clone(),
            head,
            last_checkpoint: record.last_checkpoint,
            stopped: false,
            processes,
            after: None,
        }));
        Ok((record, fate))
    }

    /// Kills the processes of a sandbox. They end before the slot starts; meanwhile its start is prepared.
    fn kill_for_return(&self, record: &Record, slot: &mut Slot) {
        let live = self.state().live.remove(&record.id);
        let Some(live) = live else {
            self.host.end_processes(record.slot_id());
            return;
        };
        kill(&live.pidfd);
        // Frozen processes die when they are thawed.
        let _ = self.host.cgroups.set_frozen(record.slot_id(), false);
        if let Some(kept) = &mut slot.kept {
            kept.after = Some(live.pidfd);
        }
    }

    /// The names of the workload's processes in a running sandbox. They are the sandbox's own words.
    fn names(&self, id: &SandboxId) -> Vec<String> {
        let slot = self.state().live.get(id).map(|live| live.record.slot_id().clone());
        let pids = slot.map_or_else(Vec::new, |slot| self.host.cgroups.processes(&slot));
        let name = |pid: &i32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            let shown: String = text.trim_end().chars().filter(|c| !c.is_control()).take(32).collect();
            // The guest and the process that starts commands.
            (shown != "arenite").then_some(shown)
        };
        pids.iter().filter_map(name).take(MAX_NAMED).collect()
    }

    fn exchange_and_begin(
        &self,
        row: &Row,
        spec: &SandboxSpec,
        image: &Image,
        slot: &mut Slot,
        stages: &mut Stages,
    ) -> Result<Live, EngineError> {
        let host = &self.host;
        host.storage
            .exchange_layer(&slot.id, &row.id, spec.resources.disk_bytes)
            .map_err(|e| at("writable layer", io::Error::other(e)))?;
        slot.layer = host.storage.layer_path(&row.id);
        if !slot.is_restored() {
            host.write_resolver(&slot.layer, slot.gateway)?;
        }
        host.records.remove_sockets(&row.id).map_err(|e| at("guest socket", e))?;
        stages.done("exchange");
        self.begin(slot, &row.name, Some(row.memo.clone()), spec, image, stages)
    }

    /// Removes what a sandbox had before its return: its disk, its cgroups, its ids and its address.
    fn remove_former(&self, record: &Record, slot: &SandboxId) {
        self.host.end_processes(record.slot_id());
        let removed = self.host.remove_cgroups(record.slot_id()).map_err(io::Error::other);
        // The slot's own layer is empty, or what was staged.
        let dropped = self.host.storage.drop_staged(slot).and_then(|()| self.host.storage.delete_layer(slot));
        if let Err(error) = removed.and(dropped.map_err(io::Error::other)) {
            tracing::warn!(id = %record.id, %error, "what a rollback replaced could not be removed; the next start tries again");
        }
        self.host.release_ids(record.uid_index, record.net_index);
    }
}
