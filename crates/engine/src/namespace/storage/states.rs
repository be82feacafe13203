//! Sealed states of writable layers, as read-only snapshots in `root/snapshots`.
//!
//! ```text
//!  uppers/<id> ──seal──► snapshots/<state>                              read-only
//!  snapshots/<state> ──copy──► snapshots/next-<slot> ──exchange──► uppers/<id>     a new sandbox, or a rollback, in a slot
//!  snapshots/<state> ──copy──► snapshots/next-<id> ──rename──► snapshots/next-<slot>     the same, copied in advance
//! ```
//!
//! An import fills `snapshots/next-<state>` and seals it. A start removes each `next-…`: it is what a rollback replaced or would
//! use, or the rollback or import was not acknowledged.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use arenite_isolation::btrfs;
use arenite_model::{SandboxId, StateId};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Result, Storage, StorageError, StorageKind, make_directory, open_directory, tree};

const NEXT: &str = "next-";

impl Storage {
    /// Whether it can seal states: plain directories can't.
    pub fn has_states(&self) -> bool {
        self.kind != StorageKind::Plain
    }

    /// The path of a state.
    pub fn state_path(&self, state: &StateId) -> PathBuf {
        self.root.join("snapshots").join(state.as_str())
    }

    /// Makes a copy of a state that [`Self::exchange_layer`] can put in place of a layer. The cost does not depend on its size.
    pub fn stage_state(&self, state: &StateId, slot: &SandboxId) -> Result<()> {
        let what = || format!("copy state {state} to {NEXT}{slot}");
        let source = open_directory(&self.state_path(state))?;
        let snapshots = open_directory(&self.root.join("snapshots"))?;
        btrfs::snapshot(source.as_fd(), snapshots.as_fd(), &format!("{NEXT}{slot}"), false).map_err(StorageError::io(what()))?;
        // The overlay that it was sealed under left its work directory.
        let work = self.staged(slot).join("work");
        tree::remove(&work).map_err(StorageError::io(what()))?;
        make_directory(&work, 0o700)
    }

    /// Makes what is staged under an id what is staged for a slot.
    pub fn move_staged(&self, from: &SandboxId, slot: &SandboxId) -> Result<()> {
        fs::rename(self.staged(from), self.staged(slot)).map_err(StorageError::io(format!("stage layer {slot}")))
    }

    /// Makes the unused layer of a slot the one that [`Self::exchange_layer`] puts in place of another.
    pub fn stage_layer(&self, slot: &SandboxId) -> Result<()> {
        fs::rename(self.layer_path(slot), self.staged(slot)).map_err(StorageError::io(format!("stage layer {slot}")))
    }

    /// Exchanges the layer `id` with what is staged for a slot, in one step. What it was is staged then.
    pub fn exchange_layer(&self, slot: &SandboxId, id: &SandboxId, limit_bytes: u64) -> Result<()> {
        renameat_with(CWD, self.staged(slot), CWD, self.layer_path(id), RenameFlags::EXCHANGE)
            .map_err(|e| StorageError::io(format!("exchange layer {id}"))(e.into()))?;
        self.set_limit(id, limit_bytes)
    }

    /// Removes what is staged for a slot, if anything.
    pub fn drop_staged(&self, slot: &SandboxId) -> Result<()> {
        self.delete_snapshot(&format!("{NEXT}{slot}"))
    }

    /// Makes the layer of a state that is imported, and returns the directory to fill. Until [`Self::seal_import`], and until
    /// [`Self::drop_import`] is called or a start removes it, it is `next-<state>`.
    pub fn stage_import(&self, state: &StateId, limit_bytes: u64) -> Result<PathBuf> {
        let (path, what) = (self.import_path(state), || format!("make the layer of state {state}"));
        let snapshots = open_directory(&self.root.join("snapshots"))?;
        btrfs::create_subvolume(snapshots.as_fd(), &format!("{NEXT}{state}")).map_err(StorageError::io(what()))?;
        btrfs::limit(open_directory(&path)?.as_fd(), limit_bytes).map_err(StorageError::io(what()))?;
        make_directory(&path, 0o700)?;
        make_directory(&path.join("work"), 0o700)?;
        let files = path.join("upper");
        make_directory(&files, 0o755)?;
        Ok(files)
    }

    /// Seals the layer of an import, with all that was written. Returns its size; none if the storage can't tell.
    pub fn seal_import(&self, state: &StateId) -> Result<Option<u64>> {
        let layer = open_directory(&self.import_path(state))?;
        let snapshots = open_directory(&self.root.join("snapshots"))?;
        btrfs::snapshot(layer.as_fd(), snapshots.as_fd(), state.as_str(), true)
            .map_err(StorageError::io(format!("seal state {state}")))?;
        Ok(self.usage_of(&layer))
    }

    /// Removes the layer of an import, if there is one.
    pub fn drop_import(&self, state: &StateId) -> Result<()> {
        self.delete_snapshot(&format!("{NEXT}{state}"))
    }

    fn import_path(&self, state: &StateId) -> PathBuf {
        self.root.join("snapshots").join(format!("{NEXT}{state}"))
    }

    /// Identifies the subvolume of a layer. A rollback replaces it.
    pub fn layer_subvolume(&self, id: &SandboxId) -> Result<u64> {
        let layer = open_directory(&self.layer_path(id))?;
        btrfs::subvolume_id(layer.as_fd()).map_err(StorageError::io(format!("identify layer {id}")))
    }

    /// The transaction in which a state was sealed, for [`Self::is_changed_since`].
    pub fn sealed_in(&self, state: &StateId) -> Result<u64> {
        let sealed = open_directory(&self.state_path(state))?;
        btrfs::created_in(sealed.as_fd()).map_err(StorageError::io(format!("read state {state}")))
    }

    /// Whether anything in a state, also only a time, was changed since another state of the same layer was sealed.
    pub fn is_changed_since(&self, state: &StateId, transaction: u64) -> Result<bool> {
        let sealed = open_directory(&self.state_path(state))?;
        btrfs::is_changed_since(sealed.as_fd(), transaction).map_err(StorageError::io(format!("read state {state}")))
    }

    /// The states that exist, sorted. Removes what interrupted rollbacks left.
    pub fn list_states(&self) -> Result<Vec<StateId>> {
        let snapshots = self.root.join("snapshots");
        let what = || format!("list {}", snapshots.display());
        let mut states = Vec::new();
        for entry in fs::read_dir(&snapshots).map_err(StorageError::io(what()))? {
            let name = entry.map_err(StorageError::io(what()))?.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(NEXT) {
                self.delete_snapshot(name)?;
            } else {
                states.extend(name.parse::<StateId>().ok());
            }
        }
        states.sort_unstable();
        Ok(states)
    }

    fn staged(&self, slot: &SandboxId) -> PathBuf {
        self.root.join("snapshots").join(format!("{NEXT}{slot}"))
    }
}
