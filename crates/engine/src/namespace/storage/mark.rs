//! Marks writable layers that no sandbox has used yet.
//!
//! A prepared layer has a file beside `upper`, which is removed before the guest starts. After a crash, a layer with that file
//! is empty. A layer without it may belong to a sandbox with a lost record.

use std::fs;
use std::io;

use arenite_model::SandboxId;

use super::{Result, Storage, StorageError};

const UNUSED: &str = "unused";

/// The known history of a writable layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerUse {
    Absent,
    /// Prepared, and no guest was ever started on it.
    Unused,
    /// Without the mark, and no overlay is or was mounted on it since it was made or emptied for another start.
    Unmounted,
    Used,
}

impl Storage {
    /// Marks a new layer.
    pub fn mark_unused(&self, id: &SandboxId) -> Result<()> {
        let path = self.layer_path(id).join(UNUSED);
        fs::write(&path, b"").map_err(StorageError::io(format!("mark layer {id} as unused")))
    }

    /// Removes the mark, if it exists.
    pub fn mark_used(&self, id: &SandboxId) -> Result<()> {
        match fs::remove_file(self.layer_path(id).join(UNUSED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::io(format!("mark layer {id} as used"))(error))
            }
            _ => Ok(()),
        }
    }

    /// Reads a layer's history.
    ///
    /// # Errors
    /// If it could not be inspected.
    pub fn layer_use(&self, id: &SandboxId) -> Result<LayerUse> {
        let path = self.layer_path(id);
        let look = || -> io::Result<LayerUse> {
            if !path.try_exists()? {
                return Ok(LayerUse::Absent);
            }
            if path.join(UNUSED).try_exists()? {
                return Ok(LayerUse::Unused);
            }
            // An overlay's mount leaves a directory in `work` for good.
            match fs::read_dir(path.join("work")) {
                Ok(mut entries) => Ok(if entries.next().is_none() { LayerUse::Unmounted } else { LayerUse::Used }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LayerUse::Unmounted),
                Err(error) => Err(error),
            }
        };
        look().map_err(StorageError::io(format!("look at layer {id}")))
    }
}
