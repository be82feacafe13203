//! Unmounts a storage pool that an error made read-only, and mounts it again.

use std::path::Path;

use arenite_isolation::cgroup::{Cgroups, Layout};

use super::host::{end_processes, tag};
use super::lock::ServerLock;
use super::slot::cgroup;
use super::storage::{self, Storage, StorageConfig, StorageError};
use crate::EngineError;

/// Ends what uses the pool of `data_dir` and mounts it again, if it is read-only. Returns descriptions of what was done.
///
/// # Errors
/// [`EngineError::InUse`] while a server runs, and anything else that keeps the pool from being mounted.
pub fn recover_storage(data_dir: &Path) -> Result<Vec<String>, EngineError> {
    let _lock = ServerLock::take(data_dir)?;
    let failed = |error: StorageError| EngineError::Storage { hint: error.hint(), reason: error.to_string() };
    let config = StorageConfig::default();
    match Storage::open(data_dir, &config) {
        Ok(storage) => {
            storage.release();
            return Ok(vec!["the storage pool can be written to; nothing was changed".to_owned()]);
        }
        Err(StorageError::ReadOnly { .. }) => {}
        Err(error) => return Err(failed(error)),
    }
    let data_dir = data_dir
        .canonicalize()
        .map_err(|source| EngineError::Host { what: format!("could not resolve {}", data_dir.display()), source })?;
    let layout = Layout::of_host().map_err(cgroup)?;
    let cgroups = Cgroups::open(layout, &format!("arenite-{}", tag(&data_dir))).map_err(cgroup)?;
    let mut done = Vec::new();
    let mut ended = 0;
    for id in cgroups.list().map_err(cgroup)? {
        if !cgroups.processes(&id).is_empty() {
            end_processes(&cgroups, &id);
            ended += 1;
        }
    }
    done.push(format!("ended the processes of {ended} sandboxes"));
    done.extend(storage::detach(&data_dir).map_err(failed)?);
    Storage::open(&data_dir, &config).map_err(failed)?;
    done.push(format!("mounted {} again; it can be written to", data_dir.join("pool").display()));
    done.push("start the server: sandboxes that were ended are listed as lost, with their disks".to_owned());
    Ok(done)
}
